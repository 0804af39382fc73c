"""Vocabularies: text to symbols and back. A model carries its own, as JSON.

Symbol 0 is the boundary: it comes before the first token, and after the last one where sequences are independent.
Where there is an unknown symbol, it is 1.
"""

from __future__ import annotations

import codecs
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from elman.errors import FileError, InputError, MissingExtraError, UnknownNameError
from elman.files.artifact import Content

Ids = NDArray[np.int64]

BOUNDARY = 0
UNKNOWN = 1
SMALL = 1 << 15
_CODE_POINTS = 0x110000


class Vocabulary(ABC):
    """Symbols 0..size-1 and their text."""

    kind: ClassVar[str]
    unknown: int | None = UNKNOWN
    size: int

    @classmethod
    @abstractmethod
    def fit(cls, pieces: Iterable[str], min_count: int, size: int) -> Vocabulary:
        """The vocabulary of a text: what occurs at least `min_count` times; BPE aims at `size` symbols."""

    @abstractmethod
    def encode(self, text: str) -> Ids:
        """The symbols of a text that is whole, or cut where `cut` allows it."""

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """The text of some symbols."""

    @abstractmethod
    def content(self) -> Content:
        """What `restore` needs, ready for JSON."""

    @classmethod
    @abstractmethod
    def restore(cls, content: Content) -> Vocabulary:
        """The inverse of `content`."""

    def cut(self, text: str) -> int:
        """How many characters of `text` can be encoded before it is known what follows."""
        return len(text)

    def decoder(self, before: str = "") -> Decoder:
        """Decodes one symbol at a time, each piece when it is complete; `before` is the text that it continues."""
        return Decoder(self)

    def encode_known(self, text: str) -> Ids:
        """The symbols of a prompt; an error that names what the vocabulary lacks."""
        ids = self.encode(text)
        if self.unknown is not None and (ids == self.unknown).any():
            raise InputError(
                f"the text has {self.unknown_in(text)}, which this model's vocabulary of {self.size} symbols "
                f"({self.kind}) lacks: it did not occur in the training text. Write it differently, perhaps in "
                "lower case, leave it out, or train with it (a byte vocabulary knows every text)"
            )
        return ids

    def spell(self, ids: Iterable[int]) -> list[str]:
        """The text of each of some symbols, as in a sequence of them; nothing for a boundary."""
        decoder = self.decoder()
        return ["" if symbol == BOUNDARY else decoder.push(symbol) for symbol in ids]

    def texts(self, ids: Iterable[int]) -> list[str]:
        """The text of each of some symbols by itself, and a space where symbols are words; nothing for a boundary."""
        space = " " if self.kind == "word" else ""
        return ["" if symbol == BOUNDARY else self.decode([symbol]) + space for symbol in ids]

    def unknown_in(self, text: str) -> str:
        """The first piece of a text that the vocabulary lacks, for messages."""
        return "a symbol"

    def to_json(self) -> Content:
        return {"kind": self.kind, **self.content()}


class Decoder:
    """Symbols in, text out, piece by piece."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary

    def push(self, symbol: int) -> str:
        return self.vocabulary.decode([symbol])


class Characters(Vocabulary):
    """One symbol per character.

    >>> v = Characters.fit(["abba"], min_count=1, size=0)
    >>> v.encode("bac").tolist(), v.decode([2, 3])
    ([3, 2, 1], 'ab')
    """

    kind = "char"

    def __init__(self, characters: str) -> None:
        self.characters = characters
        self.size = 2 + len(characters)
        self._texts = ("", "�", *characters)
        self._ids = np.full(_CODE_POINTS, UNKNOWN, dtype=np.int64)
        self._ids[_code_points(characters)] = np.arange(2, self.size)

    @classmethod
    def fit(cls, pieces: Iterable[str], min_count: int, size: int) -> Characters:
        counts = np.zeros(_CODE_POINTS, dtype=np.int64)
        for piece in pieces:
            points, times = np.unique(_code_points(piece), return_counts=True)
            counts[points] += times
        return cls("".join(chr(point) for point in np.flatnonzero(counts >= max(1, min_count))))

    def encode(self, text: str) -> Ids:
        return self._ids[_code_points(text)]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join([self._texts[i] for i in ids])

    def unknown_in(self, text: str) -> str:
        return repr(text[int(np.flatnonzero(self.encode(text) == UNKNOWN)[0])])

    def content(self) -> Content:
        return {"characters": self.characters}

    @classmethod
    def restore(cls, content: Content) -> Characters:
        return cls(content["characters"])


def _code_points(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)


class Bytes(Vocabulary):
    """One symbol per byte of UTF-8: it knows every text.

    >>> v = Bytes()
    >>> v.decode(v.encode("é").tolist())
    'é'
    """

    kind = "byte"
    unknown = None
    size = 257

    @classmethod
    def fit(cls, pieces: Iterable[str], min_count: int, size: int) -> Bytes:
        return cls()

    def encode(self, text: str) -> Ids:
        return np.frombuffer(text.encode("utf-8", "surrogateescape"), dtype=np.uint8).astype(np.int64) + 1

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(i - 1 for i in ids if i != BOUNDARY).decode(errors="replace")

    def decoder(self, before: str = "") -> Decoder:
        return _ByteDecoder(self)

    def content(self) -> Content:
        return {}

    @classmethod
    def restore(cls, content: Content) -> Bytes:
        return cls()


class _ByteDecoder(Decoder):
    """A character comes out with its last byte."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__(vocabulary)
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, symbol: int) -> str:
        return self._utf8.decode(b"" if symbol == BOUNDARY else bytes([symbol - 1]))


class Symbols:
    """Names to numbers: two are reserved, 1 is for what is unknown, and frequent names come first.

    >>> Symbols(["a", "b"]).numbers(["b", "c"])
    [3, 1]
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(names)
        self.size = 2 + len(self.names)
        self._number = {name: i for i, name in enumerate(self.names, 2)}

    @classmethod
    def count(cls, counts: Counter[str], least: int = 1) -> Self:
        """Those that occur often enough, frequent ones first, as an adaptive softmax needs them."""
        often = (name for name, count in counts.items() if count >= max(1, least))
        return cls(sorted(often, key=lambda name: (-counts[name], name)))

    def numbers(self, names: Iterable[str]) -> list[int]:
        return [self._number.get(name, UNKNOWN) for name in names]


_WORDS = re.compile(r"\n|\S+")
_WORDS_ALONE = re.compile(r"\S+")


class Words(Symbols, Vocabulary):
    """One symbol per run of characters between spaces, and one per line break, as the word-level corpora have it.

    >>> v = Words.fit(["to be\\nor not to be"], min_count=2, size=0)
    >>> v.encode("to be or").tolist(), v.decode([2, 3, 1])
    ([3, 2, 1], 'be to <unk>')
    >>> v.without_line_breaks().encode("to\\nbe").tolist()
    [3, 2]
    """

    kind = "word"

    def __init__(self, names: Iterable[str], line_breaks: bool = True) -> None:
        super().__init__(names)
        self.line_breaks = line_breaks
        self._pattern = words_pattern(line_breaks)

    def without_line_breaks(self) -> Words:
        """The same words; a line break is a space."""
        return Words((name for name in self.names if name != "\n"), line_breaks=False)

    @classmethod
    def fit(cls, pieces: Iterable[str], min_count: int, size: int) -> Words:
        counts: Counter[str] = Counter()
        for piece in rejoin(pieces, cut_at_spaces):
            counts.update(_WORDS.findall(piece))
        return cls.count(counts, min_count)

    def encode(self, text: str) -> Ids:
        return np.array(self.numbers(self._pattern.findall(text)), dtype=np.int64)

    def decode(self, ids: Sequence[int]) -> str:
        return re.sub(r" ?\n ?", "\n", " ".join(self._word(i) for i in ids if i != BOUNDARY))

    def decoder(self, before: str = "") -> Decoder:
        return _WordDecoder(self, before)

    def cut(self, text: str) -> int:
        return cut_at_spaces(text)

    def _word(self, i: int) -> str:
        return self.names[i - 2] if i >= 2 else "<unk>"

    def unknown_in(self, text: str) -> str:
        return repr(next(w for w in self._pattern.findall(text) if w not in self._number))

    def content(self) -> Content:
        # The flag only where it is not the default, so that models and caches of other words stay as they are.
        return {"words": [*self.names], **({} if self.line_breaks else {"line_breaks": False})}

    @classmethod
    def restore(cls, content: Content) -> Words:
        return cls(content["words"], content.get("line_breaks", True))


def words_pattern(line_breaks: bool) -> re.Pattern[str]:
    """What a word is; with `line_breaks`, a line break too."""
    return _WORDS if line_breaks else _WORDS_ALONE


def words_end(pieces: Iterable[str], counts: Sequence[int], line_breaks: bool) -> tuple[list[int], int]:
    """After how many characters of a text each of so many words ends, and how many words there are.

    >>> words_end(["to be\\nor", " not"], [2, 3], line_breaks=False)
    ([5, 8], 4)
    """
    pattern, ends = words_pattern(line_breaks), [0] * len(counts)
    words = characters = 0
    for piece in rejoin(pieces, cut_at_spaces):
        places = [match.end() for match in pattern.finditer(piece)]
        for i, count in enumerate(counts):
            if words < count <= words + len(places):
                ends[i] = characters + places[count - words - 1]
        words, characters = words + len(places), characters + len(piece)
    return ends, words


class _WordDecoder(Decoder):
    """A space comes before each word that follows another one."""

    def __init__(self, vocabulary: Vocabulary, before: str) -> None:
        super().__init__(vocabulary)
        self._space = " " if before and not before[-1].isspace() else ""

    def push(self, symbol: int) -> str:
        word = self.vocabulary.decode([symbol])
        before = "" if word == "\n" else self._space
        if symbol != BOUNDARY:
            self._space = "" if word == "\n" else " "
        return before + word if word else ""


def cut_at_spaces(text: str) -> int:
    """Before the last run of spaces: no word and no BPE token continues from there to the left."""
    if text[-1:].isspace():
        return len(text.rstrip())
    before = text.rsplit(maxsplit=1)[:-1]
    return len(before[0]) if before else 0


def _smaller(pieces: Iterable[str]) -> Iterator[str]:
    """The same text in shorter pieces: `tokenizers` takes 256 at a time, which are not to be 256 megabytes."""
    for piece in pieces:
        while end := cut_at_spaces(piece[:SMALL]) if len(piece) > SMALL else 0:
            yield piece[:end]
            piece = piece[end:]
        yield piece


class Bpe(Vocabulary):
    """Byte-pair encoding over bytes, by the `tokenizers` package: it knows every text."""

    kind = "bpe"
    unknown = None

    def __init__(self, model: str) -> None:
        try:
            import tokenizers
        except ImportError as error:
            raise MissingExtraError("tokenizers", "bpe") from error
        self._model = model
        self._tokenizer = tokenizers.Tokenizer.from_str(model)
        self.size = self._tokenizer.get_vocab_size()

    @classmethod
    def fit(cls, pieces: Iterable[str], min_count: int, size: int) -> Bpe:
        try:
            from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
        except ImportError as error:
            raise MissingExtraError("tokenizers", "bpe") from error
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=size, min_frequency=min_count, show_progress=False, special_tokens=["<|boundary|>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        )  # fmt: skip
        tokenizer.train_from_iterator(_smaller(rejoin(pieces, cut_at_spaces)), trainer)
        return cls(tokenizer.to_str())

    def encode(self, text: str) -> Ids:
        return np.array(self._tokenizer.encode(text, add_special_tokens=False).ids, dtype=np.int64)

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode([i for i in ids if i != BOUNDARY], skip_special_tokens=False))

    def decoder(self, before: str = "") -> Decoder:
        return _BpeDecoder(self)

    def cut(self, text: str) -> int:
        return cut_at_spaces(text)

    def content(self) -> Content:
        return {"model": self._model}

    @classmethod
    def restore(cls, content: Content) -> Bpe:
        return cls(content["model"])


class _BpeDecoder(Decoder):
    """A token may end inside a character: it comes out with the token that completes it."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__(vocabulary)
        self._pending: list[int] = []

    def push(self, symbol: int) -> str:
        self._pending.append(symbol)
        text = self.vocabulary.decode(self._pending)
        if text.endswith("�") and len(self._pending) < 4:
            return ""
        self._pending.clear()
        return text


VOCABULARIES: dict[str, type[Vocabulary]] = {"char": Characters, "byte": Bytes, "word": Words, "bpe": Bpe}


def kind(name: str) -> type[Vocabulary]:
    """The class called `name`; those in data/tokenizer.py come with a converted model alone."""
    from elman.data.tokenizer import Tokenizer, World  # they derive from what is above

    for pretrained in (Tokenizer, World):
        if name == pretrained.kind:
            return pretrained
    if name not in VOCABULARIES:
        raise UnknownNameError("vocabulary", name, VOCABULARIES)
    return VOCABULARIES[name]


def from_json(content: Content) -> Vocabulary:
    """What `to_json` wrote."""
    try:
        return kind(content["kind"]).restore(content)
    except (KeyError, TypeError) as error:
        raise FileError(f"this is not a vocabulary that this version knows: {error}") from error


def rejoin(pieces: Iterable[str], cut: Callable[[str], int]) -> Iterator[str]:
    """The same text in pieces that end where `cut` says that they may."""
    rest = ""
    for piece in pieces:
        rest += piece
        end = cut(rest)
        if end:
            yield rest[:end]
            rest = rest[end:]
    if rest:
        yield rest
