"""The influence of weights on a state, carried forward in time: the traces of real-time recurrent learning.

    s = f(w, s', x)                     one step of a recurrence, with N numbers of state
    E = J E' + I                        J = ds/ds' (N, N), I = df/dw at fixed s' (N, |w|), E = ds/dw over all the past

and the gradient of the loss of a step is dL/dw at fixed s', plus (dL/ds') E'. That is the chain rule and nothing else,
exact for whatever f is (Williams and Zipser, 1989). J and I come from differentiating one step: no cell has a rule of
its own. What is written below is about the zeros of E, which decide what that costs:

- A pattern (N, |w|) says which numbers of the state an entry of w can have an influence on. In a cell whose state goes
  on by itself, number by number, that is one of them, or the two parts of a complex one, whatever N is.
- Numbers of the state that share no entry of w share one trace of the shape of w (the colouring that Curtis, Powell
  and Reid, 1974, have for Jacobians). So a diagonal cell has one trace, or two if it is complex, as large as w.

An approximation is a smaller pattern: what falls outside is forgotten (SnAp-1, Menick et al., 2020).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import vjp, vmap

from elman import kernels

Weights = tuple[Tensor, ...]
Transition = Callable[[Weights, Tensor, Tensor], Tensor]  # w, s (N,), x (...) -> the next s, of one row
Traces = tuple[Tensor, ...]  # for each weight (B, C, *its shape)

PROBES = 64  # rows that zeros are looked for in: a relu is shut in half of them


@dataclass(frozen=True)
class Sparsity:
    """Where J (N, N) and, for each weight, I (N, |w|) can be something else than zero."""

    J: Tensor
    immediate: tuple[Tensor, ...]

    def closed(self) -> tuple[Tensor, ...]:
        """Where E can be something else than zero, after any number of steps."""
        reach = self.J | torch.eye(len(self.J), dtype=torch.bool)
        if bool((reach == torch.eye(len(self.J), dtype=torch.bool)).all()):
            return self.immediate
        while not bool((further := reach.float() @ reach.float() > 0).equal(reach)):
            reach = further
        return tuple(reach.float() @ pattern.float() > 0 for pattern in self.immediate)


def sparsity(step: Transition, weights: Weights, state_size: int, input_size: int, complex_state: bool) -> Sparsity:
    """Found by differentiating one step of random weights, states and inputs: what is zero for all of them is zero.

    Weights are random around what they are, and around zero: where a bias shuts a relu now, what opens it later counts.
    The two parts of a complex number count as one: both can be something, or neither.
    """
    generator = torch.Generator().manual_seed(0)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    near = tuple(weight.detach().double() + 0.3 * noise(*weight.shape) for weight in weights)
    anywhere = tuple(noise(*weight.shape) for weight in weights)
    s, x = noise(PROBES, state_size), noise(PROBES, input_size)
    rows: list[list[Tensor]] = [[] for _ in range(1 + len(weights))]  # of J, and of each I
    for seed in torch.eye(state_size, dtype=torch.float64):
        found = [(gs, *gw) for gw, gs in (products(step, probe, s, x, seed[None]) for probe in (near, anywhere))]
        for row, *gradients in zip(rows, *found, strict=True):
            row.append(torch.cat([(g[:, 0].flatten(1) != 0) for g in gradients]).any(0))
    patterns = [torch.stack(row) for row in rows]
    if complex_state:
        patterns = [pattern.unflatten(0, (-1, 2)).any(1).repeat_interleave(2, 0) for pattern in patterns]
        patterns[0] = patterns[0].unflatten(1, (-1, 2)).any(2).repeat_interleave(2, 1)
    return Sparsity(patterns[0], tuple(patterns[1:]))


def products(step: Transition, weights: Weights, s: Tensor, x: Tensor, seeds: Tensor) -> tuple[Traces, Tensor]:
    """seeds (C, N) times I and J of each row: (B, C, *shape) for each weight, and (B, C, N)."""

    def of_row(s: Tensor, x: Tensor) -> tuple[Weights, Tensor]:
        pull = vjp(lambda w, s: step(w, s, x), weights, s)[1]
        if len(seeds) == 1:  # a product with a matrix of one row is the dearer one
            gw, gs = pull(seeds[0])
            return tuple(g[None] for g in gw), gs[None]
        both: tuple[Weights, Tensor] = vmap(pull)(seeds)
        return both

    result: tuple[Traces, Tensor] = vmap(of_row)(s, x)
    return result


class Influence:
    """The traces of one recurrence within patterns (N, |w|), one for each of its weights.

    `remaining` is the step as J has it, where an approximation leaves something of J out.
    """

    def __init__(
        self,
        step: Transition,
        weights: Weights,
        J: Tensor,
        patterns: Sequence[Tensor],
        remaining: Transition | None = None,
    ) -> None:
        self.step, self.remaining = step, remaining
        self.traces = [_Trace(pattern, weight.shape) for pattern, weight in zip(patterns, weights, strict=True)]
        rows = _separate(J)  # which rows of J one product can have
        if any(trace.dense for trace in self.traces):
            rows = torch.arange(len(J))
        seeds = list(
            dict.fromkeys(seed for c in (rows, *(trace.colours for trace in self.traces)) for seed in _sets(c))
        )
        self.seeds = torch.tensor([[float(n in seed) for n in range(len(J))] for seed in seeds], dtype=weights[0].dtype)
        product_of = torch.tensor([seeds.index(seed) for n in range(len(J)) for seed in _sets(rows) if n in seed])
        for trace in self.traces:
            trace.place(J, product_of, [seeds.index(seed) for seed in _sets(trace.colours)], len(seeds))

    def init(self, batch_size: int) -> Traces:
        """Traces of a state that nothing has had an influence on."""
        return tuple(self.seeds.new_zeros(batch_size, trace.C, *trace.shape) for trace in self.traces)

    def size(self) -> int:
        """How many numbers the traces of a row have."""
        return sum(trace.C * trace.shape.numel() for trace in self.traces)

    def advance(
        self, g: Tensor, weights: Weights, s: Tensor, x: Tensor, traces: Traces
    ) -> tuple[Traces, list[Tensor | None]]:
        """Of the step from s (B, N) by x (B, ...), with g (B, N) = dL/ds: E = J E' + I, and g E' of each weight, summed
        over the rows; None where that is nothing."""
        g, s = g.to(self.seeds.dtype), s.to(self.seeds.dtype)  # sums that are kept in float64 are followed as weights
        immediate, J = products(self.step, weights, s, x, self.seeds)
        if self.remaining is not None:
            J = products(self.remaining, weights, s, x, self.seeds)[1]
        both = [trace.advance(g, J, i, E) for trace, i, E in zip(self.traces, immediate, traces, strict=True)]
        return tuple(E for E, _ in both), [gradient for _, gradient in both]


class _Trace:
    """The trace of one weight: C colours, each with at most one number of the state for each entry."""

    def __init__(self, pattern: Tensor, shape: torch.Size) -> None:
        self.shape, self.N = shape, len(pattern)
        if not bool(pattern.any()):  # the weight has no influence on the state
            self.C, self.dense, self.colours, self.used = 0, False, torch.zeros(0, dtype=torch.int64), pattern
            return
        self.colours = _separate(pattern)
        self.C = int(self.colours.max()) + 1
        self.dense = 2 * self.C > self.N > 2  # there is nothing to be gained
        if self.dense:
            self.C, self.colours = self.N, torch.arange(self.N)
            self.used = pattern.reshape(self.N, *shape)
            return
        self.used = torch.zeros(self.C, pattern.shape[1], dtype=torch.bool)
        self.owner = torch.zeros(self.C, pattern.shape[1], dtype=torch.int64)  # of colour and entry: which number
        for n, row in enumerate(pattern):
            self.used[self.colours[n]] |= row
            self.owner[self.colours[n]][row] = n
        self.used, self.owner = self.used.reshape(self.C, *shape), self.owner.reshape(self.C, *shape)
        for axis in range(len(shape), 0, -1):  # an axis along which all is of one number is one wide
            used, owner = self.used.narrow(axis, 0, 1), self.owner.narrow(axis, 0, 1)
            if bool((self.used == used).all()) and bool((self.owner == owner).all()):
                self.used, self.owner = used, owner

    def place(self, J: Tensor, product_of: Tensor, own: list[int], seeds: int) -> None:
        """`product_of` (N,): which of all products has a row of J; `own`: which are of the colours."""
        self.own = None if own == list(range(seeds)) else own
        self.product_of, self.whole = product_of, bool(self.used.all())
        if self.C and not self.dense:
            wide = max((axis for axis, n in enumerate(self.owner.shape) if n > 1 and axis), default=0)
            self.R, self.W = self.shape[:wide].numel(), self.shape[wide:].numel()  # W entries have one number
            owner = self.owner.flatten(wide + 1) if wide < len(self.shape) else self.owner[..., None]
            self.owner = owner.expand(self.C, *self.shape[:wide], 1).reshape(self.C, self.R)
            row, column = self.owner[:, None], self.owner[None]  # J[owner of c, owner of d]: (C, C, R)
            self.between, there = product_of[row] * self.N + column, J[row, column]
            self.there = None if bool(there.all()) else there  # elsewhere a product has what is of another row

    def advance(self, g: Tensor, J: Tensor, immediate: Tensor, E: Tensor) -> tuple[Tensor, Tensor | None]:
        """E (B, C, *shape) after the step, and the gradient of the weight. J is there as products (B, seeds, N), and so
        is I."""
        if not self.C:
            return E, None
        if self.own is not None:
            immediate = immediate[:, self.own]
        if self.dense:
            after = torch.bmm(J[:, self.product_of], E.flatten(2)).reshape(E.shape) + immediate
            gradient = torch.tensordot(g, E, 2)
        else:
            factors = J.flatten(1)[:, self.between.flatten()].reshape(len(E), *self.between.shape)
            if self.there is not None:
                factors = torch.where(self.there, factors, 0.0)
            share = g[:, self.owner.flatten()].reshape(len(g), *self.owner.shape)
            seen = (len(E), self.C, self.R, self.W)
            after, gradient = kernels.trace_step(E.reshape(seen), factors, share, immediate.reshape(seen))
            after, gradient = after.reshape(E.shape), gradient.reshape(self.shape)
        return after if self.whole else torch.where(self.used, after, 0.0), gradient


def _separate(pattern: Tensor) -> Tensor:
    """A colour for each row of a pattern, the first that is free: rows of one colour have nothing in common."""
    taken: list[Tensor] = []
    colours: list[int] = []
    for row in pattern:
        free = (c for c, columns in enumerate(taken) if not bool((columns & row).any()))
        colour = next(free, len(taken))
        if colour == len(taken):
            taken.append(torch.zeros_like(row))
        taken[colour] |= row
        colours.append(colour)
    return torch.tensor(colours)


def _sets(colours: Tensor) -> list[frozenset[int]]:
    """The rows of each colour."""
    return [frozenset((colours == c).nonzero()[:, 0].tolist()) for c in colours.unique().tolist()]
