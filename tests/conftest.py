"""One thread per test process: the tests run beside each other, and what depends on threads sets them itself."""

import torch

torch.set_num_threads(1)
