# torch.nn, packed rows: a row may not be empty
import torch
from torch import nn

x, lengths = torch.randn(2, 4, 8), torch.tensor([4, 0])
try:
    nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
except RuntimeError as error:
    print(f"RuntimeError: {error}")
