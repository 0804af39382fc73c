"""What the tasks share that are about text: the model that users hold, its data, the verbs it answers.

P(text) is the product of P(token | those before it), the first token given a boundary symbol.
"""

from __future__ import annotations

import inspect
import math
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from elman import artifact
from elman import state as states
from elman.config import Json
from elman.data import Batch, Batches, DataConfig, Encoded, Splits, Streams, Vocabulary, encode, open_splits, open_text
from elman.data.cache import encode_string
from elman.data.config import text_errors
from elman.data.vocabulary import BOUNDARY
from elman.data.windows import lane_batches
from elman.decoding.sample import Carried
from elman.errors import InputError
from elman.lengths import valid
from elman.markov import Markov
from elman.model import SequenceModel
from elman.options import whole
from elman.progress import Waiting, say
from elman.state import State
from elman.tables import Table
from elman.tasks import files
from elman.tasks.generation import ALLOWED, Generation, prompt_ids
from elman.tasks.task import Data, Task, Verb
from elman.training.record import Preview
from elman.training.scores import Scores

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

LOGITS = 1 << 25  # numbers that reading a text computes at a time at most: 64 lines of 512 words would be gigabytes
GENERATION = (
    "max_new_tokens", "temperature", "top_k", "top_p", "repetition_penalty", "num_beams", "length_penalty", "stop",
    "allow",
)  # fmt: skip
M = TypeVar("M", bound=SequenceModel | Markov)
R = TypeVar("R", bound=Callable[..., Any])


@dataclass(frozen=True)
class PreviewConfig:
    """The sample that is written at each evaluation.

    Args:
        tokens: its length; 0 for none
        prompt: what it begins with
    """

    tokens: int = 200
    prompt: str = ""


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
    """A method that takes the settings of `Generation` names them in its signature, where `help` shows them."""
    own, theirs = inspect.signature(method).parameters.values(), inspect.signature(Generation).parameters.values()
    settings = [parameter for parameter in theirs if parameter.kind is parameter.KEYWORD_ONLY]
    named = [parameter for parameter in own if parameter.kind is not parameter.VAR_KEYWORD]
    vars(method)["__signature__"] = inspect.signature(method).replace(parameters=[*named, *settings])
    return method


class TextModel(Generic[M]):
    """A model, its vocabulary, and what can be done with the two. Nothing here changes the weights."""

    task: ClassVar[str]  # its name in TASKS

    def __init__(self, model: M, vocabulary: Vocabulary, config: DataclassInstance, unit: str = "text") -> None:
        self.model, self.vocabulary, self.config, self.unit = model, vocabulary, config, unit

    def init_state(self, seeds: Sequence[int] = (0,)) -> Carried:
        """The state before any text, one row per seed."""
        B = len(seeds)
        for seed in seeds:
            if not 0 <= seed < 2**63:
                raise InputError(f"the seed is {seed}; it must be a whole number of at least 0 and below 2**63")
        token = torch.full((B,), BOUNDARY)
        draws = torch.tensor([[seed, 0] for seed in seeds], dtype=torch.int64).reshape(B, 2)
        return Carried(self.model.init_state(B), token, torch.zeros(B, self.vocabulary.size, dtype=torch.bool), draws)

    @torch.inference_mode()
    def read(self, texts: Sequence[str], state: Carried) -> Carried:
        """The state after some more text in each row. The last symbol stays pending."""
        ids = [prompt_ids(self.vocabulary, text) for text in texts]
        core = self._core(state)
        T = max(map(len, ids), default=0)
        x = torch.zeros(len(ids), T + 1, dtype=torch.int64)
        x[:, 0] = state.token
        seen = state.seen.clone()
        for row, (line, symbols) in enumerate(zip(x, ids, strict=True)):
            line[1 : 1 + len(symbols)] = torch.from_numpy(symbols)
            seen[row, torch.from_numpy(symbols)] = True
        lengths = torch.tensor([len(symbols) for symbols in ids])
        steps = self._steps(len(ids), T)
        for start in range(0, T, steps):
            piece = x[:, start : min(start + steps, T)]
            _, core = self.model.scan(piece, core, lengths=(lengths - start).clamp(0, piece.shape[1]))
        return Carried(core, x[torch.arange(len(ids)), lengths], seen, state.draws)

    def _steps(self, rows: int, most: int) -> int:
        """How many steps of so many rows to predict at a time: a large vocabulary makes each of them a long one."""
        return max(1, min(most, LOGITS // (max(1, rows) * self.vocabulary.size)))

    def _core(self, state: Carried) -> State:
        """The state of the core as the next symbol finds it: behind a boundary, a new sequence begins."""
        return states.where(state.token == BOUNDARY, self.model.init_state(len(state.token)), state.core)

    @torch.inference_mode()
    def score(self, text: str, state: Carried | None = None) -> tuple[Score, Carried]:
        """- log P(text | what the state has read), each token once; and the state after it."""
        state = self.init_state() if state is None else state
        encoded = encode_string(text, self.vocabulary)
        encoded.ids[0] = int(state.token)
        batches = lane_batches(encoded, 1, 4096, LOGITS // self.vocabulary.size)
        nats, core = self._nats(batches, state.core)
        assert core is not None
        seen = state.seen.clone()
        seen[0, torch.from_numpy(encoded.ids[1:])] = True
        token = torch.from_numpy(encoded.ids[-1:].copy())
        return Score(nats, encoded.tokens, len(text), encoded.unknown), Carried(core, token, seen, state.draws)

    @torch.inference_mode()
    def evaluate(self, encoded: Encoded, batch_size: int = 64, chunk: int = 512) -> Score:
        """- log P of a text, with the state carried through the whole of it; independent units side by side."""
        if encoded.tokens == 0:
            raise InputError("the text is empty; there is nothing to evaluate")
        whole("batch_size", batch_size)
        whole("chunk", chunk)
        training = self.model.training
        self.model.eval()
        with Waiting("evaluating", encoded.tokens, "tokens") as waiting:
            batches = lane_batches(encoded, batch_size, chunk, LOGITS // self.vocabulary.size)
            nats, _ = self._nats(batches, None, waiting)
        self.model.train(training)
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

    @_listed
    def start(
        self, prompt: str = "", *, state: Carried | None = None, seed: int | None = None, **settings: Any
    ) -> Generation:
        """Begin to generate after a prompt. `settings` are those of `Generation`; its `state` is the state after it.

        Without a seed, a state goes on with its own random numbers; without a state, the seed is 0.
        """
        return self.start_batch([prompt], state=state, seeds=None if seed is None else [seed], **settings)

    @_listed
    def start_batch(
        self,
        prompts: Sequence[str],
        *,
        state: Carried | None = None,
        seeds: Sequence[int] | None = None,
        **settings: Any,
    ) -> Generation:
        """Begin to generate after several prompts, each with its own seed: the texts are the same as alone."""
        if seeds is not None and len(seeds) != len(prompts):
            raise InputError(f"there are {len(seeds)} seeds for {len(prompts)} prompts; each needs its own")
        start = self._seeded(len(prompts), state, seeds)
        self.model.eval()
        endless = self.unit == "text"
        return Generation(self.model, self.vocabulary, lambda: self.read(prompts, start), prompts, endless, **settings)

    def _seeded(self, rows: int, state: Carried | None, seeds: Sequence[int] | None) -> Carried:
        if state is None:
            return self.init_state([0] * rows if seeds is None else seeds)
        if len(state.token) != rows:
            raise InputError(f"the state has {len(state.token)} rows; there are {rows} prompts")
        return state if seeds is None else state._replace(draws=self.init_state(seeds).draws)

    @_listed
    def generate(
        self, prompt: str = "", *, state: Carried | None = None, seed: int | None = None, **settings: Any
    ) -> str:
        """The text that goes on from the prompt; `elman generate --help` says what each setting means."""
        return "".join(self.generate_pieces(prompt, state=state, seed=seed, **settings))

    @_listed
    def generate_pieces(
        self, prompt: str = "", *, state: Carried | None = None, seed: int | None = None, **settings: Any
    ) -> Iterator[str]:
        """The same, piece by piece as it comes."""
        for pieces in self.start(prompt, state=state, seed=seed, **settings):
            yield pieces[0]

    @_listed
    def generate_batch(self, prompts: Sequence[str], seeds: Sequence[int], **settings: Any) -> list[str]:
        """The texts that go on from several prompts, each with its own seed."""
        texts = [""] * len(prompts)
        for pieces in self.start_batch(prompts, seeds=seeds, **settings):
            texts = [text + piece for text, piece in zip(texts, pieces, strict=True)]
        return texts

    @property
    def fingerprint(self) -> str:
        """What tells this model from every other: a state goes on with the model that it came from."""
        return artifact.digest(files.tensors(self.model))

    def save_state(self, path: str | Path, state: Carried) -> None:
        """Write a state to a file, with the fingerprint of this model."""
        states.save(path, state, fingerprint=self.fingerprint)

    def load_state(self, path: str | Path) -> Carried:
        """Read a state that this model wrote."""
        loaded = states.load(path, self.init_state([]), fingerprint=self.fingerprint)
        assert isinstance(loaded, Carried)
        return loaded

    def save(self, path: str | Path) -> None:
        """Write the model to a folder: weights in safetensors, config and vocabulary in JSON."""
        artifact.write(Path(path), self.fill)

    def fill(self, folder: Path) -> None:
        """The files of `save`, in a folder that is there."""
        content: dict[str, Json] = {
            "config": asdict(self.config),
            "vocabulary": self.vocabulary.to_json(),
            "unit": self.unit,
        }
        files.write(folder, self.task, self.model, content)

    def describe(self) -> list[Table]:
        """What it is."""
        settings = [[name.replace("_", " "), str(value)] for name, value in asdict(self.config).items() if value]
        about = [["symbols", f"{self.vocabulary.size:,}"], ["parameters", f"{self._parameters():,}"]]
        return [Table("the model", ["setting", "value"], [*settings, *about])]

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={value!r}" for name, value in asdict(self.config).items() if value)
        return f"{type(self).__name__}({settings}; {self.vocabulary.size:,} symbols, {self._parameters():,} parameters)"

    def _parameters(self) -> int:
        return sum(tensor.numel() for tensor in files.tensors(self.model).values())


class TextData(Data):
    """Encoded texts, and windows cut from them."""

    unit = "tokens"

    def __init__(self, splits: Splits, config: DataConfig, seed: int) -> None:
        self.splits, self.config, self.seed = splits, config, seed
        self.valid, self.test = splits.valid, splits.test if splits.test.tokens else None
        self.fingerprint = {f"data.{name}": getattr(splits, name).name for name in ("train", "valid", "test")}

    def batches(self, rank: int, world: int) -> Batches:
        if world > 1 and "-" in self.config.names:
            raise InputError("standard input can be read by one process only; give several a file")
        return Streams(self.splits.train, self.config.batch_size, self.config.window, self.seed, rank, world)

    def first(self, part: Encoded, count: int) -> Encoded:
        return part if count >= part.tokens else part.first(count, self.splits.vocabulary.unknown)

    def summary(self) -> list[str]:
        symbols, train, valid, test = self.splits
        parts = f"{train.tokens:,} tokens to train on, {valid.tokens:,} to validate, {test.tokens:,} to test"
        lacking = f"; it lacks {train.unknown / train.tokens:.2%} of the tokens" if train.unknown else ""
        names = self.config.names
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        return [f"data: {shown}: {parts}", f"vocabulary: {symbols.kind}, {symbols.size:,} symbols{lacking}"]

    def describe_loss(self, loss: float) -> str:
        train = self.splits.train
        bits = loss * train.tokens / (train.characters * math.log(2))
        return f"loss {loss:.4f}  {bits:.3f} bits/character"


class TextSettings(Protocol):
    """What the config of a task about text has."""

    @property
    def data(self) -> DataConfig: ...
    @property
    def preview(self) -> PreviewConfig: ...
    @property
    def seed(self) -> int: ...


C = TypeVar("C", bound=TextSettings)
AnyTextModel = TextModel[Any]
F = TypeVar("F", bound=AnyTextModel)


class TextTask(Task[C, TextData, F]):
    """Read texts, judge by nats per token, show a sample."""

    @property
    def verbs(self) -> dict[str, Verb]:
        return {
            "generate": Verb(_generate_arguments, _generate),
            "evaluate": Verb(_evaluate_arguments, _evaluate),
        }

    def open(self, config: C, saved: F | None) -> TextData:
        return self.open_held(config, saved, {})

    def open_held(self, config: C, saved: F | None, given: dict[str, Any]) -> TextData:
        if saved is not None and saved.vocabulary.kind != config.data.vocabulary:
            raise InputError(
                f"data.vocabulary is {config.data.vocabulary}; that of the model to go on from is "
                f"{saved.vocabulary.kind}, and stays so"
            )
        splits = open_splits(config.data, None if saved is None else saved.vocabulary, given)
        # Found out now, not at the first evaluation.
        if splits.valid.tokens == 0:
            raise InputError("the validation text is empty; give data.valid, or a larger second part in data.split")
        whole("preview.tokens", config.preview.tokens, least=0)
        try:
            splits.vocabulary.encode_known(config.preview.prompt)
        except InputError as error:
            raise InputError(f"preview.prompt cannot be used: {error}") from error
        return TextData(splits, config.data, config.seed)

    def settings(self, face: F) -> dict[str, Json]:
        model = {f"model.{name}": value for name, value in asdict(face.config).items()}
        return {**model, "data.vocabulary": face.vocabulary.kind, "data.unit": face.unit}

    def take(self, face: F, source: F) -> list[str]:
        symbols = source.vocabulary
        return [*super().take(face, source), f"vocabulary ({symbols.kind}, {symbols.size:,} symbols)"]

    def evaluate(self, face: F, part: Encoded) -> Scores:
        return _scores(face.evaluate(part))

    def summary(self, face: F) -> str:
        return repr(face)

    def preview(self, face: F, config: C, step: int) -> Preview:
        prompt, tokens = config.preview.prompt, config.preview.tokens
        if not tokens:
            return Preview()
        text = face.generate(prompt, max_new_tokens=tokens, temperature=0.8, seed=config.seed + step)
        return Preview(prompt + text)


def _scores(score: Score) -> Scores:
    return Scores(score.to_json(), "nats_per_token", shown=("bits_per_character",))


# What `elman evaluate` and `elman generate` ask


def _evaluate_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("data", nargs="+", metavar="TEXT", help="files, folders, .gz, - or embedded")
    parser.add_argument("--errors", "--data.errors", default="strict", help="invalid UTF-8: strict or replace")
    parser.add_argument(
        "--batch_size", type=int, default=64, help="independent units side by side; does not change the numbers"
    )
    parser.add_argument("--chunk", type=int, default=512, help="tokens at a time; does not change the numbers")


def _evaluate(lm: AnyTextModel, given: Namespace) -> Scores:
    text = open_text(given.data, text_errors(lm.vocabulary.kind, given.errors))
    return _scores(lm.evaluate(encode(text, lm.vocabulary, lm.unit), given.batch_size, given.chunk))


def _generate_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--prompt", default="", help="what the text begins with")
    parser.add_argument("--max_new_tokens", type=int, default=200, help="tokens after the prompt, at most")
    parser.add_argument("--temperature", type=float, default=1.0, help="0 takes the most probable symbol")
    parser.add_argument("--top_k", type=int, default=0, help="choose among so many symbols; 0 for all")
    parser.add_argument(
        "--top_p", type=float, default=1.0, help="choose among the symbols that have this probability together"
    )
    parser.add_argument(
        "--repetition_penalty", type=float, default=1.0, help="what log-probabilities of symbols seen are multiplied by"
    )
    parser.add_argument("--num_beams", type=int, default=1, help="above 1, search for the most probable text")
    parser.add_argument("--length_penalty", type=float, default=1.0, help="beams: log P / length ** this")
    parser.add_argument("--stop", action="append", help="end with this string; may be given several times")
    parser.add_argument(
        "--allow",
        action="append",
        choices=ALLOWED,
        help="choose this too: the end of an endless text, unknown words",
    )
    parser.add_argument("--seed", type=int, help="0, or where --state is given what that goes on with, unless you say")
    parser.add_argument("--state", help="go on from this file")
    parser.add_argument("--save_state", help="write what the next token needs to this new file")
    parser.add_argument("--force", action="store_true", help="let --save_state replace a file")


def _generate(lm: AnyTextModel, given: Namespace) -> GeneratedText:
    return GeneratedText(lm, given)


class GeneratedText:
    """The prompt and what follows it, as it comes."""

    def __init__(self, lm: AnyTextModel, given: Namespace) -> None:
        if given.save_state and Path(given.save_state).exists() and not given.force:
            raise InputError(f"{given.save_state} exists; choose another --save_state, or pass --force to replace it")
        start = lm.load_state(given.state) if given.state else None
        settings = {name: getattr(given, name) for name in GENERATION}
        self.generation = lm.start(given.prompt, state=start, seed=given.seed, **settings)
        self.lm, self.prompt, self.save_state, self.text = lm, given.prompt, given.save_state, ""

    def pieces(self) -> Iterable[str]:
        yield self.prompt
        for (piece,) in self.generation:
            self.text += piece
            yield piece
        yield "\n"
        if self.generation.finish_reasons == ["end"]:
            say("the model ended the text here")
        if self.save_state:
            self.lm.save_state(self.save_state, self.generation.state)

    def to_json(self) -> dict[str, Json]:
        (reason,) = self.generation.finish_reasons
        return {"prompt": self.prompt, "text": self.text, "finish_reason": reason}
