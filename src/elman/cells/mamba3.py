"""Mamba-3 (Lahoti et al., 2026, "Mamba-3: Improved Sequence Modeling using State Space Principles"), with one input and
one output for each channel (SISO).

    z, v, u, w, r, p, l, f = U x                    u and w are one for each group of heads
    k, q = T(phi) (g * rms(u) + c), T(phi) (g_q * rms(w) + c_q)     c and c_q are one for each head
    dt = softplus(r + b), A = softplus(p)           one for each head, as a and lambda are
    a = exp(-dt A), lambda = s(l)
    phi = phi' + pi dt tanh(f)                      R angles for each head
    S = a S' + (1 - lambda) dt a k' v'^T + lambda dt k v^T
    y = O ((S^T q + D v) * silu(z))

T(phi) turns columns i and i + R of a key and of a query by phi_i, for i < R: a state of complex numbers, as products
of keys and queries depend on differences of phi alone. The integral over a step is approximated by a trapezoid, of the
input and of the one before: lambda = 1 is Mamba-2's rule, lambda = 1/2 the trapezoidal one.

One write a step is enough: the leaf S has S - lambda dt k v^T, to which the next step writes k v^T with both of its
factors, a (lambda' dt' + (1 - lambda) dt); `last` has k, v and lambda dt of the input before, and h = exp(i phi) - 1.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from elman import kernels
from elman.cells import initial
from elman.cells.mamba import DT_MAX, DT_MIN
from elman.cells.matrix import EPS, Matrix, Terms, divides, head_count
from elman.cells.past import Past
from elman.errors import InputError
from elman.options import whole

LEAST = 1e-4  # of A: no head remembers for ever


class Mamba3State(NamedTuple):
    S: Tensor  # (B, H, N, V)
    h: Tensor  # (B, H * R) complex, exp(i phi) - 1
    last: Tensor  # (B, H * (N + V + 1)), k, v and lambda dt of the input before

    @property
    def fixed_start(self) -> tuple[str, ...]:
        return ("h",)


class Mamba3(Matrix[Mamba3State]):
    """S = a S' + (1 - lambda) dt a k' v'^T + lambda dt k v^T with turned keys; see the top of the file.

    `state_size` is N, the width of keys and queries; `expand` makes values of expand * size in all; `heads` is H, by
    default one for each 64 of them; `groups` of heads share u and w; `angles` is R, by default a quarter of N.

    >>> y, state = Mamba3(3, 4, state_size=8, heads=2).scan(torch.zeros(2, 5, 3))
    >>> y.shape, state.S.shape, state.h.shape, state.last.shape
    (torch.Size([2, 5, 4]), torch.Size([2, 2, 8, 4]), torch.Size([2, 4]), torch.Size([2, 26]))
    """

    variants = ({"state_size": 4}, {"state_size": 7, "expand": 1, "heads": 4, "groups": 2, "angles": 3})

    def __init__(
        self,
        input_size: int,
        size: int,
        *,
        state_size: int = 128,  # N
        expand: int = 2,
        heads: int | None = None,  # H; None means one for each 64 of expand * size
        groups: int = 1,  # of heads that share keys and queries but for c and phi
        angles: int | None = None,  # R; None means a quarter of state_size
    ) -> None:
        inner = whole("expand", expand) * whole("size", size)
        H = head_count(inner, heads)
        N, G = whole("state_size", state_size), divides("groups", groups, H)
        if N < 2:
            raise InputError(f"state_size is {N}; it must be at least 2, since pairs of columns are turned")
        super().__init__(input_size, size, heads=H, key_size=N, value_size=math.ceil(inner / H))
        self.key_groups = G
        self.angles = max(1, N // 4) if angles is None else whole("angles", angles, most=N // 2)
        self.inner = inner = H * self.value_size
        self.U = nn.Parameter(torch.empty(sum(self.widths), input_size))
        self.b, self.D = nn.Parameter(torch.empty(H)), nn.Parameter(torch.empty(H))
        self.g, self.g_q = nn.Parameter(torch.empty(N)), nn.Parameter(torch.empty(N))
        self.c, self.c_q = nn.Parameter(torch.empty(H * N)), nn.Parameter(torch.empty(H * N))
        self.O = nn.Parameter(torch.empty(size, inner))
        self.reset_parameters()

    @property
    def widths(self) -> list[int]:
        """Of z, v, u, w, r, p, l and f."""
        H, GN = self.heads, self.key_groups * self.key_size
        return [self.inner, self.inner, GN, GN, H, H, H, self.angles]

    def reset_parameters(self) -> None:
        for matrix in (*self.U.split(self.widths), self.O):
            initial.input(matrix)
        initial.step_lengths(self.b, DT_MIN, DT_MAX)
        initial.ones(self.D, self.g, self.g_q, self.c, self.c_q)

    def init_state(self, batch_size: int) -> Mamba3State:
        H, N, V = self.heads, self.key_size, self.value_size
        h = self.zeros(batch_size, H * self.angles, dtype=torch.complex64)
        return Mamba3State(self.zeros(batch_size, H, N, V), h, self.zeros(batch_size, H * (N + V + 1)))

    def terms(self, x: Tensor, past: Past) -> Terms:
        H, N, V = self.heads, self.key_size, self.value_size
        z, v, u, w, r, p, l, f = kernels.linear(x, self.U).split(self.widths, -1)  # noqa: E741
        dt, rate = kernels.softplus(r + self.b), kernels.softplus(p).clamp(LEAST, math.inf)
        a, share = kernels.exp(-dt * rate), kernels.sigmoid(l)
        theta = torch.cat([kernels.tanh(f) * math.pi] * H, -1) * dt.repeat_interleave(self.angles, -1)
        turned = past.turn("h", theta)
        k, q = self.by_head(u, self.g, self.c), self.by_head(w, self.g_q, self.c_q)
        now = share * dt
        # Turned alike, k and q have the product that they have as they are. As a product, it is summed in the same
        # order in every batch.
        ones = torch.ones(1, N, dtype=k.dtype, device=self.D.device)
        direct = kernels.windows(k * q, ones, None, N) * now + self.D
        k, q = self.turn(k, turned), self.turn(q, turned)
        before = past.shift("last", torch.cat([k, v, now], -1))
        k, written, earlier = before.split([H * N, H * V, H], -1)
        strength = a * (earlier + (dt - now))
        return Terms(q, k, written * strength.repeat_interleave(V, -1), a, rest=(direct, v, z))

    def by_head(self, u: Tensor, g: Tensor, c: Tensor) -> Tensor:
        """g * rms(u) + c: u (..., G * N) -> (..., H * N)."""
        groups = kernels.rms_norm(u, g.to(u.dtype), EPS, self.key_groups).split([self.key_size] * self.key_groups, -1)
        each = self.heads // self.key_groups
        return torch.cat([group for group in groups for _ in range(each)], -1) + c

    def turn(self, k: Tensor, turned: Tensor) -> Tensor:
        """T(phi) k of each head: k (..., H * N), cos and sin of phi side by side in `turned` (..., 2 H R)."""
        R, rest = self.angles, self.key_size - 2 * self.angles
        widths = [R, R, rest] if rest else [R, R]
        first, second, *others = (k.split(widths * self.heads, -1)[i :: len(widths)] for i in range(len(widths)))
        x, y, cos, sin = torch.cat(first, -1), torch.cat(second, -1), turned[..., ::2], turned[..., 1::2]
        sides = (side.split([R] * self.heads, -1) for side in (x * cos - y * sin, x * sin + y * cos))
        return torch.cat([part for head in zip(*sides, *others, strict=True) for part in head], -1)

    def read(self, s: Tensor, terms: Terms) -> Tensor:
        direct, v, z = terms.rest
        y = s + direct.repeat_interleave(self.value_size, -1) * v
        return kernels.linear(y * kernels.silu(z), self.O)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, groups={self.key_groups}, angles={self.angles}"
