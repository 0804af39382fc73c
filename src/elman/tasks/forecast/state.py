"""The values that a forecaster takes and gives: the state of series, all that their future depends on; forecasts."""

from __future__ import annotations

import hashlib
from collections import namedtuple
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elman import state as states
from elman.data.tables import frame_of, is_frame, values_of
from elman.errors import FileError, InputError
from elman.state import State
from elman.tasks.forecast.data import Panel, Series
from elman.tasks.forecast.inputs import Tail

NAME = 128  # bytes of the name of a series, at most
Places = Sequence[int] | NDArray[np.int64]  # where some of the series stand


class SeriesState(NamedTuple):
    """All that the future of a series depends on, a row for each: it can be saved, forked and continued.

    It is a value, and continues with the model that made it; another model, of the same shape too, refuses it.
    """

    core: State
    value: Tensor  # (B, C): the last value that was seen, of each target
    seen: Tensor  # (B, F): whether the last row had one, of each target or of all
    past: Tensor  # (B, P + 1): the past covariates of the last row, and whether it had them
    static: Tensor  # (B, S)
    tick: Tensor  # (B,) int64: the time of the last row
    recent: Tensor  # (B, season, C) float64: the last values, NaN where there is none
    error: Tensor  # (B, 2) float64: the sum of absolute seasonal differences, and their number
    name: Tensor  # (B, NAME) uint8
    model: Tensor  # (B, 32) uint8: the fingerprint of the model that made it; a file has it in its header instead

    @property
    def names(self) -> list[str]:
        """What the series are called."""
        whole: list[bytes] = self.name.contiguous().numpy().view(f"S{NAME}").ravel().tolist()  # without zeros behind
        return [name.decode() for name in whole]


# What files and servers keep of a state: beside it stands the fingerprint of the model, once.
StoredState = cast(Any, namedtuple)("StoredState", SeriesState._fields[:-1])


def to_stored(state: SeriesState) -> State:
    """The state without its model."""
    stored: State = StoredState(*state[:-1])
    return stored


def from_stored(stored: State, fingerprint: str) -> SeriesState:
    """The state of the model that has a fingerprint."""
    assert isinstance(stored, StoredState)
    return SeriesState._make([*stored, model_leaf(fingerprint, len(stored.tick))])


def model_leaf(fingerprint: str, B: int) -> Tensor:
    """The fingerprint of a model as a leaf (B, 32)."""
    return torch.frombuffer(bytearray.fromhex(fingerprint), dtype=torch.uint8).repeat(B, 1)


def check_model(state: object, fingerprint: str) -> SeriesState:
    """The state, if a model made it; an InputError if it is another's, or is not a state."""
    if not isinstance(state, SeriesState):
        raise InputError(
            f"a {type(state).__name__} was given for a state: what a forecaster reads does not change it. "
            "Write forecaster.forecast(forecaster.state, 6), or give what update or read_from_start returned."
        )
    made_by = state.model.numpy()
    foreign = made_by != np.frombuffer(bytes.fromhex(fingerprint), np.uint8)
    if foreign.any():
        other = made_by[foreign.any(1).argmax()].tobytes().hex()
        raise InputError(
            f"the state was made by the model {other[:12]}, and this is {fingerprint[:12]}: a state continues with the "
            "model that made it. Use that model, or read the rows again with this one (read_from_start)."
        )
    return state


def names_leaf(names: Sequence[str]) -> Tensor:
    """Names as a leaf (B, NAME)."""
    encoded = [name.encode() for name in names]
    longest = max(encoded, key=len, default=b"")
    if len(longest) > NAME:
        name = longest.decode()
        raise InputError(f"a series has a name of {len(longest)} bytes, {name[:40]!r} ...; {NAME} at most are kept")
    return torch.from_numpy(np.array(encoded, f"S{NAME}").view(np.uint8).reshape(len(names), NAME))


def places_of(state: SeriesState, names: Sequence[str]) -> list[int]:
    """Where some series stand in a state."""
    known = {name: i for i, name in enumerate(state.names)}
    for name in names:
        if name not in known:
            raise InputError(f"there is no series {name!r}; there are {', '.join([*known][:10])}")
    return [known[name] for name in names]


def take(state: SeriesState, places: Places) -> SeriesState:
    """The states of some of the series."""
    if np.array_equal(places, np.arange(len(state.tick))):
        return state  # a state is a value: nobody changes it
    found = states.take(state, torch.as_tensor(places, dtype=torch.int64))
    assert isinstance(found, SeriesState)
    return found


def put(state: SeriesState, places: Places, part: SeriesState) -> SeriesState:
    """A copy in which some of the series stand where `part` says."""
    if np.array_equal(places, np.arange(len(state.tick))):
        return part
    found = states.put(state, torch.as_tensor(places, dtype=torch.int64), part)
    assert isinstance(found, SeriesState)
    return found


def read_already(one: Series, state: SeriesState, place: int) -> bool:
    """Whether a series from its first row on begins with the very rows that a state has read: their number, the last
    season and the sum of seasonal differences are the same."""
    rows, season = int(state.tick[place]) + 1, state.recent.shape[1]
    if not 0 < rows <= len(one.y):
        return False
    blank = np.full((season, one.y.shape[1]), np.nan)
    values = np.concatenate([blank, one.y[:rows]])
    sums = np.nansum(np.abs(values[season:] - values[:-season]))
    same = np.array_equal(values[-season:], state.recent[place].numpy(), equal_nan=True)
    return same and bool(np.isclose(sums, float(state.error[place, 0]), rtol=1e-9))


def tail_of(state: SeriesState) -> Tail:
    """What the next rows of the series need of the rows before them."""
    return Tail(state.value.numpy(), state.seen.numpy(), state.past.numpy())


def advance(state: SeriesState, core: State, panel: Panel, tail: Tail, season: int) -> SeriesState:
    """The state with what the last rows leave beside that of the core."""
    lengths = panel.lengths
    values = np.concatenate([state.recent.numpy(), panel.padded(panel.y, np.nan)], 1)  # (B, season + T, C)
    change = np.abs(values[:, season:] - values[:, :-season])
    known = ~np.isnan(change)
    # One after the other: row by row it is the same sum as at once.
    terms = np.where(known, change, 0.0).reshape(len(panel), -1)
    sums = np.cumsum(np.concatenate([state.error.numpy()[:, :1], terms], 1), 1)[:, -1]
    last = lengths[:, None] + np.arange(season)
    return state._replace(
        core=core,
        value=torch.from_numpy(tail.value),
        seen=torch.from_numpy(tail.seen),
        past=torch.from_numpy(tail.past),
        tick=state.tick + torch.from_numpy(lengths),
        recent=torch.from_numpy(np.take_along_axis(values, last[..., None], 1)),
        error=torch.from_numpy(np.stack([sums, state.error.numpy()[:, 1] + known.sum((1, 2))], 1)),
    )


class Forecast(NamedTuple):
    """B series, H steps, C targets: means (B, H, C), quantiles (B, H, C, Q) and paths (B, S, H, C)."""

    names: Sequence[str]
    times: Sequence[Sequence[str]]
    targets: Sequence[str]
    mean: NDArray[np.float64]
    levels: tuple[float, ...]
    quantiles: NDArray[np.float64]
    paths: NDArray[np.float64]
    id: str = "unique_id"  # what the columns of names and of times are called
    time: str = "ds"

    @property
    def _columns(self) -> list[str]:
        """What is said of each series and time. With several targets, their names stand before it."""
        said = ["mean", *(f"q{level:g}" for level in self.levels)]
        prefixes = [""] if len(self.targets) == 1 else [f"{target}." for target in self.targets]
        return [prefix + word for prefix in prefixes for word in said]

    def to_frame(self, like: Any = "pandas") -> Any:
        """As a frame: a row for each series and time, with the mean and the quantiles.

        `like` is pandas or polars; or a frame, such as the one that was trained on: then names and times have the
        types that they have in it. Else names are texts, and times dates with their clock, or whole numbers.

        >>> numbers = np.array([[[1.5]]])
        >>> forecast = Forecast(["a"], [["2024-01-31"]], ["y"], numbers, (0.5,), numbers[..., None], numbers)
        >>> forecast.to_frame("polars").rows()
        [('a', datetime.datetime(2024, 1, 31, 0, 0), 1.5, 1.5)]
        """
        H, stamps = self.mean.shape[1], [stamp for times in self.times for stamp in times]
        texts = is_frame(like) and all(isinstance(value, str) for value in values_of(like).get(self.time, [0]))
        columns: dict[str, Sequence[object]] = {
            self.id: [name for name in self.names for _ in range(H)],
            self.time: stamps if texts else [*map(_moment, stamps)],
        }
        numbers = np.concatenate([self.mean[..., None], self.quantiles], -1).reshape(len(stamps), -1)
        return frame_of({**columns, **dict(zip(self._columns, numbers.T, strict=True))}, like, (self.id, self.time))

    def lines(self) -> Iterator[str]:
        """As CSV: a row for each series and time."""
        yield ",".join([self.id, self.time, *self._columns]) + "\n"
        for name, times, means, quantiles in zip(self.names, self.times, self.mean, self.quantiles, strict=True):
            for when, m, q in zip(times, means, quantiles, strict=True):
                numbers = (f"{v:.10g}" for c in range(len(m)) for v in (m[c], *q[c]))
                yield ",".join([_cell(name), when, *numbers]) + "\n"

    def _repr_html_(self) -> str:
        from elman.tasks.forecast.plots import html

        return html(self)

    def save_paths(self, path: Path) -> None:
        """Write the paths to a new .npz file: `paths` (B, S, H, C), `names` (B,) and `times` (B, H)."""
        if path.exists():
            raise InputError(f"{path} exists; it is not overwritten. Choose another name.")
        try:
            with path.open("wb") as file:
                np.savez_compressed(
                    file, paths=self.paths, names=np.array(self.names), times=np.array([*map(list, self.times)])
                )
        except OSError as error:
            raise FileError(f"cannot write {path}: {error}") from error


def seeds(names: Sequence[str], samples: int, seed: int) -> Tensor:
    """The draws (B * samples, 2) of paths: each has a seed of its own, made of the seed, its series and its number.

    >>> bool((seeds(["a", "b"], 3, 0)[3:] == seeds(["b"], 3, 0)).all())
    True
    """
    first = [int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:7], "big") for name in names]
    rows = torch.tensor(first, dtype=torch.int64)[:, None] + torch.arange(samples)
    return torch.stack([rows.flatten(), torch.zeros(rows.numel(), dtype=torch.int64)], 1)


def sample_quantiles(paths: NDArray[np.float64], levels: Sequence[float]) -> NDArray[np.float64]:
    """Quantiles (B, H, C, Q) of paths (B, S, H, C), by lines between the sorted samples.

    >>> sample_quantiles(np.arange(3.0).reshape(1, 3, 1, 1), [0.25]).tolist()
    [[[[0.5]]]]
    """
    return np.moveaxis(np.quantile(paths, levels, axis=1), 0, -1)


def _moment(stamp: str) -> int | datetime:
    """A time as Python has it.

    >>> _moment("7"), _moment("2024-01-31 13:00:00")
    (7, datetime.datetime(2024, 1, 31, 13, 0))
    """
    return int(stamp) if stamp.lstrip("-").isdecimal() else datetime.fromisoformat(stamp)


def _cell(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if any(mark in text for mark in ',"\n') else text
