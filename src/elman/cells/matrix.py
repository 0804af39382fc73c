"""Cells whose state is a matrix for each head, into which values are written under keys. One writes down what is read
of x.

    q, k, v, a, ... = terms(x, past)                   for all time steps at once: none sees S
    S = diag(a) S' + k v^T                              written as it is,
    S = diag(a) S' + k (b (v - (a * k)^T S'))^T         by the delta rule where b is given,
    S = diag(a) S' + beta (alpha^T S') + k v^T          or with any correction of rank one
    s = S^T q                                           for each head
    y = read(s, terms)

Letters here and in the cells: H heads, G groups of them, each with one key and one query for all of its heads; K and V
the widths of a key and of a value, so that S is (K, V). Heads or groups stand side by side in the last axis of a term.
Where `normalises`, the state has n = a * n' + k too, and `terms` what `normalise` needs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Generic, NamedTuple, TypeVar, cast

import torch
from torch import Tensor, nn

from elman import kernels
from elman.cells.past import Past, ScanPast, StepPast, StreamPast
from elman.core import Block, Core
from elman.errors import InputError
from elman.kernels.builder import Builder, Slot
from elman.kernels.trace import slot_of, traced
from elman.lengths import zero_past
from elman.options import whole

S = TypeVar("S", bound=tuple[Tensor, ...])
HEAD = 64  # the width of a head where its user says nothing, about: what the papers have, 64 to 256
EPS = 1e-5  # of the norms after the read
LENGTH_EPS = 1e-6  # under the root where keys and queries are divided by their lengths


class Terms(NamedTuple):
    """What a step is made of."""

    q: Tensor  # (..., G * K)
    k: Tensor  # (..., G * K)
    v: Tensor  # (..., H * V)
    a: Tensor | None = None  # (..., H) or (H,); (..., H * K) or (..., G * K) where the cell `decays_keys`; None for 1
    b: Tensor | None = None  # (..., H)
    alpha: Tensor | None = None  # (..., G * K) or (..., H * K)
    beta: Tensor | None = None  # (..., G * K) or (..., H * K)
    rest: tuple[Tensor, ...] = ()  # what else `read` needs


class HeadSizes(NamedTuple):
    """How many heads there are, and how wide their keys and values."""

    H: int
    K: int
    V: int


class Matrix(Core, Generic[S]):
    """A recurrence of matrices; the first leaf of its state is S (B, H, K, V). Give it `init_state`, `terms`, `read`.

    >>> class Sums(Matrix[tuple[Tensor]]):
    ...     def init_state(self, batch_size):
    ...         return (self.zeros(batch_size, 1, 1, self.output_size),)
    ...     def terms(self, x, past):
    ...         one = torch.ones_like(x[..., :1])
    ...         return Terms(one, one, x)
    ...     def read(self, s, terms):
    ...         return s
    >>> y, state = Sums(1, 1, heads=1, key_size=1, value_size=1).scan(torch.ones(1, 3, 1))
    >>> y.flatten().tolist()
    [1.0, 2.0, 3.0]
    """

    decays_keys: ClassVar[bool] = False  # whether a is one number a key, rather than one a head
    normalises: ClassVar[bool] = False  # whether the second leaf is n (B, H, K)
    block = Block("rms", mixes=False)
    keep_gate = "a"

    def __init__(
        self, input_size: int, size: int, *, heads: int, key_size: int, value_size: int, groups: int | None = None
    ) -> None:
        super().__init__(input_size, size)
        self.heads, self.groups = heads, heads if groups is None else groups
        self.key_size, self.value_size = key_size, value_size

    def terms(self, x: Tensor, past: Past) -> Terms:
        """x (..., D), in the dtype of the state, and what came before it -> the terms of the step."""
        raise NotImplementedError(f"{type(self).__name__} must define terms(x, past)")

    def normalise(self, s: Tensor, z: Tensor, terms: Terms) -> Tensor:
        """s = S^T q (..., H * V) and z = n^T q (..., H) -> s (..., H * V), where the cell `normalises`."""
        raise NotImplementedError(f"{type(self).__name__} must define normalise(s, z, terms)")

    def read(self, s: Tensor, terms: Terms) -> Tensor:
        """s (..., H * V) -> y (..., size)."""
        raise NotImplementedError(f"{type(self).__name__} must define read(s, terms)")

    def step(self, x: Tensor, state: S) -> tuple[Tensor, S]:
        past = StepPast(_named(state))
        terms = self.terms(x.to(state[0].dtype), past)
        own = self._by_head(terms)
        reads, after = zip(*(self._write(own, v, M) for v, M in self._written(own, state)), strict=True)
        return self._read(reads, terms).to(x.dtype), self._rebuild(state, after, past)

    def _scan(self, x: Tensor, state: S, lengths: Tensor, reset: Tensor) -> tuple[Tensor, S]:
        past = ScanPast(_named(state), lengths, reset)
        terms = self.terms(x.to(state[0].dtype), past)
        q, k, _, a, b, alpha, beta, _ = own = self._by_head(terms)
        scans = [
            kernels.matrix_scan(q, k, v, a, M, lengths, reset, b, alpha, beta) for v, M in self._written(own, state)
        ]
        reads, after = zip(*scans, strict=True)
        return zero_past(self._read(reads, terms), lengths).to(x.dtype), self._rebuild(state, after, past)

    def describe_step(self, builder: Builder, x: Slot, state: tuple[Slot, ...]) -> Slot:
        past = StreamPast(builder, dict(zip(_named(self.init_state(0)), state, strict=True)))
        terms = self.terms(traced(builder, x), past)
        q, k, v = (slot_of(builder, t) for t in (terms.q, terms.k, terms.v))
        a, b, alpha, beta = (
            None if t is None else slot_of(builder, t) for t in (terms.a, terms.b, terms.alpha, terms.beta)
        )
        sizes = H, K, _ = (self.heads, self.key_size, self.value_size)
        if a is not None and self.decays_keys and a.width < H * K:  # one for each key of a group, for all of its heads
            each = H * K // a.width
            a = builder.gather(a, [head // each * K + key for head in range(H) for key in range(K)])
        s = traced(builder, builder.matrix(sizes, q, k, v, a, state[0], b, alpha, beta))
        if self.normalises:
            ones = builder.constant(torch.ones(self.heads))
            z = builder.matrix((self.heads, self.key_size, 1), q, k, ones, a, state[1], b, alpha, beta)
            s = self.normalise(s, traced(builder, z), terms)
        return slot_of(builder, self.read(s, terms))

    def named_gates(self, x: Tensor, state: S) -> dict[str, Tensor]:
        terms = self.terms(x.to(state[0].dtype), StepPast(_named(state)))
        gates = {"a": terms.a, "b": terms.b}
        return {name: gate.expand(len(x), -1) for name, gate in gates.items() if gate is not None}

    def _by_head(self, terms: Terms) -> Terms:
        """The terms with an axis of heads or groups: q, k, alpha, beta (..., G, K), v (..., H, V), a and b (..., H)."""
        K, a = self.key_size, terms.a
        if a is not None:
            a = a.unflatten(-1, (-1, K)) if self.decays_keys else a.expand(*terms.v.shape[:-1], self.heads)
        q, k = terms.q.unflatten(-1, (-1, K)), terms.k.unflatten(-1, (-1, K))
        alpha, beta = (None if t is None else t.unflatten(-1, (-1, K)) for t in (terms.alpha, terms.beta))
        return Terms(q, k, terms.v.unflatten(-1, (self.heads, -1)), a, terms.b, alpha, beta)

    def _written(self, own: Terms, state: S) -> list[tuple[Tensor, Tensor]]:
        """What is written (..., H, V) into which matrix (B, H, K, V): n is one of a single column, which counts."""
        values = [(own.v, state[0])]
        if self.normalises:
            values.append((torch.ones_like(own.v[..., :1]), state[1][..., None]))
        return values

    def _write(self, own: Terms, v: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        """One step by its definition: v (B, H, V), S' (B, H, K, V) -> s (B, H, V) and S."""
        k, after = self._each_head(own.k), before
        if own.a is not None:
            a = self._each_head(own.a if self.decays_keys else own.a[..., None])
            after = a[..., None] * before
        if own.b is not None:
            v = own.b[..., None] * (v - _product(after, k))
        if own.alpha is not None and own.beta is not None:
            correction = _product(before, self._each_head(own.alpha))
            after = after + self._each_head(own.beta)[..., None] * correction[..., None, :]
        after = after + k[..., None] * v[..., None, :]
        return _product(after, self._each_head(own.q)), after

    def _each_head(self, x: Tensor) -> Tensor:
        """x (B, G, ...) -> (B, H, ...): the heads of a group stand side by side."""
        return x.repeat_interleave(self.heads // x.shape[1], 1)

    def _read(self, reads: Sequence[Tensor], terms: Terms) -> Tensor:
        s = reads[0].flatten(-2)
        if self.normalises:
            s = self.normalise(s, reads[1][..., 0], terms)
        return self.read(s, terms)

    def _rebuild(self, state: S, matrices: Sequence[Tensor], past: Past) -> S:
        own = [matrices[0], *(M[..., 0] for M in matrices[1:])]
        rest = [past.after[name] for name in list(_named(state))[len(own) :]]
        return cast(S, type(state)(*own, *rest) if hasattr(state, "_fields") else (*own, *rest))

    def extra_repr(self) -> str:
        widths = f"heads={self.heads}, key_size={self.key_size}, value_size={self.value_size}"
        return f"{super().extra_repr()}, {widths}"


class Convolved(Matrix[S]):
    """One whose q, k and v come out of a causal convolution of J taps, q and k divided by their lengths:

        q, k, v = silu(sum_j w_j u(t - J + 1 + j))      channel by channel
        q, k = q / |q| / sqrt(K), k / |k|               for each group of heads

    U, whose rows begin with those of u, and w are made here; the leaf `window` has the last J - 1 values of u.
    """

    def __init__(
        self, input_size: int, size: int, sizes: HeadSizes, conv: int, *, rows: int, groups: int | None = None
    ) -> None:
        """`rows` is how many U has beyond those of u."""
        H, K, V = sizes
        super().__init__(input_size, size, heads=H, key_size=K, value_size=V, groups=groups)
        self.conv = whole("conv", conv)
        u = sum(self.widths)
        self.U = nn.Parameter(torch.empty(u + rows, input_size))
        self.w = nn.Parameter(torch.empty(conv, u))  # the tap of the newest input last

    @property
    def widths(self) -> list[int]:
        """Of q, k and v, all heads together."""
        K = self.groups * self.key_size
        return [K, K, self.heads * self.value_size]

    def convolved(self, u: Tensor, past: Past) -> tuple[Tensor, Tensor, Tensor]:
        """u (..., 2 G K + H V) -> q, k and v."""
        q, k, v = kernels.silu(past.convolve("window", u, self.w)).split(self.widths, -1)
        q, k = (kernels.l2_norm(part, LENGTH_EPS, self.groups) for part in (q, k))
        return q * self.key_size**-0.5, k, v

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, conv={self.conv}"


def head_count(size: int, heads: int | None) -> int:
    """`heads`, or by default as many as make them about HEAD wide.

    >>> head_count(512, None), head_count(100, None), head_count(100, 5)
    (8, 2, 5)
    """
    size = whole("size", size)
    return math.ceil(size / HEAD) if heads is None else whole("heads", heads)


def width_of_head(name: str, width: int | None, size: int, heads: int) -> int:
    """`width`, or by default the share of each of the heads in `size`, rounded up."""
    return math.ceil(size / heads) if width is None else whole(name, width)


def head_sizes(size: int, heads: int | None, key_size: int | None, value_size: int | None) -> HeadSizes:
    """What is given, and by default heads about HEAD wide, and keys and values of their share of `size`.

    >>> head_sizes(512, None, None, 128)
    HeadSizes(H=8, K=64, V=128)
    """
    H = head_count(size, heads)
    K, V = width_of_head("key_size", key_size, size, H), width_of_head("value_size", value_size, size, H)
    return HeadSizes(H, K, V)


def divides(name: str, groups: int | None, heads: int) -> int:
    """`groups`, by default `heads`, if the heads can be divided among them."""
    groups = heads if groups is None else whole(name, groups)
    if heads % groups:
        raise InputError(f"{name} is {groups}, and there are {heads} heads; it must divide them")
    return groups


def _named(state: tuple[Tensor, ...]) -> dict[str, Tensor]:
    """The leaves by their names, or by their numbers in a plain tuple."""
    names = getattr(state, "_fields", map(str, range(len(state))))
    return dict(zip(names, state, strict=True))


def _product(M: Tensor, x: Tensor) -> Tensor:
    """M^T x for each head: M (B, H, K, V), x (B, H, K) -> (B, H, V)."""
    return torch.einsum("bhkv,bhk->bhv", M, x)
