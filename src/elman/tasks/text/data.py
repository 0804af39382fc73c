"""What the data section of a config says, and the texts it names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from typing import NamedTuple

from elman.data import vocabulary as vocabularies
from elman.data.cache import UNITS, Encoded, encode
from elman.data.names import Names, names_of
from elman.data.splits import Split, fractions
from elman.data.text import BYTES, ERRORS, Text, check_errors, in_memory, open_text
from elman.data.vocabulary import VOCABULARIES, Vocabulary, words_end
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
        split: the fractions of train for training, validation and test, in this order; or how many words (of vocabulary
            char, characters) each of them has
        errors: what to do with invalid UTF-8, strict (an error) or replace (U+FFFD)
        vocabulary: char, byte, word or bpe
        min_count: symbols that occur less often in the training text are unknown
        count_all: count symbols in the validation and test text too, as for some published figures; false for the
            training text alone
        line_breaks: of vocabulary word, whether a line break is a symbol; false for a space
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
    count_all: bool = False
    line_breaks: bool = True
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
    """Read, split and encode. The vocabulary is fitted to the training part alone (to all parts with `count_all`),
    unless there is one already.

    The `in_memory_texts` (train, valid, test) take the place of those that the config names.
    """
    _check(config)
    texts = split_texts(config, in_memory_texts)
    if vocabulary is None:
        vocabulary = _fit(config, texts if config.count_all else texts[:1])
    train, valid, test = (encode(text, vocabulary, config.unit) for text in texts)
    if train.tokens == 0:
        raise InputError(f"the training text {config.train} is empty; give some text")
    if not isinstance(vocabulary, vocabularies.Bytes) and vocabulary.size < 4:
        raise _nothing_to_learn(vocabulary, config.min_count)
    return Splits(vocabulary, train, valid, test)


def _check(config: TextDataConfig) -> None:
    for name in ("min_count", "vocabulary_size", "batch_size", "window"):
        whole(f"data.{name}", getattr(config, name))
    if not config.line_breaks and config.vocabulary != "word":
        raise InputError(
            f"data.line_breaks is false with vocabulary {config.vocabulary}; it is for vocabulary word: leave it out"
        )


def _fit(config: TextDataConfig, texts: Sequence[Text]) -> Vocabulary:
    kind = vocabularies.kind(config.vocabulary)
    # A text ends a word; a space is not a symbol of words.
    between = " " if config.vocabulary == "word" else ""
    pieces = (p for text in texts for p in chain((p for _, p in text.pieces("building the vocabulary")), [between]))
    vocabulary = kind.fit(pieces, config.min_count, config.vocabulary_size)
    if config.line_breaks:
        return vocabulary
    assert isinstance(vocabulary, vocabularies.Words)  # or `_check` has said so
    return vocabulary.without_line_breaks()


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
    _, characters = whole.measure()
    cuts = [0, *(_cuts_by_count if _are_counts(config.split) else _cuts_by_fraction)(config, whole), characters]
    texts = [whole.cut(a, b) for a, b in pairwise(cuts)]
    for number, part in ((1, "valid"), (2, "test")):
        if getattr(config, part):
            texts[number] = text(part)
    return texts


def _are_counts(split: Split) -> bool:
    return len(split) == 3 and max(split) > 1 and all(float(part).is_integer() and part >= 0 for part in split)


def _cuts_by_fraction(config: TextDataConfig, text: Text) -> list[int]:
    """After how many characters the training part ends, and the validation part."""
    parts = fractions(config.split, bool(config.valid), bool(config.test))
    _, characters = text.measure()
    return [round(characters * sum(parts[: k + 1])) for k in range(2)]


def _cuts_by_count(config: TextDataConfig, text: Text) -> list[int]:
    """The same where the parts are numbers of words, or of characters."""
    if config.vocabulary not in ("char", "word") or config.valid or config.test:
        raise InputError(
            f"data.split is {config.split}; numbers of symbols are for vocabulary char or word, without data.valid and "
            "data.test. Give three fractions (train, valid, test) that add up to 1"
        )
    counts = [*accumulate(map(int, config.split))]
    if config.vocabulary == "char":
        _, present = text.measure()
        ends = counts
    else:
        pieces = (piece for _, piece in text.pieces("counting words"))
        ends, present = words_end(pieces, counts, config.line_breaks)
    if counts[-1] != present or not counts[0]:
        what = "characters" if config.vocabulary == "char" else "words" if not config.line_breaks else "words and lines"
        raise InputError(
            f"data.split adds up to {counts[-1]:,}; the text has {present:,} {what}. Give three numbers (train, valid, "
            "test) that add up to that, the first above 0"
        )
    return ends[:2]


def text_errors(vocabulary: str, errors: str) -> str:
    """How to read for a vocabulary: to bytes, no byte is invalid."""
    return BYTES if check_errors(errors) and vocabulary == "byte" else errors
