"""Sentences to tensors and tags to names: the words, characters, features and tags that a tagger knows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from elman.data.batches import Batch, padded
from elman.data.vocabulary import Symbols
from elman.errors import InputError
from elman.files.artifact import Content
from elman.tasks.tag import schemes
from elman.tasks.tag.data import Sentence

CASES = ("lower", "upper", "title", "mixed", "digits", "some digits", "other")
UNTAGGED = -1  # the target of a word whose tag does not count


class Written(NamedTuple):
    """Sentences as tensors."""

    words: Tensor  # (B, T)
    case: Tensor  # (B, T)
    features: Tensor  # (B, T, F)
    characters: Tensor  # (B, T, C)
    sizes: Tensor  # (B, T): how many characters


class Lexicon(NamedTuple):
    """All that turns sentences into tensors and tags back into names."""

    words: Symbols
    characters: Symbols
    features: tuple[Symbols, ...]
    tags: tuple[str, ...]  # as the model writes them, in `inner`
    scheme: str  # of the data
    inner: str  # what the model is trained on
    lower: bool

    @staticmethod
    def fit(
        sentences: Sequence[Sentence], tags: Sequence[str], scheme: str, inner: str, min_count: int, lower: bool
    ) -> Lexicon:
        """What some sentences need."""
        words = Counter(word.lower() if lower else word for s in sentences for word in s.words)
        characters = Counter(character for s in sentences for word in s.words for character in word)
        columns = zip(*(s.features for s in sentences), strict=True)
        features = tuple(Symbols.count(Counter(value for row in column for value in row)) for column in columns)
        known = Symbols.count(words, min_count), Symbols.count(characters), features
        return Lexicon(*known, tuple(sorted(tags)), scheme, inner, lower)

    def to_json(self) -> Content:
        return {
            "words": [*self.words.names], "characters": [*self.characters.names],
            "features": [[*symbols.names] for symbols in self.features], "tags": [*self.tags],
            "scheme": self.scheme, "inner": self.inner, "lower": self.lower,
        }  # fmt: skip

    @staticmethod
    def from_json(content: Content) -> Lexicon:
        """What `to_json` wrote."""
        words, characters = Symbols(content["words"]), Symbols(content["characters"])
        features = tuple(Symbols(names) for names in content["features"])
        rest = (content[name] for name in ("scheme", "inner", "lower"))
        return Lexicon(words, characters, features, tuple(content["tags"]), *rest)

    def written(self, sentence: Sentence) -> Written:
        """One sentence, T words: Written of (T,), (T,), (T, F), (T, C), (T,)."""
        if len(sentence.features) != len(self.features):
            number, wanted = len(sentence.features), len(self.features)
            raise InputError(f"{sentence.where} has {number} further columns; this model reads {wanted}")
        words = [word.lower() if self.lower else word for word in sentence.words]
        features = [s.numbers(column) for s, column in zip(self.features, sentence.features, strict=True)]
        characters, sizes = self._spelt(sentence.words)
        return Written(
            torch.tensor(self.words.numbers(words), dtype=torch.int64),
            torch.tensor([case(word) for word in sentence.words], dtype=torch.int64),
            torch.tensor(features, dtype=torch.int64).reshape(len(features), len(words)).T,
            characters,
            sizes,
        )

    def _spelt(self, words: Sequence[str]) -> tuple[Tensor, Tensor]:
        """The characters of words (T, C), and how many each has (T,). A word that comes again is spelt once."""
        place = {word: i for i, word in enumerate(dict.fromkeys(words))}
        sizes = torch.tensor([len(word) for word in place], dtype=torch.int64)
        table = torch.zeros(len(place), max(map(len, place), default=0), dtype=torch.int64)
        for i, word in enumerate(place):
            table[i, : len(word)] = torch.tensor(self.characters.numbers(word))
        rows = torch.tensor([place[word] for word in words], dtype=torch.int64)
        return table[rows], sizes[rows]

    def targets(self, sentence: Sentence) -> Tensor:
        """The numbers of its tags (T,), UNTAGGED where one is empty."""
        tags = schemes.convert(sentence.tags, self.scheme, self.inner)
        number = {tag: i for i, tag in enumerate(self.tags)}
        return torch.tensor([number[tag] if tag else UNTAGGED for tag in tags], dtype=torch.int64)

    def example(self, sentence: Sentence) -> tuple[Written, Tensor]:
        """What a model reads, and what it should say."""
        return self.written(sentence), self.targets(sentence)

    def read(self, numbers: Sequence[int]) -> list[str]:
        """Tags by name, in the scheme of the data."""
        return schemes.convert([self.tags[i] for i in numbers], self.inner, self.scheme)


@cache
def case(word: str) -> int:
    """How a word is written, as a place in CASES.

    >>> [CASES[case(word)] for word in ("the", "IBM", "He", "iPod", "42", "B-52", "--")]
    ['lower', 'upper', 'title', 'mixed', 'digits', 'some digits', 'other']
    """
    digits = sum(character.isdigit() for character in word)
    if digits:
        return 4 if digits == len(word.strip(".,-")) else 5
    if not any(character.isalpha() for character in word):
        return 6
    return 0 if word.islower() else 1 if word.isupper() and len(word) > 1 else 2 if word.istitle() else 3


def collate(written: Sequence[Written]) -> tuple[Written, Tensor]:
    """Sentences of unequal length side by side, and their lengths (B,)."""
    B, T = len(written), max(len(w.words) for w in written)
    C = max(w.characters.shape[1] for w in written)
    characters = torch.zeros(B, T, C, dtype=torch.int64)
    for i, w in enumerate(written):
        characters[i, : w.characters.shape[0], : w.characters.shape[1]] = w.characters
    words, lengths = padded([w.words for w in written])
    rest = [padded([w[place] for w in written])[0] for place in (1, 2, 4)]
    return Written(words, rest[0], rest[1], characters, rest[2]), lengths


def batch_of(rows: Sequence[tuple[Written, Tensor]]) -> Batch:
    """Sentences and their targets, padded."""
    x, lengths = collate([written for written, _ in rows])
    y = torch.nn.utils.rnn.pad_sequence([targets for _, targets in rows], batch_first=True, padding_value=UNTAGGED)
    reset = torch.zeros_like(y, dtype=torch.bool)
    reset[:, :1] = True
    return Batch(x, y, reset, lengths)
