"""A forecaster as a server runs it: a session is one series. Rows are read as they come; each is answered by what the
model says of the row that follows it, exactly. Side by side or alone the bits are those of the library."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from elman import state as states
from elman.errors import InputError
from elman.files.config import Json
from elman.tasks.forecast.data import MOST_FILLED, Series
from elman.tasks.forecast.state import SeriesState, from_stored, to_stored
from elman.tasks.serving import NOT_FINITE, ROWS, Bytes, Served, Work, cut, joined

if TYPE_CHECKING:
    from elman.tasks.forecast.model import Forecaster

PIECE = 16  # rows of one session in a tick, at most
QUANTILES = (0.1, 0.5, 0.9)
FURTHEST = 10**18  # the time of a row, in steps of the frequency: as far as rows are read
NEW = -(2**62)  # the time of the last row, where none has come
Row = Mapping[str, Any]


class SeriesWork(Work):
    """Rows of a series to read, as they were sent."""

    def __init__(self, served: ServedSeries, rows: Sequence[Row]) -> None:
        self.served, self.rows = served, rows

    most_filled = MOST_FILLED  # rows that may be missing in front; a server lowers it
    series: Series  # what is left to read: rows that are missing stand in front

    def begin(self, state: bytes) -> None:
        super().begin(self.served.current(state))
        self.done = not self.rows
        if not self.done:
            self.core, self.series = self.served.follow(self.core, self.rows, self.most_filled)
            self.missing = len(self.series.y) - len(self.rows)

    def add(self, core: bytes, is_good: bool, output: Json) -> None:
        """A row was read, or one that is missing in front."""
        self.core, self.series = core, self.series.cut(1)
        if self.missing:
            self.missing -= 1
        else:
            self.outputs.append(output)
            self.taken += 1
        if not is_good:
            self.failed = NOT_FINITE
        self.done = not len(self.series.y) or not is_good

    def record(self) -> bytes:
        return b"".join(json.dumps(row).encode() + b"\n" for row in self.rows)

    def __len__(self) -> int:
        return len(self.rows)


class Probe(Work):
    """One step of the network, on nothing."""


class ServedSeries(Served):
    """A forecaster with the states of series that it has not seen.

    >>> import elman, tempfile
    >>> from elman.tasks.forecast.task import ForecastConfig
    >>> rows = {"ds": [str(t) for t in range(60)], "y": [str(t % 3) for t in range(60)]}
    >>> settings = {"data": {"horizon": 3, "seasonality": 3}, "model": {"kind": "seasonal_naive"}}
    >>> forecaster, _ = elman.train(ForecastConfig(**settings, out=tempfile.mkdtemp() + "/run"), {"train": rows})
    >>> served = ServedSeries(forecaster)
    >>> work = served.reading([{"ds": "0", "y": 7}, {"ds": "1", "y": 8}, {"ds": "2", "y": 9}])
    >>> work.begin(served.start(0))
    >>> served.advance([work])
    >>> round(work.answer()["outputs"][2]["mean"][0])
    7
    """

    def __init__(self, predictor: Forecaster) -> None:
        reader = predictor.inputs.reader
        if reader.format != "long":
            raise InputError("its series have no times, so their rows cannot be sent one by one; use `elman predict`")
        self.predictor, self.reader, self.fingerprint = predictor, reader, predictor.fingerprint
        self.like = to_stored(self._init_state([]))
        blank = [
            np.zeros((0, n)) for n in (predictor.inputs.targets, reader.width(reader.past), reader.width(reader.future))
        ]
        y, past, future = blank
        none = Series("", NEW + 1, y, past, future, np.zeros(reader.width(reader.static)))
        self.blank = _bytes(self._init_state([none])).tobytes()
        self.row_bytes = len(self.blank)
        columns = (reader.time, *reader.target, *reader.static, *reader.past, *reader.future)
        shown = ", ".join(columns)
        self.about: dict[str, Json] = {"reads": "rows", "input": f"an object with {shown}", "writes": False}

    # States

    def _init_state(self, series: list[Series]) -> SeriesState:
        return self.predictor.init_state(series, self.fingerprint)

    def opened(self, rows: Bytes) -> SeriesState:
        """States (n, W) as the library has them."""
        return from_stored(states.from_rows(rows, self.like), self.fingerprint)

    def parse(self, data: bytes) -> bytes:
        carried = from_stored(states.parse(data, self.like, fingerprint=self.fingerprint), self.fingerprint)
        if len(carried.tick) != 1:
            raise InputError(f"a session is one series; the state that was sent has {len(carried.tick)}")
        if not _finite(carried)[0] or not _possible(carried):
            raise InputError("the state that was sent has numbers that no series can lead to")
        return _bytes(carried).tobytes()

    def follow(self, state: bytes, rows: Sequence[Row], filled: int) -> tuple[bytes, Series]:
        """The state that some rows continue from, and these rows as a series from the tick after it on, with at most so
        many `filled` in before them."""
        names = {self.reader.id} & rows[0].keys()
        columns = {name: [row.get(name) for row in rows] for name in rows[0]}
        (series, *more) = self.reader(columns, filled=filled)
        if more:
            raise InputError(f"a session is one series; {self.reader.id} names {1 + len(more)}")
        if len(series.y) != len(rows):
            raise InputError("between these rows some are missing; send what is behind a gap as a step of its own")
        carried = self.opened(joined([state]))
        if int(carried.tick) == NEW:
            return _bytes(self._init_state([series])).tobytes(), series
        if not names:
            series = series._replace(name=carried.names[0])
        return state, self.predictor.following([series], carried, filled)[1][0]

    # Works

    def reading(self, inputs: object) -> Work:
        rows: list[Any] = inputs if isinstance(inputs, list) else [None]
        if not all(isinstance(row, dict) and row.keys() == rows[0].keys() for row in rows):
            raise InputError(f"an input is {self.about['input']}, and all have the same")
        if not all(value is None or type(value) in (int, float, str) for row in rows for value in row.values()):
            raise InputError("a value of a row is a number, a text, or null where it is missing")
        return SeriesWork(self, rows)

    def replaying(self, records: Sequence[bytes], most: int) -> Work:
        rows = [json.loads(line) for record in records for line in record.splitlines()]
        return SeriesWork(self, rows[:most])

    def probe(self) -> Work:
        return Probe()

    # A tick

    def advance(self, works: Sequence[Work]) -> None:
        for work in works:
            if isinstance(work, Probe):
                self._step_on_zeros()
                work.done = True
        for _ in range(PIECE):
            unfinished = [work for work in works if isinstance(work, SeriesWork) and not work.done]
            for at in range(0, len(unfinished), ROWS):
                self._read(unfinished[at : at + ROWS])

    @torch.inference_mode()
    def _step_on_zeros(self) -> None:
        core = self.predictor.model.core
        core.scan(torch.zeros(1, 1, core.input_size))

    def _read(self, works: list[SeriesWork]) -> None:
        """One row of each."""
        before = self.opened(joined([work.core for work in works]))
        after = self.predictor.read([work.series.cut(0, 1) for work in works], before)
        good, cores = _finite(after), cut(_bytes(after).tobytes(), self.row_bytes)
        for work, core, is_good, output in zip(works, cores, good, self._next(after), strict=True):
            work.apply(work.add, core, is_good, output)

    def _next(self, state: SeriesState) -> list[Json]:
        """What is said of the row that follows; nothing where that depends on what is not known yet."""
        if self.reader.future:
            return [None] * len(state.tick)
        said = self.predictor.one_ahead(state)
        B, C = len(state.tick), self.predictor.inputs.targets
        means = said.mean.double().numpy().reshape(B, C).tolist()
        quantiles = said.quantile(QUANTILES).numpy().reshape(B, C, -1)
        each = [{str(q): quantiles[i, :, k].tolist() for k, q in enumerate(QUANTILES)} for i in range(B)]
        times = self.predictor.stamps(state.tick, 1)
        return [{"next": when, "mean": m, "quantiles": q} for (when,), m, q in zip(times, means, each, strict=True)]


def _bytes(state: SeriesState) -> Bytes:
    """States as a store keeps them (n, W)."""
    return states.to_rows(to_stored(state))


def _possible(state: SeriesState) -> bool:
    """Whether the rest of a state may be that of a series; of its last season, values may be missing."""
    try:
        state.names  # noqa: B018  (decodes them)
    except UnicodeDecodeError:
        return False
    near = bool((state.tick.abs() <= FURTHEST).all()) or bool((state.tick == NEW).all())
    return (
        near
        and not state.recent.isinf().any()
        and all(bool(leaf.isfinite().all()) for leaf in (state.seen, state.past, state.static, state.error))
    )


def _finite(state: SeriesState) -> list[bool]:
    """Whether what the network remembers is finite; of the values that came, some may be missing."""
    good = torch.ones(len(state.tick), dtype=torch.bool)
    for leaf in (*states.leaves(state.core), state.value):
        good &= torch.isfinite(leaf).flatten(1).all(1)
    return good.tolist()
