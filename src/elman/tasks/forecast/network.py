"""The network of a forecaster: what a series needs of its past, cells, and a read-out in the units of the series.

    x[t] = [y[t-1], whether it was seen, each of several targets by itself, what else is known at t]
    reference[t] = 0, y[t-1] or y[t-m];   scale[t] = the running mean of |y| or of |y[t-1] - y[t-1-m]|
    z[t] = [(y[t-k] - reference[t]) / scale[t] for each lag k]
    h[t] = cells([z, seen, log scale, what else]);   y[t] ~ reference + scale * readout([h, z])

The way from z past the cells makes a linear autoregression of what the network need not learn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from elman import kernels
from elman.compose import Columns, Dropout, Lags, Parallel, Scale, Stack
from elman.core import Core
from elman.data import Batch
from elman.errors import InputError
from elman.kernels.builder import Builder, Slot, Slots
from elman.kernels.trace import slot_of, traced
from elman.lengths import zero_past
from elman.model import SequenceModel
from elman.nn.distributions import Numeric
from elman.nn.embed import Embedding
from elman.nn.readout import GaussianReadout, Readout
from elman.state import State
from elman.tasks import network
from elman.tasks.forecast.config import ForecastModelConfig, check, lags_of, scale_of
from elman.tasks.forecast.data import Series
from elman.tasks.forecast.inputs import PanelInputs
from elman.tasks.forecast.readout import READOUTS, SCALED, Rescaled
from elman.training.loss import Loss

FURTHEST = 30.0  # scales from the reference that a cell is shown: what lies beyond would drive its gates into a corner
LEAST = 1e-3  # a scale of differences, in units of the mean absolute value
FIRST = 0.1  # the same as long as none is known


class Widths(NamedTuple):
    """What a network reads: C targets, `others`, a flag for each target or one for all; and of how many series."""

    targets: int
    others: int
    series: int
    flags: int = 1

    @staticmethod
    def of(inputs: PanelInputs) -> Widths:
        """What a network reads of these inputs."""
        return Widths(inputs.targets, inputs.others, len(inputs.names), inputs.flags)


class PreprocessorState(NamedTuple):
    lags: State
    scale: State


class Preprocessor(Core):
    """[y', seen, others] to [z, seen, log scale, others, reference, scale], as the file says."""

    def __init__(self, config: ForecastModelConfig, widths: Widths, season: int) -> None:
        C, F, K = widths.targets, widths.flags, widths.others
        self.wanted = lags_of(config, season)
        self.kind, self.residual, self.log_scale = scale_of(config), config.residual, config.log_scale
        logs = C if config.log_scale and self.kind != "none" else 0
        shown = config.feedback != "none"
        self.z_width, self.feature_width = C * len(self.wanted), C * len(self.wanted) + shown * F + logs + K
        super().__init__(C + F + K, self.feature_width + 2 * C)
        self.C, self.F, self.shown, self.logs = C, F, shown, logs
        self.delays = sorted({0, season - 1, season, *(lag - 1 for lag in self.wanted)})
        if not shown:
            self.delays = [0]
        self.season = season
        # Of what Lags gives, [values (C), flags (F)] for each delay, the columns of the wanted lags and of their flags.
        starts = [self.delays.index(lag - 1) * (C + F) for lag in self.wanted]
        self.values = _view([start + c for start in starts for c in range(C)])
        self.flags = _view([start + C + (c if F == C else 0) for start in starts for c in range(C)])
        self.each = [*range(C)] * len(starts)
        self.lags, self.scale = Lags(C + F, self.delays), Scale(2 * C, decay=config.decay)

    def init_state(self, batch_size: int) -> PreprocessorState:
        return PreprocessorState(self.lags.init_state(batch_size), self.scale.init_state(batch_size))

    def step(self, x: Tensor, state: PreprocessorState) -> tuple[Tensor, PreprocessorState]:
        return self._through(x, state, lambda core, x, before: core.step(x, before))

    def _scan(
        self, x: Tensor, state: PreprocessorState, lengths: Tensor, reset: Tensor
    ) -> tuple[Tensor, PreprocessorState]:
        y, after = self._through(x, state, lambda core, x, before: core.scan_unchecked(x, before, lengths, reset))
        return zero_past(y, lengths), after

    def _through(
        self, x: Tensor, state: PreprocessorState, run: Callable[[Core, Tensor, State], tuple[Tensor, State]]
    ) -> tuple[Tensor, PreprocessorState]:
        lagged, lags = run(self.lags, x[..., : self.C + self.F], state.lags)
        changes, seen = self._changes(lagged)
        means, scales = run(self.scale, torch.cat([changes, seen], -1), state.scale)
        return self._features(x, lagged, self._scale(lagged, means)), PreprocessorState(lags, scales)

    def describe_step(self, builder: Builder, x: Slot, state: PreprocessorState) -> Slot:
        def run(core: Core, given: Tensor, part: State) -> tuple[Tensor, State]:
            return traced(builder, core.describe_step(builder, slot_of(builder, given), cast(Slots, part))), part

        return slot_of(builder, self._through(traced(builder, x), state, run)[0])

    def _lag(self, lagged: Tensor, lag: int) -> tuple[Tensor, Tensor]:
        """The values (..., C) of `lag` steps before the target, and whether they were seen (..., F)."""
        width = self.C + self.F
        start = self.delays.index(lag - 1) * width
        return lagged[..., start : start + self.C], lagged[..., start + self.C : start + width]

    def _each(self, flags: Tensor) -> Tensor:
        """Flags (..., F) as one for each target (..., C)."""
        return flags if self.F == self.C else torch.cat([flags] * self.C, -1)

    def _changes(self, lagged: Tensor) -> tuple[Tensor, Tensor]:
        """Values and seasonal differences (..., 2C), and whether they are known."""
        value, seen = self._lag(lagged, 1)
        if not self.shown:
            return torch.cat([value, value], -1), torch.cat([self._each(seen)] * 2, -1)
        before, known = self._lag(lagged, self.season + 1)
        both = seen * known
        return torch.cat([value, value - before], -1), torch.cat([self._each(seen), self._each(both)], -1)

    def _features(self, x: Tensor, lagged: Tensor, scale: Tensor) -> Tensor:
        value, seen = self._lag(lagged, 1)
        reference = torch.zeros_like(value)
        if self.residual == "last":
            reference = value
        elif self.residual == "seasonal":
            before, known = self._lag(lagged, self.season)
            reference = torch.where(self._each(known) > 0, before, value)
        flags = [seen] if self.shown else []
        logs = [0.1 * kernels.log(scale)] if self.logs else []
        return torch.cat(
            [*self._relative(lagged, reference, scale), *flags, *logs, x[..., self.C + self.F :], reference, scale], -1
        )

    def _relative(self, lagged: Tensor, reference: Tensor, scale: Tensor) -> list[Tensor]:
        """z (..., lags * C), if there are any."""
        if not self.wanted:
            return []
        if self.C > 1:
            reference, scale = reference[..., self.each], scale[..., self.each]
        past, known = lagged[..., self.values], lagged[..., self.flags]
        difference = past if self.residual == "none" else past - reference
        return [torch.where(known > 0, difference / scale, 0.0).clamp(-FURTHEST, FURTHEST)]

    def _scale(self, lagged: Tensor, means: Tensor) -> Tensor:
        level, change = means.chunk(2, -1)
        if self.kind == "none":
            return torch.ones_like(level)
        if self.kind == "mean":
            return torch.where(level > 0, level, 1.0)
        _, known = self._lag(lagged, self.season + 1)  # in the first season there is no difference yet
        least = torch.where(self._each(known) > 0, LEAST, FIRST)
        scale = torch.maximum(change, least * level)
        return torch.where(scale > 0, scale, 1.0)


def _view(columns: list[int]) -> slice | list[int]:
    """Columns as a slice where they are evenly apart: that is a view, and a list would copy."""
    step = columns[1] - columns[0] if len(columns) > 1 else 1
    if columns and step > 0 and columns == [*range(columns[0], columns[-1] + 1, step)]:
        return slice(columns[0], columns[-1] + 1, step)
    return columns


class SeriesEmbedding(nn.Module):
    """[features, the number of the series] to [features, a vector that is learnt for it]; number 0 is any other."""

    def __init__(self, series: int, size: int) -> None:
        super().__init__()
        self.vectors = Embedding(series + 1, size)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x[..., :-1], self.vectors(x[..., -1].long())], -1)


class ForecastNetwork(SequenceModel):
    """The model, and how often it reads a value of its own in training."""

    core: Stack
    readout: Readout[Numeric]

    def __init__(self, embed: nn.Module, core: Stack, readout: Readout[Numeric], sampled: float) -> None:
        super().__init__(embed, core, readout)
        self.sampled = sampled

    @property
    def preprocessor(self) -> Preprocessor:
        """What stands before the cells: lags and scales, which have nothing to learn."""
        return cast(Preprocessor, self.core.cores[0])

    @property
    def cells(self) -> Parallel:
        """The cells, and beside them what of the preprocessor's output the read-out reads as it is."""
        return cast(Parallel, self.core.cores[1])


def build(config: ForecastModelConfig, widths: Widths, seasonality: int) -> ForecastNetwork:
    """The model of a config, with fresh parameters."""
    check(config)
    C, size = widths.targets, config.embedding_size
    if config.predicts == "classes" and C != 1:
        raise InputError(f"a categorical read-out predicts one column; there are {C} targets")
    inner = widths._replace(others=widths.others + size)
    embed: nn.Module = SeriesEmbedding(widths.series, size) if size else nn.Identity()
    preprocessor = Preprocessor(config, inner, config.season or seasonality)
    W, F, Z = preprocessor.output_size, preprocessor.feature_width, preprocessor.z_width
    parts: list[Core] = []
    if config.kind == "network":
        if F == 0:
            raise InputError("the network has nothing to read: model.feedback is none, and there are no covariates")
        first: Core = Columns(W, 0, F)
        first = Dropout(first, config.input_dropout) if config.input_dropout else first
        parts.append(Stack(first, network.core(config, F)))
    H = sum(part.output_size for part in parts) + Z
    scaled = config.predicts in SCALED
    past: list[Core] = [Columns(W, 0, Z)] if Z else []
    units: list[Core] = [Columns(W, F, 2 * C)] if scaled else []
    core = Stack(preprocessor, Parallel(*parts, *past, *units))
    inside = READOUTS[config.readout].readout(H, config.classes or C, dropout=config.readout_dropout)
    readout = Rescaled(inside, C) if scaled else inside
    return ForecastNetwork(embed, core, readout, config.sampled if config.feedback == "sample" else 0.0)


def loss(model: ForecastNetwork, batch: Batch, state: State | None) -> Loss:
    """The sum over values that are there, their number, and the state that the next windows continue from.

    With feedback by samples, some of the values that it reads are its own (scheduled sampling, Bengio et al. 2015, in
    two passes as Mihaylova and Martins 2019): a first pass over the true values says what it would have drawn for each.
    """
    y, counted = batch.y
    assert isinstance(batch.x, Tensor) and isinstance(y, Tensor) and isinstance(counted, Tensor)
    x = _with_own_values(model, batch, state, counted) if model.sampled else batch.x
    hidden, after = model.core(model.embed(x), state, lengths=batch.lengths, reset=batch.reset)
    # The others are not read at all: in the padding the scale is zero, and a NaN there would reach the gradients.
    places = counted.any(-1).flatten().nonzero()[:, 0]
    chosen, truth, there = (part.flatten(0, 1).index_select(0, places) for part in (hidden, y, counted))
    scale = chosen[..., -y.shape[-1] :]  # what `Rescaled` has it from; bits and classes do not look at it
    terms = _where_there(lambda said, *values: said.loss(*values), model.readout(chosen), there, truth, scale)
    return terms.sum(), max(1, len(terms)), after


def log_prob(predicted: Numeric, y: Tensor, there: Tensor) -> Tensor:
    """log P (...) of those of the values y (..., C) that are there (..., C); zero where none is."""
    return _where_there(lambda said, y: said.log_prob(y), predicted, there, y)


def _where_there(term: Callable[..., Tensor], predicted: Numeric, there: Tensor, y: Tensor, *others: Tensor) -> Tensor:
    """The sum (...) of the terms of those of the values y (..., C) that are there. `others` (..., C) go with them."""
    every, some = there.all(-1), there.any(-1)
    whole = torch.where(every, term(predicted, y, *others), 0.0)
    if bool((every == some).all()):
        return whole
    # A value that is not there stands at the mode: its term, which is left out, must not be infinite in the gradient.
    value = torch.where(there, y, predicted.mode.to(y.dtype).detach())
    terms = term(predicted.elementwise(), *(part[..., None] for part in (value, *others)))
    return torch.where(every, whole, torch.where(there, terms, 0.0).sum(-1))


@torch.no_grad()
def _with_own_values(model: ForecastNetwork, batch: Batch, state: State | None, counted: Tensor) -> Tensor:
    """The inputs (B, T, D), with draws of the model for some of the values: x[t] has the value of t - 1."""
    x = batch.x
    assert isinstance(x, Tensor)
    hidden, _ = model.core(model.embed(x), state, lengths=batch.lengths, reset=batch.reset)
    chosen = counted.any(-1) & (torch.rand(counted.shape[:2]) < model.sampled)
    chosen[:, -1] = False  # its value is read in the next window
    chosen[:, :-1] &= ~batch.reset[:, 1:]  # the next input would be of another series
    predicted = model.readout(hidden[chosen])  # before the draws: its dropout draws too
    draws = torch.stack([torch.randint(2**62, (int(chosen.sum()),)), torch.zeros(int(chosen.sum())).long()], 1)
    values = predicted.sample(draws).to(x.dtype)
    changed = x.clone()
    rows, steps = chosen.nonzero(as_tuple=True)
    before = changed[rows, steps + 1, : values.shape[1]]
    changed[rows, steps + 1, : values.shape[1]] = torch.where(counted[rows, steps], values, before)
    return changed


@torch.no_grad()
def fit(
    model: ForecastNetwork, inputs: PanelInputs, series: Sequence[Series], seasonality: int, *, linear: bool
) -> list[dict[str, float]]:
    """Give the read-out of a baseline its coefficients: those of least squares if it is linear, else zero.

    y[t] = reference + scale (b + sum_k a_k z_k[t] + e), e normal, as wide as what is left over. The metrics of the fit.
    """
    C = inputs.targets
    targets, features, known = [], [], []
    for one in series:
        rows = inputs.rows(one)
        hidden, _ = model.core.scan(model.embed(torch.from_numpy(rows.x)[None]))
        z, reference, scale = hidden[0].double().split([hidden.shape[-1] - 2 * C, C, C], -1)
        # In the first two seasons the scale is not worth much yet.
        known.append(torch.from_numpy(rows.counted) & (torch.arange(len(z)) > 2 * seasonality)[:, None])
        targets.append((torch.from_numpy(rows.y) - reference) / scale)
        features.append(z)
    y, there = torch.cat(targets), torch.cat(known)
    z = torch.cat([torch.cat(features), torch.ones(len(y), 1)], 1)
    solutions = [_least_squares(z[there[:, c]], y[there[:, c], c], linear) for c in range(C)]
    solution, deviation = (torch.stack(part, -1) for part in zip(*solutions, strict=True))
    assert isinstance(model.readout, Rescaled) and isinstance(model.readout.readout, GaussianReadout)
    readout = model.readout.readout.linear
    readout.weight.zero_()
    readout.weight[:C] = solution[:-1].T
    assert readout.bias is not None
    readout.bias[:C] = solution[-1]
    readout.bias[C:] = torch.log(torch.expm1(deviation))
    mean = float(deviation.mean())
    return [{"rows": float(there.any(1).sum()), "deviation": mean, "loss": math.log(mean)}]


def _least_squares(z: Tensor, y: Tensor, linear: bool) -> tuple[Tensor, Tensor]:
    """The coefficients (K,) of y (N,) by z (N, K), zero unless `linear`, and how far off they are."""
    solution = torch.zeros(z.shape[1], dtype=torch.float64)
    if linear:
        ridge = 1e-9 * len(z) * torch.eye(z.shape[1], dtype=torch.float64)  # a constant series leaves columns alike
        solution = torch.linalg.solve(z.T @ z + ridge, z.T @ y)
    # Of a normal distribution the median of absolute errors is 0.6745 deviations; a few wild errors do not move it.
    return solution, ((y - z @ solution).abs().median() / 0.6745).clamp(min=1e-6)
