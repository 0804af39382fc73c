"""The requests of a forecaster, and its responses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elman.errors import InputError
from elman.options import whole
from elman.tasks.forecast import metrics, plots
from elman.tasks.forecast.config import SAMPLES
from elman.tasks.forecast.data import MOST_FILLED
from elman.tasks.forecast.model import Forecaster
from elman.tasks.forecast.state import SeriesState, places_of, take
from elman.tasks.plots import PICTURES, check_new
from elman.tasks.request import Request, Rows, data_option, is_absent, opened, option
from elman.training.scores import Scores

MOST_DRAWN = 1 << 28  # numbers in the paths of a forecast, 2 GB; more would be drawn until memory ends
ROWS = list[dict[str, str | int | float | None]]


@dataclass(frozen=True)
class _Continuing(Request):
    state: str | None = option(None, "continue from this file, not from the end of the training series", local=True)
    from_start: bool = option(False, "read the data from their first row on: they have their own history")
    samples: int = option(SAMPLES, "paths of each forecast", least=0)
    seed: int = option(0, "of the paths", least=0)
    filled: int = option(MOST_FILLED, "rows that are missing and filled in, at most", inside=True, limit="filled")
    drawn: int = option(MOST_DRAWN, "numbers in all paths, at most", inside=True, limit="drawn")


@dataclass(frozen=True)
class Predict(_Continuing):
    """What follows some series; a row is an object with its columns."""

    data: Rows = data_option("rows that follow what was read; none to forecast from there", least=0, rows=ROWS)
    horizon: int | None = option(None, "steps ahead; by default the horizon of the training", least=1)
    quantiles: tuple[float, ...] = option((0.1, 0.5, 0.9), "levels, separated by commas", least=0, most=1)
    series: tuple[str, ...] = option((), "forecast this series only; may be repeated")
    future: tuple[str, ...] = option((), "files with the future covariates of the horizon", together=True, local=True)
    plot: str | None = option(
        None,
        "draw the first few forecasts to a new file: .png, .svg, .pdf or .jpg",
        local=True,
        endings=tuple(PICTURES),
    )
    paths: str | None = option(None, "write all paths to this new .npz file", local=True, endings=(".npz",))
    save_state: str | None = option(None, "write the state after these rows to this new file", local=True)
    force: bool = option(False, "let --save_state replace a file", local=True)


@dataclass(frozen=True)
class Evaluate(_Continuing):
    """How good forecasts are."""

    data: Rows = data_option("rows that follow what was read; or all, --from_start")
    rolling: int = option(0, "from so many origins; 0 for as many as there are rows", least=0)
    stride: int = option(0, "rows between origins; 0 for the horizon", least=0)


def predict(predictor: Forecaster, request: Predict) -> Iterator[str]:
    if request.save_state and Path(request.save_state).exists() and not request.force:
        raise InputError(f"{request.save_state} exists; choose another --save_state, or pass --force to replace it")
    if request.samples == 0 and (request.plot or request.paths):
        raise InputError("--samples is 0, and --plot and --paths show paths: draw some")
    if request.plot:
        check_new(request.plot)
    state, rows = _state(predictor, request), rows_of(request.data)
    if request.from_start:
        state = predictor.read_from_start(rows, request.filled)
    elif not is_absent(request.data):
        state = predictor.update(state, rows, request.filled)
    if len({*request.series}) < len(request.series):
        raise InputError("series has a name twice; name each series once")
    _check_size(predictor, request, len(request.series) or len(state.tick))
    chosen = take(state, places_of(state, request.series)) if request.series else state
    forecast = predictor.forecast(
        chosen, request.horizon, quantiles=request.quantiles, samples=request.samples, seed=request.seed,
        future=list(request.future) or None,
    )  # fmt: skip
    if request.plot:
        plots.fan(Path(request.plot), forecast, chosen.recent.numpy())
    if request.paths:
        forecast.save_paths(Path(request.paths))
    if request.save_state:
        predictor.save_state(request.save_state, state)
    return forecast.lines()


def rows_of(data: Rows) -> Any:
    """What a forecaster reads: names of files, columns by name, a frame or series."""
    names = opened(data)
    if names is not None:
        return names
    if not is_absent(data) and hasattr(data, "__len__") and not len(data):
        raise InputError("data is empty; leave it out to forecast from where the training ended")
    if isinstance(data, list) and data and all(isinstance(row, Mapping) for row in data):
        if any(row.keys() != data[0].keys() for row in data):
            raise InputError("the rows of data have different columns; give each the same, null where one is missing")
        return {name: [row[name] for row in data] for name in data[0]}
    return data


def _state(predictor: Forecaster, request: _Continuing) -> SeriesState:
    """The state that a request continues from. It is read, never moved: a server answers many with one forecaster."""
    if request.state and request.from_start:
        raise InputError(
            "--state and --from_start exclude each other: rows continue from a state, or have their own history"
        )
    assert isinstance(request, Predict | Evaluate)
    if request.from_start and is_absent(request.data):
        raise InputError("--from_start needs data that have their own history")
    return predictor.load_state(request.state) if request.state else predictor.state


def _check_size(predictor: Forecaster, request: Predict, series: int) -> None:
    horizon = predictor.horizon if request.horizon is None else request.horizon
    numbers = series * (max(1, request.samples) + len(request.quantiles)) * horizon * predictor.inputs.targets
    if numbers > request.drawn:
        raise InputError(
            f"{series:,} series, {request.samples:,} samples and {len(request.quantiles):,} quantiles of {horizon:,} "
            f"steps would be {numbers:,} numbers; {request.drawn:,} at most are drawn at once. Ask for fewer of them."
        )


def evaluate(predictor: Forecaster, request: Evaluate) -> Scores:
    state = _state(predictor, request)
    series = predictor.series_of(rows_of(request.data), request.filled)
    if predictor.inputs.reader.format == "arrays":
        return metrics.likelihood(predictor, series, predictor.init_state(series))
    windows, stride, samples, seed = request.rolling, request.stride, whole("samples", request.samples), request.seed
    if request.from_start:
        return metrics.backtest(predictor, series, windows=windows or 1, stride=stride, samples=samples, seed=seed)
    places, series = predictor.following(series, state, request.filled)
    state = take(state, places)
    return metrics.evaluate(predictor, series, state, windows=windows, stride=stride, samples=samples, seed=seed)
