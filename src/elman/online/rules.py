"""How a learner finds the gradient of a step: six rules over one interface.

    rule      carries forward                                  its gradient is that of the whole past
    rtrl      all influence of all weights                     always; cheap where one layer has a diagonal state
    spatial   the same of each recurrent layer by itself       in the top recurrent layer
    snap1     the influence that one step can have             of a layer with a diagonal state, at the top
    rflo      the same, of which only the leak remains         never; for tanh, and rates with a leak
    uoro      one random vector for all influence              on average
    tbptt     the last `window` inputs, which it reads again   in episodes of up to `window` steps

In spatial, snap1 and rflo the errors of a step go down through the layers at that step only: what a layer above
remembers of the layers below it is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import jvp, vjp, vmap

from elman import random
from elman.compose.attention.local import LocalAttention
from elman.errors import InputError
from elman.online.influence import Influence, Sparsity, Transition, Weights, sparsity
from elman.online.network import Network, Part, flatten, restore

MOST = 1 << 26  # numbers in the traces of a row: 256 MB

Memory = tuple[Tensor, ...]  # what a rule carries from step to step, batch first


class Step(NamedTuple):
    """What a rule makes of one input and its target."""

    terms: Tensor  # (B,), - log P(y) of the valid rows, 0 of the others
    gradient: list[Tensor]  # of their sum
    state: list[Tensor]
    memory: Memory


class Rule:
    """A rule for one network."""

    note: str = ""  # why its gradient is not that of the whole past, if it is not
    kept: int = 0  # how many of the last leaves of its memory a reset leaves alone

    def __init__(self, network: Network, window: int) -> None:
        self.network, self.window = network, window

    def init(self, batch_size: int, like: Tensor, seed: int) -> Memory:
        """The memory of an episode that begins; `like` is an input (B, ...)."""
        raise NotImplementedError

    def learn(
        self, weights: Weights, state: Sequence[Tensor], memory: Memory, x: Tensor, y: Tensor, valid: Tensor | None
    ) -> Step:
        """One input of each row and its target."""
        raise NotImplementedError

    def size(self) -> int:
        """How many numbers it carries for a row."""
        raise NotImplementedError

    def _differentiate(
        self, weights: Weights, state: Sequence[Tensor], x: Tensor, y: Tensor, valid: Tensor | None
    ) -> tuple[Step, list[Tensor], list[Tensor]]:
        """The step by itself: its gradient as if the state before it were given, that state's gradient, and what the
        parts read."""
        with torch.enable_grad():
            weights = tuple(weight.detach().requires_grad_() for weight in weights)
            state = [leaf.detach().requires_grad_() for leaf in state]
            predicted, after = self.network.step(weights, state, x)
            terms = -predicted.log_prob(y)
            if valid is not None:
                terms = torch.where(valid, terms, 0.0)
            found = torch.autograd.grad(terms.sum(), [*weights, *state], allow_unused=True)
        gradient = [torch.zeros_like(v) if g is None else g for v, g in zip([*weights, *state], found, strict=True)]
        read = [part.detach() for part in self.network.read]
        step = Step(terms.detach(), gradient[: len(weights)], [leaf.detach() for leaf in after], ())
        return step, gradient[len(weights) :], read


class Traced(Rule):
    """Rules that carry the influence of each weight: rtrl, spatial, snap1, rflo."""

    def __init__(self, network: Network, window: int) -> None:
        super().__init__(network, window)
        self.parts: list[Part | None] = list(network.parts)  # None for all at once
        self.influences: list[Influence] = []

    def init(self, batch_size: int, like: Tensor, seed: int) -> Memory:
        return tuple(trace for influence in self.influences for trace in influence.init(batch_size))

    def size(self) -> int:
        return sum(influence.size() for influence in self.influences)

    def learn(
        self, weights: Weights, state: Sequence[Tensor], memory: Memory, x: Tensor, y: Tensor, valid: Tensor | None
    ) -> Step:
        step, g, read = self._differentiate(weights, state, x, y, valid)
        gradient, after, rest = list(step.gradient), list[Tensor](), memory
        for part, influence in zip(self.parts, self.influences, strict=True):
            numbers = part.weights if part else range(len(weights))
            leaves = part.leaves if part else slice(0, None)
            traces, rest = rest[: len(numbers)], rest[len(numbers) :]
            own = tuple(weights[i] for i in numbers)
            given = read[self.network.parts.index(part)] if part else x
            signal, before = flatten(tuple(g[leaves])), flatten(tuple(state[leaves]))
            following, past = influence.advance(signal, own, before, given, traces)
            after += following
            for i, more in zip(numbers, past, strict=True):
                gradient[i] = gradient[i] if more is None else gradient[i] + more
        return step._replace(gradient=gradient, memory=tuple(after))

    def _add(self, part: Part | None, influence: Influence) -> None:
        self.influences.append(influence)
        if self.size() > MOST:
            what = part.title if part else "all layers at once"
            raise InputError(
                f"the traces of {what} would have {self.size():,} numbers for each row, more than {MOST:,}: "
                'use rule "spatial" (each layer by itself), "snap1" or "tbptt", or a smaller model'
            )


class Rtrl(Traced):
    """All influence of all weights. One layer over inputs as they are is carried by itself; otherwise all at once."""

    def __init__(self, network: Network, window: int) -> None:
        super().__init__(network, window)
        learned = [part for part in network.parts if part.weights]
        if len(learned) <= 1 and not any(network.depends()):
            self.parts = list(learned)
            for part in learned:
                self._add(part, _closed_influence(network, part))
            return
        self.parts = [None]
        N = sum(part.size for part in network.parts)
        P = sum(weight.numel() for weight in network.weights)
        if N * P > MOST:
            raise InputError(
                f"exact traces of this model would have {N:,} x {P:,} numbers for each row, more than {MOST:,}, since "
                'several layers, or weights below a layer, are in it: use rule "spatial", "snap1" or "tbptt"'
            )
        patterns = [torch.ones(N, weight.numel(), dtype=torch.bool) for weight in network.weights]
        everything = torch.ones(N, N, dtype=torch.bool)
        self._add(None, Influence(network.transition, network.weights, everything, patterns))


class Spatial(Traced):
    """All influence of the weights of each layer on that layer."""

    def __init__(self, network: Network, window: int) -> None:
        super().__init__(network, window)
        notes = []
        for part, depends in zip(network.parts, network.depends(), strict=True):
            if not part.weights:
                notes += [f"{part.title} remembers what weights below it made"] * depends
                continue
            self._add(part, self._of(part))
            notes += [f"{part.title} remembers what weights below it made"] * depends + self._left_out(part)
        self.parts = [part for part in network.parts if part.weights]
        self.note = "; ".join(dict.fromkeys(notes))

    def _of(self, part: Part) -> Influence:
        return _closed_influence(self.network, part)

    def _left_out(self, part: Part) -> list[str]:
        return []


class Snap1(Spatial):
    """The influence that the weights of a layer have within one step on that layer (Menick et al., 2020)."""

    def _of(self, part: Part) -> Influence:
        influence, self._closed = _within_one_step(self.network, part)
        return influence

    def _left_out(self, part: Part) -> list[str]:
        return [] if self._closed else [f"units of {part.title} have an influence on each other"]


class Rflo(Spatial):
    """The same, where a unit keeps of its past only what leaks through (Murray, 2019)."""

    def _of(self, part: Part) -> Influence:
        names = [name for name, _ in part.core.named_parameters()]
        matrices = [i for i, name in enumerate(names) if name in part.core.state_weights]
        if not matrices:
            raise InputError(
                f'rule "rflo" is for cells with a matrix over the state, of which only the leak is kept; {part.title} '
                'has none: use rule "snap1"'
            )

        def leak(weights: Weights, s: Tensor, x: Tensor) -> Tensor:
            silent = [torch.zeros_like(w) if i in matrices else w for i, w in enumerate(weights)]
            return part.transition(tuple(silent), s, x)

        own = _weights(self.network, part)
        first, second = (_leak_at(leak, own, part, seed) for seed in (1, 2))
        if not torch.allclose(first, second):
            raise InputError(
                f'rule "rflo" is for states that leak at one rate; that of {part.title} depends on its gates: use '
                'rule "snap1"'
            )
        found = _sparsity(part, own)
        return Influence(part.transition, own, found.J, found.immediate, leak)

    def _left_out(self, part: Part) -> list[str]:
        return [f"of what {part.title} remembers only the leak is followed"]


def _leak_at(leak: Transition, weights: Weights, part: Part, seed: int) -> Tensor:
    """J of a leak at some state and input."""
    generator = torch.Generator().manual_seed(seed)
    s = torch.rand(1, part.size, generator=generator, dtype=weights[0].dtype)
    x = torch.randn(1, part.core.input_size, generator=generator, dtype=weights[0].dtype)
    return torch.func.jacrev(lambda s: leak(weights, s, x[0]))(s[0])


class Uoro(Rule):
    """Unbiased online recurrent optimisation (Tallec and Ollivier, 2017): E is one random product s~ w~^T.

        s~ = p0 J s~' + p1 n        w~ = w~' / p0 + n^T I / p1        n of random signs

    p0 and p1 bring both factors to one length, which makes the noise least.
    """

    kept = 1

    def __init__(self, network: Network, window: int) -> None:
        super().__init__(network, window)
        self.note = "it is right on average only"
        if not network.parts:
            raise InputError('the model has no state, so there is no influence for "uoro" to follow: use rule "rtrl"')

    def init(self, batch_size: int, like: Tensor, seed: int) -> Memory:
        s = self._numbers(self.network.init_state(batch_size))
        w = [weight.new_zeros(batch_size, *weight.shape) for weight in self.network.weights]
        draws = torch.stack([seed + torch.arange(batch_size), torch.zeros(batch_size, dtype=torch.int64)], 1)
        return (torch.zeros_like(s), *w, draws)

    def _numbers(self, leaves: Sequence[Tensor]) -> Tensor:
        """The numbers (B, N) of leaves: float64 ones are followed as the weights are."""
        return flatten(tuple(leaves)).to(self.network.dtype)

    def size(self) -> int:
        s = flatten(restore(self.network.init_state(1), self.network.like))
        return s.numel() + sum(weight.numel() for weight in self.network.weights)

    def signs(self, draws: Tensor) -> Tensor:
        """The signs n (B, N) that the rows draw next."""
        N = flatten(restore(self.network.init_state(1), self.network.like)).shape[1]
        return torch.where(random.uniform(draws, N) < 0.5, -1.0, 1.0).to(self.network.dtype)

    def learn(
        self, weights: Weights, state: Sequence[Tensor], memory: Memory, x: Tensor, y: Tensor, valid: Tensor | None
    ) -> Step:
        step, g, _ = self._differentiate(weights, state, x, y, valid)
        s_, *w_, n = memory
        share = (self._numbers(g) * s_).sum(1)
        gradient = [own + torch.tensordot(share, w, 1) for own, w in zip(step.gradient, w_, strict=True)]
        s = self._numbers(state)

        def of_row(s: Tensor, x: Tensor, s_: Tensor, n: Tensor) -> tuple[Tensor, Weights]:
            J = jvp(lambda s: self.network.transition(weights, s, x), (s,), (s_,))[1]
            pull = vjp(lambda w: self.network.transition(w, s, x), weights)[1]
            return J, pull(n)[0]

        Js, nI = vmap(of_row)(s, x, s_, n)
        p0 = _balance(_length([Js]), _length(w_))
        p1 = _balance(_length([n]), _length(nI))
        s_ = p0[:, None] * Js + p1[:, None] * n
        after = [w / _beside(p0, w) + i / _beside(p1, i) for w, i in zip(w_, nI, strict=True)]
        return step._replace(gradient=gradient, memory=(s_, *after, n))


def _length(parts: Sequence[Tensor]) -> Tensor:
    """The length of each row of all parts together."""
    return torch.stack([part.flatten(1).square().sum(1) for part in parts]).sum(0).sqrt()


def _balance(one: Tensor, other: Tensor) -> Tensor:
    """The factor of `one`, and divisor of `other`, that makes both as long; 1 where one of them is nothing."""
    both = (one > 0) & (other > 0)
    return torch.where(both, torch.where(both, other / one, 1.0).sqrt(), 1.0)


def _beside(factor: Tensor, v: Tensor) -> Tensor:
    return factor.reshape(-1, *(1,) * (v.dim() - 1))


class Tbptt(Rule):
    """Truncated back-propagation: at every step the last `window` inputs are read again, from the state before them."""

    def __init__(self, network: Network, window: int) -> None:
        super().__init__(network, window)
        self.note = f"what came more than {window} steps before has no influence"

    def init(self, batch_size: int, like: Tensor, seed: int) -> Memory:
        past = like.new_zeros(batch_size, self.window - 1, *like.shape[1:])
        there = torch.zeros(batch_size, self.window - 1, dtype=torch.bool)
        return (*self.network.init_state(batch_size), past, there)

    def size(self) -> int:
        return 0

    def learn(
        self, weights: Weights, state: Sequence[Tensor], memory: Memory, x: Tensor, y: Tensor, valid: Tensor | None
    ) -> Step:
        *start, past, there = memory
        with torch.enable_grad():
            weights = tuple(weight.detach().requires_grad_() for weight in weights)
            now, first = list(start), list(start)
            for k in range(self.window - 1):
                after = self.network.step(weights, now, past[:, k])[1]
                now = [_rows(there[:, k], new, old) for new, old in zip(after, now, strict=True)]
                if k == 0:
                    first = [leaf.detach() for leaf in now]
            predicted, after = self.network.step(weights, now, x)
            terms = -predicted.log_prob(y)
            if valid is not None:
                terms = torch.where(valid, terms, 0.0)
            found = torch.autograd.grad(terms.sum(), weights, allow_unused=True)
        gradient = [torch.zeros_like(w) if g is None else g for w, g in zip(weights, found, strict=True)]
        after = [leaf.detach() for leaf in after]
        if self.window == 1:
            return Step(terms.detach(), gradient, after, (*after, past, there))
        past = torch.cat([past[:, 1:], x[:, None]], 1)
        there = torch.cat([there[:, 1:], torch.ones_like(there[:, :1])], 1)
        return Step(terms.detach(), gradient, after, (*first, past, there))


def _rows(rows: Tensor, new: Tensor, old: Tensor) -> Tensor:
    return torch.where(_beside(rows, new), new, old)


def _weights(network: Network, part: Part) -> Weights:
    return tuple(network.weights[i] for i in part.weights)


def _sparsity(part: Part, own: Weights) -> Sparsity:
    if isinstance(part.core, LocalAttention):  # which places of its ring a step writes, its count of steps says
        everything = torch.ones(part.size, part.size, dtype=torch.bool)
        return Sparsity(everything, tuple(everything[:, :1].expand(-1, weight.numel()) for weight in own))
    return sparsity(part.transition, own, part.size, part.core.input_size, part.is_complex)


def _closed_influence(network: Network, part: Part) -> Influence:
    own = _weights(network, part)
    found = _sparsity(part, own)
    return Influence(part.transition, own, found.J, found.closed())


def _within_one_step(network: Network, part: Part) -> tuple[Influence, bool]:
    """The influence within one step, and whether that is all there is."""
    own = _weights(network, part)
    found = _sparsity(part, own)
    same = all(bool((a == b).all()) for a, b in zip(found.immediate, found.closed(), strict=True))
    return Influence(part.transition, own, found.J, found.immediate), same


RULES: dict[str, type[Rule]] = {
    "rtrl": Rtrl,
    "spatial": Spatial,
    "snap1": Snap1,
    "rflo": Rflo,
    "uoro": Uoro,
    "tbptt": Tbptt,
}
