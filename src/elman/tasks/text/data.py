"""What the data section of a config says, and the texts it names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from elman.data import vocabulary as vocabularies
from elman.data.cache import UNITS, Encoded, encode
from elman.data.names import Names, names_of
from elman.data.splits import Split, fractions
from elman.data.text import BYTES, ERRORS, Text, check_errors, in_memory, open_text
from elman.data.vocabulary import VOCABULARIES, Vocabulary
from elman.errors import InputError
from elman.files.config import one_of
from elman.options import whole


@dataclass(frozen=True)
class TextDataConfig:
    """Texts, their split, their vocabulary, and how batches are cut from them.

    Args:
        train: a file, a folder, a .gz, - (standard input), embedded or embedded:stdlib; or a list of these
        valid: the same for validation; empty for a part of train
        test: the same for the final test; empty for a part of train
        split: the fractions of train for training, validation and test, in this order
        errors: what to do with invalid UTF-8, strict (an error) or replace (U+FFFD)
        vocabulary: char, byte, word or bpe
        min_count: symbols that occur less often in the training text are unknown
        vocabulary_size: the number of symbols, of bpe
        unit: text (one continuous stream), or lines or documents (independent sequences)
        batch_size: streams read in parallel, over all processes
        window: the number of tokens of truncated backpropagation
    """

    train: Names = "embedded"
    valid: Names = ""
    test: Names = ""
    split: Split = (0.9, 0.05, 0.05)
    errors: str = one_of("strict", ERRORS)
    vocabulary: str = one_of("char", VOCABULARIES)
    min_count: int = 1
    vocabulary_size: int = 4096
    unit: str = one_of("text", UNITS)
    batch_size: int = 32
    window: int = 128

    @property
    def names(self) -> list[str]:
        """All texts that are named."""
        return [name for part in (self.train, self.valid, self.test) for name in names_of(part) if name]


InMemory = Mapping[str, str | Sequence[str]]  # texts in memory, by the name of their part


class Splits(NamedTuple):
    """The encoded texts of a run, and the vocabulary that the training text has."""

    vocabulary: Vocabulary
    train: Encoded
    valid: Encoded
    test: Encoded


def open_splits(
    config: TextDataConfig, vocabulary: Vocabulary | None = None, in_memory_texts: InMemory | None = None
) -> Splits:
    """Read, split and encode. The vocabulary is fitted to the training part alone, unless there is one already.

    The `in_memory_texts` (train, valid, test) take the place of those that the config names.
    """
    _check(config)
    texts = split_texts(config, in_memory_texts)
    if vocabulary is None:
        kind = vocabularies.kind(config.vocabulary)
        pieces = (piece for _, piece in texts[0].pieces("building the vocabulary"))
        vocabulary = kind.fit(pieces, config.min_count, config.vocabulary_size)
    train, valid, test = (encode(text, vocabulary, config.unit) for text in texts)
    if train.tokens == 0:
        raise InputError(f"the training text {config.train} is empty; give some text")
    if not isinstance(vocabulary, vocabularies.Bytes) and vocabulary.size < 4:
        raise _nothing_to_learn(vocabulary, config.min_count)
    return Splits(vocabulary, train, valid, test)


def _check(config: TextDataConfig) -> None:
    for name in ("min_count", "vocabulary_size", "batch_size", "window"):
        whole(f"data.{name}", getattr(config, name))


def _nothing_to_learn(vocabulary: Vocabulary, min_count: int) -> InputError:
    if vocabulary.size < 3:
        return InputError(f"nothing in the training text occurs {min_count} times; lower data.min_count")
    symbol = vocabulary.decode([vocabulary.size - 1])
    name = repr(symbol[:20]) + ("..." if len(symbol) > 20 else "")
    return InputError(
        f"the training text has a single symbol, {name}; there is nothing to learn. "
        "Give a text with at least two different symbols."
    )


def split_texts(config: TextDataConfig, in_memory_texts: InMemory | None = None) -> list[Text]:
    """The training, validation and test text."""
    errors = text_errors(config.vocabulary, config.errors)

    def text(part: str) -> Text:
        if in_memory_texts and part in in_memory_texts:
            return in_memory(in_memory_texts[part], errors)
        return open_text(names_of(getattr(config, part)), errors)

    whole = text("train")
    parts = fractions(config.split, bool(config.valid), bool(config.test))
    _, characters = whole.measure()
    cuts = [0, *(round(characters * sum(parts[: k + 1])) for k in range(2)), characters]
    texts = [whole.cut(a, b) for a, b in pairwise(cuts)]
    for number, part in ((1, "valid"), (2, "test")):
        if getattr(config, part):
            texts[number] = text(part)
    return texts


def text_errors(vocabulary: str, errors: str) -> str:
    """How to read for a vocabulary: to bytes, no byte is invalid."""
    return BYTES if check_errors(errors) and vocabulary == "byte" else errors
