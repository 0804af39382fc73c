"""What the tasks share that are about text: the model that users hold.

P(text) is the product of P(token | those before it), the first token given a boundary symbol.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from elman import state as states
from elman.data import Batch, Vocabulary
from elman.data.cache import Encoded, encode_string
from elman.data.vocabulary import BOUNDARY
from elman.decoding.sample import Carried
from elman.errors import InputError, nearest
from elman.lengths import valid
from elman.model import SequenceModel
from elman.options import a_text, several, whole
from elman.progress import Waiting
from elman.state import State
from elman.stream import ModelStream, stream_of
from elman.tasks.predictor import Predictor, evaluating
from elman.tasks.text.generation import Generation, Settings, banned_symbols, prompt_ids
from elman.tasks.text.kneser_ney import Markov
from elman.tasks.text.windows import lane_batches

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

LOGITS = 1 << 25  # numbers that reading a text computes at a time at most: 64 lines of 512 words would be gigabytes
FEW = 64  # symbols of prompts: reading more of them takes a scan less time than a stream, packing included
M = TypeVar("M", bound=SequenceModel | Markov)
Setting = Any  # of generation: `Settings` has the names and types
R = TypeVar("R", bound=Callable[..., Any])


@dataclass(frozen=True)
class Score:
    """- log P(text) in nats, and what it is divided by."""

    nats: float
    tokens: int
    characters: int
    unknown: int

    @property
    def nats_per_token(self) -> float:
        return self.nats / max(1, self.tokens)

    @property
    def bits_per_token(self) -> float:
        return self.nats_per_token / math.log(2)

    @property
    def bits_per_character(self) -> float:
        return self.nats / max(1, self.characters) / math.log(2)

    @property
    def perplexity(self) -> float:
        return math.exp(min(self.nats_per_token, 700.0))  # exp(710) is not a float

    def to_json(self) -> dict[str, float]:
        names = (
            "nats_per_token",
            "bits_per_token",
            "nats_per_character",
            "bits_per_character",
            "perplexity",
            "unknown_rate",
        )
        return {**asdict(self), **{name: getattr(self, name) for name in names}}

    @property
    def nats_per_character(self) -> float:
        return self.nats / max(1, self.characters)

    @property
    def unknown_rate(self) -> float:
        """The part of the tokens that the vocabulary lacks: a model does well on those for nothing."""
        return self.unknown / max(1, self.tokens)


def _listed(method: R) -> R:
    """A method that takes the fields of `Settings` names them in its signature, where `help` shows them."""
    settings, own = inspect.signature(Settings).parameters.values(), inspect.signature(method).parameters.values()
    named = [parameter for parameter in own if parameter.kind is not parameter.VAR_KEYWORD]
    vars(method)["__signature__"] = inspect.signature(method).replace(parameters=[*named, *settings])
    return method


def _refuse_unknown(settings: Iterable[str]) -> None:
    known = [named.name for named in Settings.options()]
    for name in settings:
        if name not in known:
            hint = nearest(name, known)
            raise InputError(f"generating has no setting {name!r}; there are {', '.join(known)}.{hint}")


class TextModel(Predictor[M]):
    """A model, its vocabulary, and what can be done with the two. Nothing here changes the weights."""

    vocabulary: Vocabulary
    unit: str

    def __init__(self, model: M, vocabulary: Vocabulary, config: DataclassInstance, unit: str = "text") -> None:
        super().__init__(model, config=config, vocabulary=vocabulary, unit=unit)

    def init_state(self, seeds: Sequence[int] = (0,)) -> Carried:
        """The state before any text, one row per seed."""
        B = len(seeds)
        for seed in seeds:
            if not 0 <= seed < 2**63:
                raise InputError(f"the seed is {seed}; it must be a whole number of at least 0 and below 2**63")
        token = torch.full((B,), BOUNDARY)
        draws = torch.tensor([[seed, 0] for seed in seeds], dtype=torch.int64).reshape(B, 2)
        return Carried(self.model.init_state(B), token, torch.zeros(B, self.vocabulary.size, dtype=torch.bool), draws)

    def read(self, texts: Sequence[str], state: Carried, weights: str | None = None) -> Carried:
        """The state after some more text in each row. The last symbol stays pending. `weights` as `Stream` has them."""
        return self._read(texts, state, partial(stream_of, self.model, len(state.token), weights), weights is not None)

    @torch.inference_mode()
    def _read(self, texts: Sequence[str], state: Carried, stream: Callable[[], ModelStream], narrow: bool) -> Carried:
        """The same, with a stream, whose weights are narrow or those of the model."""
        rows = several("texts", texts, "texts, one for each row of the state")
        ids = [prompt_ids(self.vocabulary, a_text(f"text {i}", text)) for i, text in enumerate(rows)]
        core = self._core(state)
        T = max(map(len, ids), default=0)
        x = torch.zeros(len(ids), T + 1, dtype=torch.int64)
        x[:, 0] = state.token
        seen = state.seen.clone()
        for row, (line, symbols) in enumerate(zip(x, ids, strict=True)):
            line[1 : 1 + len(symbols)] = torch.from_numpy(symbols)
            seen[row, torch.from_numpy(symbols)] = True
        lengths = torch.tensor([len(symbols) for symbols in ids])
        with evaluating(self.model):
            core = self._core_after(x, lengths, core, stream, narrow)
        return Carried(core, x[torch.arange(len(ids)), lengths], seen, state.draws)

    def _core_after(
        self, x: Tensor, lengths: Tensor, core: State, made: Callable[[], ModelStream], narrow: bool
    ) -> State:
        """The state of the core after x. A stream keeps its packed weights, and reads few symbols faster than a scan;
        narrow weights are those of a stream only."""
        if not narrow and not 0 < int(lengths.sum()) <= FEW:
            return self._scan(x, lengths, core)
        stream = made()
        stream.state = core
        if stream.writes:
            for row, length in enumerate(lengths.tolist()):
                stream.read(x[row, :length].numpy(), row)
        elif not narrow:
            return self._scan(x, lengths, core)
        else:
            for t in range(int(lengths.max())):
                rows = torch.nonzero(lengths > t)[:, 0]
                stream.step(x[rows, t], rows)
        return stream.state

    def _scan(self, x: Tensor, lengths: Tensor, core: State) -> State:
        T = x.shape[1] - 1
        steps = self._steps(len(x), T)
        for start in range(0, T, steps):
            piece = x[:, start : min(start + steps, T)]
            _, core = self.model.scan(piece, core, lengths=(lengths - start).clamp(0, piece.shape[1]))
        return core

    def _steps(self, rows: int, most: int) -> int:
        """How many steps of so many rows to predict at a time: a large vocabulary makes each of them a long one."""
        return max(1, min(most, LOGITS // (max(1, rows) * self.vocabulary.size)))

    def _core(self, state: Carried) -> State:
        """The state of the core before the next symbol: after a boundary, a new sequence begins."""
        return states.where(state.token == BOUNDARY, self.model.init_state(len(state.token)), state.core)

    @torch.inference_mode()
    def score(self, text: str, state: Carried | None = None) -> tuple[Score, Carried]:
        """- log P(text | what the state has read), each token once; and the state after it."""
        state = self.init_state() if state is None else state
        encoded = encode_string(a_text("text", text), self.vocabulary)
        encoded.ids[0] = int(state.token)
        batches = lane_batches(encoded, 1, 4096, LOGITS // self.vocabulary.size)
        with evaluating(self.model):
            nats, core = self._nats(batches, state.core)
        assert core is not None
        seen = state.seen.clone()
        seen[0, torch.from_numpy(encoded.ids[1:])] = True
        token = torch.from_numpy(encoded.ids[-1:].copy())
        return Score(nats, encoded.tokens, len(text), encoded.unknown), Carried(core, token, seen, state.draws)

    @torch.inference_mode()
    def evaluate(self, encoded: Encoded, batch_size: int = 64, chunk: int = 512, weights: str | None = None) -> Score:
        """- log P of a text, with the state carried through the whole of it; independent units side by side.

        With `weights` by a `Stream` that stores them so, step by step.
        """
        if encoded.tokens == 0:
            raise InputError("the text is empty; there is nothing to evaluate")
        whole("batch_size", batch_size)
        whole("chunk", chunk)
        with evaluating(self.model), Waiting("evaluating", encoded.tokens, "tokens") as waiting:
            batches = lane_batches(encoded, batch_size, chunk, LOGITS // self.vocabulary.size)
            if weights is None:
                nats, _ = self._nats(batches, None, waiting)
            else:
                nats = self._nats_by_steps(batches, batch_size, weights, waiting)
        return Score(nats, encoded.tokens, encoded.characters, encoded.unknown)

    def _nats(
        self, batches: Iterator[Batch], state: State | None, waiting: Waiting | None = None
    ) -> tuple[float, State | None]:
        """- log P of some batches that follow each other, and the state after them."""
        total = np.float64(0)
        for x, y, reset, lengths in batches:
            assert isinstance(x, Tensor) and isinstance(y, Tensor)
            predicted, state = self.model.scan(x, state, lengths=lengths, reset=reset)
            total -= predicted.log_prob(y).double()[valid(lengths, reset.shape[1])].sum().item()
            if waiting is not None:
                waiting.add(int(lengths.sum()))
        return float(total), state

    def _nats_by_steps(self, batches: Iterator[Batch], lanes: int, weights: str, waiting: Waiting) -> float:
        """The same by a stream, which starts a row anew where `reset` says so."""
        stream, total = stream_of(self.model, lanes, weights), 0.0
        for x, y, reset, lengths in batches:
            assert isinstance(x, Tensor) and isinstance(y, Tensor)
            for t in range(x.shape[1]):
                rows = torch.nonzero(lengths > t)[:, 0]
                fresh = rows[reset[rows, t]]
                stream.put(fresh, self.model.init_state(len(fresh)))
                log_probs = torch.from_numpy(stream.log_probs(x[rows, t].numpy(), rows))
                total -= log_probs.gather(1, y[rows, t, None]).double().sum().item()
            waiting.add(int(lengths.sum()))
        return total

    @_listed
    def start(
        self, prompt: str = "", *, state: Carried | None = None, seed: int | None = None, **settings: Setting
    ) -> Generation:
        """Read a prompt, to generate after it. `settings` are the fields of `generation.Settings`.

        Without a seed, a state continues with its own random numbers; without a state, the seed is 0.
        """
        return self.start_batch([prompt], state=state, seeds=None if seed is None else [seed], **settings)

    @_listed
    def start_batch(
        self,
        prompts: Sequence[str],
        *,
        state: Carried | None = None,
        seeds: Sequence[int] | None = None,
        **settings: Setting,
    ) -> Generation:
        """Read several prompts, to generate after each with its own seed: the texts are the same as alone."""
        prompts = [a_text("a prompt", prompt) for prompt in several("prompts", prompts, "prompts")]
        seeds = None if seeds is None else several("seeds", seeds, "seeds, one for each prompt")
        if seeds is not None and len(seeds) != len(prompts):
            raise InputError(f"there are {len(seeds)} seeds for {len(prompts)} prompts; each needs its own")
        _refuse_unknown(settings)
        chosen = Settings(**settings)
        banned = banned_symbols(self.vocabulary, chosen.allow, endless=self.unit == "text")
        before = self._with_seeds(len(prompts), state, seeds)
        stream = stream_of(self.model, len(prompts), chosen.weights)  # to read and to write
        start = self._read(prompts, before, lambda: stream, chosen.weights is not None)
        return Generation(self.model, self.vocabulary, chosen, banned, prompts, start, stream)

    def _with_seeds(self, rows: int, state: Carried | None, seeds: Sequence[int] | None) -> Carried:
        if state is None:
            return self.init_state([0] * rows if seeds is None else seeds)
        if len(state.token) != rows:
            raise InputError(f"the state has {len(state.token)} rows; there are {rows} prompts")
        return state if seeds is None else state._replace(draws=self.init_state(seeds).draws)

    @_listed
    def generate(
        self, prompt: str = "", *, state: Carried | None = None, seed: int | None = None, **settings: Setting
    ) -> str:
        """The text that follows the prompt; `elman generate --help` says what each setting means."""
        return self.start(prompt, state=state, seed=seed, **settings).texts()[0]

    @_listed
    def generate_pieces(
        self, prompt: str = "", *, state: Carried | None = None, seed: int | None = None, **settings: Setting
    ) -> Iterator[str]:
        """The same, piece by piece as it comes."""
        for pieces in self.start(prompt, state=state, seed=seed, **settings):
            yield pieces[0]

    @_listed
    def generate_batch(self, prompts: Sequence[str], seeds: Sequence[int], **settings: Setting) -> list[str]:
        """The texts that follow several prompts, each with its own seed."""
        return self.start_batch(prompts, seeds=seeds, **settings).texts()

    def save_state(self, path: str | Path, state: Carried) -> None:
        """Write a state to a file, with the fingerprint of this model."""
        states.save(path, state, fingerprint=self.fingerprint)

    def load_state(self, path: str | Path) -> Carried:
        """Read a state that this model wrote."""
        loaded = states.load(path, self.init_state([]), fingerprint=self.fingerprint)
        assert isinstance(loaded, Carried)
        return loaded

    def about(self) -> list[list[str]]:
        return [["symbols", f"{self.vocabulary.size:,}"]]

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={value!r}" for name, value in asdict(self.config).items() if value)
        sizes = f"{self.vocabulary.size:,} symbols, {self.parameter_count:,} parameters"
        return f"{type(self).__name__}({settings}; {sizes})"
