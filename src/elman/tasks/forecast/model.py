"""What forecasts: a network, how it reads series, and the state of each, from which it goes on.

A series' state is everything: what its cells, lags and scale remember, and the last row, which they have not read yet.
Rows are read once; tomorrow's go on from there, to the bits of one scan over all. A path of a forecast is a row of a
Stream that reads what it draws itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Real
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elman import random
from elman import state as states
from elman.errors import InputError
from elman.files.artifact import Content
from elman.files.config import Json
from elman.kernels.builder import Unstreamable
from elman.model import SequenceModel
from elman.nn.distributions import Categorical, Distribution
from elman.nn.quantiles import mean, quantile
from elman.options import several, whole
from elman.stream import Paths, Stream
from elman.tasks.forecast import backtest as forecast_backtest
from elman.tasks.forecast import content as forecast_files
from elman.tasks.forecast.backtest import Origins, Refit, Shown
from elman.tasks.forecast.data import MOST_FILLED, Series
from elman.tasks.forecast.inputs import PanelInputs
from elman.tasks.forecast.loss import log_prob
from elman.tasks.forecast.network import ForecastModelConfig, build
from elman.tasks.forecast.paths import Forecast, sample_quantiles, seeds
from elman.tasks.forecast.state import Carried, moved, names_leaf, places_of, put, read_already, tail_of, take
from elman.tasks.predictor import Predictor, evaluating
from elman.training.scores import Scores

EACH = 64  # series that are read side by side
CHUNK = 1 << 20  # numbers of x that are read at a time
PATHS = 4096  # paths that are drawn side by side: their states stay near the processor
SAMPLES = 100

# What the model says of some series at some steps, which series and steps they are, and what came (B, T, C), (B, T).
Judge = Callable[[Distribution, Sequence[int], slice, Tensor, Tensor], None]


class Forecaster(Predictor[SequenceModel]):
    """A network, and the state of every series at the end of its training.

    >>> import tempfile
    >>> from elman.tasks.forecast.task import ForecastConfig
    >>> rows = {"ds": [str(t) for t in range(60)], "y": [str(t % 3) for t in range(60)]}
    >>> settings = {"data": {"horizon": 3, "seasonality": 3}, "model": {"kind": "seasonal_naive"}}
    >>> forecaster, _ = elman.train(ForecastConfig(**settings, out=tempfile.mkdtemp() + "/run"), {"train": rows})
    >>> state = forecaster.update(forecaster.state, {"ds": ["60"], "y": ["0"]})
    >>> forecaster.forecast(state, 2).quantiles[0, :, 0, 1].round().tolist()
    [1.0, 2.0]
    """

    task = "forecast"
    config: ForecastModelConfig
    inputs: PanelInputs
    horizon: int
    seasonality: int
    state: Carried  # after the last rows of training; of no series while a model is trained

    def __init__(
        self, model: SequenceModel, config: ForecastModelConfig, inputs: PanelInputs, horizon: int, seasonality: int,
        state: Carried | None = None,
    ) -> None:  # fmt: skip
        super().__init__(model, config=config, inputs=inputs, horizon=horizon, seasonality=seasonality)
        vars(self)["state"] = self.init_state() if state is None else state

    # Reading

    def init_state(self, series: Sequence[Series] = ()) -> Carried:
        """The state before the first row of some series."""
        B, C, inputs = len(series), self.inputs.targets, self.inputs
        past, dtype = inputs.past_columns, getattr(torch, inputs.dtype)
        static = [torch.from_numpy(one.static.astype(inputs.dtype)) for one in series]
        width = inputs.reader.width(inputs.reader.static)
        return Carried(
            self.model.init_state(B),
            torch.zeros(B, C, dtype=dtype),
            torch.zeros(B, inputs.flags, dtype=dtype),
            torch.zeros(B, past.stop - past.start, dtype=dtype),
            torch.stack(static) if static else torch.zeros(0, width, dtype=dtype),
            torch.tensor([one.start - 1 for one in series], dtype=torch.int64),
            torch.full((B, self.seasonality, C), torch.nan, dtype=torch.float64),
            torch.zeros(B, 2, dtype=torch.float64),
            names_leaf([one.name for one in series]),
        )

    def read(self, series: Sequence[Series], state: Carried) -> Carried:
        """The state after some more rows of each series, in the order of the state."""
        return self._each(series, state)

    def scored(self, series: Sequence[Series], state: Carried) -> tuple[Carried, Tensor, Tensor]:
        """The same, with - log P of each value given what came before it (B, T), and whether there was one (B, T)."""
        T = max((len(one.y) for one in series), default=0)
        nats, known = torch.zeros(len(series), T, dtype=torch.float64), torch.zeros(len(series), T, dtype=torch.bool)

        def judge(predicted: Distribution, places: Sequence[int], at: slice, y: Tensor, counted: Tensor) -> None:
            nats[places, at] = -log_prob(predicted, y, counted).double()
            known[places, at] = counted.any(-1)

        return self._each(series, state, judge), nats, known

    @torch.inference_mode()
    def _each(self, series: Sequence[Series], state: Carried, judge: Judge | None = None) -> Carried:
        """The state after the rows; what is said of each of them goes to `judge`."""
        order = sorted(range(len(series)), key=lambda i: -len(series[i].y))  # rows of like length side by side
        at, parts = 0, []
        while at < len(order):
            longest = max(1, len(series[order[at]].y))
            places = order[at : at + max(EACH, CHUNK // (longest * self.model.core.input_size))]
            with evaluating(self.model):
                parts.append(self._some([series[i] for i in places], take(state, places), places, judge))
            at += len(places)
        if not parts:
            return state
        whole_ = parts[0] if len(parts) == 1 else cast(Carried, states.concat(parts))
        back = np.argsort(order)
        return whole_ if (back[:-1] < back[1:]).all() else take(whole_, back.tolist())

    def _some(self, series: Sequence[Series], state: Carried, places: Sequence[int], judge: Judge | None) -> Carried:
        rows, core = self.inputs.batch(series, tail_of(state)), state.core
        lengths, (B, T, D) = torch.tensor([len(one.y) for one in series]), rows.x.shape
        x, y, counted = (torch.from_numpy(part) for part in rows[:3])
        step = max(1, CHUNK // (B * D))
        for start in range(0, T, step):
            at = slice(start, min(start + step, T))
            now = (lengths - start).clamp(0, at.stop - start)
            h, core = self.model.core(self.model.embed(x[:, at]), core, lengths=now)
            if judge is not None:
                judge(self.model.readout(h, now), places, at, y[:, at], counted[:, at])
        return moved(state, core, series, rows.tail, self.seasonality)

    def update(self, state: Carried, rows: Any, filled: int = MOST_FILLED) -> Carried:
        """The state after new rows of some of its series, a file, a frame or series.

        At most so many rows are `filled` in where times are missing.
        """
        places, series = self.following(self.series_of(rows, filled), state, filled)
        return put(state, places, self.read(series, take(state, places)))

    def read_from_start(self, rows: Any, filled: int = MOST_FILLED) -> Carried:
        """The state of series that are read from their first row on."""
        series = self.series_of(rows, filled)
        return self.read(series, self.init_state(series))

    def series_of(self, rows: Any, filled: int = MOST_FILLED) -> Sequence[Series]:
        """Series, as they are or of a file or a frame."""
        found: Sequence[Series] = rows if _is_series(rows) else self.inputs.reader(rows, filled=filled)
        return found

    def following(
        self, series: Sequence[Series], state: Carried, filled: int = MOST_FILLED
    ) -> tuple[list[int], list[Series]]:
        """Which rows of a state some series go on from; each begins where its state ends."""
        numbers = {name: i for i, name in enumerate(state.names)}
        unknown = next((one.name for one in series if one.name not in numbers), None)
        if unknown is not None:
            some = ", ".join([*numbers][:5]) or "none"
            raise InputError(
                f"there is no state of series {unknown!r}, so it cannot go on (there are {len(numbers)} series: "
                f"{some} ...). With --from_start series are read from their first row on."
            )
        places, ticks = [numbers[one.name] for one in series], state.tick.tolist()
        if self.inputs.reader.format == "wide" and all(
            read_already(one, state, i) for one, i in zip(series, places, strict=True)
        ):
            raise InputError(
                f"these rows begin with those that were read already, of all {len(series)} series: is it the training "
                "file? Lines of values have no times; give what follows, or read all from the start with --from_start."
            )
        return places, self.inputs.reader.after(series, [ticks[i] for i in places], filled)

    # Forecasting

    def forecast(
        self, state: Carried, horizon: int | None = None, *, quantiles: Sequence[float] = (0.1, 0.5, 0.9),
        samples: int = SAMPLES, seed: int = 0, future: Any = None, series: Sequence[str] = (),
    ) -> Forecast:  # fmt: skip
        """What follows a state, of all its series or of those that are named: means, quantiles and the paths they come
        from.

        `future` has the future covariates of the horizon, where the model needs them. One step ahead all is exact, and
        `samples` may be 0.
        """
        if not isinstance(state, Carried):
            raise InputError(
                f"forecast was given a {type(state).__name__} for a state: what a forecaster reads does not change it. "
                "Write forecaster.forecast(forecaster.state, 6), or give what update or read_from_start returned."
            )
        if names := several("series", series, "names of series"):
            state = take(state, places_of(state, names))
        H = self.horizon if horizon is None else whole("horizon", horizon)
        samples = whole("samples", samples, least=0 if H == 1 else 1)
        quantiles = several("quantiles", quantiles, "levels, as 0.1, 0.5, 0.9")
        for level in quantiles:
            if not isinstance(level, Real) or not 0 < level < 1:
                raise InputError(f"quantiles has {level!r}; a level is a number above 0 and below 1, as 0.1, 0.5, 0.9")
        if not len(state.tick):
            raise InputError(
                "there is no series to forecast: read some from their first row on, with read_from_start or "
                "--from_start; or resume the run: until it is over, only its best model has states."
            )
        ahead = self._ahead(state, H, future)
        paths = self.paths(state, ahead, samples, seed)
        exact = self._first(state, ahead)
        B, C = len(paths), paths.shape[-1]
        means, found = np.zeros((B, H, C)), np.zeros((B, H, C, len(quantiles)))
        if H > 1:
            means, found = paths.mean(1), sample_quantiles(paths, quantiles)
        means[:, 0] = mean(exact).numpy().reshape(means[:, 0].shape)
        found[:, 0] = quantile(exact, quantiles).numpy().reshape(found[:, 0].shape)
        return Forecast(
            state.names, self.stamps(state.tick, H), self.inputs.reader.target, means, tuple(quantiles), found, paths
        )

    def stamps(self, last: Tensor, H: int) -> list[list[str]]:
        """The times of H rows after some ticks (B,)."""
        assert self.inputs.reader.frequency is not None
        ends, places = np.unique(last.numpy(), return_inverse=True)
        each = [self.inputs.reader.frequency.stamps(end + 1 + np.arange(H)) for end in ends]
        return [each[i] for i in places.tolist()]

    def _ahead(self, state: Carried, H: int, future: Any) -> Tensor:
        """What is known of the horizon (B, H, K)."""
        reader, names = self.inputs.reader, state.names
        given = {} if future is None else {one.name: one for one in _as_series(reader, future)}
        starts = state.tick.numpy() + 1
        values = np.full((len(names), H, reader.width(reader.future)), np.nan)
        for i, one in enumerate(given.get(name) for name in (names if values.shape[2] else ())):
            if one is not None:
                at = one.start - starts[i] + np.arange(len(one.future))
                inside = (at >= 0) & (at < H)
                values[i, at[inside]] = one.future[inside]
        lengths = np.full(len(names), H)
        return torch.from_numpy(self.inputs.known(names, starts, lengths, values, state.static.numpy()))

    def _inputs(self, state: Carried, ahead: Tensor) -> Tensor:
        return torch.cat([state.value, state.seen, state.past, ahead], -1)

    @torch.inference_mode()
    def _first(self, state: Carried, ahead: Tensor) -> Distribution:
        """What the model says of the next row, exactly."""
        with evaluating(self.model):
            y, _ = self.model.core.scan(self.model.embed(self._inputs(state, ahead[:, 0])[:, None]), state.core)
            predicted: Distribution = self.model.readout(y[:, 0])
        return predicted

    def one_ahead(self, state: Carried) -> Distribution:
        """What the model says of the next row of each series, exactly. Its future covariates, if any, are not known."""
        return self._first(state, self._ahead(state, 1, None))

    @torch.inference_mode()
    def paths(self, state: Carried, ahead: Tensor, samples: int, seed: int) -> NDArray[np.float64]:
        """Draws of what follows (B, S, H, C): path s of a series is the same alone and in any batch."""
        found = np.zeros((len(state.tick), samples, ahead.shape[1], self.inputs.targets))
        if not samples:
            return found
        with evaluating(self.model):
            try:
                follow = Paths(self.model)
            except Unstreamable:
                return self._stepped(state, ahead, found, seed)
            x = self.model.embed(self._inputs_ahead(state, ahead))
            drawn: NDArray[np.float64] = follow(state.core, x, seeds(state.names, samples, seed)).numpy()
        return drawn.reshape(found.shape)

    def _inputs_ahead(self, state: Carried, ahead: Tensor) -> Tensor:
        """Inputs (B, H, D) of all steps. From the second on values are drawn, and nothing else of the past is known."""
        first, H = self._inputs(state, ahead[:, 0]), ahead.shape[1]
        later = [torch.zeros_like(state.value), torch.ones_like(state.seen), torch.zeros_like(state.past)]
        rest = torch.cat([torch.cat(later, -1)[:, None].expand(-1, H - 1, -1), ahead[:, 1:]], -1)
        return torch.cat([first[:, None], rest], 1)

    def _stepped(self, state: Carried, ahead: Tensor, found: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
        """The paths `found` (B, S, H, C) of a model whose draws are not native, step by step."""
        B, samples = found.shape[:2]
        each = max(1, PATHS // samples)
        stream = Stream(self.model, each * samples)
        for start in range(0, B, each):
            rows = list(range(start, min(start + each, B)))
            part = take(state, rows)
            found[rows] = self._paths(stream, part, ahead[rows], samples, seed).unflatten(0, (-1, samples)).numpy()
        return found

    @torch.inference_mode()
    def _paths(self, stream: Stream, state: Carried, ahead: Tensor, samples: int, seed: int) -> Tensor:
        draws, n = seeds(state.names, samples, seed), len(state.tick) * samples
        core, value, seen, past = (
            states.repeat(part, samples) for part in (state.core, state.value, state.seen, state.past)
        )
        known = ahead.repeat_interleave(samples, 0)
        if n < stream.batch_size:
            stream = stream.share(n)
        stream.state = core
        drawn = []
        for step in range(ahead.shape[1]):
            predicted = stream.distribution(torch.cat([value, seen, past, known[:, step]], -1))  # type: ignore[list-item]
            y = predicted.sample(draws)
            value = y.float()[:, None] if isinstance(predicted, Categorical) else y
            seen, past = torch.ones_like(seen), torch.zeros_like(past)  # type: ignore[arg-type]
            draws = random.after(draws)
            drawn.append(value)
        return torch.stack(drawn, 1).double()

    # Judging

    def evaluate(
        self, series: Sequence[Series], state: Carried, *, windows: int = 0, stride: int = 0, samples: int = SAMPLES,
        seed: int = 0,
    ) -> Scores:  # fmt: skip
        """How good forecasts are of series that go on from a state: from `windows` origins, `stride` rows apart.

        The scan is cut at the origins; no row is read twice. Without `windows`, as many as there are.
        """
        return self.judge(series, state, Origins(windows, stride, samples, seed))[0]

    def judge(self, series: Sequence[Series], state: Carried, origins: Origins) -> tuple[Scores, Shown]:
        """The same, with the forecasts of the last origin for a picture."""
        return forecast_backtest.evaluate(self, series, state, origins)

    def backtest(
        self, rows: Any, *, windows: int = 1, stride: int = 0, samples: int = SAMPLES, seed: int = 0,
        refit_every: int = 0, refit: Refit | None = None,
    ) -> Scores:  # fmt: skip
        """How good forecasts are of the last rows of series that hold their own history, a file, a frame or series.

        The weights stay as they are; or every `refit_every` origins `refit` is given all rows before them, as columns
        by name, and gives the forecaster that goes on: lambda rows: elman.train(config, {"train": rows})[0].
        """
        origins = Origins(windows, stride, samples, seed)
        return forecast_backtest.backtest(self, self.series_of(rows), origins, refit_every, refit)

    def likelihood(self, series: Sequence[Series], state: Carried) -> Scores:
        """- log P of every row, given those before it: what there is to say of sequences without a horizon."""
        _, nats, known = self.scored(series, state)
        numbers = {"nats": float(nats[known].sum()) / max(1, int(known.sum())), "rows": int(known.sum())}
        return Scores({**numbers, "series": len(series)}, "nats")

    # Files

    def save_state(self, path: str | Path, state: Carried) -> None:
        """Write the state of some series to a file, with the fingerprint of this model."""
        states.save(path, state, fingerprint=self.fingerprint)

    def load_state(self, path: str | Path) -> Carried:
        """Read a state that this model wrote."""
        loaded = states.load(path, self.init_state(), fingerprint=self.fingerprint)
        assert isinstance(loaded, Carried)
        return loaded

    def at(self, state: Carried | None) -> Forecaster:
        """The same, with another state at the end of its training; None while it is trained, and for arrays."""
        return Forecaster(self.model, self.config, self.inputs, self.horizon, self.seasonality, state)

    @classmethod
    def load(cls, path: str | Path) -> Forecaster:
        found = super().load(path)
        return found.at(found.load_state(Path(path) / forecast_files.STATE))

    def write_to(self, folder: Path) -> None:
        super().write_to(folder)
        self.save_state(folder / forecast_files.STATE, self.state)

    def content(self) -> dict[str, Json]:
        return forecast_files.content(self.config, self.inputs, self.horizon, self.seasonality)

    @classmethod
    def parts(cls, content: Content) -> tuple[ForecastModelConfig, PanelInputs, int, int]:
        return forecast_files.parts(content)

    @classmethod
    def network(cls, config: ForecastModelConfig, inputs: PanelInputs, horizon: int, seasonality: int) -> SequenceModel:
        return build(config, forecast_files.widths(inputs), seasonality).to(getattr(torch, inputs.dtype))

    def __repr__(self) -> str:
        c, series = self.config, len(self.inputs.names)
        what = f"{c.layers} x {c.cell} {c.size}" if c.kind == "network" else c.kind.replace("_", " ")
        return f"Forecaster({what}, {c.readout}, {series} series, {self.parameter_count:,} parameters)"

    def about(self) -> list[list[str]]:
        return [
            ["horizon", str(self.horizon)],
            ["seasonality", str(self.seasonality)],
            ["frequency", str(self.inputs.reader.frequency)],
            ["series", f"{len(self.inputs.names):,}"],
        ]


def _is_series(rows: Any) -> bool:
    return isinstance(rows, list) and bool(rows) and isinstance(rows[0], Series)


def _as_series(reader: Any, future: Any) -> Sequence[Series]:
    found: Sequence[Series] = future if _is_series(future) else reader(future, future=True)
    return found
