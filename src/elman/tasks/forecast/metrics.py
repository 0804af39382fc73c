"""How good forecasts are. Sums run over all series and windows at once, so batches do not matter.

With the truth y, the median m, quantiles q_p and N paths x_i of each target, and the seasonal error e of its series,
the mean of |y[t] - y[t-season]| over what came before its origin:

    mase      mean over series and windows of mean |y - m| / e          (without those whose e is zero or unknown)
    smape     mean of 2 |y - m| / (|y| + |m|), zero where both are zero
    nd        sum |y - m| / sum |y|
    wql       mean over p = 0.1 ... 0.9 of 2 sum max(p (y - q_p), (p - 1) (y - q_p)) / sum |y|
    crps      mean of (sum_i |x_i - y|) / N - (sum_ij |x_i - x_j|) / (2 N^2), in the units of the data
    coverage  share of y in [q_0.1, q_0.9], of those that are there

and beside it what the naive forecast has, the value one season before: naive_mase and naive_nd.

Forecasts are made from several origins: the scan is cut at them, so that no row is read twice. With a function that
fits a model again, the model is another one every few origins, which has seen all rows before it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from elman.data.tables import Columns
from elman.errors import InputError
from elman.files.config import Json
from elman.options import whole
from elman.tasks.forecast.config import SAMPLES
from elman.tasks.forecast.data import Series
from elman.tasks.forecast.model import Forecaster, PanelRows
from elman.tasks.forecast.state import Forecast, SeriesState, sample_quantiles, take
from elman.training.scores import Scores

Numbers = NDArray[np.float64]

LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
SHOWN = 4  # series of a window that are kept, for a preview

Refit = Callable[[Columns], Forecaster]


class ForecastErrors(NamedTuple):
    """Forecasts beside what came: N series-windows of H steps and C targets; truth is NaN where it is missing."""

    truth: Numbers  # (N, H, C)
    paths: Numbers  # (N, S, H, C)
    quantiles: Numbers  # (N, H, C, 9), at LEVELS
    error: Numbers  # (N,): the mean seasonal error before the origin, NaN if unknown
    naive: Numbers  # (N, H, C): the values one season before, again and again


def measure(errors: ForecastErrors) -> dict[str, float]:
    """The numbers by name.

    >>> one = np.array([[[1.0]]])
    >>> found = measure(ForecastErrors(one, one[:, None], np.repeat(one[..., None], 9, -1), np.array([2.0]), one + 1))
    >>> found["mase"], found["naive_mase"]
    (0.0, 0.5)
    """
    known = ~np.isnan(errors.truth)
    y = np.where(known, errors.truth, 0.0)
    median = errors.quantiles[..., LEVELS.index(0.5)]
    error = np.where(known, np.abs(y - median), 0.0)
    size = np.abs(y) + np.abs(median)
    share = np.divide(2 * error, size, out=np.zeros_like(size), where=known & (size > 0))
    total, count = float(np.abs(y).sum()), max(1, int(known.sum()))
    naive = np.where(known, np.abs(y - errors.naive), 0.0)
    inside = (y >= errors.quantiles[..., 0]) & (y <= errors.quantiles[..., -1]) & known
    return {
        "mase": _mase(error, known, errors.error),
        "smape": float(share.sum()) / count,
        "nd": _over(float(error.sum()), total),
        "wql": _over(float(np.mean([pinball(y, errors.quantiles, known, i) for i in range(len(LEVELS))])), total),
        "crps": float(np.where(known, crps(y, errors.paths), 0.0).sum()) / count,
        "coverage": float(inside.sum()) / count,
        "naive_mase": _mase(naive, known, errors.error),
        "naive_nd": _over(float(naive.sum()), total),
    }


def pinball(y: Numbers, quantiles: Numbers, known: NDArray[np.bool_], level: int) -> float:
    """2 sum max(p (y - q), (p - 1) (y - q)) of one of LEVELS."""
    p, error = LEVELS[level], y - quantiles[..., level]
    return float(2 * np.where(known, np.maximum(p * error, (p - 1) * error), 0.0).sum())


def crps(y: Numbers, paths: Numbers) -> Numbers:
    """The continuous ranked probability score of samples (N, S, ...) of y (N, ...): with x sorted,
    sum_ij |x_i - x_j| = 2 sum_i (2 i - S + 1) x_i.

    >>> float(crps(np.array([0.0]), np.array([[-1.0, 1.0]]))[0])
    0.5
    """
    S = paths.shape[1]
    ordered = np.sort(paths, 1)
    weights = (2 * np.arange(S) - S + 1).reshape(1, S, *(1,) * (y.ndim - 1))
    return np.abs(paths - y[:, None]).mean(1) - (weights * ordered).sum(1) / S**2


def _mase(error: Numbers, known: NDArray[np.bool_], scale: Numbers) -> float:
    each = error.sum((1, 2)) / np.maximum(known.sum((1, 2)), 1)
    usable = (scale > 0) & known.any((1, 2))
    return float((each[usable] / scale[usable]).mean()) if usable.any() else float("nan")


def _over(sum: float, total: float) -> float:
    return sum / total if total > 0 else float("nan")


class Origins(NamedTuple):
    """From how many origins, how many rows apart, forecasts are scored, and by how many paths from which seed."""

    windows: int
    stride: int
    samples: int
    seed: int


class PreviewData(NamedTuple):
    """Some forecasts beside what came before them (B, m, C) and what came (B, H, C)."""

    forecast: Forecast
    recent: NDArray[np.float64]
    truth: NDArray[np.float64]


class Rolled(NamedTuple):
    """The errors at each origin; - log P of all rows that were read, their number, and the state after them."""

    errors: list[ForecastErrors]
    nats: float
    terms: int
    state: SeriesState
    preview: PreviewData


def evaluate(
    predictor: Forecaster, series: Sequence[Series], state: SeriesState, *, windows: int = 0, stride: int = 0,
    samples: int = SAMPLES, seed: int = 0,
) -> Scores:  # fmt: skip
    """How good forecasts are of series that continue from a state: from `windows` origins, `stride` rows apart.

    The scan is cut at the origins; no row is read twice. Without `windows`, as many as there are.
    """
    return score(predictor, series, state, Origins(windows, stride, samples, seed))[0]


def score(
    predictor: Forecaster, series: Sequence[Series], state: SeriesState, origins: Origins
) -> tuple[Scores, PreviewData]:
    """The same, with some of the forecasts from the last origin."""
    H = predictor.horizon
    stride = whole("stride", origins.stride or H)
    shortest = min((len(one.y) for one in series), default=0)
    most = max(0, (shortest - H) // stride + 1)
    wanted = origins.windows or max(1, most)
    if wanted > most:
        raise InputError(
            f"{wanted} windows of {H} rows, {stride} apart, were requested; the shortest series has {shortest} rows, "
            f"enough for {most}. Give fewer windows or more rows."
        )
    rolled = roll(predictor, series, state, origins._replace(windows=wanted, stride=stride), last=True)
    return _scores(predictor, [one.name for one in series], [rolled], origins.samples), rolled.preview


def backtest(
    predictor: Forecaster, rows: PanelRows, *, windows: int = 1, stride: int = 0, samples: int = SAMPLES, seed: int = 0,
    refit_every: int = 0, refit: Refit | None = None,
) -> Scores:  # fmt: skip
    """How good forecasts are of the last rows of series that hold their own history, a file, a frame or series.

    The weights stay as they are; or every `refit_every` origins `refit` is given all rows before them, as columns by
    name, and gives the forecaster that continues: lambda rows: elman.train(config, {"train": rows})[0].
    """
    series, H = predictor.series_of(rows), predictor.horizon
    windows, stride = whole("windows", windows), whole("stride", stride or H)
    every = whole("refit_every", refit_every, least=0)
    if (refit is None) != (every == 0):
        raise InputError(
            f"refit_every is {every}, and refit is {'not given' if refit is None else 'given'}; a model that is fitted "
            "again needs both: how often, and a function that takes a frame of rows and gives a forecaster"
        )
    scored = H + (windows - 1) * stride
    short = next((one for one in series if len(one.y) <= scored), None)
    if short is not None:
        raise InputError(
            f"series {short.name!r} has {len(short.y)} rows; {scored} are scored, and it needs some before them"
        )
    parts, step = [], every or windows
    for first in range(0, windows, step):
        history = [one.cut(0, len(one.y) - scored + first * stride) for one in series]
        rest = [one.cut(len(one.y) - scored + first * stride) for one in series]
        if refit is not None:
            predictor = _checked(refit(predictor.inputs.reader.frame(history)), predictor)
        count = min(step, windows - first)
        state = predictor.read(history, predictor.init_state(history))
        origins = Origins(count, stride, samples, seed)
        parts.append(roll(predictor, rest, state, origins, last=first + count == windows))
    return _scores(predictor, [one.name for one in series], parts, samples)


def likelihood(predictor: Forecaster, series: Sequence[Series], state: SeriesState) -> Scores:
    """- log P of every row, given those before it: what there is to say of sequences without a horizon."""
    _, nats, known = predictor.score(series, state)
    numbers = {"nats": float(nats[known].sum()) / max(1, int(known.sum())), "rows": int(known.sum())}
    return Scores({**numbers, "series": len(series)}, "nats")


def _checked(made: Forecaster, before: Forecaster) -> Forecaster:
    if made.horizon != before.horizon or made.inputs.reader.target != before.inputs.reader.target:
        raise InputError(
            f"refit gave a model of {', '.join(made.inputs.reader.target)}, {made.horizon} ahead; the backtest is of "
            f"{', '.join(before.inputs.reader.target)}, {before.horizon} ahead"
        )
    return made


def roll(
    predictor: Forecaster, series: Sequence[Series], state: SeriesState, origins: Origins, *, last: bool
) -> Rolled:
    """From origin to origin; behind the last one of all, rows are read to their end."""
    H, stride = predictor.horizon, origins.stride
    errors, nats, terms = [], 0.0, 0
    for window in range(origins.windows):
        origin, ends = window * stride, last and window + 1 == origins.windows
        window_errors, preview = _score_window(
            predictor, [one.cut(origin, origin + H) for one in series], state, origins
        )
        errors.append(window_errors)
        rows = [one.cut(origin, None if ends else origin + stride) for one in series]
        state, each, known = predictor.score(rows, state)
        nats, terms = nats + float(each[known].sum()), terms + int(known.sum())
    return Rolled(errors, nats, terms, state, preview)


def _score_window(
    predictor: Forecaster, series: Sequence[Series], state: SeriesState, origins: Origins
) -> tuple[ForecastErrors, PreviewData]:
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
    forecast = Forecast(
        [one.name for one in series[few]], predictor.stamps(state.tick[few], predictor.horizon),
        predictor.inputs.reader.target, paths[few].mean(1), LEVELS, quantiles[few], paths[few],
    )  # fmt: skip
    recent = take(state, range(len(forecast.names))).recent.numpy()
    errors = ForecastErrors(truth, paths, quantiles, error, naive(state, predictor.horizon))
    return errors, PreviewData(forecast, recent, truth[few])


def naive(state: SeriesState, H: int) -> NDArray[np.float64]:
    """The seasonal naive forecast (B, H, C): the last season again and again; where it has no value, the last one."""
    recent, last = state.recent.numpy(), state.value.numpy()[:, None]
    again = recent[:, np.arange(H) % recent.shape[1]]
    return np.where(np.isnan(again), last, again)


def _scores(predictor: Forecaster, names: Sequence[str], parts: Sequence[Rolled], samples: int) -> Scores:
    windows = [one for part in parts for one in part.errors]
    every = ForecastErrors(*(np.concatenate(part) for part in zip(*windows, strict=True)))
    numbers = {name: value for name, value in measure(every).items() if np.isfinite(value)}  # JSON has no NaN
    if not {"wql", "crps"} & {*numbers}:
        bad = int((~np.isfinite(every.paths)).any((1, 2, 3)).argmax()) % len(names)
        raise InputError(
            f"the forecasts of series {names[bad]!r} are not finite: its values lie too far apart, or the weights of "
            "the model are not finite. Look for a value that is wrong, or leave the series out."
        )
    nats, terms = sum(part.nats for part in parts), sum(part.terms for part in parts)
    numbers |= {"nats": nats / max(1, terms), "series": len(names), "windows": len(windows)}
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
