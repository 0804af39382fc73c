"""How good forecasts are, from several origins: the scan is cut at them, so that no row is read twice.

With a function that fits a model again, the model is another one every few origins, which has seen all rows before it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from elman.data.tables import Columns
from elman.errors import InputError
from elman.files.config import Json
from elman.nn.quantiles import LEVELS
from elman.options import whole
from elman.tasks.forecast.data import Series
from elman.tasks.forecast.metrics import Judged, measure
from elman.tasks.forecast.paths import Forecast, sample_quantiles
from elman.tasks.forecast.state import Carried, take
from elman.training.scores import Scores

if TYPE_CHECKING:
    from elman.tasks.forecast.model import Forecaster

SHOWN = 4  # series of a window that are kept, to be looked at

Refit = Callable[[Columns], "Forecaster"]


class Origins(NamedTuple):
    """From how many origins, how many rows apart, forecasts are judged, and by how many paths from which seed."""

    windows: int
    stride: int
    samples: int
    seed: int


class Shown(NamedTuple):
    """Some forecasts beside what came before them (B, m, C) and what came (B, H, C)."""

    forecast: Forecast
    recent: NDArray[np.float64]
    truth: NDArray[np.float64]


class Rolled(NamedTuple):
    """What was found at each origin; - log P of all rows that were read, their number, and the state after them."""

    found: list[Judged]
    nats: float
    terms: int
    state: Carried
    shown: Shown


def evaluate(predictor: Forecaster, series: Sequence[Series], state: Carried, origins: Origins) -> tuple[Scores, Shown]:
    """Of series that go on from a state, from as many origins as there are where `windows` is 0; and some of the
    forecasts from the last of them."""
    H = predictor.horizon
    stride = whole("stride", origins.stride or H)
    shortest = min((len(one.y) for one in series), default=0)
    most = max(0, (shortest - H) // stride + 1)
    wanted = origins.windows or max(1, most)
    if wanted > most:
        raise InputError(
            f"{wanted} windows of {H} rows, {stride} apart, were asked for; the shortest series has {shortest} rows, "
            f"enough for {most}. Give fewer windows or more rows."
        )
    rolled = roll(predictor, series, state, origins._replace(windows=wanted, stride=stride), last=True)
    return _scores(predictor, [one.name for one in series], [rolled], origins.samples), rolled.shown


def backtest(
    predictor: Forecaster, series: Sequence[Series], origins: Origins, every: int = 0, refit: Refit | None = None
) -> Scores:
    """Of the last rows of series that hold their own history. Every `every` origins `refit` makes a new model of all
    rows before them; never, if that is 0."""
    windows, H = whole("windows", origins.windows), predictor.horizon
    stride, every = whole("stride", origins.stride or H), whole("refit_every", every, least=0)
    if (refit is None) != (every == 0):
        raise InputError(
            f"refit_every is {every}, and refit is {'not given' if refit is None else 'given'}; a model that is fitted "
            "again needs both: how often, and a function that takes a frame of rows and gives a forecaster"
        )
    judged = H + (windows - 1) * stride
    short = next((one for one in series if len(one.y) <= judged), None)
    if short is not None:
        raise InputError(
            f"series {short.name!r} has {len(short.y)} rows; {judged} are judged, and it needs some before them"
        )
    parts, step = [], every or windows
    for first in range(0, windows, step):
        history = [one.cut(0, len(one.y) - judged + first * stride) for one in series]
        rest = [one.cut(len(one.y) - judged + first * stride) for one in series]
        if refit is not None:
            predictor = _checked(refit(predictor.inputs.reader.frame(history)), predictor)
        count = min(step, windows - first)
        state = predictor.read(history, predictor.init_state(history))
        some = origins._replace(windows=count, stride=stride)
        parts.append(roll(predictor, rest, state, some, last=first + count == windows))
    return _scores(predictor, [one.name for one in series], parts, origins.samples)


def _checked(made: Forecaster, before: Forecaster) -> Forecaster:
    if made.horizon != before.horizon or made.inputs.reader.target != before.inputs.reader.target:
        raise InputError(
            f"refit gave a model of {', '.join(made.inputs.reader.target)}, {made.horizon} ahead; the backtest is of "
            f"{', '.join(before.inputs.reader.target)}, {before.horizon} ahead"
        )
    return made


def roll(predictor: Forecaster, series: Sequence[Series], state: Carried, origins: Origins, *, last: bool) -> Rolled:
    """From origin to origin; behind the last one of all, rows are read to their end."""
    H, stride = predictor.horizon, origins.stride
    found, nats, terms = [], 0.0, 0
    for window in range(origins.windows):
        origin, ends = window * stride, last and window + 1 == origins.windows
        judged, shown = _judged(predictor, [one.cut(origin, origin + H) for one in series], state, origins)
        found.append(judged)
        rows = [one.cut(origin, None if ends else origin + stride) for one in series]
        state, each, known = predictor.scored(rows, state)
        nats, terms = nats + float(each[known].sum()), terms + int(known.sum())
    return Rolled(found, nats, terms, state, shown)


def _judged(predictor: Forecaster, series: Sequence[Series], state: Carried, origins: Origins) -> tuple[Judged, Shown]:
    ahead = predictor.inputs.known(
        [one.name for one in series], np.array([one.start for one in series]),
        np.array([len(one.y) for one in series]), np.stack([one.future for one in series]),
        np.stack([one.static for one in series]),
    )  # fmt: skip
    truth = np.stack([one.y for one in series])
    paths = predictor.paths(state, torch.from_numpy(ahead), origins.samples, origins.seed)
    sums = state.error.numpy()
    error = np.divide(sums[:, 0], sums[:, 1], out=np.full(len(sums), np.nan), where=sums[:, 1] > 0)
    quantiles = sample_quantiles(paths, LEVELS)
    few = slice(0, SHOWN)
    shown = Forecast(
        [one.name for one in series[few]], predictor.stamps(state.tick[few], predictor.horizon),
        predictor.inputs.reader.target, paths[few].mean(1), LEVELS, quantiles[few], paths[few],
    )  # fmt: skip
    recent = take(state, range(len(shown.names))).recent.numpy()
    return Judged(truth, paths, quantiles, error, naive(state, predictor.horizon)), Shown(shown, recent, truth[few])


def naive(state: Carried, H: int) -> NDArray[np.float64]:
    """The seasonal naive forecast (B, H, C): the last season again and again; where it has no value, the last one."""
    recent, last = state.recent.numpy(), state.value.numpy()[:, None]
    again = recent[:, np.arange(H) % recent.shape[1]]
    return np.where(np.isnan(again), last, again)


def _scores(predictor: Forecaster, names: Sequence[str], parts: Sequence[Rolled], samples: int) -> Scores:
    found = [judged for part in parts for judged in part.found]
    every = Judged(*(np.concatenate(part) for part in zip(*found, strict=True)))
    numbers = {name: value for name, value in measure(every).items() if np.isfinite(value)}  # JSON has no NaN
    if not {"wql", "crps"} & {*numbers}:
        bad = int((~np.isfinite(every.paths)).any((1, 2, 3)).argmax()) % len(names)
        raise InputError(
            f"the forecasts of series {names[bad]!r} are not finite: its values lie too far apart, or the weights of "
            "the model are not finite. Look for a value that is wrong, or leave the series out."
        )
    nats, terms = sum(part.nats for part in parts), sum(part.terms for part in parts)
    numbers |= {"nats": nats / max(1, terms), "series": len(names), "windows": len(found)}
    details: dict[str, Json] = {"seasonality": predictor.seasonality, "horizon": predictor.horizon, "samples": samples}
    secondary = tuple(name for name in ("mase", "naive_mase", "nats") if name in numbers)
    primary = "wql" if "wql" in numbers else "crps"
    return Scores(numbers, primary, secondary=secondary, details=details, remark=remark(numbers))


def remark(numbers: Mapping[str, float]) -> str:
    """What has to be said of scores: that the seasonal naive forecast, which costs nothing, is better."""
    name = next((name for name in ("mase", "nd") if f"naive_{name}" in numbers and name in numbers), None)
    if name is None or numbers[name] <= numbers[f"naive_{name}"]:
        return ""
    return f"worse than the seasonal naive forecast: {name} {numbers[name]:.4f}, naive {numbers[f'naive_{name}']:.4f}"
