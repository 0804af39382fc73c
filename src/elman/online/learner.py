"""A learner: a frozen model, a rule and an optimiser. Everything that moves is a value, its `LearnerState`.

    P           = learner.predict(state, x)          what the target of x may be; nothing moves
    loss, state = learner.learn(state, x, y)         x is read and y told: h, traces, weights and moments move

A `Learner` also keeps one such state, for those who do not want to: `predict_one`, `learn_one` and `learn_many` are
about that. What a step computes, optimiser included, is written down once (`kernels.record`) as a list of operations
with neither modules nor autograd in it, and is run from there: as one native call, where there is one.
"""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple, Self, cast

import torch
from torch import Tensor

from elman import kernels, random
from elman import state as states
from elman.errors import InputError, UnknownNameError
from elman.lengths import checked, valid
from elman.model import SequenceModel
from elman.nn.distributions import Categorical, Distribution
from elman.online.network import Network, restore
from elman.online.optim import Optim
from elman.online.rules import RULES, Uoro
from elman.options import whole
from elman.state import State

Graph = Callable[..., list[Tensor]]


class LearnerState(NamedTuple):
    """All that moves. The leaves of `h` and `traces` have the rows of the batch on axis 0."""

    weights: Tensor  # (P,), one after another in the order of the model's parameters
    moments: Tensor  # (M, P), of the optimiser
    t: Tensor  # (1,) int64, steps so far
    h: State  # of the model
    traces: tuple[Tensor, ...]  # what the rule carries


class Learner:
    """Learns from a stream, one step of each of `batch_size` rows at a time. The model that it is given stays as it is.

    `rule` is one of rtrl, spatial, snap1, rflo, uoro and tbptt (online/rules.py); tbptt reads the last `window` inputs
    again. A rule whose gradient is not that of the whole past says so by a warning. `example` is an input of all rows,
    needed where the model does not read one vector a step. `seed` is that of uoro.

    >>> import elman
    >>> from elman.nn.readout import GaussianReadout
    >>> model = elman.SequenceModel(torch.nn.Identity(), elman.cell("mingru", 3, 8), GaussianReadout(8, 1))
    >>> learner = Learner(model, optim=Optim(lr=0.01))
    >>> x, y = torch.ones(1, 3), torch.ones(1, 1)
    >>> before = learner.predict_one(x).log_prob(y)
    >>> for _ in range(10):
    ...     _ = learner.learn_one(x, y)
    >>> bool(learner.predict_one(x).log_prob(y) > before)
    True
    """

    def __init__(
        self,
        model: SequenceModel,
        *,
        rule: str = "rtrl",
        optim: Optim | None = None,
        batch_size: int = 1,
        window: int = 16,
        example: Tensor | None = None,
        seed: int = 0,
    ) -> None:
        if not isinstance(model, SequenceModel):
            raise InputError(f"Learner was given a {type(model).__name__}; it takes an elman.SequenceModel")
        if rule not in RULES:
            raise UnknownNameError("rule", rule, RULES)
        self.optim, self.rule_name = Optim() if optim is None else optim, rule
        self.batch_size, self.seed = whole("batch_size", batch_size), whole("seed", seed, least=0)
        with kernels.use("reference"):
            self._network = Network(model)
            self._rule = RULES[rule](self._network, whole("window", window))
        width = self._network.model.core.input_size
        self._like = torch.zeros(1, width, dtype=self._network.dtype) if example is None else example[:1].detach()
        self._graphs: dict[tuple[object, ...], Graph] = {}  # by kernels, what, masked or not, and the kinds of x and y
        self._predicted: list[Distribution] = []  # one, by which a prediction is put together from its numbers
        self.state = self.init_state(self.batch_size)
        if self.note:
            warnings.warn(f"rule {rule!r} is an approximation here: {self.note}", stacklevel=2)

    @property
    def exact(self) -> bool:
        """Whether the gradient of a step is that of back-propagation through the whole past, at one set of weights."""
        return not self.note

    @property
    def note(self) -> str:
        """Why it is not, if so."""
        return self._rule.note

    def trace_size(self) -> int:
        """How many numbers the rule carries for each row."""
        return self._rule.size()

    def init_state(self, batch_size: int) -> LearnerState:
        """The model's weights, and nothing seen yet."""
        weights = torch.cat([weight.flatten() for weight in self._network.weights])
        h = self._network.model.init_state(whole("batch_size", batch_size))
        traces = self._rule.init(batch_size, self._like, self.seed)
        return LearnerState(weights, self.optim.init(weights), torch.zeros(1, dtype=torch.int64), h, traces)

    # State in, state out

    def predict(self, state: LearnerState, x: Tensor) -> Distribution:
        """The distribution of the target of x (B, ...); nothing moves."""
        return self.follow(state, x)[0]

    def follow(self, state: LearnerState, x: Tensor) -> tuple[Distribution, LearnerState]:
        """The same, and the state after x, of which only h has moved: how one looks some steps ahead."""
        leaves = states.leaves(state.h)
        with torch.no_grad():
            found = self._graph("predict", False, state, x)(state.weights, *leaves, x)
        numbers, after = found[: len(found) - len(leaves)], found[len(found) - len(leaves) :]
        return _rebuilt(self._predicted[0], numbers), state._replace(h=restore(after, state.h))

    def learn(
        self, state: LearnerState, x: Tensor, y: Tensor, *, valid: Tensor | None = None, reset: Tensor | None = None
    ) -> tuple[Tensor, LearnerState]:
        """- log P(y) of each row (B,), and the state after x (B, ...) and y (B, ...).

        Where `valid` (B,) is False nothing moves; where `reset` (B,) is True an episode begins. The gradient is the
        mean over the rows that are valid.
        """
        found = self._run("learn", state, x, y, valid, reset)
        return found[0], self._after(found[1:], state)

    def accumulate(
        self,
        state: LearnerState,
        x: Tensor,
        y: Tensor,
        *,
        lengths: Tensor | None = None,
        reset: Tensor | None = None,
    ) -> tuple[dict[str, Tensor], LearnerState]:
        """The gradient of the sum of - log P(y), by the name of the parameter, over sequences x (B, T, ...) and
        y (B, T, ...), and the state after them: the weights stay as they are, as with a learning rate of 0."""
        total = torch.zeros_like(state.weights)
        for arguments in _steps(x, y, lengths, reset):
            gradient, *after = self._run("gradient", state, *arguments)
            total = total + gradient
            state = self._after([state.weights, state.moments, state.t, *after], state)
        return dict(zip(self._network.names, self._split(total), strict=True)), state

    def reset(self, state: LearnerState, rows: Sequence[int] | Tensor) -> LearnerState:
        """The state in which these rows begin an episode: h and traces are those of the start."""
        B = len(states.leaves(state.h)[0])
        chosen = torch.zeros(B, dtype=torch.bool).index_fill(0, torch.as_tensor(rows).long(), True)
        start = self.init_state(B)
        kept = len(state.traces) - self._rule.kept
        traces = states.where(chosen, start.traces[:kept], state.traces[:kept])
        return state._replace(h=states.where(chosen, start.h, state.h), traces=(*traces, *state.traces[kept:]))

    def model(self, state: LearnerState | None = None) -> SequenceModel:
        """A model with the weights of a state, by default of its own: what has been learned."""
        return self._network.module(self._split((self.state if state is None else state).weights))

    # The state that it keeps

    def predict_one(self, x: Tensor) -> Distribution:
        """The distribution of the target of x (B, ...)."""
        return self.predict(self.state, x)

    def learn_one(self, x: Tensor, y: Tensor) -> Self:
        """Read x (B, ...) and learn from its target y (B, ...)."""
        self.state = self.learn(self.state, x, y)[1]
        return self

    def learn_many(self, x: Tensor, y: Tensor, *, lengths: Tensor | None = None, reset: Tensor | None = None) -> Self:
        """Sequences x (B, T, ...) and y (B, T, ...), step by step, as `learn_one` would."""
        for x_t, y_t, there, begins in _steps(x, y, lengths, reset):
            self.state = self.learn(self.state, x_t, y_t, valid=there, reset=begins)[1]
        return self

    def fork(self) -> Learner:
        """Another learner that stands where this one stands; what either learns does not reach the other."""
        return copy.copy(self)  # a state is never changed in place

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state that it keeps to one file, from which a learner of the same model and rule continues."""
        states.save(path, states.map(lambda leaf: leaf[None].clone(), self.state), fingerprint=self.fingerprint())

    def load(self, path: str | os.PathLike[str]) -> Self:
        """Continue from a state that `save` wrote."""
        like = states.map(lambda leaf: leaf[None], self.init_state(self.batch_size))
        loaded = states.load(path, like, fingerprint=self.fingerprint())
        self.state = LearnerState(*states.map(lambda leaf: leaf[0], loaded))
        return self

    def fingerprint(self) -> str:
        """The identity of the model that it began with."""
        return states.fingerprint(self._network.model)

    # What is computed

    def _run(
        self, what: str, state: LearnerState, x: Tensor, y: Tensor, valid: Tensor | None, reset: Tensor | None
    ) -> list[Tensor]:
        if len(y) != len(x):
            raise InputError(f"x has {len(x)} rows, y {len(y)}: each input has a target of its own")
        traces = state.traces
        if isinstance(self._rule, Uoro):  # random numbers are drawn outside
            traces = (*traces[:-1], self._rule.signs(traces[-1]))
        arguments = [state.weights, state.moments, state.t, *states.leaves(state.h), *traces, x, y]
        masked = valid is not None or reset is not None
        if masked:
            everywhere = torch.ones(len(x), dtype=torch.bool)
            arguments += [everywhere if valid is None else valid, ~everywhere if reset is None else reset]
        with torch.no_grad():
            found = self._graph(what, masked, state, x, y)(*arguments)
        if isinstance(self._rule, Uoro):
            found[-1] = random.after(state.traces[-1])
        return found

    def _graph(self, what: str, masked: bool, state: LearnerState, x: Tensor, y: Tensor | None = None) -> Graph:
        key = (kernels.active(), what, masked, x.shape, x.dtype, *(() if y is None else (y.shape, y.dtype)))
        if key not in self._graphs:
            self._graphs[key] = self._written_down(what, masked, state, x, y)
        return self._graphs[key]

    def _written_down(self, what: str, masked: bool, state: LearnerState, x: Tensor, y: Tensor | None) -> Graph:
        h = states.leaves(state.h)
        if what == "predict":

            def predict(weights: Tensor, *given: Tensor) -> list[Tensor]:
                predicted, after = self._network.step(self._split(weights), given[:-1], given[-1])
                distribution, numbers = _taken_apart(predicted)
                self._predicted[:] = [distribution]
                return [*numbers, *after]

            return kernels.record(predict, [state.weights, *h, x])
        traces = list(state.traces)
        if isinstance(self._rule, Uoro):
            traces[-1] = self._rule.signs(traces[-1])
        rows = torch.ones(len(x), dtype=torch.bool)
        assert y is not None
        arguments = [state.weights, state.moments, state.t, *h, *traces, x, y, *[rows, rows][: 2 * masked]]

        def step(weights: Tensor, moments: Tensor, t: Tensor, *given: Tensor) -> list[Tensor]:
            before, rest = given[: len(h) + len(traces)], given[len(h) + len(traces) :]
            gradient, terms, after = self._gradient(weights, before, *rest)
            if what == "gradient":
                return [gradient, *after]
            return [terms, *self._changed(weights, moments, t, gradient, *rest), *after]

        return kernels.record(step, arguments)

    def _gradient(
        self,
        weights: Tensor,
        before: Sequence[Tensor],
        x: Tensor,
        y: Tensor,
        there: Tensor | None = None,
        begins: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """The gradient (P,) of the sum of - log P(y), its terms (B,), and the leaves of h and the traces after it."""
        if there is not None and begins is not None:
            start = [*self._network.init_state(len(x)), *self._rule.init(len(x), x, 0)]
            start[len(start) - self._rule.kept :] = before[len(start) - self._rule.kept :]
            before = [_where(there & begins, s, v) for s, v in zip(start, before, strict=True)]
            x, y = (_where(there, v, torch.zeros_like(v)) for v in (x, y))  # a NaN there would come through as 0 * NaN
        H = len(self._network.init_state(0))
        found = self._rule.learn(self._split(weights), before[:H], tuple(before[H:]), x, y, there)
        after = [*found.state, *found.memory]
        if there is not None:
            after = [_where(there, new, old) for new, old in zip(after, before, strict=True)]
        return torch.cat([g.flatten() for g in found.gradient]), found.terms, after

    def _changed(
        self,
        weights: Tensor,
        moments: Tensor,
        t: Tensor,
        gradient: Tensor,
        x: Tensor,
        y: Tensor,
        there: Tensor | None = None,
        begins: Tensor | None = None,
    ) -> list[Tensor]:
        """Weights, moments and t after a step of the optimiser; as they were if no row is valid."""
        if there is None:
            mean = gradient / len(x) if len(x) > 1 else gradient
            return [*self.optim.update(weights, mean, moments, t), t + 1]
        mean = gradient / there.sum().clamp(min=1)
        after = [*self.optim.update(weights, mean, moments, t), t + 1]
        return [torch.where(there.any(), v, old) for v, old in zip(after, (weights, moments, t), strict=True)]

    def _split(self, vector: Tensor) -> tuple[Tensor, ...]:
        """A vector (P,) as tensors of the shapes of the weights."""
        shapes = [weight.shape for weight in self._network.weights]
        parts = vector.split([shape.numel() for shape in shapes])
        return tuple(part.view(shape) for part, shape in zip(parts, shapes, strict=True))

    def _after(self, leaves: Sequence[Tensor], like: LearnerState) -> LearnerState:
        return cast(LearnerState, restore(leaves, like))


def _where(rows: Tensor, new: Tensor, old: Tensor) -> Tensor:
    return torch.where(rows.reshape(-1, *(1,) * (new.dim() - 1)), new, old)


def _steps(x: Tensor, y: Tensor, lengths: Tensor | None, reset: Tensor | None) -> Any:
    """What `learn` takes, step by step."""
    if len(y) != len(x) or y.shape[1:2] != x.shape[1:2]:
        raise InputError(f"x is {list(x.shape)} and y {list(y.shape)}; both have rows and time first, (B, T, ...)")
    there = None if lengths is None else valid(checked(lengths, x), x.shape[1])
    for t in range(x.shape[1]):
        yield x[:, t], y[:, t], None if there is None else there[:, t], None if reset is None else reset[:, t]


def _taken_apart(predicted: Distribution) -> tuple[Distribution, list[Tensor]]:
    """A distribution and the numbers that it has."""
    if isinstance(predicted, Categorical):
        return predicted, [predicted.logits]
    if is_dataclass(predicted):
        return predicted, [v for v in (getattr(predicted, f.name) for f in fields(predicted)) if isinstance(v, Tensor)]
    raise InputError(
        f"a learner cannot predict with a {type(predicted).__name__}; read-outs that it can: Softmax, GaussianReadout, "
        "StudentTReadout and those of counts, bits and quantiles"
    )


def _rebuilt(like: Distribution, numbers: Sequence[Tensor]) -> Distribution:
    if isinstance(like, Categorical):
        return Categorical(numbers[0])
    given = iter(numbers)
    values = {f.name: getattr(like, f.name) for f in fields(like)}  # type: ignore[arg-type]
    return type(like)(**{name: next(given) if isinstance(v, Tensor) else v for name, v in values.items()})
