"""What forecasts: a network, how it reads series, and the state of each, from which it continues.

A series' state is everything: what its cells, lags and scale remember, and the last row, which they have not read yet.
Rows are read once; later ones continue from there, to the bits of one scan over all. A path of a forecast is a row of a
Stream that reads what it draws itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Real
from pathlib import Path
from typing import TypeGuard, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elman import state as states
from elman.decoding.paths import draw_paths
from elman.errors import InputError
from elman.files.artifact import Content
from elman.nn.distributions import Numeric
from elman.options import several, whole
from elman.progress import check_cancelled
from elman.tasks.forecast.calendar import Frequency
from elman.tasks.forecast.config import SAMPLES, ForecastModelConfig
from elman.tasks.forecast.covariates import Covariate
from elman.tasks.forecast.data import MOST_FILLED, Panel, PanelReader, Series
from elman.tasks.forecast.inputs import PanelInputs
from elman.tasks.forecast.network import ForecastNetwork, Widths, build, log_prob
from elman.tasks.forecast.state import (
    Forecast,
    SeriesState,
    advance,
    check_model,
    from_stored,
    model_leaf,
    names_leaf,
    places_of,
    put,
    read_already,
    sample_quantiles,
    seeds,
    tail_of,
    take,
    to_stored,
)
from elman.tasks.predictor import Predictor, evaluating

EACH = 64  # series that are read side by side
CHUNK = 1 << 20  # numbers of x that are read at a time
STATE = "series.safetensors"
PanelRows = object  # names of files, columns by name, a data frame, or series

# What the model says of some series at some steps, which series and steps they are, and what came (B, T, C), (B, T).
Observer = Callable[[Numeric, NDArray[np.int64], slice, Tensor, Tensor], None]


class Forecaster(Predictor[ForecastNetwork]):
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
    _state: SeriesState | None

    def __init__(
        self, model: ForecastNetwork, config: ForecastModelConfig, inputs: PanelInputs, horizon: int, seasonality: int,
        state: SeriesState | None = None,
    ) -> None:  # fmt: skip
        super().__init__(model, config=config, inputs=inputs, horizon=horizon, seasonality=seasonality, _state=state)

    @property
    def state(self) -> SeriesState:
        """After the last rows of training; of no series while a model is trained. It is a copy: a model is frozen."""
        state = self._state
        return self.init_state() if state is None else cast(SeriesState, states.map(torch.clone, state))

    # Reading

    def init_state(self, series: Sequence[Series] = (), fingerprint: str | None = None) -> SeriesState:
        """The state before the first row of some series. Who knows the model's `fingerprint` may say it: to compute it
        takes a pass over all weights."""
        fingerprint = self.fingerprint if fingerprint is None else fingerprint
        B, C, inputs = len(series), self.inputs.targets, self.inputs
        past, dtype = inputs.past_columns, getattr(torch, inputs.dtype)
        panel = Panel.of(series) if B else _no_series(inputs.reader)
        return SeriesState(
            self.model.init_state(B),
            torch.zeros(B, C, dtype=dtype),
            torch.zeros(B, inputs.flags, dtype=dtype),
            torch.zeros(B, past.stop - past.start, dtype=dtype),
            torch.from_numpy(panel.static).to(dtype),
            torch.from_numpy(panel.starts) - 1,
            torch.full((B, self.seasonality, C), torch.nan, dtype=torch.float64),
            torch.zeros(B, 2, dtype=torch.float64),
            names_leaf(panel.names),
            model_leaf(fingerprint, B),
        )

    def read(self, series: Sequence[Series], state: SeriesState) -> SeriesState:
        """The state after some more rows of each series, in the order of the state."""
        return self._read_batches(series, state)

    def score(self, series: Sequence[Series], state: SeriesState) -> tuple[SeriesState, Tensor, Tensor]:
        """The same, with - log P of each value given what came before it (B, T), and whether there was one (B, T)."""
        T = max((len(one.y) for one in series), default=0)
        nats, known = torch.zeros(len(series), T, dtype=torch.float64), torch.zeros(len(series), T, dtype=torch.bool)

        def observe(predicted: Numeric, places: NDArray[np.int64], at: slice, y: Tensor, counted: Tensor) -> None:
            nats[places, at] = -log_prob(predicted, y, counted).double()
            known[places, at] = counted.any(-1)

        return self._read_batches(series, state, observe), nats, known

    @torch.inference_mode()
    def _read_batches(
        self, series: Sequence[Series], state: SeriesState, observe: Observer | None = None
    ) -> SeriesState:
        """The state after the rows; what is said of each of them goes to `observe`."""
        if not len(series):
            return state
        panel = Panel.of(series)
        order = np.argsort(-panel.lengths, kind="stable")  # rows of like length side by side
        at, parts = 0, []
        while at < len(order):
            longest = max(1, int(panel.lengths[order[at]]))
            places = order[at : at + max(EACH, CHUNK // (longest * self.model.core.input_size))]
            with evaluating(self.model):
                parts.append(self._read_batch(panel.take(places), take(state, places), places, observe))
            at += len(places)
        whole_ = parts[0] if len(parts) == 1 else cast(SeriesState, states.concat(parts))
        return take(whole_, np.argsort(order))

    def _read_batch(
        self, panel: Panel, state: SeriesState, places: NDArray[np.int64], observe: Observer | None
    ) -> SeriesState:
        rows, core = self.inputs.batch(panel, tail_of(state)), state.core
        lengths, (B, T, D) = torch.from_numpy(panel.lengths), rows.x.shape
        x, y, counted = (torch.from_numpy(part) for part in rows[:3])
        step = max(1, CHUNK // (B * D))
        for start in range(0, T, step):
            check_cancelled()
            at = slice(start, min(start + step, T))
            now = (lengths - start).clamp(0, at.stop - start)
            h, core = self.model.core(self.model.embed(x[:, at]), core, lengths=now)
            if observe is not None:
                observe(self.model.readout(h, now), places, at, y[:, at], counted[:, at])
        return advance(state, core, panel, rows.tail, self.seasonality)

    def update(self, state: SeriesState, rows: PanelRows, filled: int = MOST_FILLED) -> SeriesState:
        """The state after new rows of some of its series, a file, a frame or series.

        At most so many rows are `filled` in where times are missing.
        """
        check_model(state, self.fingerprint)
        places, series = self.following(self.series_of(rows, filled), state, filled)
        return put(state, places, self.read(series, take(state, places)))

    def read_from_start(self, rows: PanelRows, filled: int = MOST_FILLED) -> SeriesState:
        """The state of series that are read from their first row on."""
        series = self.series_of(rows, filled)
        return self.read(series, self.init_state(series))

    def series_of(self, rows: PanelRows, filled: int = MOST_FILLED) -> Sequence[Series]:
        """Series, as they are or of a file or a frame."""
        return rows if _is_series(rows) else self.inputs.reader(rows, filled=filled)

    def following(
        self, series: Sequence[Series], state: SeriesState, filled: int = MOST_FILLED
    ) -> tuple[NDArray[np.int64], Panel]:
        """Which rows of a state some series continue from; each begins where its state ends."""
        panel = Panel.of(series)
        places = _places(panel.names, state.names)
        if self.inputs.reader.format == "wide" and all(
            read_already(one, state, i) for one, i in zip(panel, places.tolist(), strict=True)
        ):
            raise InputError(
                f"these rows begin with those that were read already, of all {len(panel)} series: is it the training "
                "file? Lines of values have no times; give what follows, or read all from the start with --from_start."
            )
        return places, self.inputs.reader.after(panel, state.tick.numpy()[places], filled)

    # Forecasting

    def forecast(
        self, state: SeriesState, horizon: int | None = None, *, quantiles: Sequence[float] = (0.1, 0.5, 0.9),
        samples: int = SAMPLES, seed: int = 0, future: PanelRows = None, series: Sequence[str] = (),
    ) -> Forecast:  # fmt: skip
        """What follows a state, of all its series or of those that are named: means, quantiles and the paths they come
        from.

        `future` has the future covariates of the horizon, where the model needs them. One step ahead all is exact, and
        `samples` may be 0.
        """
        check_model(state, self.fingerprint)
        if chosen := several("series", series, "names of series"):
            state = take(state, places_of(state, chosen))
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
        names = state.names
        ahead = self._ahead(state, names, H, future)
        paths = self.paths(state, ahead, samples, seed)
        exact = self._first(state, ahead)
        B, C = len(paths), paths.shape[-1]
        means, found = np.zeros((B, H, C)), np.zeros((B, H, C, len(quantiles)))
        if H > 1:
            means, found = paths.mean(1), sample_quantiles(paths, quantiles)
        means[:, 0] = exact.mean.double().numpy().reshape(means[:, 0].shape)
        found[:, 0] = exact.quantile(quantiles).numpy().reshape(found[:, 0].shape)
        reader = self.inputs.reader
        return Forecast(
            names, self.stamps(state.tick, H), reader.target, means, tuple(quantiles), found, paths, reader.id,
            reader.time,
        )  # fmt: skip

    def stamps(self, last: Tensor, H: int) -> list[list[str]]:
        """The times of H rows after some ticks (B,)."""
        assert self.inputs.reader.frequency is not None
        ends, places = np.unique(last.numpy(), return_inverse=True)
        each = [self.inputs.reader.frequency.stamps(end + 1 + np.arange(H)) for end in ends]
        return [each[i] for i in places.tolist()]

    def _ahead(self, state: SeriesState, names: Sequence[str], H: int, future: PanelRows) -> Tensor:
        """What is known of the horizon (B, H, K) of the series of these names."""
        reader = self.inputs.reader
        series = [] if future is None else future if _is_series(future) else reader(future, future=True)
        given = {one.name: one for one in series}
        starts = state.tick.numpy() + 1
        values = np.full((len(names), H, reader.width(reader.future)), np.nan)
        for i, one in enumerate(given.get(name) for name in (names if values.shape[2] else ())):
            if one is not None:
                at = one.start - starts[i] + np.arange(len(one.future))
                inside = (at >= 0) & (at < H)
                values[i, at[inside]] = one.future[inside]
        lengths = np.full(len(names), H)
        return torch.from_numpy(self.inputs.known(names, starts, lengths, values, state.static.numpy()))

    def _inputs(self, state: SeriesState, ahead: Tensor) -> Tensor:
        return torch.cat([state.value, state.seen, state.past, ahead], -1)

    @torch.inference_mode()
    def _first(self, state: SeriesState, ahead: Tensor) -> Numeric:
        """What the model says of the next row, exactly."""
        with evaluating(self.model):
            y, _ = self.model.core.scan(self.model.embed(self._inputs(state, ahead[:, 0])[:, None]), state.core)
            predicted: Numeric = self.model.readout(y[:, 0])
        return predicted

    def one_ahead(self, state: SeriesState) -> Numeric:
        """What the model says of the next row of each series, exactly. Its future covariates, if any, are not known."""
        return self._first(state, self._ahead(state, state.names, 1, None))

    def paths(self, state: SeriesState, ahead: Tensor, samples: int, seed: int) -> NDArray[np.float64]:
        """Draws of what follows (B, S, H, C): path s of a series is the same alone and in any batch."""
        shape = len(state.tick), samples, ahead.shape[1], self.inputs.targets
        if not samples:
            return np.zeros(shape)
        with evaluating(self.model):
            x, draws = self._inputs_ahead(state, ahead), seeds(state.names, samples, seed)
            drawn: NDArray[np.float64] = draw_paths(self.model, state.core, x, draws).numpy()
        return drawn.reshape(shape)

    def _inputs_ahead(self, state: SeriesState, ahead: Tensor) -> Tensor:
        """Inputs (B, H, D) of all steps. From the second on values are drawn, and nothing else of the past is known."""
        first, H = self._inputs(state, ahead[:, 0]), ahead.shape[1]
        later = [torch.zeros_like(state.value), torch.ones_like(state.seen), torch.zeros_like(state.past)]
        rest = torch.cat([torch.cat(later, -1)[:, None].expand(-1, H - 1, -1), ahead[:, 1:]], -1)
        return torch.cat([first[:, None], rest], 1)

    # Files

    def save_state(self, path: str | Path, state: SeriesState) -> None:
        """Write a state that this model made to a file, with the fingerprint of the model."""
        fingerprint = self.fingerprint
        states.save(path, to_stored(check_model(state, fingerprint)), fingerprint=fingerprint)

    def load_state(self, path: str | Path) -> SeriesState:
        """Read a state that this model wrote."""
        fingerprint = self.fingerprint
        like = to_stored(self.init_state(fingerprint=fingerprint))
        return from_stored(states.load(path, like, fingerprint=fingerprint), fingerprint)

    def at(self, state: SeriesState | None) -> Forecaster:
        """The same, with another state at the end of its training; None while it is trained, and for arrays."""
        return Forecaster(self.model, self.config, self.inputs, self.horizon, self.seasonality, state)

    @classmethod
    def load(cls, path: str | Path) -> Forecaster:
        found = super().load(path)
        return found.at(found.load_state(Path(path) / STATE))

    def write_to(self, folder: Path) -> None:
        super().write_to(folder)
        self.save_state(folder / STATE, self.state)

    @classmethod
    def parts(cls, content: Content) -> tuple[ForecastModelConfig, PanelInputs, int, int]:
        config, inputs = ForecastModelConfig(**content["config"]), _inputs_from(content["inputs"])
        return config, inputs, int(content["horizon"]), int(content["seasonality"])

    @classmethod
    def network(
        cls, config: ForecastModelConfig, inputs: PanelInputs, horizon: int, seasonality: int
    ) -> ForecastNetwork:
        return build(config, Widths.of(inputs), seasonality).to(getattr(torch, inputs.dtype))

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


def _is_series(rows: PanelRows) -> TypeGuard[Sequence[Series]]:
    return isinstance(rows, Panel) or (isinstance(rows, list) and bool(rows) and isinstance(rows[0], Series))


def _no_series(reader: PanelReader) -> Panel:
    none = np.zeros(0, np.int64)
    widths = len(reader.target), *(reader.width(names) for names in (reader.past, reader.future, reader.static))
    return Panel([], none, none, *(np.zeros((0, width)) for width in widths))


def _places(names: Sequence[str], known: Sequence[str]) -> NDArray[np.int64]:
    """Where series of some names stand among those that have a state."""
    if names == known:
        return np.arange(len(names))
    numbers = {name: i for i, name in enumerate(known)}
    unknown = next((name for name in names if name not in numbers), None)
    if unknown is not None:
        some = ", ".join([*numbers][:5]) or "none"
        raise InputError(
            f"there is no state of series {unknown!r}, so it cannot continue (there are {len(numbers)} series: "
            f"{some} ...). With --from_start series are read from their first row on."
        )
    return np.array([numbers[name] for name in names], np.int64)


def _inputs_from(content: Content) -> PanelInputs:
    """The inputs that `Forecaster.content` wrote."""
    reader = dict(content["reader"])
    covariates = {
        name: Covariate(**{**value, "categories": tuple(value["categories"])})
        for name, value in reader["covariates"].items()
    }
    lists = {name: tuple(reader[name]) for name in ("target", "static", "past", "future")}
    frequency = Frequency(**{"zone": None, **reader["frequency"]})  # at first it was not kept
    known = {**reader, **lists, "covariates": covariates, "frequency": frequency}
    # At first one flag stood for all targets, and all was float32.
    how = {"each": len(lists["target"]) == 1, "dtype": "float32", **content}
    names = ("calendar", "numbered", "each", "dtype")
    return PanelInputs(PanelReader(**known), tuple(content["names"]), **{name: how[name] for name in names})
