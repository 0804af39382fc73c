"""What a forecaster answers on the command line: `elman predict`, `elman evaluate`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path

from elman import state as states
from elman.data.panel import MOST_FILLED
from elman.errors import InputError
from elman.options import whole
from elman.tasks import pictures
from elman.tasks.forecast_state import Carried, places_of, take
from elman.tasks.forecaster import SAMPLES, Forecaster
from elman.tasks.task import Verb
from elman.training.scores import Scores

MOST_DRAWN = 1 << 28  # numbers in the paths of a forecast, 2 GB; more would be drawn until memory ends


def _state_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--state", help="go on from this file, not from the end of the training series")
    parser.add_argument("--from_start", action="store_true", help="the data hold their own history: read it from there")
    parser.add_argument("--samples", type=int, default=SAMPLES, help="paths of each forecast")
    parser.add_argument("--seed", type=int, default=0, help="of the paths")
    parser.set_defaults(filled=MOST_FILLED, drawn=MOST_DRAWN)  # a server lowers them


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
    if given.samples == 0 and (given.plot or given.paths):
        raise InputError("--samples is 0, and --plot and --paths show paths: draw some")
    levels, state = _levels(given.quantiles), _state(face, given)
    if given.from_start:
        state = face.from_start(given.data, given.filled)
    elif given.data:
        state = face.after(given.data, state, given.filled)
    chosen = take(state, places_of(state, given.series)) if given.series else state
    _check_size(face, given, len(chosen.tick))
    found = face.forecast_from(
        chosen, given.horizon, quantiles=levels, samples=given.samples, seed=given.seed, future=given.future
    )
    if given.plot:
        pictures.fan(Path(given.plot), found, chosen.recent.numpy())
    if given.paths:
        found.save_paths(Path(given.paths))
    if given.save_state:
        states.save(given.save_state, state, fingerprint=face.fingerprint)
    return found.lines(face.inputs.reader.id, face.inputs.reader.time)


def _state(face: Forecaster, given: Namespace) -> Carried:
    """The state that a command goes on from. It is read, never moved: a server answers many with one forecaster."""
    if given.state and given.from_start:
        raise InputError("--state and --from_start exclude each other: rows go on from a state, or hold their history")
    if given.from_start and not given.data:
        raise InputError("--from_start needs data that hold their own history")
    return face.open_state(given.state) if given.state else face.state


def _check_size(face: Forecaster, given: Namespace, series: int) -> None:
    horizon = face.horizon if given.horizon is None else given.horizon
    numbers = series * max(1, given.samples) * horizon * face.inputs.targets
    if numbers > given.drawn:
        raise InputError(
            f"the paths of {series:,} series, {given.samples:,} samples of {horizon:,} steps, would be {numbers:,} "
            f"numbers; {given.drawn:,} at most are drawn at once. Ask for fewer samples, fewer steps or fewer series."
        )


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
    state = _state(face, given)
    series = face.inputs.reader(given.data, filled=given.filled)
    if face.inputs.reader.format == "arrays":
        return face.likelihood(series, face.init_state(series))
    windows, samples = whole("rolling", given.rolling, least=0), whole("samples", given.samples)
    if given.from_start:
        return face.backtest(series, windows=windows or 1, stride=given.stride, samples=samples, seed=given.seed)
    places, series = face.following(series, state, given.filled)
    state = take(state, places)
    return face.evaluate(series, state, windows=windows, stride=given.stride, samples=samples, seed=given.seed)


PREDICT = Verb(_predict_arguments, _predict)
EVALUATE = Verb(_evaluate_arguments, _evaluate)
