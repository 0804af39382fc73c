"""Vocabularies that come with pretrained models: that of a tokenizer.json, and that of the RWKV models.

Their numbers are those of the model, but for one: symbol 0 is the boundary here, so it changes places with the number
that the model ends a text with.
"""

from __future__ import annotations

import ast
import codecs
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from elman.data.vocabulary import BOUNDARY, Decoder, Ids, Vocabulary, cut_at_spaces
from elman.errors import FileError, InputError, MissingExtraError
from elman.files.artifact import Content

LONGEST = 4  # tokens that a character of UTF-8 may be in
CONTEXT = 64  # characters of a text before the first token, of which the last tokens are wanted


class Tokenizer(Vocabulary):
    """The tokens of a tokenizer.json of the `tokenizers` package; `end` is the number of the token that ends a text.

    `size` is how many symbols the model has, which may be more than there are tokens.
    """

    kind = "tokenizer"
    unknown = None

    def __init__(self, model: str, size: int, end: int) -> None:
        try:
            import tokenizers
        except ImportError as error:
            raise MissingExtraError("tokenizers", "bpe") from error
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(model)
        except Exception as error:  # what the package raises is an Exception itself
            raise FileError(f"the tokenizer is not one that the package tokenizers reads: {error}") from error
        self._tokenizer.no_truncation()  # a file may ask for both, and a text has to be read whole and alone
        self._tokenizer.no_padding()
        largest = max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=0)
        if largest >= size:
            raise FileError(
                f"the tokenizer has tokens up to number {largest:,}, and the model {size:,} symbols: it is another's"
            )
        self._model, self.size, self.end = model, size, end
        self._cuts = _may_be_cut(json.loads(model))

    @classmethod
    def fit(cls, pieces: Iterable[str], min_count: int, size: int) -> Tokenizer:
        raise _not_fitted(cls.kind)

    def encode(self, text: str) -> Ids:
        try:
            ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        except TypeError as error:  # what stands for invalid bytes cannot be UTF-8
            raise InputError("the text has bytes that are not UTF-8; a tokenizer reads characters only") from error
        return self._exchange(np.array(ids, dtype=np.int64))

    def decode(self, ids: Sequence[int]) -> str:
        own = self._exchange(np.array([i for i in ids if i != BOUNDARY], dtype=np.int64))
        return str(self._tokenizer.decode(own.tolist(), skip_special_tokens=False))

    def decoder(self, before: str = "") -> Decoder:
        return _TokenDecoder(self, before)

    def cut(self, text: str) -> int:
        return cut_at_spaces(text) if self._cuts else 0

    def content(self) -> Content:
        return {"model": self._model, "size": self.size, "end": self.end}

    @classmethod
    def restore(cls, content: Content) -> Tokenizer:
        return cls(content["model"], content["size"], content["end"])

    def _exchange(self, ids: Ids) -> Ids:
        """Numbers of the model as symbols, or the other way round."""
        return np.where(ids == self.end, BOUNDARY, np.where(ids == BOUNDARY, self.end, ids))


class _TokenDecoder(Decoder):
    """Tokens may put a space before them or not, and may end inside a character: their text is what the last ones gain
    by them."""

    def __init__(self, vocabulary: Vocabulary, before: str) -> None:
        super().__init__(vocabulary)
        self._shown = vocabulary.encode(before[-CONTEXT:]).tolist()[-LONGEST:] if before else []
        self._pending: list[int] = []

    def push(self, symbol: int) -> str:
        self._pending.append(symbol)
        text = self.vocabulary.decode(self._shown + self._pending)
        if text.endswith("�") and len(self._pending) < LONGEST:
            return ""
        piece = text[len(self.vocabulary.decode(self._shown)) :]
        self._shown, self._pending = self._pending, []
        return piece


def _may_be_cut(model: Content) -> bool:
    """Whether the parts of a text that is cut before spaces have the tokens of the whole: where a first step splits it
    there and adds nothing to its beginning, as in the family of GPT-2."""
    if (model.get("normalizer") or {"type": "NFC"})["type"] not in ("NFC", "NFKC"):
        return False
    step = model.get("pre_tokenizer") or {}
    steps = step.get("pretokenizers", [step])
    levels = [part for part in steps if part.get("type") == "ByteLevel"]
    if not levels or any(part.get("add_prefix_space", True) for part in levels):
        return False
    return any(part.get("use_regex", True) for part in levels) or steps[0].get("type") == "Split"


class World(Vocabulary):
    """The tokens of the RWKV models: bytes, of which the longest token that fits is taken. Number 0 ends a text.

    >>> World([b"a", b"b", b"ab"], 8).encode("aba").tolist()
    [3, 1]
    """

    kind = "world"
    unknown = None

    def __init__(self, tokens: Sequence[bytes], size: int) -> None:
        self._texts, self.size = (b"", *tokens), size
        self._ids = {token: i for i, token in enumerate(self._texts) if token}
        self._lengths: dict[bytes, list[int]] = {}  # of the tokens with these first two bytes, longest first
        for length, first in sorted({(len(t), t[:2]) for t in self._ids}, reverse=True):
            self._lengths.setdefault(first, []).append(length)

    @classmethod
    def fit(cls, pieces: Iterable[str], min_count: int, size: int) -> World:
        raise _not_fitted(cls.kind)

    @classmethod
    def read(cls, path: Path, size: int) -> World:
        """The file that comes with the models: a line for each token, its number, its text and its length."""
        tokens = [b""] * (size - 1)
        try:
            for line in path.read_text(encoding="utf-8").splitlines():
                number, rest = line.split(" ", 1)
                text, length = rest.rsplit(" ", 1)
                token = ast.literal_eval(text)
                token = token.encode() if isinstance(token, str) else token
                if int(number) < 1 or not isinstance(token, bytes) or len(token) != int(length):
                    raise ValueError(f"{line!r} is not a number from 1 on, a text, and how many bytes it has")
                tokens[int(number) - 1] = token
        except (OSError, ValueError, SyntaxError, IndexError, RecursionError, MemoryError) as error:
            raise FileError(f"{path} is not a vocabulary of RWKV of at most {size:,} tokens: {error}") from error
        return cls(tokens, size)

    def encode(self, text: str) -> Ids:
        data, ids, at = text.encode("utf-8", "surrogateescape"), [], 0
        while at < len(data):
            lengths = [*self._lengths.get(data[at : at + 2], ()), 1]
            length = next((n for n in lengths if data[at : at + n] in self._ids), 0)
            if not length:
                raise InputError(f"the vocabulary has no token for the byte {data[at]:#04x}")
            ids.append(self._ids[data[at : at + length]])
            at += length
        return np.array(ids, dtype=np.int64)

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(self.bytes_of(i) for i in ids).decode(errors="replace")

    def bytes_of(self, symbol: int) -> bytes:
        """What a symbol stands for; nothing for one that no token has."""
        return self._texts[symbol] if symbol < len(self._texts) else b""

    def decoder(self, before: str = "") -> Decoder:
        return _WorldDecoder(self)

    def cut(self, text: str) -> int:
        return 0  # a token may have spaces inside

    def content(self) -> Content:
        return {"tokens": [token.decode("latin-1") for token in self._texts[1:]], "size": self.size}

    @classmethod
    def restore(cls, content: Content) -> World:
        return cls([token.encode("latin-1") for token in content["tokens"]], content["size"])


class _WorldDecoder(Decoder):
    """A character comes out with its last byte."""

    vocabulary: World

    def __init__(self, vocabulary: World) -> None:
        super().__init__(vocabulary)
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, symbol: int) -> str:
        return self._utf8.decode(self.vocabulary.bytes_of(symbol))


def _not_fitted(kind: str) -> InputError:
    return InputError(
        f"a vocabulary of the kind {kind} comes with a model that was converted, and is not made of a text; take char, "
        "byte, word or bpe, or begin with such a model by init_from"
    )
