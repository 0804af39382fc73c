"""How a model is served: what a task gives to `elman serve` (`Task.serve`). The server knows models by this alone.

A session is a state, and a state is bytes. A request is a `Work`: it takes the bytes, advances by a piece in a tick
beside the works of other sessions, and returns the bytes. Nothing of a session stays here between two works, so there
is no slot that could be shared, leaked or lost; and the result does not depend on which works stand side by side.

Models that read numbers are served by `serving_numbers.py`, all others by the serving.py of their task.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from elman import state as states
from elman.errors import InputError
from elman.files.config import Json
from elman.state import State

PIECE = 64  # inputs of one session in a tick, at most: nobody waits long behind a long prompt
ROWS = 256  # sessions that are stepped side by side
NOT_FINITE = "the state would no longer be a number; the inputs are too large for this model"
Bytes = NDArray[np.uint8]
Outputs = list[Any]  # what came of one input each: Json, or bytes, which are JSON already


class Work:
    """What one request does with one state. `begin`, some ticks until it is `done`, then `end`."""

    done = False
    taken = 0  # inputs that it has read or made itself
    failed = ""  # why it cannot continue; then nothing of it counts
    error: Exception | None = None  # a bug that ended it
    most_filled = 0  # rows of a series that may be missing before its inputs, and are filled in
    core: bytes  # the state so far
    outputs: Outputs  # what came of each input

    def begin(self, state: bytes) -> None:
        """Continue from this state."""
        self.core, self.outputs = state, []

    def apply(self, change: Callable[..., None], *values: object) -> None:
        """Change it by what was computed. If that fails, only this work ends, not those beside it."""
        try:
            change(*values)
        except Exception as error:
            self.error, self.done = error, True

    def end(self) -> bytes:
        """The state after it."""
        return self.core

    def answer(self) -> dict[str, Any]:
        """What came of it, once it is done: Json, or under `outputs` a list of `Outputs`."""
        return {"outputs": self.outputs}

    def events(self) -> list[dict[str, Json]]:
        """What came of it since this was asked last."""
        return []

    def record(self) -> bytes:
        """What it has read and made, as `Served.replaying` takes it."""
        raise NotImplementedError

    def __len__(self) -> int:
        """How many inputs it was given."""
        raise NotImplementedError


class WritingWork(Work):
    """What writes after what it reads."""

    def begin_read(self, state: bytes) -> None:
        """Continue from a state that has read the inputs of this work already."""
        raise NotImplementedError


@dataclass(frozen=True)
class Writing:
    """How to continue a text: what `elman generate` takes, and what the interface of OpenAI has beside that.

    Args:
        max_new_tokens: at most so many
        temperature: 0 takes the most probable symbol
        top_k: choose among so many symbols; 0 for all
        top_p: choose among the symbols that have this probability together
        repetition_penalty: what log-probabilities of symbols seen are multiplied by
        stop: strings that end it
        keep_stop: whether the string that ended it is part of the text
        seed: None continues the random numbers of the state
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


class Served(ABC):
    """A model as a server runs it: it reads inputs. Some do more: see ServedRows and ServedWriter."""

    fingerprint: str  # of the weights: a state continues with the model that it came from
    about: dict[str, Json]  # what a client wants to know: what it is, and what an input is
    like: State  # of any number of rows, one of this model
    blank: bytes  # the state before the first input, as `states.to_rows` has it
    row_bytes: int  # how long a state is

    def with_weights(self, weights: str) -> Served:
        """The same, with the weights of products stored in fewer bits, as `Stream` has them."""
        raise InputError(
            f"weights is {weights!r}, but only language models are served with other weights than their own"
        )

    def current(self, state: bytes) -> bytes:
        """A stored state, of an earlier version perhaps, as it is laid out now; a FileError if it is not one."""
        return state if len(state) == self.row_bytes else states.widen_row(state, self.like)

    def start(self, seed: int) -> bytes:
        """The state before the first input."""
        return self.blank

    def seeded(self, state: bytes, seed: int) -> bytes:
        """The state with other random numbers, where it has some."""
        return state

    @abstractmethod
    def reading(self, inputs: object) -> Work:
        """To read some inputs. An InputError says what an input is."""

    @abstractmethod
    def replaying(self, records: Sequence[bytes], most: int) -> Work:
        """To do once more what works have recorded, `most` inputs of it."""

    @abstractmethod
    def probe(self) -> Work:
        """To read one input of no meaning: whether the model still runs."""

    @abstractmethod
    def advance(self, works: Sequence[Work]) -> None:
        """A tick: each of the works, of different sessions, advances by a piece. If it raises, each of them has
        advanced or has not: none is half changed, and those that are not done can be advanced again."""

    def dump(self, state: bytes) -> bytes:
        """A state as a state file."""
        return states.dump(states.from_rows(joined([self.current(state)]), self.like), fingerprint=self.fingerprint)

    @abstractmethod
    def parse(self, data: bytes) -> bytes:
        """The state in a state file; a FileError where it is not one of this model."""


class ServedRows(Served):
    """It reads one input for each of many states in one call."""

    @abstractmethod
    def encoded(self, inputs: list[object]) -> NDArray[np.generic] | None:
        """One input for each of some states, as `together` takes it. None if something is not an input: then each goes
        by `reading`, which says why."""

    @abstractmethod
    def together(self, x: NDArray[np.generic], before: list[bytes]) -> tuple[list[bytes], Outputs, list[bool]]:
        """One input for each of some states, in one go: the states after it, what came of it, and whether each state is
        finite."""


class ServedWriter(Served):
    """It writes text."""

    @abstractmethod
    def writing(self, prompt: object, settings: Writing) -> WritingWork:
        """To read a prompt and continue it. An InputError says what a prompt is."""

    @abstractmethod
    def again(self, work: WritingWork, settings: Writing) -> WritingWork:
        """To continue the prompt of a work, which is not split again, with settings that have the same biases."""

    @abstractmethod
    def search(
        self, state: bytes, prompt: object, settings: Writing, num_beams: int
    ) -> list[tuple[dict[str, Json], bytes]]:
        """The most probable texts after a state that has read a prompt, the best first: answers, and states after them.

        It computes by itself, in any thread.
        """

    @abstractmethod
    def spelt(self, prompt: object) -> str:
        """A prompt as a text."""


def joined(states: list[bytes]) -> Bytes:
    """States as rows."""
    return np.frombuffer(b"".join(states), np.uint8).reshape(len(states), -1)


def cut(whole: bytes, width: int) -> list[bytes]:
    """States that lie one behind the other, each by itself."""
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
