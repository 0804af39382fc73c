"""The sliding window: no recurrence at all, the baseline that every recurrence has to beat.

    y = tanh(W [x(t-k+1) ... x(t)] + b)        the state is the last k - 1 inputs

T. J. Sejnowski, C. R. Rosenberg, Parallel networks that learn to pronounce English text, Complex Systems 1 (1987).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from elman import kernels
from elman.cells import initial
from elman.core import Core
from elman.kernels.builder import Builder, Slot
from elman.lengths import masked
from elman.options import whole


class WindowState(NamedTuple):
    past: Tensor  # (B, k - 1, D): the last inputs, oldest first; zeros where there was none


class Window(Core):
    """y = tanh(W [x(t-k+1) ... x(t)] + b). Inputs from before the first, or from before a reset, count as zeros.

    >>> y, state = Window(3, 4, k=6).scan(torch.zeros(2, 5, 3))
    >>> y.shape, state.past.shape
    (torch.Size([2, 5, 4]), torch.Size([2, 5, 3]))
    """

    variants = ({}, {"k": 1}, {"k": 2})

    def __init__(self, input_size: int, size: int, *, k: int = 5) -> None:
        super().__init__(input_size, size)
        self.k = whole("k", k)
        self.W = nn.Parameter(torch.empty(size, k * input_size))
        self.b = nn.Parameter(torch.empty(size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        initial.input(self.W)  # the fan-in is the whole window: a longer one does not saturate tanh
        nn.init.zeros_(self.b)

    def init_state(self, batch_size: int) -> WindowState:
        return WindowState(self.zeros(batch_size, self.k - 1, self.input_size))

    def step(self, x: Tensor, state: WindowState) -> tuple[Tensor, WindowState]:
        window = torch.cat([state.past, x[:, None].to(state.past.dtype)], 1)
        y = kernels.tanh(kernels.linear(window.flatten(1), self.W, self.b))
        return y.to(x.dtype), WindowState(window[:, 1:])

    def describe_step(self, builder: Builder, x: Slot, state: tuple[Slot]) -> Slot:
        (past,) = state
        window = builder.concat([past, x])
        builder.assign(past, builder.cut(window, self.input_size, past.width))
        return builder.map("tanh", builder.linear(window, self.W, self.b))

    def _scan(self, x: Tensor, state: WindowState, lengths: Tensor, reset: Tensor) -> tuple[Tensor, WindowState]:
        """All windows at once: there is nothing to wait for."""
        T, k = x.shape[1], self.k
        # Padding is not shown to the product: a NaN there would come back as 0 * NaN in the gradient of W.
        seen = masked(x, lengths).to(state.past.dtype)
        inputs = torch.cat([state.past, seen], 1)  # (B, k - 1 + T, D): x[:, t] is at t + k - 1
        episode = reset.cumsum(1)  # an input counts where it is of the same episode as the output
        episodes = torch.cat([episode.new_zeros(len(x), k - 1), episode], 1)
        # Autograd adds up what comes back in the reverse order of this: the latest output first, wherever time is cut.
        shifted = [inputs[:, j : j + T] for j in reversed(range(k))]
        windows = torch.stack(shifted[::-1], 2)  # (B, T, k, D)
        same = torch.stack([episodes[:, j : j + T] for j in range(k)], 2) == episode[..., None]
        windows = torch.where(same[..., None], windows, torch.zeros_like(windows))
        y = kernels.tanh(kernels.linear(windows.flatten(2), self.W, self.b))
        return masked(y, lengths).to(x.dtype), WindowState(self._last(inputs, episodes, lengths))

    def _last(self, inputs: Tensor, episodes: Tensor, lengths: Tensor) -> Tensor:
        """The k - 1 inputs (B, k - 1, D) up to each row's last valid one, zeros for those of an earlier episode."""
        at = lengths[:, None] + torch.arange(self.k - 1, device=lengths.device)
        past = inputs.gather(1, at[..., None].expand(-1, -1, self.input_size))
        episode = episodes.gather(1, at)
        return torch.where((episode == episode[:, -1:])[..., None], past, torch.zeros_like(past))
