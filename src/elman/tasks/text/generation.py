"""Text from a model, piece by piece.

Two symbols of a vocabulary are not text. The boundary ends a text: it is chosen where texts have ends (lines,
documents), and not in an endless one. The unknown symbol stands for what the vocabulary lacks: it can be read in a
prompt, and is not chosen. `allow` names what may be chosen all the same: "end", "unknown".
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from elman import state as states
from elman.data import Vocabulary
from elman.data.vocabulary import BOUNDARY, Decoder, Ids
from elman.decoding.beam import beam
from elman.decoding.hypotheses import Hypothesis
from elman.decoding.sample import AHEAD, Carried, Sampler, Sampling
from elman.errors import InputError
from elman.kernels.builder import WEIGHTS
from elman.model import SequenceModel
from elman.options import choice
from elman.stream import ModelStream
from elman.tasks.predictor import evaluating
from elman.tasks.request import Request, option
from elman.tasks.text.kneser_ney import Markov

ALLOWED = ("end", "unknown")
STORED = "store the weights of products in fewer bits; by default as they are"
EDGE = 4  # characters that may be in parts where a text is cut
WHOLE = 128  # symbols of a text that nothing but its length ends, drawn in one call


def prompt_ids(vocabulary: Vocabulary, text: str) -> Ids:
    """The symbols of a prompt. A word that the vocabulary lacks is the unknown symbol, with a warning; a character
    that it lacks is refused."""
    if vocabulary.kind != "word":
        return vocabulary.encode_known(text)
    ids = vocabulary.encode(text)
    if (ids == vocabulary.unknown).any():
        lacking = vocabulary.unknown_in(text)
        warnings.warn(
            f"the prompt has {lacking}, which the vocabulary lacks: the model reads <unk> in its place", stacklevel=2
        )
    return ids


@dataclass(frozen=True, kw_only=True)
class Settings(Request):
    """How to continue a text."""

    max_new_tokens: int = option(200, "tokens after the prompt, at most", least=0, limit="max_tokens")
    temperature: float = option(1.0, "0 takes the most probable symbol", least=0)
    top_k: int = option(0, "choose among so many symbols; 0 for all", least=0)
    top_p: float = option(1.0, "choose among the symbols that have this probability together")
    repetition_penalty: float = option(1.0, "what log-probabilities of symbols seen are multiplied by")
    num_beams: int = option(1, "above 1, search for the most probable text", least=1, limit="beams")
    length_penalty: float = option(1.0, "beams: log P / length ** this", least=0)
    stop: tuple[str, ...] = option((), "end with this string; may be given several times")
    allow: tuple[str, ...] = option(
        (), "choose this too: the end of an endless text, unknown words", choices=ALLOWED, metavar="{end,unknown}"
    )
    weights: str | None = option(None, STORED, choices=WEIGHTS, local=True)

    def __post_init__(self) -> None:
        if isinstance(self.stop, str | None):
            object.__setattr__(self, "stop", (self.stop,) if self.stop is not None else ())
        super().__post_init__()
        if self.sampling() != Sampling() and self.num_beams > 1:
            raise InputError(
                "a beam search does not sample: leave temperature, top_k, top_p and repetition_penalty, or num_beams"
            )
        if self.weights and self.num_beams > 1:
            raise InputError("a beam search computes with the weights as they are: leave weights, or num_beams")
        if "" in self.stop:
            raise InputError("stop is the empty string, which every text holds; leave it out")

    def sampling(self, banned: tuple[int, ...] = ()) -> Sampling:
        """How symbols are chosen, without those that are banned."""
        return Sampling(self.temperature, self.top_k, self.top_p, self.repetition_penalty, banned)


class Generation:
    """Iterate over it for the pieces of text of all rows, one list per step; `state` is what they continue from.

    A row ends after `max_new_tokens` ("length"), with one of the strings in `stop` ("stop") or with the boundary symbol
    ("end"); `finish_reasons` says which. Symbols that are banned are not chosen. `start` is the state that has read the
    prompts, and `stream` has the weights that read them. Beams are compared by log P / length ** length_penalty.
    """

    def __init__(
        self, model: SequenceModel | Markov, vocabulary: Vocabulary, settings: Settings, banned: tuple[int, ...],
        prompts: Sequence[str], start: Carried, stream: ModelStream,
    ) -> None:  # fmt: skip
        self.model, self.vocabulary, self.settings, self.banned = model, vocabulary, settings, banned
        self._stream = stream
        self._state: Callable[[], Carried] = lambda: start
        # Where no prompt was given, the text continues from the symbol that is pending.
        before = [p or vocabulary.decode([t]) for p, t in zip(prompts, start.token.tolist(), strict=True)]
        self._rows = [Row(vocabulary.decoder(text), list(settings.stop)) for text in before]

    @property
    def finish_reasons(self) -> list[str]:
        """Why each row has ended, or will: "length" until it has met something else."""
        return [row.reason for row in self._rows]

    @property
    def state(self) -> Carried:
        """What the rows continue from, as far as they have come."""
        return self._state()

    def __iter__(self) -> Iterator[list[str]]:
        with evaluating(self.model):
            yield from self._beams() if self.settings.num_beams > 1 else self._samples()

    def texts(self) -> list[str]:
        """The whole text of each row: its pieces, joined."""
        if self.settings.num_beams > 1:
            return ["".join(pieces) for pieces in zip(*self, strict=True)]
        with evaluating(self.model):
            return self._texts()

    def _texts(self) -> list[str]:
        s = self.settings
        ends_early = s.stop or (len(self._rows) > 1 and BOUNDARY not in self.banned)
        sampler = self._sampler(AHEAD if ends_early else WHOLE)
        texts, unfinished, left = [""] * len(self._rows), dict(enumerate(self._rows)), s.max_new_tokens
        while left and unfinished:
            symbols = sampler.some()
            left -= len(symbols)
            for place, row in [*unfinished.items()]:
                text, without = row.push_all(symbols[:, place].tolist())
                texts[place] += text
                if row.done:
                    del unfinished[place]
                    sampler.end(place, without)
        return texts

    def _sampler(self, ahead: int) -> Sampler:
        s = self.settings
        sampler = Sampler(self._stream, self.state, s.sampling(self.banned), most=s.max_new_tokens, ahead=ahead)
        self._state = lambda: sampler.state
        return sampler

    def _samples(self) -> Iterator[list[str]]:
        sampler, unfinished = self._sampler(AHEAD), dict(enumerate(self._rows))
        for _ in range(self.settings.max_new_tokens):
            pieces = [row.push(symbol) for row, symbol in zip(self._rows, sampler.next().tolist(), strict=True)]
            for place in [place for place, row in unfinished.items() if row.done]:
                del unfinished[place]
                sampler.end(place)
            yield pieces
            if not unfinished:
                return

    def _beams(self) -> Iterator[list[str]]:
        s = self.settings
        found = beam(
            self.model, self.state.core, self.state.token,
            num_beams=s.num_beams, max_new_tokens=s.max_new_tokens, length_penalty=s.length_penalty,
            banned=self.banned, ended=stopped(self.vocabulary, list(s.stop)),
        )  # fmt: skip
        best = [row[0] for row in found]
        after = self._after(best)
        self._state = lambda: after
        yield ["".join(map(row.push, h.tokens)) for row, h in zip(self._rows, best, strict=True)]

    def _after(self, best: list[Hypothesis]) -> Carried:
        seen = self.state.seen.clone()
        for row, hypothesis in zip(seen, best, strict=True):
            row[hypothesis.tokens] = True
        last = [h.tokens[-1] if h.tokens else int(t) for h, t in zip(best, self.state.token, strict=True)]
        return Carried(states.concat([h.state for h in best]), torch.tensor(last), seen, self.state.draws)


class Row:
    """The text of one row so far, as far as a stop string can reach back."""

    def __init__(self, decoder: Decoder, stops: list[str]) -> None:
        self.decoder, self.stops = decoder, stops
        self.reach = max(map(len, stops), default=0)
        self.tail, self.reason = "", "length"

    @property
    def done(self) -> bool:
        """Whether the row has ended by itself."""
        return self.reason != "length"

    def push(self, symbol: int) -> str:
        """The text that the symbol completes; nothing once the row is done."""
        if self.done:
            return ""
        if symbol == BOUNDARY:
            self.reason = "end"
            return ""
        piece = self.decoder.push(symbol)
        if self.stops:
            piece = self._until_stop(piece)
        return piece

    def push_all(self, symbols: list[int]) -> tuple[str, int]:
        """The text that symbols complete, and how many of them are left once the row is done."""
        pieces = []
        for place, symbol in enumerate(symbols, 1):
            pieces.append(self.push(symbol))
            if self.done:
                return "".join(pieces), len(symbols) - place
        return "".join(pieces), 0

    def _until_stop(self, piece: str) -> str:
        """The piece, cut behind the first stop string that it completes."""
        text = self.tail + piece
        ends = [text.find(stop) + len(stop) for stop in self.stops if stop in text]
        self.tail = text[-self.reach :]
        if not ends:
            return piece
        self.reason = "stop"
        return text[len(text) - len(piece) : min(ends)]


def banned_symbols(vocabulary: Vocabulary, allow: Sequence[str], endless: bool) -> tuple[int, ...]:
    """The symbols that are not text, without those that are allowed."""
    for name in [allow] if isinstance(allow, str) else allow:
        choice("allow", name, ALLOWED)
    banned = [BOUNDARY] if endless and "end" not in allow else []
    if vocabulary.unknown is not None and "unknown" not in allow:
        banned.append(vocabulary.unknown)
    return tuple(banned)


def stopped(vocabulary: Vocabulary, stops: list[str]) -> Callable[[Ids], bool]:
    """Says of symbols, of which all but the last have been asked about, whether they hold a stop string or end.

    Only what a stop string can reach back to is decoded, so a long text takes no longer than a short one for each
    symbol. At the cut a character may be in parts, or a space be missing: the first few characters are left out.
    """
    reach = max(map(len, stops), default=0)

    def ended(symbols: Ids) -> bool:
        if symbols[-1] == BOUNDARY:
            return True
        if not stops:
            return False
        last, wide = len(vocabulary.decode(symbols[-1:].tolist())), reach + 16
        text = vocabulary.decode(symbols[-wide:].tolist())
        while len(symbols) > wide and len(text) < reach + last + EDGE:
            wide *= 2
            text = vocabulary.decode(symbols[-wide:].tolist())
        seen = text if len(symbols) <= wide else text[EDGE:]
        return any(stop in seen for stop in stops)

    return ended
