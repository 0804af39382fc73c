"""Where text comes from: files, folders, .gz, standard input, and what every Python carries.

A text is never held whole: it is read piece by piece, as often as it is needed, so it may be larger than memory.

Text is UTF-8. The mark that some programs put in front of it (U+FEFF) is left out, and the line end of Windows, \\r\\n,
is read as \\n; with a byte vocabulary, line ends stay as they are. Every reader of text uses this one.
"""

from __future__ import annotations

import codecs
import glob
import gzip
import hashlib
import importlib
import os
import shutil
import sys
import sysconfig
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from itertools import groupby
from pathlib import Path
from typing import IO, TypeVar

from elman.data.magic import refuse_binary
from elman.errors import FileError, InputError, UnknownNameError
from elman.options import several
from elman.progress import Waiting

CHUNK = 1 << 20
MEMORY = ":memory:"  # what a config names where data were given from Python
BYTES = "surrogateescape"  # kept byte for byte, for byte vocabularies
ERRORS = ("strict", "replace")  # what is done with invalid UTF-8: an error; U+FFFD

R = TypeVar("R")


class Document(str):
    """A text in memory with its name, which can be read in place of a file.

    >>> "".join(piece for _, piece in open_text([Document("to be")]).pieces())
    'to be'
    """

    text: str

    def __new__(cls, text: str, name: str = "data") -> Document:
        made = super().__new__(cls, name)
        made.text = text
        return made


@dataclass(frozen=True)
class Source:
    """One document: a name for messages, and its bytes, readable again and again."""

    name: str
    chunks: Callable[[], Iterator[bytes]]
    size: int | None = None  # in bytes, where that is known


@dataclass(frozen=True)
class Text:
    """The characters [start, stop) of some sources one after another."""

    sources: tuple[Source, ...]
    errors: str = "strict"
    start: int = 0
    stop: int | None = None
    whole: Text | None = None  # what it was cut from

    def pieces(self, doing: str = "reading the text") -> Iterator[tuple[int, str]]:
        """The number of the source and some of its characters, in order; a source without characters is left out.

        Where that takes long, `doing` says what for.
        """
        at = 0
        with Waiting(doing, self._size(), "bytes") as waiting:
            for number, source in enumerate(self.sources):
                for piece in _decode(source, self.errors, waiting.add):
                    if self.stop is not None and at >= self.stop:
                        return
                    part = piece[max(0, self.start - at) : None if self.stop is None else self.stop - at]
                    at += len(piece)
                    if part:
                        yield number, part

    def documents(self) -> Iterator[tuple[str, str]]:
        """The name and all characters of each source that has any: for what has to see a file whole."""
        for number, pieces in groupby(self.pieces(), lambda piece: piece[0]):
            yield self.sources[number].name, "".join(piece for _, piece in pieces)

    def _size(self) -> int | None:
        """The bytes of all sources, where they are known."""
        sizes = [source.size for source in self.sources if source.size is not None]
        return sum(sizes) if len(sizes) == len(self.sources) else None

    def cut(self, start: int, stop: int) -> Text:
        """Some of the characters of a whole text."""
        return replace(self, start=start, stop=stop, whole=self)

    def measure(self) -> tuple[str, int]:
        """A fingerprint of the characters and of where each source ends; the number of characters.

        A text is read once for this: what was cut from it has the fingerprint of the whole, and from where to where.
        """
        if self.whole is None:
            return self._measurement
        fingerprint, characters = self.whole.measure()
        stop = min(characters, self.stop or 0)
        part = hashlib.sha256(f"{fingerprint} {self.start} {stop}".encode())
        return part.hexdigest(), max(0, stop - self.start)

    @cached_property
    def _measurement(self) -> tuple[str, int]:
        digest, characters, last = hashlib.sha256(), 0, 0
        for number, piece in self.pieces():
            if number != last:
                digest.update(b"\xff")  # no UTF-8 text holds this byte
                last = number
            digest.update(piece.encode("utf-8", "surrogateescape"))
            characters += len(piece)
        return digest.hexdigest(), characters


def open_text(names: Sequence[str], errors: str = "strict") -> Text:
    """The text of files, folders, `.gz` files, `-` (standard input), `embedded` or `embedded:stdlib`, in that order.

    >>> characters = open_text(["embedded"]).measure()[1]
    >>> characters > 300_000
    True
    """
    names = several("names", names, "names of files")
    if errors != BYTES:
        check_errors(errors)
    sources = [source for name in names for source in _sources(name if isinstance(name, str) else str(name))]
    if not sources:
        raise InputError(f"there is no text in {names}: name a file, a folder with files, - or embedded")
    return Text(tuple(sources), errors)


def check_errors(errors: str) -> str:
    """`errors`, if it says what is done with invalid UTF-8."""
    if errors not in ERRORS:
        raise UnknownNameError("treatment of invalid UTF-8", errors, ERRORS)
    return errors


def read_documents(names: Sequence[str], errors: str = "strict") -> Iterator[tuple[str, str]]:
    """The name and the text of each file that has more than spaces and line ends; an InputError where none has.

    >>> list(read_documents([Document("to be", "a.txt")]))
    [('a.txt', 'to be')]
    """
    empty = True
    for name, text in open_text(names, check_errors(errors)).documents():
        if not text.isspace():
            empty = False
            yield name, text
    if empty:
        raise InputError(f"{', '.join(names)} is empty: there is nothing to read in it")


def read_lines(names: Sequence[str], errors: str = "strict") -> Iterator[tuple[str, list[str]]]:
    """The name and the lines of each file that is not empty."""
    return ((name, lines_of(text)) for name, text in read_documents(names, errors))


def lines_of(text: str) -> list[str]:
    """The lines of a text, without their ends. Only what ends lines in files does: other breaks, as U+2028, may be
    in a word.

    >>> lines_of("to be\\n\\nor not\\n")
    ['to be', '', 'or not']
    """
    lines = text.split("\n") if "\n" in text else text.split("\r")  # of old programs, \r alone
    return lines if lines[-1] else lines[:-1]


def at_least_one(rows: list[R], names: Sequence[str], what: str) -> list[R]:
    """The rows that were read of some files; an InputError where there are none: `what` they would be."""
    if not rows:
        raise InputError(f"there is no {what} in {', '.join(names)}; a model needs at least one")
    return rows


def in_memory(texts: str | Sequence[str], errors: str = "strict") -> Text:
    """The text that a string is, or several documents.

    >>> in_memory(["one", "two"]).measure()[1]
    6
    """
    documents = list(texts) if isinstance(texts, Sequence) and not isinstance(texts, str | bytes) else [texts]
    for document in documents:
        if not isinstance(document, str):
            raise InputError(f"a text is a {type(document).__name__}; give a string, or a list of strings")
    contents = [d.text if isinstance(d, Document) else d for d in documents]
    return Text(tuple(Source(f"document {i}", partial(_chunks, d)) for i, d in enumerate(contents, 1)), errors)


def _chunks(text: str) -> Iterator[bytes]:
    for start in range(0, len(text), CHUNK):
        yield text[start : start + CHUNK].encode("utf-8", "surrogateescape")


def on_disk(name: str) -> Path:
    """The path of a file that is not text."""
    if isinstance(name, Document):
        raise InputError(f"{name} was given as a text, and what is read here is not text: name a file, or give rows")
    path = Path(name).expanduser()
    _refuse_broken_link(path)
    if not _exists(path):
        raise FileError(f"there is no file {name}")
    if path.is_dir():
        raise FileError(f"{name} is a folder; name the files in it")
    if path.is_file() and not path.stat().st_size:
        raise FileError(f"{name} is empty: there is nothing to read in it")
    return path


def _refuse_broken_link(path: Path) -> None:
    if os.path.islink(path) and not os.path.exists(path):
        raise FileError(f"{path} is a link to {os.readlink(path)}, which is not there")


def _sources(name: str) -> list[Source]:
    if isinstance(name, Document):
        return [Source(str(name), partial(_chunks, name.text))]
    if name == MEMORY:
        raise InputError(
            "this run was started from Python with data in memory; continue it there: "
            'elman.train(config, data=..., with resume="auto" in the config)'
        )
    if name == "-":
        return [Source("standard input", partial(_file_chunks, _standard_input()))]
    if not name:
        raise InputError("the name of a text is empty: name a file, a folder with files, - or embedded")
    if name == "embedded" or name.startswith("embedded:"):
        return _embedded(name.partition(":")[2] or "topics")
    path = Path(name).expanduser()
    if not _exists(path):
        _refuse_broken_link(path)  # of which a pattern would find the link itself, again and again
        return [source for match in _matches(name) for source in _sources(match)]
    if path.is_fifo():
        return [Source(name, partial(_file_chunks, _copied_pipe(path)))]
    if path.is_dir():
        files = (p for p in sorted(path.rglob("*")) if p.is_file())
        return [_file(p) for p in files if not any(part.startswith(".") for part in p.relative_to(path).parts)]
    return [_file(path)]


def _matches(name: str) -> list[str]:
    """The files that a name with wildcards matches, if no shell has replaced it."""
    paths = sorted(glob.glob(str(Path(name).expanduser()), recursive=True))
    if not paths:
        wild = glob.has_magic(name)
        raise FileError(f"no file matches {name}" if wild else f"there is no file or folder {name}")
    return paths


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name that no file can have
        return False


def _file(path: Path) -> Source:
    # How much a .gz holds is known when it has been read.
    return Source(str(path), partial(_file_chunks, path), None if path.suffix == ".gz" else path.stat().st_size)


def _file_chunks(path: Path) -> Iterator[bytes]:
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            while chunk := file.read(CHUNK):
                yield chunk
    except (OSError, EOFError, zlib.error) as error:
        raise FileError(f"cannot read {path}: {error}") from error


@cache
def _standard_input() -> Path:
    if sys.stdin is None:
        raise FileError("standard input is closed; give it something to read, or name a file")
    return _copy(sys.stdin.buffer, "standard input")


@cache
def _copied_pipe(path: Path) -> Path:
    with path.open("rb") as pipe:
        return _copy(pipe, str(path))


def _copy(stream: IO[bytes], name: str) -> Path:
    """What can be read once only goes to a temporary file: a text is read several times."""
    try:
        file = tempfile.NamedTemporaryFile(prefix="elman-", suffix=".txt")  # noqa: SIM115 (it lives as long as the process)
        shutil.copyfileobj(stream, file)
        file.flush()
    except OSError as error:
        raise FileError(
            f"cannot store {name} in {tempfile.gettempdir()}: {error}. Set TMPDIR to a folder with enough space."
        ) from error
    _kept.append(file)
    return Path(file.name)


_kept: list[object] = []  # a temporary file goes away with its object


def _embedded(name: str) -> list[Source]:
    if name not in EMBEDDED:
        raise UnknownNameError("embedded text", name, EMBEDDED)
    return EMBEDDED[name]()


def _topics() -> list[Source]:
    """The language reference that `help()` shows: English about Python, topic by topic."""
    topics: dict[str, str] = importlib.import_module("pydoc_data.topics").topics

    def chunks(topic: str) -> Iterator[bytes]:
        yield topics[topic].encode()

    return [Source(f"the topic {name}", partial(chunks, name)) for name in sorted(topics)]


def _stdlib() -> list[Source]:
    """The source code of the standard library, without its tests and what is installed beside it."""
    root = Path(sysconfig.get_path("stdlib"))
    skipped = {"site-packages", "dist-packages", "test", "tests", "lib2to3", "__pycache__"}
    files = (p for p in sorted(root.rglob("*.py")) if not skipped & set(p.relative_to(root).parts))
    return [_file(path) for path in files]


EMBEDDED: dict[str, Callable[[], list[Source]]] = {"topics": _topics, "stdlib": _stdlib}


def _decode(source: Source, errors: str, count: Callable[[int], None]) -> Iterator[str]:
    pieces = _utf8(source, errors, count)
    return pieces if errors == BYTES else _with_plain_line_ends(pieces)


def _with_plain_line_ends(pieces: Iterator[str]) -> Iterator[str]:
    rest = ""
    for piece in pieces:
        text = rest + piece
        rest = "\r" if text.endswith("\r") else ""  # it may be the first half of a line end
        yield text.removesuffix(rest).replace("\r\n", "\n")
    yield rest


def _utf8(source: Source, errors: str, count: Callable[[int], None]) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")(errors)
    read, lines = 0, 1
    for chunk in source.chunks():
        if not read:
            if errors != BYTES:
                refuse_binary(source.name, chunk)
                _refuse_utf16(source, chunk)
            if chunk.startswith(codecs.BOM_UTF8):
                chunk, read = chunk[3:], 3
        pending = len(decoder.getstate()[0])
        try:
            piece = decoder.decode(chunk)
        except UnicodeDecodeError as error:
            raise _invalid(source, error, read - pending, lines) from error
        read += len(chunk)
        count(len(chunk))
        lines += piece.count("\n")
        yield piece
    try:
        yield decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise _invalid(source, error, read - len(error.object), lines) from error


def _refuse_utf16(source: Source, first: bytes) -> None:
    """Half of UTF-16 is zeros in most languages: it would be read as nonsense, if it can be read at all."""
    head = first[:1000]
    marked = head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    if marked or head.count(0) * 3 > len(head):
        raise FileError(
            f"{source.name} is not UTF-8 but seems to be UTF-16, by its {'first bytes' if marked else 'zeros'}. "
            "Convert it: iconv -f UTF-16 -t UTF-8 FILE > NEW"
        )


def _invalid(source: Source, error: UnicodeDecodeError, offset: int, lines: int) -> FileError:
    line = lines + error.object[: error.start].count(b"\n")
    return FileError(
        f"{source.name} is not UTF-8: byte {offset + error.start} (line {line}) is 0x{error.object[error.start]:02x}, "
        f"{error.reason}. "
        "Pass --data.errors replace to read such bytes as U+FFFD, or --data.vocabulary byte to read bytes as they are."
    )
