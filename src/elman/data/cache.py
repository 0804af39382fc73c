"""A text is encoded once, to a memory-mapped file that is named by its content, its vocabulary and its units."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from elman.data.text import Text
from elman.data.vocabulary import BOUNDARY, Vocabulary, rejoin
from elman.errors import FileError, UnknownNameError
from elman.options import parse_json

ENCODING = "encoding the text"
Ids = NDArray[np.integer]  # symbols; as few bytes as they fit into
UNITS = ("text", "lines", "documents")


@dataclass(frozen=True)
class Encoded:
    """The symbols of a text, each unit between boundaries; the first symbol is a boundary, each other one is scored.

    A whole text has a boundary in front only: nobody knows that it ends.
    """

    ids: Ids  # (N + 1,)
    characters: int
    unknown: int
    name: str = ""  # of the file in the cache: other text, other name

    @property
    def tokens(self) -> int:
        return len(self.ids) - 1

    def first(self, tokens: int, unknown: int | None) -> Encoded:
        """The first so many tokens; `unknown` is the symbol for what the vocabulary lacks.

        They are taken to have as many characters each as all of the text has.
        """
        ids = self.ids[: tokens + 1]
        characters = round(self.characters * (len(ids) - 1) / max(1, self.tokens))
        return Encoded(ids, characters, 0 if unknown is None else int((ids == unknown).sum()))


def cache_folder() -> Path:
    """Where encoded texts are kept: ELMAN_CACHE, or `elman` in the user's cache folder."""
    if "ELMAN_CACHE" in os.environ:
        return Path(os.environ["ELMAN_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "elman"


def encode(text: Text, vocabulary: Vocabulary, unit: str = "text", folder: Path | None = None) -> Encoded:
    """The symbols of a text, from the cache if they are there."""
    if unit not in UNITS:
        raise UnknownNameError("unit of text", unit, UNITS)
    fingerprint, _ = text.measure()
    return _store([fingerprint, unit], lambda: _encode(text, vocabulary, unit), vocabulary, folder)


def encode_lines(lines: Sequence[str], vocabulary: Vocabulary, folder: Path | None = None) -> list[Ids]:
    """The symbols of each line, empty ones included, from the cache if they are there: views of one mapped file.

    >>> from elman.data.vocabulary import Bytes
    >>> [row.tolist() for row in encode_lines(["ab", "", "c"], Bytes())]
    [[98, 99], [], [100]]
    """
    total = hashlib.sha256()
    for line in lines:
        total.update(line.encode("utf-8", "surrogateescape") + b"\n")

    def rows() -> Iterator[tuple[NDArray[np.int64], int]]:
        yield np.array([BOUNDARY]), 0
        for line in lines:
            yield np.append(vocabulary.encode(line), BOUNDARY), len(line) + 1

    ids = _store([total.hexdigest(), "every line"], rows, vocabulary, folder).ids
    ends = np.flatnonzero(ids == BOUNDARY)
    return [ids[begin + 1 : end] for begin, end in pairwise(ends)]


def _store(
    key: Sequence[str],
    rows: Callable[[], Iterable[tuple[NDArray[np.int64], int]]],
    vocabulary: Vocabulary,
    folder: Path | None,
) -> Encoded:
    """What `rows` gives, from the cache if it is there under the name that `key` and the vocabulary make."""
    folder = folder or cache_folder()
    parts = [*key, json.dumps(vocabulary.to_json(), sort_keys=True)]
    name = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / f"{name}.json").exists():
            _write(rows(), vocabulary, folder, name)
        return _read(folder, name)
    except OSError as error:
        raise FileError(
            f"cannot store the encoded text in {folder}: {error}. Set ELMAN_CACHE to a folder with enough space."
        ) from error


def encode_string(text: str, vocabulary: Vocabulary) -> Encoded:
    """The symbols of a text that is at hand."""
    ids = np.concatenate([[BOUNDARY], vocabulary.encode(text)]).astype(np.int64)
    return Encoded(ids, len(text), _unknown(ids, vocabulary))


def _write(rows: Iterable[tuple[NDArray[np.int64], int]], vocabulary: Vocabulary, folder: Path, name: str) -> None:
    dtype = np.dtype(np.uint16 if vocabulary.size <= 1 << 16 else np.uint32)
    temporary = folder / f".{name}.{os.getpid()}.tmp"
    tokens = characters = unknown = 0
    try:
        with temporary.open("wb") as file:
            for ids, length in rows:
                file.write(ids.astype(dtype).tobytes())
                tokens += len(ids)
                characters += length
                unknown += _unknown(ids, vocabulary)
        os.replace(temporary, folder / f"{name}.bin")
        # The description comes last: where it is, the symbols are complete.
        temporary.write_text(
            json.dumps({"dtype": dtype.name, "ids": tokens, "characters": characters, "unknown": unknown})
        )
        os.replace(temporary, folder / f"{name}.json")
    finally:
        temporary.unlink(missing_ok=True)


def _read(folder: Path, name: str) -> Encoded:
    about = parse_json((folder / f"{name}.json").read_text())
    path = folder / f"{name}.bin"
    if path.stat().st_size != about["ids"] * np.dtype(about["dtype"]).itemsize:
        raise FileError(f"{path} is truncated; remove it and {name}.json in the same folder")
    return Encoded(np.memmap(path, dtype=about["dtype"], mode="r"), about["characters"], about["unknown"], name)


def _encode(text: Text, vocabulary: Vocabulary, unit: str) -> Iterator[tuple[NDArray[np.int64], int]]:
    """Some symbols at a time, and the number of characters that they stand for."""
    boundary = np.array([BOUNDARY])
    yield boundary, 0
    if unit == "text":
        for piece in rejoin((piece for _, piece in text.pieces(ENCODING)), vocabulary.cut):
            yield vocabulary.encode(piece), len(piece)
        return
    rest = ""
    for part, last in _units(text, unit):
        rest += part
        if last:
            yield np.concatenate([vocabulary.encode(rest), boundary]), len(rest) + 1
            rest = ""
        elif end := vocabulary.cut(rest):
            yield vocabulary.encode(rest[:end]), end
            rest = rest[end:]


def _units(text: Text, unit: str) -> Iterator[tuple[str, bool]]:
    """Parts of lines or documents, and whether the unit ends with it: a unit need not fit into memory.

    A line has no line break, and one that is empty is left out.
    """
    begun, last = False, -1
    for number, piece in text.pieces(ENCODING):
        if number != last and begun:
            yield "", True
            begun = False
        last = number
        *whole, rest = piece.split("\n") if unit == "lines" else [piece]
        for line in whole:
            if line or begun:
                yield line, True
                begun = False
        if rest:
            yield rest, False
            begun = True
    if begun:
        yield "", True


def _unknown(ids: Ids, vocabulary: Vocabulary) -> int:
    return 0 if vocabulary.unknown is None else int((ids == vocabulary.unknown).sum())
