"""Forecasting: from series to distributions of what follows."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from elman.data import Batch, Batches
from elman.data.labelled import listed
from elman.data.panel import PanelReader, Series, fingerprint
from elman.data.panel_inputs import PanelInputs, SeriesStreams
from elman.data.parts import shown, told
from elman.errors import InputError
from elman.options import choice, whole
from elman.state import State
from elman.tasks import forecast_loss, pictures
from elman.tasks.forecast_files import widths
from elman.tasks.forecast_fit import fit
from elman.tasks.forecast_network import ModelConfig, Network, build, check, settled, unjudged
from elman.tasks.forecast_state import take
from elman.tasks.forecaster import SAMPLES, Forecaster
from elman.tasks.settings import TrainedSettings
from elman.tasks.task import Data, Task, Verb
from elman.training.scores import Scores
from elman.training.unit import Loss


@dataclass(frozen=True)
class DataConfig:
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
        frequency: of the times: auto (found from the data), or 1, s, min, h, D, W, M, Q, Y, as 15min
        gaps: what to do where times are missing: error, or fill (rows without values)
        errors: what to do with invalid UTF-8, strict (an error) or replace (U+FFFD)
        horizon: how many steps ahead a forecast goes
        seasonality: steps of a season: of the seasonal error in mase, of the naive forecast and of seasonal residuals
        valid_windows: so many horizons at the end of the training series are validated on, not trained on
        test_windows: so many at their end are for the test, where data.test is empty
        samples: paths of each forecast that is judged
        batch_size: series side by side in a step, over all processes
        window: rows of each in a step; gradients reach back so far, the state further
        segment: cut a series that has more rows into pieces of so many, at other places in each pass; 0 for never
        warmup: rows that are read before such a piece, without a term in the loss
    """

    train: list[str] | str = "series.csv"
    valid: list[str] | str = ""
    test: list[str] | str = ""
    format: str = "auto"
    id: str = "unique_id"
    time: str = "ds"
    target: list[str] | str = "y"
    static: list[str] = field(default_factory=list)
    past: list[str] = field(default_factory=list)
    future: list[str] = field(default_factory=list)
    frequency: str = "auto"
    gaps: str = "error"
    errors: str = "strict"
    horizon: int = 24
    seasonality: int = 1
    valid_windows: int = 1
    test_windows: int = 0
    samples: int = SAMPLES
    batch_size: int = 32
    window: int = 64
    segment: int = 0
    warmup: int = 0


@dataclass(frozen=True)
class RunConfig(TrainedSettings):
    """A run from series to a forecaster.

    >>> RunConfig(model=ModelConfig(readout="poisson")).data.horizon
    24

    Args:
        task: what is trained; forecast predicts what follows in time series
        data: the series
        model: the network, or a baseline
    """

    task: str = "forecast"
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    out: str = "runs/forecast"


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
        self, config: RunConfig, reader: PanelReader, series: list[Series], valid: list[Series], test: list[Series]
    ) -> None:
        data = config.data
        self.config, self.series, model = config, series, settled(config.model)
        names = tuple(one.name for one in series)
        self.inputs = PanelInputs(reader, names, model.calendar, model.embedding_size > 0)
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
        order = torch.randperm(len(series), generator=torch.Generator().manual_seed(0)).tolist()
        chosen = set() if valid else {*order[: max(1, len(series) // 10)]}
        self.train = self.fed = [one for i, one in enumerate(series) if i not in chosen]
        self.valid = Part([], valid or [one for i, one in enumerate(series) if i in chosen], 0, 0)
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
        data = self.config.data
        return [
            f"data: {shown(data.train)}: {len(self.series):,} series, {told('rows', trained, *rows)}",
            f"frequency {self.inputs.reader.frequency}, horizon {data.horizon}, seasonality {data.seasonality}",
        ]


def check_values(config: ModelConfig, series: Sequence[Series]) -> None:
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


def _wrong(config: ModelConfig, y: np.ndarray) -> np.ndarray:
    accepted = {"bernoulli": 2, "categorical": config.classes}.get(config.readout)
    return (y < 0) | (y != np.round(y)) | ((y >= accepted) if accepted else False)


class ForecastTask(Task[RunConfig, SeriesData, Forecaster]):
    Config = RunConfig
    title = "a forecaster of series"

    def fits(self, config: RunConfig) -> bool:
        return config.model.kind != "network"

    @property
    def verbs(self) -> dict[str, Verb]:
        return {"predict": Verb(_predict_arguments, _predict), "evaluate": Verb(_evaluate_arguments, _evaluate)}

    def open(self, config: RunConfig, saved: Forecaster | None) -> SeriesData:
        return self.open_held(config, saved, {})

    def open_held(self, config: RunConfig, saved: Forecaster | None, given: dict[str, Any]) -> SeriesData:
        data = config.data
        for name in ("horizon", "seasonality", "valid_windows", "samples", "batch_size", "window"):
            whole(f"data.{name}", getattr(data, name))
        for name in ("test_windows", "segment", "warmup"):
            whole(f"data.{name}", getattr(data, name), least=0)
        choice("data.errors", data.errors, ("strict", "replace"))
        check(config.model)
        reader, series = _reader(data).fit(given.get("train", listed(data.train)), data.frequency)
        if (data.valid or "valid" in given) and reader.format != "arrays":
            raise InputError(
                "data.valid is for arrays; series are validated on their own last rows, data.valid_windows of them"
            )
        valid, test = (
            reader(given.get(name, listed(getattr(data, name)))) if name in given or getattr(data, name) else []
            for name in ("valid", "test")
        )
        opened = SeriesData(config, reader, series, valid, test)
        if saved is not None:
            saved.history = opened.fed
        return opened

    def build(self, config: RunConfig, data: SeriesData) -> Forecaster:
        model, seasonality = settled(config.model), config.data.seasonality
        network = build(model, widths(data.inputs), seasonality)
        forecaster = Forecaster(network, model, data.inputs, config.data.horizon, seasonality)
        forecaster.history = data.fed
        return forecaster

    def load(self, folder: Path) -> Forecaster:
        return Forecaster.load(folder)

    def loss(self, model: nn.Module, batch: Batch, state: State | None) -> Loss:
        assert isinstance(model, Network)
        return forecast_loss.loss(model, batch, state)

    def fit(self, face: Forecaster, config: RunConfig, data: SeriesData) -> list[dict[str, float]]:
        return fit(face, data.train)

    def evaluate(self, face: Forecaster, part: Part) -> Scores:
        state = face.init_state(part.history or part.series)
        if face.inputs.reader.format == "arrays":
            return face.likelihood(part.series, state)
        state = face.read(part.history, state)
        places, series = face.following(part.series, state)
        return face.evaluate(series, take(state, places), windows=part.windows, samples=part.samples)

    def summary(self, face: Forecaster) -> str:
        return repr(face)


def _reader(data: DataConfig) -> PanelReader:
    return PanelReader(
        data.format, data.id, data.time, tuple(listed(data.target)), tuple(data.static), tuple(data.past),
        tuple(data.future), data.gaps, errors=data.errors,
    )  # fmt: skip


# What verbs ask


def _state_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--state", help="go on from this file, not from the end of the training series")
    parser.add_argument("--from_start", action="store_true", help="the data hold their own history: read it from there")
    parser.add_argument("--samples", type=int, default=SAMPLES, help="paths of each forecast")
    parser.add_argument("--seed", type=int, default=0, help="of the paths")


def _predict_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("data", nargs="*", metavar="DATA", help="new rows, that follow what was read; none for none")
    _state_arguments(parser)
    parser.add_argument("--horizon", type=int, help="steps ahead; that of the training unless you say")
    parser.add_argument("--quantiles", default="0.1,0.5,0.9", help="levels, between commas")
    parser.add_argument("--series", action="append", default=[], help="of this series only; may be given several times")
    parser.add_argument("--future", nargs="+", help="files with the future covariates of the horizon")
    parser.add_argument("--plot", help="draw the forecasts to this new .png file, of the first few series")
    parser.add_argument("--paths", help="write all paths to this new .npz file")
    parser.add_argument("--save_state", help="write what tomorrow needs to this new file")
    parser.add_argument("--force", action="store_true", help="let --save_state replace a file")


def _predict(face: Forecaster, given: Namespace) -> Iterator[str]:
    if given.save_state and Path(given.save_state).exists() and not given.force:
        raise InputError(f"{given.save_state} exists; choose another --save_state, or pass --force to replace it")
    _go_on(face, given)
    if given.data and not given.from_start:
        face.update(given.data)
    elif given.data:
        face.read_from_start(given.data)
    levels = _levels(given.quantiles)
    found = face.forecast(
        given.horizon, quantiles=levels, samples=given.samples, seed=given.seed, future=given.future,
        series=given.series,
    )  # fmt: skip
    if given.plot:
        pictures.fan(Path(given.plot), found, face.recent(found.names))
    if given.paths:
        found.save_paths(Path(given.paths))
    if given.save_state:
        face.save_state(given.save_state)
    return found.lines(face.inputs.reader.id, face.inputs.reader.time)


def _go_on(face: Forecaster, given: Namespace) -> None:
    if given.state and given.from_start:
        raise InputError("--state and --from_start exclude each other: rows go on from a state, or hold their history")
    if given.from_start and not given.data:
        raise InputError("--from_start needs data that hold their own history")
    if given.state:
        face.load_state(given.state)


def _levels(text: str) -> tuple[float, ...]:
    try:
        levels = tuple(float(part) for part in text.split(","))
    except ValueError:
        levels = (0.0,)
    if any(not 0 < level < 1 for level in levels):
        raise InputError(f"--quantiles is {text!r}; it must be numbers above 0 and below 1, as 0.1,0.5,0.9")
    return levels


def _evaluate_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("data", nargs="+", metavar="DATA", help="rows that follow what was read; or all, --from_start")
    _state_arguments(parser)
    parser.add_argument("--rolling", type=int, default=0, help="from so many origins; 0 for as many as there are rows")
    parser.add_argument("--stride", type=int, default=0, help="rows between origins; 0 for the horizon")


def _evaluate(face: Forecaster, given: Namespace) -> Scores:
    _go_on(face, given)
    series = face.inputs.reader(given.data)
    if face.inputs.reader.format == "arrays":
        return face.likelihood(series, face.init_state(series))
    windows, samples = whole("rolling", given.rolling, least=0), whole("samples", given.samples)
    if given.from_start:
        return face.backtest(series, windows=windows or 1, stride=given.stride, samples=samples, seed=given.seed)
    places, series = face.following(series, face.state)
    state = take(face.state, places)
    return face.evaluate(series, state, windows=windows, stride=given.stride, samples=samples, seed=given.seed)
