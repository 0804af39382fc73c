"""One thread per test process: the tests run beside each other, and what depends on threads sets them itself."""

import torch
from hypothesis import settings

torch.set_num_threads(1)

# No test is about time: on a busy machine an example may take any.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")
