"""Forecasting: from series to distributions of what follows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from elman import state as states
from elman.compose import Parallel, Stack
from elman.core import Core
from elman.data import Batch, Batches
from elman.data.names import Names, file_list, names_of
from elman.data.splits import draw, split_summary
from elman.errors import InputError
from elman.lens import Sample
from elman.model import SequenceModel
from elman.nn.distributions import Distribution
from elman.options import choice, whole
from elman.state import State
from elman.tasks import network, plots
from elman.tasks.forecast import loss as forecast_loss
from elman.tasks.forecast import requests as forecast_verbs
from elman.tasks.forecast.backtest import Origins, Shown
from elman.tasks.forecast.data import PanelReader, Series, fingerprint
from elman.tasks.forecast.defaults import resolve
from elman.tasks.forecast.fit import fit
from elman.tasks.forecast.inputs import PanelInputs, SeriesStreams
from elman.tasks.forecast.loss import log_prob
from elman.tasks.forecast.model import SAMPLES, Forecaster
from elman.tasks.forecast.network import ForecastModelConfig, Network, check, dtype_of, layers_of, settled, unjudged
from elman.tasks.forecast.rescaled import Located, located
from elman.tasks.forecast.serving import ServedSeries
from elman.tasks.forecast.state import take
from elman.tasks.request import Request
from elman.tasks.serving import Served
from elman.tasks.task import Data, Evaluation, Inspection, InspectRequest, Response, Task, TrainedSettings
from elman.training.loop import TrainingConfig
from elman.training.loss import Loss
from elman.training.optim import OptimConfig
from elman.training.record import Preview


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
        samples: paths of each forecast that is judged
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
    format: str = "auto"
    id: str = "unique_id"
    time: str = "ds"
    target: Names = "y"
    static: list[str] = field(default_factory=list)
    past: list[str] = field(default_factory=list)
    future: list[str] = field(default_factory=list)
    frequency: str = "auto"
    gaps: str = "error"
    errors: str = "strict"
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
class ForecastConfig(TrainedSettings):
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
    out: str = "runs/forecast"

    def __post_init__(self) -> None:
        for name, kind, own in (("optim", OptimConfig, ForecastOptim), ("training", TrainingConfig, ForecastTraining)):
            if type(given := getattr(self, name)) is kind:  # of all tasks: it means what it says
                object.__setattr__(self, name, own(**vars(given)))
        super().__post_init__()


class Part(NamedTuple):
    """What a model is judged on: series, and the rows before them."""

    history: Sequence[Series]
    series: Sequence[Series]
    windows: int  # from how many origins; 0 for as many as there are
    samples: int


class SeriesData(Data):
    """Series, and what of them is trained on."""

    unit = "rows"

    def __init__(
        self, config: ForecastConfig, reader: PanelReader, series: list[Series], valid: list[Series],
        test: list[Series], saved: PanelInputs | None = None,
    ) -> None:  # fmt: skip
        data = config.data
        self.config, self.series, model = config, series, settled(config.model)
        names = tuple(one.name for one in series)
        self.inputs = PanelInputs(
            reader, names, model.calendar, model.embedding_size > 0,
            each=saved.each if saved else True, dtype=saved.dtype if saved else dtype_of(model),
        )  # fmt: skip
        check_values(model, [*series, *valid, *test])
        found = {"train": series, "valid": valid, "test": test}
        self.fingerprint = {f"data.{name}": fingerprint(part) for name, part in found.items()}
        H, held = data.horizon, (0 if test else data.test_windows) * data.horizon
        whole_rows = [one for one in series if len(one.y) >= held + data.valid_windows * H + 2]
        long_enough = {one.name for one in whole_rows}
        if reader.format != "arrays" and not whole_rows:
            longest = max(len(one.y) for one in series)
            raise InputError(
                f"the longest series has {longest} rows; {data.valid_windows} windows of {H} to validate on"
                f"{f' and {data.test_windows} to test on' if held else ''} leave nothing to train on. Give more rows, "
                "a smaller data.horizon or fewer data.valid_windows."
            )
        self.arrays = reader.format == "arrays"
        if self.arrays:
            self._split_arrays(series, valid, test)
            return
        self.fed = [one.cut(0, len(one.y) - held) if one.name in long_enough else one for one in series]
        seen = [one for one in self.fed if one.name in long_enough]
        cut = data.valid_windows * H
        self.valid = Part(
            [one.cut(0, len(one.y) - cut) for one in seen], [one.cut(len(one.y) - cut) for one in seen],
            data.valid_windows, data.samples,
        )  # fmt: skip
        self.train = [one.cut(0, len(one.y) - cut) if one.name in long_enough else one for one in self.fed]
        if test:
            self.test = Part(self.fed, test, 0, data.samples)
        elif held:
            self.test = Part(seen, [one.cut(len(one.y) - held) for one in whole_rows], data.test_windows, data.samples)

    def _split_arrays(self, series: list[Series], valid: list[Series], test: list[Series]) -> None:
        """Sequences are independent: some of them are validated on, the same for every seed."""
        self.train, drawn = draw(series, 0 if valid else max(1, len(series) // 10))
        self.fed, self.valid = self.train, Part([], valid or drawn, 0, 0)
        self.test = Part([], test, 0, 0) if test else None

    def batches(self, rank: int, world: int) -> Batches:
        data, model = self.config.data, settled(self.config.model)
        return SeriesStreams(
            self.inputs, self.train, data.batch_size, data.window, self.config.seed, segment=data.segment,
            warmup=data.warmup, skip=unjudged(model, model.season or data.seasonality), rank=rank, world=world,
        )  # fmt: skip

    def summary(self) -> list[str]:
        rows = [sum(len(one.y) for one in part.series) if part else 0 for part in (self.valid, self.test)]
        trained = sum(len(one.y) for one in self.train)
        data, coarse = self.config.data, coarsest(self.series) if self.inputs.dtype == "float32" else ""
        return [
            f"data: {file_list(data.train)}: {len(self.series):,} series, {split_summary('rows', trained, *rows)}",
            f"frequency {self.inputs.reader.frequency}, horizon {data.horizon}, seasonality {data.seasonality}, "
            f"{data.valid_windows} windows to validate on",
            *([coarse] if coarse else []),
        ]


def coarsest(series: Sequence[Series]) -> str:
    """A warning of the first series whose changes float32 hardly sees; nothing where there is none."""
    for one in series:
        changes = np.abs(np.diff(one.y, axis=0))
        changes = changes[changes > 0]  # and not NaN
        size, change = np.nanmax(np.abs(one.y), initial=0), np.median(changes) if len(changes) else np.inf
        if change < size * 2.0**-20:
            return (
                f"warning: series {one.name!r} is about {size:.3g} and changes by about {change:.3g}; a network "
                "computes in float32, which has seven digits. Give it without its level, or take --model.kind linear."
            )
    return ""


def check_values(config: ForecastModelConfig, series: Sequence[Series]) -> None:
    """Raise an InputError at a series that has no value, or one that the read-out cannot predict."""
    for one in series:
        y = one.y[~np.isnan(one.y)]
        if not len(y):
            raise InputError(f"series {one.name!r} has no value at all: all are missing. Leave it out.")
        what = ""
        if config.readout in ("poisson", "negative_binomial") and ((y < 0) | (y != np.round(y))).any():
            what = "counts, 0, 1, 2 ..."
        elif config.readout == "bernoulli" and not np.isin(y, (0, 1)).all():
            what = "0 and 1"
        elif config.readout == "categorical" and not np.isin(y, np.arange(config.classes)).all():
            what = f"classes, 0 to {config.classes - 1}"
        if what:
            raise InputError(
                f"series {one.name!r} has the value {y[np.argmax(_wrong(config, y))]:g}, and model.readout is "
                f"{config.readout}, which predicts {what}. Choose another read-out, or correct the value."
            )


def _wrong(config: ForecastModelConfig, y: np.ndarray) -> np.ndarray:
    accepted = {"bernoulli": 2, "categorical": config.classes}.get(config.readout)
    return (y < 0) | (y != np.round(y)) | ((y >= accepted) if accepted else False)


class ForecastTask(Task[ForecastConfig, SeriesData, Forecaster]):
    Config, Model = ForecastConfig, Forecaster
    title = "a forecaster of series"

    def fits(self, config: ForecastConfig) -> bool:
        return config.model.kind != "network"

    @property
    def requests(self) -> dict[str, tuple[type[Request], Response]]:
        return {
            "predict": (forecast_verbs.Predict, forecast_verbs.predict),
            "evaluate": (forecast_verbs.Evaluate, forecast_verbs.evaluate),
            "inspect": (InspectRequest, self.inspector(_read)),
        }

    def open(self, config: ForecastConfig, saved: Forecaster | None) -> SeriesData:
        return self.open_in_memory(config, saved, {})

    def open_in_memory(self, config: ForecastConfig, saved: Forecaster | None, given: dict[str, Any]) -> SeriesData:
        data = config.data
        for name in ("horizon", "samples", "batch_size", "window"):
            whole(f"data.{name}", getattr(data, name))
        for name in ("seasonality", "valid_windows", "test_windows", "warmup"):
            whole(f"data.{name}", getattr(data, name), least=0)
        whole("data.segment", data.segment, least=-1)
        choice("data.errors", data.errors, ("strict", "replace"))
        check(config.model)
        rows, tested = given.get("train", names_of(data.train)), bool(data.test) or "test" in given
        held = data.valid_windows + (0 if tested else data.test_windows)
        reader, series = _reader(data).fit(rows, data.frequency, held * data.horizon)
        config = resolve(config, reader, series, tested=tested, seasonality=saved.seasonality if saved else 0)
        more = config.data.valid_windows - data.valid_windows
        if more and reader.covariates:  # rows that are judged, which is known only now, do not say how large these are
            reader, series = _reader(data).fit(rows, data.frequency, (held + more) * data.horizon)
        if (data.valid or "valid" in given) and reader.format != "arrays":
            raise InputError(
                "data.valid is for arrays; series are validated on their own last rows, data.valid_windows of them"
            )
        valid, test = (
            reader(given.get(name, names_of(getattr(data, name)))) if name in given or getattr(data, name) else []
            for name in ("valid", "test")
        )
        return SeriesData(config, reader, series, valid, test, saved.inputs if saved else None)

    def build(self, config: ForecastConfig, data: SeriesData) -> Forecaster:
        config = data.config  # with what was left open
        model, seasonality = settled(config.model), config.data.seasonality
        if model.kind == "network":
            network.settled(layers_of(model))  # warns of a dropout that does nothing
        parts = model, data.inputs, config.data.horizon, seasonality
        return Forecaster(Forecaster.network(*parts), *parts)

    def finish(self, predictor: Forecaster, data: SeriesData) -> Forecaster:
        """With the state after the last rows that were trained on, from which forecasts start."""
        return predictor.at(predictor.read(data.fed, predictor.init_state(data.fed)))

    def unfinished(self, predictor: Forecaster) -> Forecaster:
        return predictor.at(None)

    def loss(self, model: nn.Module, batch: Batch, state: State | None) -> Loss:
        assert isinstance(model, Network)
        return forecast_loss.loss(model, batch, state)

    def fit(self, predictor: Forecaster, config: ForecastConfig, data: SeriesData) -> list[dict[str, float]]:
        return fit(predictor, data.train)

    def evaluate(self, predictor: Forecaster, part: Part) -> Evaluation:
        state = predictor.init_state(part.history or part.series)
        if predictor.inputs.reader.format == "arrays":
            return Evaluation(predictor.likelihood(part.series, state))
        state = predictor.read(part.history, state)
        places, series = predictor.following(part.series, state)
        scores, shown = predictor.judge(series, take(state, places), Origins(part.windows, 0, part.samples, 0))
        return Evaluation(scores, lambda run, step: _preview(shown))

    def inspect_inputs(self, predictor: Forecaster, part: Part, rows: int, steps: int) -> Inspection:
        """The last `steps` rows of some series, what is judged and what came before it, read from nothing on.

        The lens is pointed at the cells: what stands before them, lags and scales, has nothing to learn.
        """
        if predictor.config.kind != "network":
            raise InputError(f"model.kind is {predictor.config.kind}, which has no cells to look into; a network has")
        before = {one.name: one for one in part.history}
        some = [joined(before.get(one.name), one) for one in part.series[:rows]]
        found = predictor.inputs.batch([one.cut(max(0, len(one.y) - steps)) for one in some])
        lengths = torch.tensor([min(steps, len(one.y)) for one in some])
        names = [[f"{value:.3g} " for value in row[:n, 0]] for row, n in zip(found.x, lengths, strict=True)]
        counted = torch.from_numpy(found.counted)
        # In the first rows nothing says yet how large the values are.
        counted &= counted.cumsum(1) > unjudged(predictor.config, predictor.config.season or predictor.seasonality)
        assert isinstance(predictor.model.core, Stack)
        front, cells = (predictor.model.core.get_submodule(f"cores.{i}") for i in range(2))
        assert isinstance(front, Core) and isinstance(cells, Core)
        with torch.no_grad():
            x, _ = front.scan(predictor.model.embed(torch.from_numpy(found.x)), lengths=lengths)
        y: tuple[Tensor, ...] = (torch.from_numpy(found.y), counted)
        readout = predictor.model.readout
        if isinstance(readout, Located):
            # Reference and scale are units, not inputs: on the way from zero to x a scale of zero would end in NaN.
            assert isinstance(cells, Parallel)
            units = x[..., -2 * readout.size :].clone()
            x = torch.cat([x[..., : -2 * readout.size], torch.zeros_like(units)], -1)
            y, cells, readout = (*y, units), Parallel(*[*cells.cores][:-1]), readout.readout
        model = SequenceModel(nn.Identity(), cells, readout)
        return Inspection(model, Sample(x, y, lengths, names=names, log_prob=_looked))

    def serve(self, predictor: Forecaster) -> Served:
        return ServedSeries(predictor)

    def closing(self, lines: Sequence[Mapping[str, float]]) -> str:
        """How the best model stands beside the seasonal naive forecast."""
        judged = [line for line in lines if "valid" in line and "mase" in line and "naive_mase" in line]
        if not judged:
            return ""
        best = min(judged, key=lambda line: line["valid"])
        said = f"mase of the best on the validation windows {best['mase']:.4f}, of the seasonal naive forecast "
        if best["mase"] <= best["naive_mase"]:
            return f"{said}{best['naive_mase']:.4f}"
        return (
            f"{said}{best['naive_mase']:.4f}: the model is worse than that, which costs nothing. More steps may help, "
            "or another data.seasonality; else take --model.kind seasonal_naive or linear."
        )


def _preview(shown: Shown) -> Preview:
    """Some of the forecasts that were judged last, as fans, or as a table where there is no matplotlib."""
    picture = plots.fans(shown.forecast, shown.recent, shown.truth)
    return Preview("" if picture else "".join(shown.forecast.lines()).rstrip(), picture)


def _looked(predicted: Distribution, y: State, lengths: Tensor) -> Tensor:
    values, counted, *units = states.leaves(y)
    if units:
        reference, scale = units[0].chunk(2, -1)
        predicted = located(predicted, reference, torch.where(scale > 0, scale, 1.0))  # in the padding it is zero
    return log_prob(predicted, values, counted)


def _read(predictor: Forecaster, request: InspectRequest) -> Part:
    return Part([], predictor.series_of(forecast_verbs.rows_of(request.data)), 0, 0)


def joined(before: Series | None, one: Series) -> Series:
    """A series with the rows before it."""
    if before is None:
        return one
    y, past, future = (np.concatenate(pair) for pair in zip(before[2:5], one[2:5], strict=True))
    return Series(one.name, before.start, y, past, future, one.static)


def _reader(data: ForecastDataConfig) -> PanelReader:
    return PanelReader(
        data.format, data.id, data.time, tuple(names_of(data.target)), tuple(data.static), tuple(data.past),
        tuple(data.future), data.gaps, errors=data.errors,
    )  # fmt: skip
