"""The settings of a forecaster, and what is chosen where they leave something open: by the model, or by the data.

A run that names a setting gets what it names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from elman.cells import CELLS
from elman.data.names import Names
from elman.data.text import ERRORS
from elman.errors import InputError
from elman.files.config import one_of
from elman.options import choice, fraction, number, whole
from elman.tasks import network
from elman.tasks.forecast.data import PanelReader, Series
from elman.tasks.forecast.files import FORMATS
from elman.tasks.forecast.readout import READOUTS, SCALED
from elman.tasks.forecast.season import WEEK, find_season, has_weeks
from elman.tasks.network import NetworkConfig
from elman.tasks.task import TrainedSettings
from elman.training.loop import TrainingConfig
from elman.training.optim import OptimConfig

if TYPE_CHECKING:
    from elman.tasks.forecast.model import Forecaster  # noqa: F401  (in the base of ForecastConfig)

KINDS = ("network", "seasonal_naive", "linear")
SCALES = ("auto", "mean", "difference", "none")
RESIDUALS = ("auto", "none", "last", "seasonal")
FEEDBACK = ("target", "sample", "none")
SAMPLES = 100  # paths of a forecast
WINDOWS = 20  # to validate on, at most
FORECASTS = 2000  # in one evaluation, or about


@dataclass(frozen=True)
class ForecastModelConfig(NetworkConfig):
    """The settings of the network.

    Args:
        kind: network; or a baseline, fitted in one go: seasonal_naive, or linear (autoregression by least squares)
        order: of linear, how many of the last values it reads
        residual_layers: add what a layer reads to what it puts out
        input_dropout: on what the first layer reads
        readout_dropout: the dropout before the read-out
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

    cell: str = one_of("lstm", CELLS)
    size: int = 64
    residual: str = one_of("auto", RESIDUALS)  # type: ignore[assignment]  # of a forecast it is what is predicted: saved runs call it so
    kind: str = one_of("network", KINDS)
    order: int = 24
    residual_layers: bool = False
    input_dropout: float = 0.0
    readout_dropout: float = 0.1
    readout: str = one_of("student_t", READOUTS)
    classes: int = 0
    feedback: str = one_of("target", FEEDBACK)
    sampled: float = 0.25
    lags: list[int] = field(default_factory=list)
    scale: str = one_of("auto", SCALES)
    decay: float = 1.0
    season: int = 0
    log_scale: bool = True
    calendar: bool = True
    embedding_size: int = 0

    @property
    def adds_input(self) -> bool:
        return self.residual_layers

    @property
    def predicts(self) -> str:
        """What the read-out predicts: numbers, counts, bits or classes."""
        return READOUTS[self.readout].predicts


@dataclass(frozen=True)
class ForecastDataConfig:
    """Series.

    Args:
        train: files of one format, one name or a list
        valid: of arrays, the sequences that are validated on; empty for a tenth of train
        test: rows that follow the training series, for the final test; empty for the last test_windows of train
        format: auto, long (CSV or Parquet, a row for each series and time), wide (M4) or arrays (.npz, .mat)
        id: the column of the names of series
        time: the column of times
        target: the columns of what is predicted, one or a list
        static: columns of covariates that do not change within a series
        past: columns of covariates that are known until the origin of a forecast only
        future: columns of covariates that are known for the horizon too
        frequency: of the times: auto (found from the data), or 1, s, min, h, D, B (Monday to Friday), W, M, Q, Y, as
            15min
        gaps: what to do where times are missing: error, or fill (rows without values)
        errors: what to do with invalid UTF-8, strict (an error) or replace (U+FFFD)
        horizon: how many steps ahead a forecast goes
        seasonality: steps of a season: of the seasonal error in mase, of the naive forecast and of seasonal residuals;
            0 for the usual one of the frequency if the series have it (a day of hours, a week of days, a year), or what
            they repeat after
        valid_windows: so many horizons at the end of the training series are validated on, not trained on; 0 for as
            many as a fifth of a typical series has, 20 at most
        test_windows: so many at their end are for the test, where data.test is empty
        samples: paths of each forecast that is scored
        batch_size: series side by side in a step, over all processes
        window: rows of each in a step; gradients reach back so far, the state further
        segment: cut a series that has more rows into pieces of so many, at other places in each pass; 0 for never, -1
            for pieces that fill a batch where there are too few series for that
        warmup: rows that are read before such a piece, without a term in the loss; 0 with segment -1 for enough for the
            lags
    """

    train: Names = "series.csv"
    valid: Names = ""
    test: Names = ""
    format: str = one_of("auto", FORMATS)
    id: str = "unique_id"
    time: str = "ds"
    target: Names = "y"
    static: list[str] = field(default_factory=list)
    past: list[str] = field(default_factory=list)
    future: list[str] = field(default_factory=list)
    frequency: str = "auto"
    gaps: str = one_of("error", ("error", "fill"))
    errors: str = one_of("strict", ERRORS)
    horizon: int = 24
    seasonality: int = 0
    valid_windows: int = 0
    test_windows: int = 0
    samples: int = SAMPLES
    batch_size: int = 32
    window: int = 64
    segment: int = -1
    warmup: int = 0


@dataclass(frozen=True)
class ForecastOptim(OptimConfig):
    """How weights are changed: they decay more, for a series is soon learnt by heart."""

    weight_decay: float = 0.05


@dataclass(frozen=True)
class ForecastTraining(TrainingConfig):
    """How long, and what is kept: the mean of some weights, for one choice among windows of few series is chance."""

    evaluate_every: int = 100
    average: int = 5


@dataclass(frozen=True)
class ForecastConfig(TrainedSettings["Forecaster"]):
    """A run from series to a forecaster.

    >>> ForecastConfig(model=ForecastModelConfig(readout="poisson")).data.horizon
    24

    Args:
        task: what is trained; forecast predicts what follows in time series
        data: the series
        model: the network, or a baseline
    """

    task: str = "forecast"
    data: ForecastDataConfig = field(default_factory=ForecastDataConfig)
    model: ForecastModelConfig = field(default_factory=ForecastModelConfig)
    optim: ForecastOptim = field(default_factory=ForecastOptim)
    training: ForecastTraining = field(default_factory=ForecastTraining)

    def __post_init__(self) -> None:
        for name, kind, own in (("optim", OptimConfig, ForecastOptim), ("training", TrainingConfig, ForecastTraining)):
            if type(given := getattr(self, name)) is kind:  # of all tasks: it means what it says
                object.__setattr__(self, name, own(**vars(given)))
        super().__post_init__()


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
    if config.residual not in ("auto", "none") and config.predicts != "numbers":
        raise InputError(
            f"model.residual is {config.residual}; a difference needs a read-out of any number (gaussian, student_t, "
            f"quantiles), not {config.readout}"
        )
    if config.scale not in ("auto", "none") and config.predicts not in SCALED:
        raise InputError(f"model.scale is {config.scale}; {config.readout} has no scale: leave it at auto")
    named = config.residual not in ("auto", "none") or config.scale not in ("auto", "none")
    if config.feedback == "none" and (config.lags or named):
        raise InputError(
            "model.feedback is none, so the past of the target is not read: leave model.lags, model.residual and "
            "model.scale alone"
        )
    if config.readout == "categorical" and config.classes < 2:
        raise InputError(f"model.classes is {config.classes}; a categorical read-out needs at least 2")


def scale_of(config: ForecastModelConfig) -> str:
    """The scale of a config, where it says auto.

    >>> scale_of(ForecastModelConfig(residual="seasonal")), scale_of(ForecastModelConfig(readout="bernoulli"))
    ('difference', 'none')
    """
    if config.scale != "auto":
        return config.scale
    if config.feedback == "none" or config.predicts not in SCALED:
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


def resolve_defaults(config: ForecastModelConfig) -> ForecastModelConfig:
    """The config with its block decided, and what a baseline leaves no choice in."""
    check(config)
    if config.kind == "network":
        return replace(config, block=network.block_of(config))
    fixed = replace(
        config, readout="gaussian", feedback="target", lags=[], calendar=False, embedding_size=0, readout_dropout=0.0
    )
    if config.kind == "seasonal_naive":
        return replace(fixed, residual="seasonal", scale="difference", log_scale=False)
    return replace(fixed, residual="none", scale="mean", log_scale=False)


def dtype_of(config: ForecastModelConfig) -> str:
    """What a model computes in: a baseline, which is fitted in one go, has no reason to lose digits."""
    return "float32" if config.kind == "network" else "float64"


def warmup_steps(config: ForecastModelConfig, season: int) -> int:
    """So many values at the beginning of a series have no term in the loss: its scale is not known well enough."""
    return {"none": 0, "mean": 1, "difference": 2 * season + 1}[scale_of(config)]


def resolve_by_data(
    config: ForecastConfig, reader: PanelReader, series: Sequence[Series], *, tested: bool, seasonality: int = 0
) -> ForecastConfig:
    """The config with what it leaves open; `tested` are other rows, `seasonality` that of a model trained further."""
    data, model = config.data, config.model
    long = reader.format != "arrays"
    lengths = [len(one.y) for one in series]
    typical = int(np.median(lengths))
    windows = data.valid_windows or (_windows(typical, data.horizon, len(series)) if long else 1)
    held = (windows + (0 if tested else data.test_windows)) * data.horizon
    assert reader.frequency is not None
    season = data.seasonality or seasonality or (find_season(reader.frequency, series, held) if long else 1)
    own = model.season or season
    model = resolve_model(model, own, weeks=long and own % 24 == 0 and has_weeks(own, series, held), scaled=long)
    data = replace(data, seasonality=season, valid_windows=windows)
    return replace(config, data=_cut(data, model, lengths), model=model)


def resolve_model(
    model: ForecastModelConfig, season: int, *, weeks: bool = False, scaled: bool = True
) -> ForecastModelConfig:
    """What is predicted, and the lags that are read; `weeks` of days that differ.

    >>> found = resolve_model(ForecastModelConfig(), 24, weeks=True)
    >>> found.residual, found.lags
    ('seasonal', [1, 2, 24, 25, 168, 169])
    >>> resolve_model(ForecastModelConfig(residual="none"), 24).lags
    []
    """
    if model.residual != "auto":
        return model
    fits = scaled and model.predicts == "numbers" and model.feedback != "none"
    if model.kind != "network" or not fits or model.readout == "gaussian":
        # A gaussian of fresh weights may be so narrow that a difference far out costs 1e20 nats, and ends the training.
        return replace(model, residual="none")
    lags = model.lags or [1, 2, *((season, season + 1) if season > 1 else ())]
    if not model.lags and weeks:
        lags = [*lags, WEEK * season, WEEK * season + 1]
    return replace(model, residual="seasonal" if season > 1 else "last", lags=sorted({*lags}))


def _windows(rows: int, horizon: int, series: int) -> int:
    """How many horizons are validated on: one is chance, and more than a fifth of the rows are missed in training."""
    return int(np.clip(rows // (5 * horizon), 1, min(WINDOWS, max(1, FORECASTS // series))))


def _cut(data: ForecastDataConfig, model: ForecastModelConfig, lengths: Sequence[int]) -> ForecastDataConfig:
    """Long series are cut where there are not enough of them to fill a batch."""
    if data.segment >= 0:
        return data
    season = model.season or data.seasonality
    segment = max(4 * data.window, -(-sum(lengths) // data.batch_size))
    if len(lengths) >= data.batch_size or max(lengths) <= segment:
        return replace(data, segment=0)
    longest = max([season, *lags_of(model, season)])
    return replace(data, segment=segment, warmup=data.warmup or max(data.window, longest + season))
