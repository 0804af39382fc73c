"""What one request does with one text: symbols to read, then some to write; and a text's state as bytes.

The state of a text is that of `decoding.Carried`: the core, the symbol that it has not read yet, the symbols seen so
far and the random numbers. As bytes: the core's row, three numbers, and a bit for each symbol of the vocabulary.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray

from elman.data.vocabulary import Ids, Vocabulary
from elman.decoding.sample import Sampling, Uniform
from elman.files.config import Json
from elman.stream import Scores
from elman.tasks.serving import NOT_FINITE, PIECE, Writing, WritingWork
from elman.tasks.text.generation import Row

TAIL = struct.Struct("<qqq")  # the pending symbol, the seed, the number of draws
RECORD = struct.Struct("<qq")  # of a work: the seed, and the number of draws when it began; its symbols follow


class TextState(NamedTuple):
    """The state of a text."""

    core: bytes
    token: int  # the symbol that the core has not read yet
    seed: int
    drawn: int  # numbers drawn so far
    seen: NDArray[np.bool_]  # (V,)


class TextStates:
    """States of texts as bytes."""

    def __init__(self, vocabulary: Vocabulary, core_bytes: int) -> None:
        self.vocabulary, self.core_bytes = vocabulary, core_bytes
        self.row_bytes = core_bytes + TAIL.size + (vocabulary.size + 7) // 8

    def unpack(self, data: bytes) -> TextState:
        """A state of its bytes."""
        W, V = self.core_bytes, self.vocabulary.size
        bits = np.frombuffer(data, np.uint8, offset=W + TAIL.size)
        seen = np.unpackbits(bits, count=V, bitorder="little").view(bool)
        token, seed, drawn = TAIL.unpack_from(data, W)
        return TextState(data[:W], token, seed, drawn, seen)

    def pack(self, core: bytes, token: int, seed: int, drawn: int, seen: NDArray[np.bool_]) -> bytes:
        """The bytes of a state."""
        return core + TAIL.pack(token, seed, drawn) + np.packbits(seen, bitorder="little").tobytes()


class TextWork(WritingWork):
    """Symbols to read, then some to write."""

    def __init__(
        self, states: TextStates, ids: Ids, before: str = "", settings: Writing | None = None,
        sampling: Sampling | None = None, scored: bool = False,
    ) -> None:  # fmt: skip
        self.states, self.ids, self.before, self.settings = states, ids, before, settings
        self.sampling, self.scored = sampling, scored
        self.most = settings.max_new_tokens if settings else 0
        self.top = settings.logprobs if settings else None
        self.read = 0
        self.written: list[int] = []
        self.text, self.sent, self.reason, self.fresh = "", 0, "length", []
        self.scores: list[Json] = []
        self.places: dict[int, int] = {}  # in `counts`, of each symbol that was written
        self.counts = np.zeros(4, np.int64), np.zeros(4)  # symbols, and how often each was written

    fresh: list[dict[str, Json]]
    bias = np.zeros(0, np.int64), np.zeros(0)  # symbols, and what is added to the logits of each

    def __len__(self) -> int:
        return len(self.ids) + self.most

    def begin(self, state: bytes) -> None:
        self.core, self.token, self.seed, self.drawn, self.seen = self.states.unpack(state)
        if self.settings is not None and self.settings.seed is not None:
            self.seed, self.drawn = self.settings.seed, 0
        self.restart_draws()
        vocabulary = self.states.vocabulary
        before = self.before or vocabulary.decode([self.token])
        self.row = Row(vocabulary.decoder(before), list(self.settings.stop) if self.settings else [])
        self.done = not len(self)

    def restart_draws(self) -> None:
        """The next random number is that of the next symbol, whatever was drawn and not used."""
        self.uniform = Uniform(torch.tensor([[self.seed, self.drawn]]))

    def begin_read(self, state: bytes) -> None:
        self.begin(state)
        self.read = self.taken = len(self.ids)
        self.done = not self.most

    def end(self) -> bytes:
        return self.states.pack(self.core, self.token, self.seed, self.drawn, self.seen)

    @property
    def reads(self) -> bool:
        """Whether it has something left to read."""
        return self.read < len(self.ids)

    def piece(self) -> Ids:
        """What the core reads in this tick: the pending symbol, and all but the last of those that are read now."""
        ahead = self.ids[self.read : self.read + PIECE - 1] if self.reads else self.ids[:0]
        return np.concatenate([[self.token], ahead[: len(self.ids) - self.read - 1]])

    def fail(self) -> None:
        """Its state is no longer finite."""
        self.failed, self.done = NOT_FINITE, True

    def add_read(self, core: bytes, count: int, scores: Scores | None) -> None:
        """The core has read so many symbols; scores (count, V) are those of what follows each."""
        self.core = core
        now = self.ids[self.read : self.read + count].tolist()
        for i, symbol in enumerate(now):
            if scores is not None and self.scored:
                self.scores.append(score_of(scores[i], symbol, self.top, self.states.vocabulary))
            self._note(symbol)
        self.read += count
        if self.scored and self.settings is None:
            self.fresh.extend(cast(list[dict[str, Json]], self.scores[-count:]))
        self.done = not self.reads and not self.most

    def add_drawn(self, core: bytes, symbol: int, scores: Scores) -> None:
        """The core has read the pending symbol, and this one was drawn behind it from scores (V,)."""
        assert self.settings is not None
        self.core = core
        new: dict[str, Json] = {"token": symbol}
        if self.top is not None:
            self.scores.append(score_of(scores, symbol, self.top, self.states.vocabulary))
            new["logprob"] = self.scores[-1]
        self._note(symbol)
        self.written.append(symbol)
        self.drawn += 1
        if self.adjusts:
            self._count(symbol)
        self.text += self.row.push(symbol)
        self.done = self.row.done or len(self.written) >= self.most
        self.reason = self.row.reason
        if not self.settings.keep_stop and self.reason == "stop":
            self.text = without_stop(self.text, self.settings.stop)
        new["text"], self.sent = self.text[self.sent : self._safe()], self._safe()
        self.fresh.append(new)

    def _safe(self) -> int:
        """How much of the text will stay, whatever follows: what may be the beginning of a stop string may not."""
        assert self.settings is not None
        if self.settings.keep_stop or self.done:
            return len(self.text)
        begun = (n for stop in self.settings.stop for n in range(1, len(stop)) if self.text.endswith(stop[:n]))
        return len(self.text) - max(begun, default=0)

    def _note(self, symbol: int) -> None:
        self.token, self.taken = symbol, self.taken + 1
        self.seen[symbol] = True

    def _count(self, symbol: int) -> None:
        """In arrays: of a long text, penalties would take as long as the network."""
        place = self.places.setdefault(symbol, len(self.places))
        if place == len(self.counts[0]):
            symbols, times = (np.concatenate([part, np.zeros_like(part)]) for part in self.counts)
            self.counts = symbols, times
        self.counts[0][place] = symbol
        self.counts[1][place] += 1

    def adjust(self, logits: NDArray[np.float64]) -> NDArray[np.float64]:
        """Logits (V,) with biases and penalties."""
        assert self.settings is not None
        np.add.at(logits, *self.bias)
        symbols, times = (part[: len(self.places)] for part in self.counts)
        logits[symbols] -= self.settings.presence + self.settings.frequency * times
        return logits

    @property
    def adjusts(self) -> bool:
        s = self.settings
        return s is not None and bool(s.bias or s.presence or s.frequency)

    def answer(self) -> dict[str, Json]:
        if self.settings is None:
            return {"outputs": self.scores} if self.scored else {"outputs": []}
        found: dict[str, Json] = {"text": self.text, "finish_reason": self.reason, "seed": self.seed}
        found["tokens"] = cast(Json, [*self.written])
        if self.top is not None:
            found["logprobs"] = self.scores
        return found

    def events(self) -> list[dict[str, Json]]:
        new, self.fresh = self.fresh, []
        return new

    def record(self) -> bytes:
        symbols = np.array([len(self.ids), *self.ids.tolist(), *self.written], "<i8")
        return RECORD.pack(self.seed, self.drawn - len(self.written)) + symbols.tobytes()


def without_stop(text: str, stops: Sequence[str]) -> str:
    """A text without the string that ended it."""
    return text[: -max(len(stop) for stop in stops if text.endswith(stop))]


class Replay(TextWork):
    """What was read and written, read once more: the same state, random numbers included."""

    def __init__(self, states: TextStates, records: Sequence[bytes], most: int) -> None:
        symbols: list[int] = []
        self.after: list[tuple[int, int]] = []  # the seed and the number of draws behind each symbol
        for record in records:
            seed, drawn = RECORD.unpack_from(record)
            read, *own = np.frombuffer(record, "<i8", offset=RECORD.size).tolist()
            symbols += own
            self.after += [(seed, drawn + max(0, i + 1 - read)) for i in range(len(own))]
        super().__init__(states, np.array(symbols[:most], np.int64))

    def end(self) -> bytes:
        if self.taken:
            self.seed, self.drawn = self.after[self.taken - 1]
        return super().end()


def score_of(logits: Scores, symbol: int, top: int | None, vocabulary: Vocabulary) -> dict[str, Json]:
    """log P of a symbol, and of the `top` most probable ones, of logits (V,)."""
    p = logits.astype(np.float64)
    p -= p.max()
    p -= np.log(np.exp(p).sum())
    found: dict[str, Json] = {"token": symbol, "text": vocabulary.decode([symbol]), "logprob": float(p[symbol])}
    if top:
        best = (-p).argsort(kind="stable")[:top].tolist()
        found["top"] = [{"token": i, "text": vocabulary.decode([i]), "logprob": float(p[i])} for i in best]
    return found
