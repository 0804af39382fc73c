# torch.nn, padded rows that are not packed: the last state is that of the padding
import torch
from torch import nn

torch.manual_seed(0)
layer, x = nn.LSTM(8, 16, batch_first=True, bidirectional=True), torch.randn(2, 9, 8)
lengths = torch.tensor([9, 5])
x[1, 5:] = 0  # padding
with torch.no_grad():
    y, (padded, _) = layer(x)
    one, (alone, _) = layer(x[1:, :5])
print(f"last state: off by {(padded[0, 1] - alone[0, 0]).abs().max():.1e}")
print(f"outputs of the backward half: off by {(y[1, :5, 16:] - one[0, :, 16:]).abs().max():.1e}")
