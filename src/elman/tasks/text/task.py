"""What the tasks about text share: data, how they are scored, the verbs they answer. The model is in model.py."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Protocol, TypeVar

from elman.data import Batches, open_text
from elman.data.cache import Encoded, encode
from elman.data.names import file_list
from elman.data.splits import split_summary
from elman.data.text import in_memory
from elman.errors import InputError
from elman.files.config import Json
from elman.kernels.builder import WEIGHTS
from elman.options import whole
from elman.progress import say
from elman.tasks.request import Request, Rows, TextRequest, data_option, opened, option, rows_of
from elman.tasks.serving import Served
from elman.tasks.task import Data, Evaluation, InspectRequest, Response, Task
from elman.tasks.text.data import Splits, TextDataConfig, open_splits, text_errors
from elman.tasks.text.generation import STORED, Generation, Settings
from elman.tasks.text.model import Score, TextModel
from elman.tasks.text.serving import ServedText
from elman.tasks.text.windows import Streams
from elman.training.record import Preview
from elman.training.scores import Scores


@dataclass(frozen=True)
class PreviewConfig:
    """The sample that is written at each evaluation.

    Args:
        tokens: the length of the sample in tokens; 0 for no sample
        prompt: the text that the sample begins with
    """

    tokens: int = 200
    prompt: str = ""


class TextData(Data):
    """Encoded texts, and windows cut from them."""

    unit = "tokens"

    def __init__(self, splits: Splits, config: TextDataConfig, seed: int) -> None:
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
        parts = split_summary("tokens", train.tokens, valid.tokens, test.tokens)
        lacking = f"; it lacks {train.unknown / train.tokens:.2%} of the tokens" if train.unknown else ""
        return [
            f"data: {file_list(self.config.names)}: {parts}",
            f"vocabulary: {symbols.kind}, {symbols.size:,} symbols{lacking}",
        ]

    def describe_loss(self, loss: float) -> str:
        train = self.splits.train
        bits = loss * train.tokens / (train.characters * math.log(2))
        return f"loss {loss:.4f}  {bits:.3f} bits/character"


class TextSettings(Protocol):
    """What the config of a task about text has."""

    @property
    def data(self) -> TextDataConfig: ...
    @property
    def preview(self) -> PreviewConfig: ...
    @property
    def seed(self) -> int: ...


C = TypeVar("C", bound=TextSettings)
AnyTextModel = TextModel[Any]
F = TypeVar("F", bound=AnyTextModel)


class TextTask(Task[C, TextData, F]):
    """Read texts, evaluate in nats per token, preview a sample."""

    @property
    def requests(self) -> dict[str, tuple[type[Request], Response]]:
        return {"generate": (Generate, generate), "evaluate": (Evaluate, evaluate)}

    def open(self, config: C, saved: F | None) -> TextData:
        return self.open_in_memory(config, saved, {})

    def open_in_memory(self, config: C, saved: F | None, parts: dict[str, Any]) -> TextData:
        if saved is not None and saved.vocabulary.kind != config.data.vocabulary:
            raise InputError(
                f"data.vocabulary is {config.data.vocabulary}; that of the model to continue from is "
                f"{saved.vocabulary.kind}, and stays so"
            )
        splits = open_splits(config.data, None if saved is None else saved.vocabulary, parts)
        # Found out now, not at the first evaluation.
        if splits.valid.tokens == 0:
            raise InputError("the validation text is empty; give data.valid, or a larger second part in data.split")
        whole("preview.tokens", config.preview.tokens, least=0)
        try:
            splits.vocabulary.encode_known(config.preview.prompt)
        except InputError as error:
            raise InputError(f"preview.prompt cannot be used: {error}") from error
        return TextData(splits, config.data, config.seed)

    def settings(self, predictor: F) -> dict[str, Json]:
        model = {f"model.{name}": value for name, value in asdict(predictor.config).items()}
        symbols = predictor.vocabulary
        line_breaks = getattr(symbols, "line_breaks", True)
        return {
            **model,
            "data.vocabulary": symbols.kind,
            "data.line_breaks": line_breaks,
            "data.unit": predictor.unit,
        }

    def copy_weights(self, predictor: F, source: F) -> list[str]:
        symbols = source.vocabulary
        return [*super().copy_weights(predictor, source), f"vocabulary ({symbols.kind}, {symbols.size:,} symbols)"]

    def evaluate(self, predictor: F, part: Encoded) -> Evaluation:
        return Evaluation(_scores(predictor.evaluate(part)))

    def serve(self, predictor: F) -> Served:
        return ServedText(predictor)

    def preview(self, predictor: F, config: C, step: int, evaluation: Evaluation | None) -> Preview:
        prompt, tokens = config.preview.prompt, config.preview.tokens
        if not tokens:
            return Preview()
        text = predictor.generate(prompt, max_new_tokens=tokens, temperature=0.8, seed=config.seed + step)
        return Preview(prompt + text)


def _scores(score: Score) -> Scores:
    return Scores(score.to_json(), "nats_per_token", secondary=("bits_per_character",))


# What it answers


@dataclass(frozen=True)
class Evaluate(TextRequest):
    """How probable a text is."""

    data: Rows = data_option("files, folders, .gz, - or embedded", metavar="TEXT", rows=list[str])
    batch_size: int = option(64, "independent texts at a time; does not change the numbers", least=1, limit="batch")
    chunk: int = option(512, "tokens at a time; does not change the numbers", least=1)
    weights: str | None = option(None, STORED, choices=WEIGHTS, local=True)


@dataclass(frozen=True)
class Prompt(Request):
    prompt: str = option("", "what the text begins with")


@dataclass(frozen=True)
class Generate(Settings, Prompt):
    """A text after a prompt."""

    seed: int | None = option(None, "the seed; by default 0, or that of --state", least=0)
    state: str | None = option(None, "continue from this file", local=True)
    save_state: str | None = option(None, "write the state after the last token to this new file", local=True)
    force: bool = option(False, "let --save_state overwrite a file", local=True)


def read_text(lm: AnyTextModel, request: Evaluate | InspectRequest) -> Encoded:
    """The texts that a request names, or gives, as the model reads them."""
    names, errors = opened(request.data), text_errors(lm.vocabulary.kind, request.errors)
    text = in_memory(rows_of(request.data, "texts"), errors) if names is None else open_text(names, errors)
    return encode(text, lm.vocabulary, lm.unit)


def evaluate(lm: AnyTextModel, request: Evaluate) -> Scores:
    return _scores(lm.evaluate(read_text(lm, request), request.batch_size, request.chunk, request.weights))


def generate(lm: AnyTextModel, request: Generate) -> GeneratedText:
    if request.save_state and Path(request.save_state).exists() and not request.force:
        raise InputError(f"{request.save_state} exists; choose another --save_state, or pass --force to replace it")
    start = lm.load_state(request.state) if request.state else None
    settings = {field.name: getattr(request, field.name) for field in fields(Settings)}
    generation = lm.start(request.prompt, state=start, seed=request.seed, **settings)
    return GeneratedText(lm, generation, request.prompt, request.save_state)


@dataclass
class GeneratedText:
    """The prompt and what follows it, as it comes."""

    lm: AnyTextModel
    generation: Generation
    prompt: str
    save_state: str | None
    text: str = ""

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
