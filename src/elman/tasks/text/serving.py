"""Language models, served: many texts side by side, each read and written as it is alone."""

from __future__ import annotations

import copy
import hashlib
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar, cast

import numpy as np
import torch

from elman import state as states
from elman.data.vocabulary import BOUNDARY, Ids
from elman.decoding.beam import beam
from elman.decoding.sample import Carried, Sampling
from elman.errors import FileError, InputError
from elman.files.config import Json
from elman.model import SequenceModel
from elman.state import State
from elman.stream import ModelStream, Scores, logits_of
from elman.tasks.serving import ROWS, ServedWriter, Work, Writing, WritingWork, cut, finite, joined
from elman.tasks.text.generation import Row, banned_symbols, prompt_ids, stopped
from elman.tasks.text.model import TextModel
from elman.tasks.text.serving_work import Replay, TextStates, TextWork, without_stop

T = TypeVar("T")


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
        self.model_fingerprint = self.fingerprint
        self.weights: str | None = None
        self.endless = predictor.unit == "text"
        self.stream, self.most = ModelStream(self.model, 1), rows
        self.like = self.model.init_state(1)
        self.blank = states.to_rows(self.like).tobytes()
        self.states = TextStates(self.vocabulary, len(self.blank))
        self.row_bytes = self.states.row_bytes
        self.about: dict[str, Json] = {
            "reads": "text", "input": "a text, or a list of tokens", "writes": True, "vocabulary": self.vocabulary.kind,
            "symbols": self.vocabulary.size, "endless": self.endless,
        }  # fmt: skip

    def with_weights(self, weights: str) -> ServedText:
        """Every symbol is read by a stream that stores its weights so. Sessions of other weights are not its own: what
        was read again after a crash would have other bits. State files are, as in `elman generate --state`."""
        other = copy.copy(self)
        other.stream, other.weights = ModelStream(self.model, 1, weights), weights
        other.fingerprint = hashlib.sha256(f"{self.fingerprint} {weights}".encode()).hexdigest()
        other.about = {**self.about, "weights": weights}
        return other

    # States

    def current(self, state: bytes) -> bytes:
        if len(state) != self.row_bytes:
            raise FileError(f"a state of {len(state)} bytes was stored; this model's has {self.row_bytes}")
        return state

    def start(self, seed: int) -> bytes:
        return self.states.pack(self.blank, BOUNDARY, seed, 0, np.zeros(self.vocabulary.size, bool))

    def seeded(self, state: bytes, seed: int) -> bytes:
        core, token, _, _, seen = self.states.unpack(state)
        return self.states.pack(core, token, seed, 0, seen)

    def dump(self, state: bytes) -> bytes:
        core, token, seed, drawn, seen = self.states.unpack(state)
        carried = Carried(
            self._core(core), torch.tensor([token]), torch.from_numpy(seen[None].copy()),
            torch.tensor([[seed, drawn]]),
        )  # fmt: skip
        return states.dump(carried, fingerprint=self.model_fingerprint)

    def parse(self, data: bytes) -> bytes:
        V = self.vocabulary.size
        like = Carried(
            self.model.init_state(0), torch.zeros(0, dtype=torch.int64), torch.zeros(0, V, dtype=torch.bool),
            torch.zeros(0, 2, dtype=torch.int64),
        )  # fmt: skip
        carried = states.parse(data, like, fingerprint=self.model_fingerprint)
        assert isinstance(carried, Carried)
        if len(carried.token) != 1:
            raise FileError(f"a session is one text; the state that was sent has {len(carried.token)} rows")
        token, (seed, drawn) = int(carried.token), carried.draws[0].tolist()
        core = states.to_rows(carried.core)
        if not 0 <= token < V or not seed >= 0 or not 0 <= drawn < 2**62 or not finite(core, self.like)[0]:
            raise FileError("the state that was sent has numbers that no text can lead to: not finite, or no symbol")
        return self.states.pack(core.tobytes(), token, seed, drawn, carried.seen[0].numpy())

    # Works

    def reading(self, inputs: object) -> Work:
        return TextWork(self.states, self._ids(inputs), inputs if isinstance(inputs, str) else "", scored=True)

    def writing(self, prompt: object, settings: Writing) -> WritingWork:
        V = self.vocabulary.size
        if any(not 0 <= symbol < V for symbol, _ in settings.bias):
            raise InputError(f"logit_bias names a token that is not there; the model has the tokens 0 to {V - 1}")
        ids = self._ids(prompt)
        before, sampling = prompt if isinstance(prompt, str) else "", self._sampling(settings)
        work = TextWork(self.states, ids, before, settings, sampling, settings.scored)
        if settings.bias:
            symbols, values = zip(*settings.bias, strict=True)
            work.bias = np.array(symbols, np.int64), np.array(values)
        return work

    def again(self, work: WritingWork, settings: Writing) -> WritingWork:
        assert isinstance(work, TextWork)
        other = TextWork(self.states, work.ids, work.before, settings, self._sampling(settings), settings.scored)
        other.bias = work.bias
        return other

    def search(
        self, state: bytes, prompt: object, settings: Writing, num_beams: int
    ) -> list[tuple[dict[str, Json], bytes]]:
        if self.weights is not None:
            raise InputError(
                "a beam search computes with the weights as they are, which this server does not; set num_beams to 1, "
                "or serve without --weights"
            )
        core, token, seed, drawn, seen = self.states.unpack(state)
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
                text = without_stop(text, stops)
            now = seen.copy()
            now[one.tokens] = True
            last = one.tokens[-1] if one.tokens else token
            after = self.states.pack(states.to_rows(one.state).tobytes(), last, seed, drawn, now)
            answers.append(({"text": text, "finish_reason": row.reason, "tokens": [*one.tokens]}, after))
        return answers

    def spelt(self, prompt: object) -> str:
        return prompt if isinstance(prompt, str) else self.vocabulary.decode(self._ids(prompt).tolist())

    def probe(self) -> Work:
        return TextWork(self.states, np.array([BOUNDARY]))

    def replaying(self, records: Sequence[bytes], most: int) -> Work:
        return Replay(self.states, records, most)

    def _sampling(self, s: Writing) -> Sampling:
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
            self._read(several[at : at + self.most])

    def _step(self, works: list[TextWork]) -> None:
        symbols = np.array([work.token for work in works])
        predicted, after = self.stream.carry(symbols, b"".join([work.core for work in works]))
        drawing: list[tuple[TextWork, bytes, Scores]] = []
        for work, core, row in self._finite(works, after, logits_of(predicted)):
            if work.reads:
                work.apply(work.add_read, core, 1, row[None])
            else:
                drawing.append((work, core, row))
        self._draw(drawing)

    def _draw(self, works: list[tuple[TextWork, bytes, Scores]]) -> None:
        """A symbol for each of the works: those with the same settings at once, to the same bits as alone."""
        groups: dict[Sampling, list[tuple[TextWork, bytes, Scores]]] = {}
        for one in works:
            assert one[0].sampling is not None
            groups.setdefault(one[0].sampling, []).append(one)
        for sampling, group in groups.items():
            chosen = self._choose(sampling, [(work, row) for work, _, row in group])
            for (work, core, row), symbol in zip(group, chosen, strict=True):
                work.apply(work.add_drawn, core, symbol, row)

    def _choose(self, sampling: Sampling, works: list[tuple[TextWork, Scores]]) -> list[int]:
        try:
            seen = np.stack([work.seen for work, _ in works])
            rows = [work.adjust(row.astype(np.float64)) if work.adjusts else row for work, row in works]
            u = np.concatenate([work.uniform.next() for work, _ in works])
            chosen: list[int] = sampling.choose(cast(Scores, np.stack(rows)), seen, u).tolist()
            return chosen
        except Exception:
            for work, _ in works:
                work.restart_draws()
            raise

    def _read(self, works: list[tuple[TextWork, Ids]]) -> None:
        lengths = [len(piece) for _, piece in works]
        after, scores = self._scan(works, lengths) if self.weights is None else self._read_by_steps(works)
        for work, core, i in self._finite([work for work, _ in works], after, range(len(works))):
            work.apply(work.add_read, core, lengths[i], scores[i])

    @torch.inference_mode()
    def _scan(self, works: list[tuple[TextWork, Ids]], lengths: list[int]) -> tuple[bytes, list[Scores | None]]:
        """The states after pieces of texts, and of those that want them the scores of what follows each symbol."""
        x = np.zeros((len(works), max(lengths)), np.int64)
        for row, (_, piece) in zip(x, works, strict=True):
            row[: len(piece)] = piece
        core = self._core(*(work.core for work, _ in works))
        symbols, ends = torch.from_numpy(x), torch.tensor(lengths)
        if isinstance(self.model, SequenceModel) and not any(work.scored for work, _ in works):
            _, state = self.model.core.scan(self.model.embed(symbols), core, lengths=ends)
            return states.to_rows(state).tobytes(), [None] * len(works)
        predicted, state = self.model.scan(symbols, core, lengths=ends)
        scores = zip(works, logits_of(predicted), lengths, strict=True)
        return states.to_rows(state).tobytes(), [row[:n] if work.scored else None for (work, _), row, n in scores]

    def _read_by_steps(self, works: list[tuple[TextWork, Ids]]) -> tuple[bytes, list[Scores | None]]:
        """The same by the stream: a scan computes with the weights as they are."""
        cores, scores = [work.core for work, _ in works], [list[Scores]() for _ in works]
        for t in range(max(len(piece) for _, piece in works)):
            rows = [i for i, (_, piece) in enumerate(works) if len(piece) > t]
            symbols = np.array([works[i][1][t] for i in rows])
            predicted, after = self.stream.carry(symbols, b"".join([cores[i] for i in rows]))
            for i, core, row in zip(rows, cut(after, len(self.blank)), logits_of(predicted), strict=True):
                cores[i] = core
                if works[i][0].scored:
                    scores[i].append(row)
        return b"".join(cores), [cast(Scores, np.stack(rows)) if rows else None for rows in scores]

    def _core(self, *rows: bytes) -> State:
        """States of the core."""
        return states.from_rows(joined(list(rows)), self.like)

    def _finite(
        self, works: Sequence[TextWork], after: bytes, each: Iterable[T]
    ) -> Iterator[tuple[TextWork, bytes, T]]:
        """The works whose state after it is finite, that of their core, and what there is for each; the others fail."""
        width = len(self.blank)
        good = finite(np.frombuffer(after, np.uint8).reshape(len(works), width), self.like)
        for work, core, is_good, one in zip(works, cut(after, width), good, each, strict=True):
            if is_good:
                yield work, core, one
            else:
                work.fail()
