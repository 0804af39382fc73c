"""Language models, served: many texts side by side, each read and written as it is alone.

The state of a text is that of `decoding.Carried`: the core, the symbol that it has not read yet, the symbols seen so
far and the random numbers. As bytes: the core's row, three numbers, and a bit for each symbol of the vocabulary.
"""

from __future__ import annotations

import struct
import warnings
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from elman import state as states
from elman.data.vocabulary import BOUNDARY, Ids, Vocabulary
from elman.decoding.beam import beam
from elman.decoding.sample import Carried, Sampling, Uniform
from elman.errors import FileError, InputError
from elman.files.config import Json
from elman.model import SequenceModel
from elman.state import State
from elman.stream import ModelStream, Scores, logits_of
from elman.tasks.serving import NOT_FINITE, PIECE, ROWS, ServedWriter, Work, Writing, WritingWork, finite, joined
from elman.tasks.text.generation import Row, banned_symbols, prompt_ids, stopped
from elman.tasks.text.model import TextModel

TAIL = struct.Struct("<qqq")  # the pending symbol, the seed, the number of draws
RECORD = struct.Struct("<qq")  # of a work: the seed, and the number of draws when it began; its symbols follow


class TextWork(WritingWork):
    """Symbols to read, then some to write."""

    def __init__(self, served: ServedText, ids: Ids, before: str, settings: Writing | None, scored: bool) -> None:
        self.served, self.ids, self.before, self.settings, self.scored = served, ids, before, settings, scored
        self.most = settings.max_new_tokens if settings else 0
        self.top = settings.logprobs if settings else None
        self.sampling = served.sampling(settings) if settings else None
        self.read = 0
        self.symbols: list[int] = []  # all that were read or written
        self.text, self.sent, self.reason, self.fresh = "", 0, "length", []
        self.scores: list[Json] = []
        self.counts: dict[int, int] = {}

    fresh: list[dict[str, Json]]

    def __len__(self) -> int:
        return len(self.ids) + self.most

    def begin(self, state: bytes) -> None:
        self.core, self.token, self.seed, self.drawn, self.seen = self.served.opened(state)
        if self.settings is not None and self.settings.seed is not None:
            self.seed, self.drawn = self.settings.seed, 0
        self.uniform = Uniform(torch.tensor([[self.seed, self.drawn]]))
        vocabulary = self.served.vocabulary
        before = self.before or vocabulary.decode([self.token])
        self.row = Row(vocabulary.decoder(before), list(self.settings.stop) if self.settings else [])
        self.done = not len(self)

    def begin_read(self, state: bytes) -> None:
        self.begin(state)
        self.read, self.taken, self.symbols = len(self.ids), len(self.ids), self.ids.tolist()
        self.done = not self.most

    def end(self) -> bytes:
        return self.served.closed(self.core, self.token, self.seed, self.drawn, self.seen)

    @property
    def reads(self) -> bool:
        """Whether it has something left to read."""
        return self.read < len(self.ids)

    def piece(self) -> Ids:
        """What the core reads in this tick: the pending symbol, and all but the last of those that are read now."""
        ahead = self.ids[self.read : self.read + PIECE - 1] if self.reads else self.ids[:0]
        return np.concatenate([[self.token], ahead[: len(self.ids) - self.read - 1]])

    def was_read(self, count: int, scores: Scores | None) -> None:
        """The core has read so many symbols; scores (count, V) are those of what follows each."""
        now = self.ids[self.read : self.read + count].tolist()
        for i, symbol in enumerate(now):
            if scores is not None and self.scored:
                self.scores.append(scored(scores[i], symbol, self.top, self.served.vocabulary))
            self._note(symbol)
        self.read += count
        if self.scored and self.settings is None:
            self.fresh.extend(cast(list[dict[str, Json]], self.scores[-count:]))
        self.done = not self.reads and not self.most

    def was_drawn(self, symbol: int, scores: Scores) -> None:
        assert self.settings is not None
        new: dict[str, Json] = {"token": symbol}
        if self.top is not None:
            self.scores.append(scored(scores, symbol, self.top, self.served.vocabulary))
            new["logprob"] = self.scores[-1]
        self._note(symbol)
        self.drawn += 1
        self.counts[symbol] = self.counts.get(symbol, 0) + 1
        self.text += self.row.push(symbol)
        self.done = self.row.done or len(self.symbols) - len(self.ids) >= self.most
        self.reason = self.row.reason
        if not self.settings.keep_stop and self.reason == "stop":
            self.text = _without_stop(self.text, self.settings.stop)
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
        self.symbols.append(symbol)

    def adjusted(self, logits: NDArray[np.float64]) -> NDArray[np.float64]:
        """Logits (V,) with biases and penalties."""
        assert self.settings is not None
        for symbol, bias in self.settings.bias:
            logits[symbol] += bias
        for symbol, count in self.counts.items():
            logits[symbol] -= self.settings.presence + self.settings.frequency * count
        return logits

    @property
    def adjusts(self) -> bool:
        s = self.settings
        return s is not None and bool(s.bias or s.presence or s.frequency)

    def answer(self) -> dict[str, Json]:
        if self.settings is None:
            return {"outputs": self.scores} if self.scored else {"outputs": []}
        found: dict[str, Json] = {"text": self.text, "finish_reason": self.reason, "seed": self.seed}
        found["tokens"] = cast(Json, self.symbols[len(self.ids) :])
        if self.top is not None:
            found["logprobs"] = self.scores
        return found

    def events(self) -> list[dict[str, Json]]:
        new, self.fresh = self.fresh, []
        return new

    def record(self) -> bytes:
        first = self.drawn - (len(self.symbols) - len(self.ids))
        return RECORD.pack(self.seed, first) + np.array([len(self.ids), *self.symbols], "<i8").tobytes()


def _without_stop(text: str, stops: Sequence[str]) -> str:
    """A text without the string that ended it."""
    return text[: -max(len(stop) for stop in stops if text.endswith(stop))]


class ServedText(ServedWriter):
    """A language model with its vocabulary.

    >>> from elman.data import VOCABULARIES
    >>> from elman.tasks.text.lm import LanguageModel, LMModelConfig, build
    >>> lm = LanguageModel(build(LMModelConfig(size=8), 257), VOCABULARIES["byte"](), LMModelConfig(size=8))
    >>> served = ServedText(lm)
    >>> work = served.writing("Once", Writing(max_new_tokens=5))
    >>> work.begin(served.start(seed=7))
    >>> while not work.done:
    ...     served.advance([work])
    >>> work.answer()["text"] == lm.generate("Once", seed=7, max_new_tokens=5)
    True
    """

    def __init__(self, predictor: TextModel[Any], rows: int = ROWS) -> None:
        self.model, self.vocabulary, self.fingerprint = (
            predictor.model.eval(),
            predictor.vocabulary,
            predictor.fingerprint,
        )
        self.endless = predictor.unit == "text"
        self.stream, self.most = ModelStream(self.model, 1), rows
        self.like = self.model.init_state(1)
        self.blank = states.to_rows(self.like).tobytes()
        V = self.vocabulary.size
        self._bits = (V + 7) // 8
        self.row_bytes = len(self.blank) + TAIL.size + self._bits
        self.about: dict[str, Json] = {
            "reads": "text", "input": "a text, or a list of tokens", "writes": True, "vocabulary": self.vocabulary.kind,
            "symbols": V, "endless": self.endless,
        }  # fmt: skip

    # States

    def current(self, state: bytes) -> bytes:
        if len(state) != self.row_bytes:
            raise FileError(f"a state of {len(state)} bytes was stored; this model's has {self.row_bytes}")
        return state

    def start(self, seed: int) -> bytes:
        return self.closed(self.blank, BOUNDARY, seed, 0, np.zeros(self.vocabulary.size, bool))

    def seeded(self, state: bytes, seed: int) -> bytes:
        core, token, _, _, seen = self.opened(state)
        return self.closed(core, token, seed, 0, seen)

    def opened(self, state: bytes) -> tuple[bytes, int, int, int, NDArray[np.bool_]]:
        """The core, the pending symbol, seed and number of draws, and the symbols seen."""
        W, V = len(self.blank), self.vocabulary.size
        bits = np.frombuffer(state, np.uint8, offset=W + TAIL.size)
        seen = np.unpackbits(bits, count=V, bitorder="little").view(bool)
        return state[:W], *TAIL.unpack_from(state, W), seen

    def closed(self, core: bytes, token: int, seed: int, drawn: int, seen: NDArray[np.bool_]) -> bytes:
        return core + TAIL.pack(token, seed, drawn) + np.packbits(seen, bitorder="little").tobytes()

    def dump(self, state: bytes) -> bytes:
        core, token, seed, drawn, seen = self.opened(state)
        carried = Carried(
            self._core(core), torch.tensor([token]), torch.from_numpy(seen[None].copy()),
            torch.tensor([[seed, drawn]]),
        )  # fmt: skip
        return states.dump(carried, fingerprint=self.fingerprint)

    def parse(self, data: bytes) -> bytes:
        V = self.vocabulary.size
        like = Carried(
            self.model.init_state(0), torch.zeros(0, dtype=torch.int64), torch.zeros(0, V, dtype=torch.bool),
            torch.zeros(0, 2, dtype=torch.int64),
        )  # fmt: skip
        carried = states.parse(data, like, fingerprint=self.fingerprint)
        assert isinstance(carried, Carried)
        if len(carried.token) != 1:
            raise FileError(f"a session is one text; the state that was sent has {len(carried.token)} rows")
        token, (seed, drawn) = int(carried.token), carried.draws[0].tolist()
        core = states.to_rows(carried.core)
        if not 0 <= token < V or not seed >= 0 or not 0 <= drawn < 2**62 or not finite(core, self.like)[0]:
            raise FileError("the state that was sent has numbers that no text can lead to: not finite, or no symbol")
        return self.closed(core.tobytes(), token, seed, drawn, carried.seen[0].numpy())

    # Works

    def reading(self, inputs: object) -> Work:
        return TextWork(self, self._ids(inputs), inputs if isinstance(inputs, str) else "", None, True)

    def writing(self, prompt: object, settings: Writing) -> WritingWork:
        V = self.vocabulary.size
        if any(not 0 <= symbol < V for symbol, _ in settings.bias):
            raise InputError(f"logit_bias names a token that is not there; the model has the tokens 0 to {V - 1}")
        ids = self._ids(prompt)
        return TextWork(self, ids, prompt if isinstance(prompt, str) else "", settings, settings.scored)

    def search(
        self, state: bytes, prompt: object, settings: Writing, num_beams: int
    ) -> list[tuple[dict[str, Json], bytes]]:
        core, token, seed, drawn, seen = self.opened(state)
        stops = list(settings.stop)
        (found,) = beam(
            self.model, self._core(core), torch.tensor([token]), num_beams=num_beams,
            max_new_tokens=settings.max_new_tokens, ended=stopped(self.vocabulary, stops),
            banned=banned_symbols(self.vocabulary, settings.allow, self.endless),
        )  # fmt: skip
        before = self.spelt(prompt) or self.vocabulary.decode([token])
        answers: list[tuple[dict[str, Json], bytes]] = []
        for one in found:
            row = Row(self.vocabulary.decoder(before), stops)
            text = "".join(map(row.push, one.tokens))
            if row.reason == "stop" and not settings.keep_stop:
                text = _without_stop(text, stops)
            now = seen.copy()
            now[one.tokens] = True
            last = one.tokens[-1] if one.tokens else token
            after = self.closed(states.to_rows(one.state).tobytes(), last, seed, drawn, now)
            answers.append(({"text": text, "finish_reason": row.reason, "tokens": [*one.tokens]}, after))
        return answers

    def spelt(self, prompt: object) -> str:
        return prompt if isinstance(prompt, str) else self.vocabulary.decode(self._ids(prompt).tolist())

    def probe(self) -> Work:
        return TextWork(self, np.array([BOUNDARY]), "", None, False)

    def replaying(self, records: Sequence[bytes], most: int) -> Work:
        return _Replay(self, records, most)

    def sampling(self, s: Writing) -> Sampling:
        banned = banned_symbols(self.vocabulary, s.allow, self.endless)
        return Sampling(s.temperature, s.top_k, s.top_p, s.repetition_penalty, banned)

    def _ids(self, given: object) -> Ids:
        if isinstance(given, str):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of unknown words, which are read as such
                return prompt_ids(self.vocabulary, given)
        V = self.vocabulary.size
        if not isinstance(given, list) or not all(type(i) is int and 0 <= i < V for i in given):
            raise InputError(f"a text is a string, or a list of tokens from 0 to {V - 1}")
        return np.array(given, np.int64)

    # A tick

    def advance(self, works: Sequence[Work]) -> None:
        each = [work for work in works if isinstance(work, TextWork)]
        pieces = [work.piece() for work in each]
        for work in each:
            if work.token == BOUNDARY:  # behind a boundary a new text begins
                work.core = self.blank
        single = [work for work, piece in zip(each, pieces, strict=True) if len(piece) == 1]
        several = [(work, piece) for work, piece in zip(each, pieces, strict=True) if len(piece) > 1]
        for at in range(0, len(single), self.most):
            self._step(single[at : at + self.most])
        for at in range(0, len(several), self.most):
            self._scan(several[at : at + self.most])

    def _step(self, works: list[TextWork]) -> None:
        symbols = np.array([work.token for work in works])
        predicted, after = self.stream.carry(symbols, b"".join([work.core for work in works]))
        logits = logits_of(predicted)
        self._moved(works, after)
        going_on = [(work, row) for work, row in zip(works, logits, strict=True) if not work.failed]
        draws = [(work, row) for work, row in going_on if not work.reads]
        for work, row in going_on:
            if work.reads:
                work.was_read(1, row[None])
        self._draw(draws)

    def _draw(self, works: list[tuple[TextWork, Scores]]) -> None:
        """A symbol for each of the works: those with the same settings at once, to the same bits as alone."""
        groups: dict[Sampling, list[tuple[TextWork, Scores]]] = {}
        for work, row in works:
            assert work.sampling is not None
            groups.setdefault(work.sampling, []).append((work, row))
        for sampling, group in groups.items():
            seen = np.stack([work.seen for work, _ in group])
            u = np.concatenate([work.uniform.next() for work, _ in group])
            rows = [work.adjusted(row.astype(np.float64)) if work.adjusts else row for work, row in group]
            scores = cast(Scores, np.stack(rows))
            chosen = sampling.choose(scores, seen, u).tolist()
            for (work, row), symbol in zip(group, chosen, strict=True):
                work.was_drawn(symbol, row)

    @torch.inference_mode()
    def _scan(self, works: list[tuple[TextWork, Ids]]) -> None:
        lengths = [len(piece) for _, piece in works]
        x = np.zeros((len(works), max(lengths)), np.int64)
        for row, (_, piece) in zip(x, works, strict=True):
            row[: len(piece)] = piece
        core = self._core(*(work.core for work, _ in works))
        symbols, ends = torch.from_numpy(x), torch.tensor(lengths)
        scores: Scores | None = None
        if isinstance(self.model, SequenceModel) and not any(work.scored for work, _ in works):
            _, state = self.model.core.scan(self.model.embed(symbols), core, lengths=ends)
        else:
            predicted, state = self.model.scan(symbols, core, lengths=ends)
            scores = logits_of(predicted)
        self._moved([work for work, _ in works], states.to_rows(state).tobytes())
        for i, (work, piece) in enumerate(works):
            if not work.failed:
                work.was_read(len(piece), None if scores is None else scores[i, : len(piece)])

    def _core(self, *rows: bytes) -> State:
        """States of the core."""
        return states.from_rows(joined(list(rows)), self.like)

    def _moved(self, works: list[TextWork], after: bytes) -> None:
        rows = np.frombuffer(after, np.uint8).reshape(len(works), -1)
        for work, core, is_good in zip(works, rows, finite(rows, self.like), strict=True):
            work.core = core.tobytes()
            if not is_good:
                work.failed, work.done = NOT_FINITE, True


class _Replay(TextWork):
    """What was read and written, read once more: the same state, random numbers included."""

    def __init__(self, served: ServedText, records: Sequence[bytes], most: int) -> None:
        symbols: list[int] = []
        self.after: list[tuple[int, int]] = []  # the seed and the number of draws behind each symbol
        for record in records:
            seed, drawn = RECORD.unpack_from(record)
            read, *own = np.frombuffer(record, "<i8", offset=RECORD.size).tolist()
            symbols += own
            self.after += [(seed, drawn + max(0, i + 1 - read)) for i in range(len(own))]
        super().__init__(served, np.array(symbols[:most], np.int64), "", None, False)

    def end(self) -> bytes:
        if self.taken:
            self.seed, self.drawn = self.after[self.taken - 1]
        return super().end()


def scored(logits: Scores, symbol: int, top: int | None, vocabulary: Vocabulary) -> dict[str, Json]:
    """log P of a symbol, and of the `top` most probable ones, of logits (V,)."""
    p = logits.astype(np.float64)
    p -= p.max()
    p -= np.log(np.exp(p).sum())
    found: dict[str, Json] = {"token": symbol, "text": vocabulary.decode([symbol]), "logprob": float(p[symbol])}
    if top:
        best = (-p).argsort(kind="stable")[:top].tolist()
        found["top"] = [{"token": i, "text": vocabulary.decode([i]), "logprob": float(p[i])} for i in best]
    return found
