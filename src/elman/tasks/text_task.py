"""What the tasks about text share: data, how they are judged, the verbs they answer. The model is in text.py."""

from __future__ import annotations

import math
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from elman.config import Json
from elman.data import Batches, DataConfig, Encoded, Splits, Streams, encode, open_splits, open_text
from elman.data.config import text_errors
from elman.errors import InputError
from elman.options import whole
from elman.progress import say
from elman.tasks.generation import ALLOWED
from elman.tasks.serving import Served
from elman.tasks.task import Data, Task, Verb
from elman.tasks.text import Score, TextModel
from elman.tasks.text_serving import ServedText
from elman.training.record import Preview
from elman.training.scores import Scores

GENERATION = (
    "max_new_tokens", "temperature", "top_k", "top_p", "repetition_penalty", "num_beams", "length_penalty", "stop",
    "allow",
)  # fmt: skip


@dataclass(frozen=True)
class PreviewConfig:
    """The sample that is written at each evaluation.

    Args:
        tokens: its length; 0 for none
        prompt: what it begins with
    """

    tokens: int = 200
    prompt: str = ""


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

    def serve(self, face: F) -> Served:
        return ServedText(face)

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


def read_text(lm: AnyTextModel, given: Namespace) -> Encoded:
    """The texts that a verb names, as the model reads them."""
    return encode(open_text(given.data, text_errors(lm.vocabulary.kind, given.errors)), lm.vocabulary, lm.unit)


def _evaluate(lm: AnyTextModel, given: Namespace) -> Scores:
    return _scores(lm.evaluate(read_text(lm, given), given.batch_size, given.chunk))


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
