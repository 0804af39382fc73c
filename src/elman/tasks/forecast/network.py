"""The network of a forecaster: what a series needs of its past, cells, and a read-out in the units of the series.

    x[t] = [y[t-1], whether it was seen, each of several targets by itself, what else is known at t]
    reference[t] = 0, y[t-1] or y[t-m];   scale[t] = the running mean of |y| or of |y[t-1] - y[t-1-m]|
    z[t] = [(y[t-k] - reference[t]) / scale[t] for each lag k]
    h[t] = cells([z, seen, log scale, what else]);   y[t] ~ reference + scale * readout([h, z])

The way from z past the cells makes a linear autoregression of what the network need not learn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from elman import kernels
from elman.compose import Columns, Dropout, Lags, Parallel, Scale, Stack
from elman.core import Core, Options
from elman.errors import InputError
from elman.kernels.builder import Builder, Slot, Slots
from elman.kernels.trace import slot_of, traced
from elman.lengths import zero_past
from elman.model import SequenceModel
from elman.nn.distributions import Distribution
from elman.nn.embed import Embedding
from elman.nn.quantiles import QuantileReadout
from elman.nn.readout import (
    Affine,
    BernoulliReadout,
    GaussianReadout,
    NegativeBinomialReadout,
    PoissonReadout,
    Readout,
    Softmax,
    StudentTReadout,
)
from elman.options import choice, fraction, number, whole
from elman.state import State
from elman.tasks import network
from elman.tasks.forecast.rescaled import Located

KINDS = ("network", "seasonal_naive", "linear")
SCALES = ("auto", "mean", "difference", "none")
RESIDUALS = ("auto", "none", "last", "seasonal")
FEEDBACK = ("target", "sample", "none")
FURTHEST = 30.0  # scales from the reference that a cell is shown: what lies beyond would drive its gates into a corner
LEAST = 1e-3  # a scale of differences, in units of the mean absolute value
FIRST = 0.1  # the same as long as none is known


@dataclass(frozen=True)
class ForecastModelConfig:
    """What the network is.

    Args:
        kind: network; or a baseline, fitted in one go: seasonal_naive, or linear (autoregression by least squares)
        order: of linear, how many of the last values it reads
        cell: a cell; `elman laws` lists them
        size: units in each layer
        layers: how many layers
        block: plain, residual (norm, cell, mixing and a sum), or auto for what the paper of the cell has
        options: options of the cell, as {name: value}
        residual_layers: add what a layer reads to what it puts out
        norm: layer, rms or null, before each layer
        dropout: between layers
        input_dropout: on what the first layer reads
        readout_dropout: before the read-out
        readout: gaussian, student_t, quantiles, poisson, negative_binomial, bernoulli or categorical
        classes: of categorical, how many there are; targets are 0, 1, ...
        feedback: what is an input of the next step: target (the value before), sample (in training now and then a
            value drawn from the model instead), or none (values are independent given the other inputs)
        sampled: with sample, how often
        lags: how many steps ago the values are that it reads; empty for 1 and 2, the season and one more, and of days
            that differ within a week the week (with a residual that is named: 1, the season and one more)
        scale: the units of a series: mean (of absolute values so far), difference (of absolute seasonal differences),
            none, or auto for what fits the read-out
        decay: what a value counts for the scale one step later
        residual: what is predicted is the difference to nothing (none), to the last value or to one season ago
            (seasonal); auto for seasonal where there is a season and last where there is none, or none for counts
        season: of the residual and of the scale of differences; 0 for data.seasonality
        log_scale: show the network how large a scale is
        calendar: show the network the hour, the day of the week and of the year, as the frequency has them
        embedding_size: of a vector that is learnt for each series; 0 for none
    """

    kind: str = "network"
    order: int = 24
    cell: str = "lstm"
    size: int = 64
    layers: int = 1
    block: str = "auto"
    options: Options = field(default_factory=dict)
    residual_layers: bool = False
    norm: str | None = None
    dropout: float = 0.0
    input_dropout: float = 0.0
    readout_dropout: float = 0.1
    readout: str = "student_t"
    classes: int = 0
    feedback: str = "target"
    sampled: float = 0.25
    lags: list[int] = field(default_factory=list)
    scale: str = "auto"
    decay: float = 1.0
    residual: str = "auto"
    season: int = 0
    log_scale: bool = True
    calendar: bool = True
    embedding_size: int = 0


@dataclass(frozen=True)
class Layers:
    """The settings of the cells, as tasks/network.py has them: there `residual` is about what stands around a cell."""

    cell: str
    size: int
    layers: int
    block: str
    options: Options
    residual: bool
    norm: str | None
    dropout: float


def layers_of(config: ForecastModelConfig) -> Layers:
    """The cells of a config."""
    return Layers(
        config.cell, config.size, config.layers, config.block, config.options, config.residual_layers, config.norm,
        config.dropout,
    )  # fmt: skip


class Widths(NamedTuple):
    """What a network reads: C targets, `others`, a flag for each target or one for all; and of how many series."""

    targets: int
    others: int
    series: int
    flags: int = 1


def check(config: ForecastModelConfig) -> None:
    """Raise an error that names the first setting that does not fit."""
    choice("model.kind", config.kind, KINDS)
    choice("model.readout", config.readout, READOUTS)
    choice("model.feedback", config.feedback, FEEDBACK)
    choice("model.scale", config.scale, SCALES)
    choice("model.residual", config.residual, RESIDUALS)
    number("model.decay", config.decay, 0, 1)
    fraction("model.sampled", config.sampled)
    for name in ("order", "size", "layers"):
        whole(f"model.{name}", getattr(config, name))
    for name in ("season", "embedding_size", "classes"):
        whole(f"model.{name}", getattr(config, name), least=0)
    for lag in config.lags:
        whole("model.lags", lag)
    if config.residual not in ("auto", "none") and not free(config):
        raise InputError(
            f"model.residual is {config.residual}; a difference needs a read-out of any number (gaussian, student_t, "
            f"quantiles), not {config.readout}"
        )
    if config.scale not in ("auto", "none") and config.readout in ("bernoulli", "categorical"):
        raise InputError(f"model.scale is {config.scale}; {config.readout} has no scale: leave it at auto")
    named = config.residual not in ("auto", "none") or config.scale not in ("auto", "none")
    if config.feedback == "none" and (config.lags or named):
        raise InputError(
            "model.feedback is none, so the past of the target is not read: leave model.lags, model.residual and "
            "model.scale alone"
        )
    if config.readout == "categorical" and config.classes < 2:
        raise InputError(f"model.classes is {config.classes}; a categorical read-out needs at least 2")


def free(config: ForecastModelConfig) -> bool:
    """Whether what is predicted may be any number: then it may be a difference."""
    return config.readout in ("gaussian", "student_t", "quantiles")


def scale_of(config: ForecastModelConfig) -> str:
    """The scale of a config, where it says auto.

    >>> scale_of(ForecastModelConfig(residual="seasonal")), scale_of(ForecastModelConfig(readout="bernoulli"))
    ('difference', 'none')
    """
    if config.scale != "auto":
        return config.scale
    if config.feedback == "none" or config.readout in ("bernoulli", "categorical"):
        return "none"
    return "mean" if config.residual in ("auto", "none") else "difference"


def lags_of(config: ForecastModelConfig, season: int) -> list[int]:
    """The lags that the network reads.

    >>> lags_of(ForecastModelConfig(residual="seasonal"), 24), lags_of(ForecastModelConfig(), 1)
    ([1, 24, 25], [1])
    """
    if config.feedback == "none":
        return []
    if config.kind == "seasonal_naive":
        return [season]
    if config.kind == "linear":
        return [*range(1, config.order + 1)]
    return sorted(set(config.lags)) or sorted({1, *((season, season + 1) if season > 1 else ())})


def settled(config: ForecastModelConfig) -> ForecastModelConfig:
    """The config with what a baseline leaves no choice in."""
    check(config)
    if config.kind == "network":
        return replace(config, block=network.block_of(layers_of(config)))
    fixed = replace(
        config, readout="gaussian", feedback="target", lags=[], calendar=False, embedding_size=0, readout_dropout=0.0
    )
    if config.kind == "seasonal_naive":
        return replace(fixed, residual="seasonal", scale="difference", log_scale=False)
    return replace(fixed, residual="none", scale="mean", log_scale=False)


def dtype_of(config: ForecastModelConfig) -> str:
    """What a model computes in: a baseline, which is fitted in one go, has no reason to lose digits."""
    return "float32" if config.kind == "network" else "float64"


def unjudged(config: ForecastModelConfig, season: int) -> int:
    """So many values at the beginning of a series have no term in the loss: its scale is not known well enough."""
    return {"none": 0, "mean": 1, "difference": 2 * season + 1}[scale_of(config)]


class FrontState(NamedTuple):
    lags: State
    scale: State


class Front(Core):
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

    def init_state(self, batch_size: int) -> FrontState:
        return FrontState(self.lags.init_state(batch_size), self.scale.init_state(batch_size))

    def step(self, x: Tensor, state: FrontState) -> tuple[Tensor, FrontState]:
        return self._through(x, state, lambda core, x, before: core.step(x, before))

    def _scan(self, x: Tensor, state: FrontState, lengths: Tensor, reset: Tensor) -> tuple[Tensor, FrontState]:
        y, after = self._through(x, state, lambda core, x, before: core.scan_unchecked(x, before, lengths, reset))
        return zero_past(y, lengths), after

    def _through(
        self, x: Tensor, state: FrontState, run: Callable[[Core, Tensor, State], tuple[Tensor, State]]
    ) -> tuple[Tensor, FrontState]:
        lagged, lags = run(self.lags, x[..., : self.C + self.F], state.lags)
        changes, seen = self._changes(lagged)
        means, scales = run(self.scale, torch.cat([changes, seen], -1), state.scale)
        return self._features(x, lagged, self._scale(lagged, means)), FrontState(lags, scales)

    def describe_step(self, builder: Builder, x: Slot, state: FrontState) -> Slot:
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


class Network(SequenceModel):
    """The model, and how often it reads a value of its own in training."""

    def __init__(self, embed: nn.Module, core: Core, readout: nn.Module, sampled: float) -> None:
        super().__init__(embed, core, readout)
        self.sampled = sampled


READOUTS: dict[str, Callable[[int, int, float], Affine[Distribution]]] = {
    "gaussian": lambda H, C, p: GaussianReadout(H, C, dropout=p),
    "student_t": lambda H, C, p: StudentTReadout(H, C, dropout=p),
    "quantiles": lambda H, C, p: QuantileReadout(H, C, dropout=p),
    "poisson": lambda H, C, p: PoissonReadout(H, C, dropout=p),
    "negative_binomial": lambda H, C, p: NegativeBinomialReadout(H, C, dropout=p),
    "bernoulli": lambda H, C, p: BernoulliReadout(H, C, dropout=p),
    "categorical": lambda H, C, p: Softmax(H, C, dropout=p),
}


def build(config: ForecastModelConfig, widths: Widths, seasonality: int) -> Network:
    """The model of a config, with fresh parameters."""
    check(config)
    C, size = widths.targets, config.embedding_size
    if config.readout == "categorical" and C != 1:
        raise InputError(f"a categorical read-out predicts one column; there are {C} targets")
    inner = widths._replace(others=widths.others + size)
    embed: nn.Module = SeriesEmbedding(widths.series, size) if size else nn.Identity()
    front = Front(config, inner, config.season or seasonality)
    F, Z = front.feature_width, front.z_width
    parts: list[Core] = []
    if config.kind == "network":
        if F == 0:
            raise InputError("the network has nothing to read: model.feedback is none, and there are no covariates")
        first: Core = Columns(front.output_size, 0, F)
        first = Dropout(first, config.input_dropout) if config.input_dropout else first
        parts.append(Stack(first, network.core(layers_of(config), F)))
    H = sum(part.output_size for part in parts) + Z
    scaled = config.readout not in ("bernoulli", "categorical")
    past: list[Core] = [Columns(front.output_size, 0, Z)] if Z else []
    units: list[Core] = [Columns(front.output_size, F, 2 * C)] if scaled else []
    core = Stack(front, Parallel(*parts, *past, *units))
    inside = READOUTS[config.readout](H, config.classes or C, config.readout_dropout)
    readout: Readout[Distribution] = Located(inside, C) if scaled else inside
    return Network(embed, core, readout, config.sampled if config.feedback == "sample" else 0.0)
