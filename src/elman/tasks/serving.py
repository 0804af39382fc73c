"""How a model is served: what a task answers to `elman serve` (`Task.serve`). The server knows models by this alone.

A session is a state, and a state is bytes. A request is a `Work`: it is given the bytes, goes on a piece a tick beside
the works of other sessions, and gives the bytes back. Nothing of a session stays here between two works, so there is no
slot that could be shared, leaked or lost; and what comes out does not depend on which works stand side by side.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray

from elman import kernels
from elman import state as states
from elman.config import Json
from elman.core import Core
from elman.errors import InputError
from elman.model import SequenceModel
from elman.state import State
from elman.stream import Stream

PIECE = 64  # inputs of one session in a tick, at most: nobody waits long behind a long prompt
ROWS = 256  # sessions that are stepped side by side
NUMBERS = frozenset((int, float))
NOT_FINITE = "the state would no longer be a number; the inputs are too large for this model"
Bytes = NDArray[np.uint8]


class Spelling:
    """Rows of numbers y (n, H), as JSON once somebody asks, who need not be the thread that steps."""

    def __init__(self, y: NDArray[np.float32]) -> None:
        self.y = y

    @cached_property
    def texts(self) -> list[bytes]:
        return kernels.json_rows(self.y)


class Spelt:
    """A row of them."""

    __slots__ = ("place", "rows")

    def __init__(self, rows: Spelling, place: int) -> None:
        self.rows, self.place = rows, place

    @property
    def text(self) -> bytes:
        """It as JSON."""
        return self.rows.texts[self.place]


class Work:
    """What one request does with one state. `begin`, some ticks until it is `done`, then `end`."""

    done = False
    taken = 0  # inputs that it has read or made itself
    failed = ""  # why it cannot go on; then nothing of it counts

    def begin(self, state: bytes) -> None:
        """Go on from this state."""
        raise NotImplementedError

    def begin_read(self, state: bytes) -> None:
        """The same, for a state that has read the inputs of this work already."""
        raise NotImplementedError

    def end(self) -> bytes:
        """The state after it."""
        raise NotImplementedError

    def answer(self) -> dict[str, Any]:
        """What came of it, once it is done: what can be written as JSON, or is `Spelt`."""
        raise NotImplementedError

    def news(self) -> list[dict[str, Json]]:
        """What came of it since this was asked last."""
        return []

    def record(self) -> bytes:
        """What it has read and made, as `Served.replaying` takes it."""
        raise NotImplementedError

    def __len__(self) -> int:
        """How many inputs it was given."""
        raise NotImplementedError


@dataclass(frozen=True)
class Writing:
    """How to go on with a text: what `elman generate` takes, and what the interface of OpenAI has beside that.

    Args:
        max_new_tokens: at most so many
        temperature: 0 takes the most probable symbol
        top_k: choose among so many symbols; 0 for all
        top_p: choose among the symbols that have this probability together
        repetition_penalty: what log-probabilities of symbols seen are multiplied by
        stop: strings that end it
        keep_stop: whether the string that ended it is part of the text
        seed: None goes on with the random numbers of the state
        allow: choose this too, the end of an endless text, unknown words
        bias: added to the logits of some symbols
        presence: subtracted from the logits of symbols that were written before
        frequency: the same, times how often they were
        logprobs: log-probabilities of the symbols, and of so many of the most probable ones; None for none
        scored: whether symbols that are read have them too
    """

    max_new_tokens: int = 200
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    stop: tuple[str, ...] = ()
    keep_stop: bool = True
    seed: int | None = None
    allow: tuple[str, ...] = ()
    bias: tuple[tuple[int, float], ...] = ()
    presence: float = 0.0
    frequency: float = 0.0
    logprobs: int | None = None
    scored: bool = False


class Served(Protocol):
    """A model as a server runs it."""

    @property
    def fingerprint(self) -> str:
        """Of the weights: a state goes on with the model that it came from."""

    @property
    def about(self) -> dict[str, Json]:
        """What a client wants to know: what it is, and what an input is."""

    @property
    def row_bytes(self) -> int:
        """How long a state is."""

    def start(self, seed: int) -> bytes:
        """The state before the first input."""

    def seeded(self, state: bytes, seed: int) -> bytes:
        """The state with other random numbers, where it has some."""

    def reading(self, inputs: object) -> Work:
        """To read some inputs. An InputError says what an input is."""

    def writing(self, prompt: object, settings: Writing) -> Work:
        """To read a prompt and go on with it. An InputError where the model does not write."""

    def search(
        self, state: bytes, prompt: object, settings: Writing, num_beams: int
    ) -> list[tuple[dict[str, Any], bytes]]:
        """The most probable texts after a state that has read a prompt, the best first: answers, and states after them.

        It computes by itself, in any thread.
        """

    def spelt(self, prompt: object) -> str:
        """A prompt as a text."""

    def replaying(self, records: Sequence[bytes], most: int) -> Work:
        """To do once more what works have recorded, `most` inputs of it."""

    def canary(self) -> Work:
        """To read one input of no meaning: whether the model still runs."""

    def advance(self, works: Sequence[Work]) -> None:
        """A tick: each of the works, of different sessions, goes on a piece."""

    def together(self, inputs: list[Any], states: list[bytes]) -> list[tuple[bytes, Any] | None] | None:
        """One input for each of many states, in one go: states and outputs, or None where a state is not finite.

        None for all of it if this model has no such way, or if something is not an input: then each goes by `reading`.
        """

    def dump(self, state: bytes) -> bytes:
        """A state as a state file."""

    def parse(self, data: bytes) -> bytes:
        """The state in a state file; a FileError where it is not one of this model."""


class NumberWork(Work):
    """Rows of numbers x (T, D) to read; an output for each."""

    def __init__(self, x: NDArray[Any]) -> None:
        self.x, self.outputs = x, []

    x: NDArray[Any]
    core: bytes
    outputs: list[Any]

    def begin(self, state: bytes) -> None:
        self.core = state
        self.done = not len(self.x)

    def end(self) -> bytes:
        return self.core

    def answer(self) -> dict[str, Any]:
        return {"outputs": self.outputs}

    def record(self) -> bytes:
        return self.x.tobytes()

    def __len__(self) -> int:
        return len(self.x)


@dataclass
class Numbers:
    """A core, or a model with a distribution for each step, that reads numbers.

    Args:
        module: the core or the model
        about: what a client wants to know
        fingerprint: of the weights
        width: D, numbers in an input
        dtype: of an input
        encode: inputs as they were sent to x (T, D), or an InputError
        outputs: what is answered for each row of y (T, H), or of the distribution: Json, or `Spelt`

    >>> import elman
    >>> served = Numbers.of_core(elman.cell("gru", 1, 4))
    >>> work = served.reading([[0.5], [0.25]])
    >>> work.begin(served.start(0))
    >>> served.advance([work])
    >>> work.done, len(work.answer()["outputs"])
    (True, 2)
    """

    module: Core | SequenceModel
    about: dict[str, Json]
    fingerprint: str
    width: int
    dtype: np.dtype[Any]
    encode: Callable[[object], NDArray[Any]]
    outputs: Callable[[Any], Sequence[Any]]
    rows: int = ROWS
    stream: Stream = field(init=False)

    def __post_init__(self) -> None:
        self.module.eval()
        self.stream = Stream(self.module, self.rows)
        self.core = self.module.core if isinstance(self.module, SequenceModel) else self.module
        self.row_bytes = self.stream.row_bytes
        if not self.row_bytes:
            raise InputError("the model remembers nothing, so there is no session to keep; use `elman predict`")
        self._like = self.core.init_state(1)
        self._places = np.arange(self.rows)

    @classmethod
    def of_core(cls, core: Core) -> Numbers:
        """A bare core: y is the output."""
        dtype, D = np.dtype(str(next(core.parameters()).dtype).removeprefix("torch.")), core.input_size
        about: dict[str, Json] = {"reads": "numbers", "input": f"{D} numbers", "writes": False}

        def encode(given: object) -> NDArray[Any]:
            return rows_of_numbers(given, D, dtype)

        return cls(core, about, states.fingerprint(core), D, dtype, encode, _spelt)

    def start(self, seed: int) -> bytes:
        return states.to_rows(self.core.init_state(1)).tobytes()

    def seeded(self, state: bytes, seed: int) -> bytes:
        return state

    def reading(self, inputs: object) -> Work:
        return NumberWork(self.encode(inputs))

    def writing(self, prompt: object, settings: Writing) -> Work:
        raise InputError("this model reads numbers and does not write any; send inputs to step")

    def search(
        self, state: bytes, prompt: object, settings: Writing, num_beams: int
    ) -> list[tuple[dict[str, Any], bytes]]:
        raise InputError("this model reads numbers and does not write any")

    def spelt(self, prompt: object) -> str:
        raise InputError("this model reads numbers")

    def canary(self) -> Work:
        return NumberWork(np.zeros((1, self.width), self.dtype))

    def replaying(self, records: Sequence[bytes], most: int) -> Work:
        x = np.frombuffer(b"".join(records), self.dtype).reshape(-1, self.width)
        return NumberWork(x[:most])

    def dump(self, state: bytes) -> bytes:
        rows = np.frombuffer(state, np.uint8)[None]
        return states.dump(states.from_rows(rows, self._like), fingerprint=self.fingerprint)

    def parse(self, data: bytes) -> bytes:
        return one_row(states.parse(data, self.core.init_state(0), fingerprint=self.fingerprint), self._like)

    def advance(self, works: Sequence[Work]) -> None:
        each = [work for work in works if isinstance(work, NumberWork)]
        single = [work for work in each if len(work.x) - work.taken == 1]
        several = [work for work in each if len(work.x) - work.taken > 1]
        for at in range(0, len(single), self.rows):
            self._step(single[at : at + self.rows])
        for at in range(0, len(several), self.rows):
            self._scan(several[at : at + self.rows])

    def together(self, inputs: list[Any], states: list[bytes]) -> list[tuple[bytes, Any] | None] | None:
        try:
            x = self.encode(inputs)
        except InputError:
            return None
        found: list[tuple[bytes, Any] | None] = []
        for at in range(0, len(x), self.rows):
            stepped = self._stepped(x[at : at + self.rows], states[at : at + self.rows])
            found += [(state, output) if good else None for state, output, good in stepped]
        return found

    def _step(self, works: list[NumberWork]) -> None:
        x = np.concatenate([work.x[work.taken :] for work in works])
        for work, (core, output, good) in zip(works, self._stepped(x, [work.core for work in works]), strict=True):
            self._moved(work, core, (output,), good)

    def _stepped(self, x: NDArray[Any], states: list[bytes]) -> Iterator[tuple[bytes, Any, bool]]:
        """One input for each state: the state after it, the output, and whether the state is finite."""
        places = self._places[: len(states)]
        self.stream.write(places, joined(states))
        y = self.stream.step(x, places) if self.module is self.core else self.stream.distribution(x, places)
        after = self.stream.read(places)
        return zip(cut(after), self.outputs(y), finite(after, self._like), strict=True)

    @torch.inference_mode()
    def _scan(self, works: list[NumberWork]) -> None:
        pieces = [work.x[work.taken : work.taken + PIECE] for work in works]
        lengths = torch.tensor([len(piece) for piece in pieces])
        x = np.zeros((len(works), int(lengths.max()), *pieces[0].shape[1:]), pieces[0].dtype)
        for row, piece in zip(x, pieces, strict=True):
            row[: len(piece)] = piece
        given = torch.from_numpy(x)
        features = self.module.embed(given) if isinstance(self.module, SequenceModel) else given
        state = states.from_rows(joined([work.core for work in works]), self._like)
        y, state = self.core.scan(features, state, lengths=lengths)
        after = states.to_rows(state)
        good, cores = finite(after, self._like), cut(after)
        for i, work in enumerate(works):
            mine = y[i, : len(pieces[i])]
            outputs = self.outputs(self.module.readout(mine) if isinstance(self.module, SequenceModel) else mine)
            self._moved(work, cores[i], outputs, good[i])

    def _moved(self, work: NumberWork, core: bytes, outputs: Sequence[Any], is_good: bool) -> None:
        work.core, work.taken = core, work.taken + len(outputs)
        work.outputs.extend(outputs)
        if not is_good:
            work.failed = NOT_FINITE
        work.done = work.taken == len(work.x) or not is_good


def rows_of_numbers(given: object, width: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Inputs as they were sent, as x (T, D): a list of rows of D numbers, or of numbers where D is 1.

    >>> rows_of_numbers([1, 2.5], 1, np.dtype(np.float32)).shape
    (2, 1)
    """
    rows: list[Any] = given if isinstance(given, list) else [None]
    if width == 1 and all(type(row) in NUMBERS for row in rows):
        rows = [rows] if len(rows) == 1 else [[row] for row in rows]
    flat = []
    for row in rows:
        if type(row) is not list or len(row) != width or not NUMBERS.issuperset(map(type, row)):
            raise InputError(f"inputs must be a list of rows, each a list of {width} number{'s' * (width != 1)}")
        flat += row
    try:
        if not all(map(math.isfinite, flat)):
            raise OverflowError
        packed = struct.pack(f"={len(flat)}{dtype.char}", *flat)  # "=" refuses what a float32 cannot hold
    except OverflowError:
        raise InputError("an input is not a finite number") from None
    return np.frombuffer(bytearray(packed), dtype).reshape(-1, width)


def _spelt(y: NDArray[Any] | torch.Tensor) -> Sequence[Any]:
    """Rows of outputs, as JSON."""
    found = np.asarray(y)
    if found.dtype != np.float32:
        return cast(Sequence[Any], found.tolist())
    rows = Spelling(found)
    return [Spelt(rows, place) for place in range(len(found))]


def joined(states: list[bytes]) -> Bytes:
    """States as rows."""
    return np.frombuffer(b"".join(states), np.uint8).reshape(len(states), -1)


def cut(rows: Bytes) -> list[bytes]:
    """The rows, each by itself."""
    whole, width = rows.tobytes(), rows.shape[1]
    return [whole[at : at + width] for at in range(0, len(whole), width)]


def one_row(state: State, start: State) -> bytes:
    """The bytes of a state of one row, whose numbers are finite, or as they are at the start."""
    if any(len(leaf) != 1 for leaf in states.leaves(state)):
        raise InputError("a session is one row; the state that was sent has another number of them")
    rows = states.to_rows(state)
    if rows.tobytes() != states.to_rows(start).tobytes() and not finite(rows, start)[0]:
        raise InputError("the state that was sent has numbers that are not finite")
    return rows.tobytes()


def finite(rows: Bytes, like: State) -> list[bool]:
    """Whether all numbers of each row (n, W) of states are finite."""
    kinds = {leaf.dtype for leaf in states.leaves(like)}
    if len(kinds) == 1 and (kind := kinds.pop()).is_floating_point:
        numbers = rows.view(str(kind).removeprefix("torch."))
        return np.isfinite(numbers).all(axis=1).tolist()
    good = torch.ones(len(rows), dtype=torch.bool)
    for leaf in states.leaves(states.from_rows(rows, like)):
        good &= torch.isfinite(leaf).flatten(1).all(1)
    return good.tolist()
