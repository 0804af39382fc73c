"""Text from a model, piece by piece."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import torch

from elman import state as states
from elman.data import Vocabulary
from elman.data.vocabulary import BOUNDARY, Decoder
from elman.decoding.beam import Hypothesis, beam
from elman.decoding.sample import Carried, Sampler, Sampling
from elman.errors import InputError
from elman.options import whole


class Generation:
    """Iterate over it for the pieces of text of all rows, one list per step; `state` is what they go on from.

    A row ends after `max_new_tokens`, with the boundary symbol, or with one of the strings in `stop`.
    """

    def __init__(
        self,
        model: Any,
        vocabulary: Vocabulary,
        read: Callable[[], Carried],
        prompts: Sequence[str],
        *,
        max_new_tokens: int = 200,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        repetition_penalty: float = 1.0,
        num_beams: int = 1,
        stop: str | list[str] | None = None,
    ) -> None:
        self.sampling = Sampling(temperature, top_k, top_p, repetition_penalty)
        whole("max_new_tokens", max_new_tokens, least=0)
        whole("num_beams", num_beams)
        if num_beams > 1 and self.sampling != Sampling():
            raise InputError(
                "a beam search does not sample: leave temperature, top_k, top_p and repetition_penalty, or num_beams"
            )
        self.model, self.vocabulary = model, vocabulary
        self.max_new_tokens, self.num_beams = max_new_tokens, num_beams
        self.stops = [stop] if isinstance(stop, str) else list(stop or [])
        if "" in self.stops:
            raise InputError("stop is the empty string, which every text holds; leave it out")
        start = read()
        # Where no prompt was given, the text goes on from the symbol that is pending.
        self.before = [p or vocabulary.decode([t]) for p, t in zip(prompts, start.token.tolist(), strict=True)]
        self._state: Callable[[], Carried] = lambda: start

    @property
    def state(self) -> Carried:
        """What the rows go on from, as far as they have come."""
        return self._state()

    def __iter__(self) -> Iterator[list[str]]:
        return self._beams() if self.num_beams > 1 else self._samples()

    def _samples(self) -> Iterator[list[str]]:
        sampler = Sampler(self.model, self.state, self.sampling)
        ended: dict[int, Carried] = {}  # the rows that have ended, as they were then: the others go on
        self._state = lambda: _with_rows(sampler.state, ended)
        rows = [_Row(self.vocabulary.decoder(before), self.stops) for before in self.before]
        for _ in range(self.max_new_tokens):
            pieces = [row.push(int(symbol)) for row, symbol in zip(rows, sampler.next(), strict=True)]
            for number, row in enumerate(rows):
                if row.done and number not in ended:
                    ended[number] = cast(Carried, states.take(sampler.state, [number]))
            yield pieces
            if len(ended) == len(rows):
                return

    def _beams(self) -> Iterator[list[str]]:
        found = beam(
            self.model, self.state.core, self.state.token,
            num_beams=self.num_beams, max_new_tokens=self.max_new_tokens, ended=self._ended,
        )  # fmt: skip
        best = [row[0] for row in found]
        after = self._after(best)
        self._state = lambda: after
        decoders = (self.vocabulary.decoder(before) for before in self.before)
        yield ["".join(map(d.push, h.tokens)) for d, h in zip(decoders, best, strict=True)]

    def _ended(self, tokens: list[int]) -> bool:
        if tokens[-1] == BOUNDARY:
            return True
        return bool(self.stops) and _holds(self.vocabulary.decode(tokens), self.stops)

    def _after(self, best: list[Hypothesis]) -> Carried:
        seen = self.state.seen.clone()
        for row, hypothesis in zip(seen, best, strict=True):
            row[hypothesis.tokens] = True
        last = [h.tokens[-1] if h.tokens else int(t) for h, t in zip(best, self.state.token, strict=True)]
        return Carried(states.concat([h.state for h in best]), torch.tensor(last), seen, self.state.draws)


class _Row:
    """The text of one row so far, as far as a stop string can reach back."""

    def __init__(self, decoder: Decoder, stops: list[str]) -> None:
        self.decoder, self.stops = decoder, stops
        self.reach = max(map(len, stops), default=0)
        self.tail, self.done = "", False

    def push(self, symbol: int) -> str:
        """The text that the symbol completes; nothing once the row is done."""
        if self.done or symbol == BOUNDARY:
            self.done = True
            return ""
        piece = self.decoder.push(symbol)
        if self.stops:
            piece = self._until_stop(piece)
        return piece

    def _until_stop(self, piece: str) -> str:
        """The piece, cut behind the first stop string that it completes."""
        text = self.tail + piece
        ends = [text.find(stop) + len(stop) for stop in self.stops if stop in text]
        self.tail = text[-self.reach :]
        if not ends:
            return piece
        self.done = True
        return text[len(text) - len(piece) : min(ends)]


def _with_rows(state: Carried, rows: dict[int, Carried]) -> Carried:
    for number, row in rows.items():
        state = cast(Carried, states.put(state, [number], row))
    return state


def _holds(text: str, stops: list[str]) -> bool:
    return any(stop in text for stop in stops)
