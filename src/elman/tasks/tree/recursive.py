"""The recursive network: two children make a parent.

    h = tanh(W [h_1; h_2] + U x + b)

A leaf has an input and no children; a node without input has the first and the last term. The original takes the word
vectors themselves as leaves; here they go through U and tanh, so that D and H may differ.

J. B. Pollack, Artificial Intelligence 46 (1990). R. Socher, C. Lin, A. Ng, C. Manning, ICML (2011).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from elman import kernels
from elman.cells import initial
from elman.kernels import Gather
from elman.tasks.tree.core import TreeCore


class Recursive(TreeCore):
    """h = tanh(W [h_1; h_2] + U x + b); the state is h.

    >>> Recursive(3, 4).combine(torch.zeros(2, 3), torch.zeros(2, 2, 4)).shape
    torch.Size([2, 4])
    """

    places = 2

    def __init__(self, input_size: int, size: int) -> None:
        super().__init__(input_size, size)
        self.W = nn.Parameter(torch.empty(size, 2 * size))
        self.U = nn.Parameter(torch.empty(size, input_size))
        self.b = nn.Parameter(torch.empty(size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        initial.recurrent(self.W)
        initial.input(self.U)
        initial.zeros(self.b)

    def init_state(self, batch_size: int) -> Tensor:
        return self.zeros(batch_size, self.output_size)

    def combine(self, x: Tensor, children: Tensor) -> Tensor:
        H = self.output_size
        h = nn.functional.pad(children.flatten(1), (0, 2 * H - children.shape[1] * H))
        return kernels.tanh(kernels.linear(h, self.W) + kernels.linear(x, self.U, self.b))

    def _gathered(self, x: Tensor, gather: Gather, inside: bool, state: Tensor | None) -> Tensor:
        u = kernels.linear(x, self.U, self.b)
        (h,) = kernels.gathered("recursive", u, self.W, self.b, gather, None if state is None else (state,))
        return h
