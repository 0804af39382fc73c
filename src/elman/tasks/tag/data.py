"""Sentences with a tag for each word: CoNLL columns, CoNLL-U, JSON lines; and plain text, one sentence a line.

Columns stand between spaces or tabs, an empty line between sentences. They are chosen by number, from 0, or from the
end as -1; or by name, where a line `# global.columns = FORM UPOS` names them. In CoNLL-U the lines of multi-word tokens
(1-2) and of empty nodes (1.1) repeat or add to the words, and are left out.

The format auto goes by the name of a file and, where that says nothing, by what is in it (`_guess`).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from types import UnionType
from typing import NamedTuple

from elman import progress
from elman.data.text import open_text
from elman.errors import InputError
from elman.options import choice, parse_json
from elman.tasks.tag import schemes

FORMATS = ("auto", "columns", "conllu", "jsonl", "text")
CONLLU = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
Column = int | str


class Sentence(NamedTuple):
    """Words, their tags if there are any, further columns, the lines they came from, where that was, its number.

    In CoNLL-U `places` has the line of each word, and `column` where its tag stands; elsewhere every line is a word.
    """

    words: Sequence[str]
    tags: Sequence[str] = ()
    features: Sequence[Sequence[str]] = ()  # a column each
    lines: Sequence[str] = ()
    where: str = ""
    number: int = 0
    places: Sequence[int] = ()
    column: int | None = None


@dataclass(frozen=True)
class TagReader:
    """How sentences are read.

    Args:
        format: one of FORMATS
        word: the column of words
        tag: the column of tags
        features: further columns that a model reads
        errors: invalid UTF-8, strict or replace
    """

    format: str = "auto"
    word: Column = 0
    tag: Column = -1
    features: list[Column] = field(default_factory=list)
    errors: str = "strict"

    def __call__(self, names: Sequence[str], *, tagged: bool = True, known: Collection[str] = ()) -> list[Sentence]:
        """The sentences of some files; `tagged` says whether each word must have a tag.

        What has no tags may be plain text. The types of tags that are `known` tell columns from it.
        """
        choice("data.format", self.format, FORMATS)
        choice("data.errors", self.errors, ("strict", "replace"))
        found: list[Sentence] = []
        for name, lines in _files(names, self.errors):
            format = self.format if self.format != "auto" else _guess(self, name, lines, tagged, known)
            if format == "text" and tagged:
                raise InputError(f"{name} is read as plain text, which has no tags; use columns, conllu or jsonl")
            if format != "jsonl" and self.features and format == "text":
                raise InputError(f"{name} is plain text; this model reads the columns {self.features} too")
            found.extend(READERS[format](self, name, lines, tagged))
        if not found:
            raise InputError(f"there is no sentence in {', '.join(names)}: the file is empty")
        return [sentence._replace(number=i) for i, sentence in enumerate(found)]


def fingerprint(sentences: Sequence[Sentence]) -> str:
    """sha256 of words, tags and features, in order."""
    total = hashlib.sha256()
    for sentence in sentences:
        content = [list(sentence.words), list(sentence.tags), [list(column) for column in sentence.features]]
        total.update(json.dumps(content).encode())
    return total.hexdigest()


def _files(names: Sequence[str], errors: str) -> Iterator[tuple[str, list[str]]]:
    text = open_text(names, errors)
    for number, pieces in groupby(text.pieces(), lambda piece: piece[0]):
        whole = "".join(piece for _, piece in pieces).removeprefix("\ufeff")
        # Only what ends a line in such files: other breaks, as U+2028, may stand in a word.
        yield text.sources[number].name, whole.replace("\r\n", "\n").split("\n")


def _guess(reader: TagReader, name: str, lines: Sequence[str], tagged: bool, known: Collection[str]) -> str:
    """The format of a file, by its name or by its content; an InputError where it may be two things."""
    endings = {".conllu": "conllu", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl"}
    suffix = Path(name.removesuffix(".gz")).suffix.lower()
    if suffix in endings:
        return endings[suffix]
    if is_conllu(lines):
        return "conllu"
    first = next((line for line in lines if line.strip()), "")
    if first.startswith("{") and '"tokens"' in first:
        return "jsonl"
    if tagged or reader.features or _global_columns(lines):
        return "columns"
    return _columns_or_text(name, lines, known)


def is_conllu(lines: Iterable[str]) -> bool:
    """Whether the first line that is not a comment is the first of a sentence in CoNLL-U.

    >>> row = "1 He he PRON _ Case=Nom 2 nsubj _ _".replace(" ", chr(9))
    >>> is_conllu(["# text = He ran", row]), is_conllu(["He PRP B-NP"])
    (True, False)
    """
    cells = next((line for line in lines if line.strip() and not line.startswith("#")), "").split("\t")
    return (
        len(cells) == len(CONLLU)
        and re.fullmatch(r"1|1-\d+|0\.1", cells[0]) is not None
        and (cells[5] == "_" or "=" in cells[5])  # feats
        and (cells[6] == "_" or cells[6].isdecimal())  # head
        and (cells[8] == "_" or ":" in cells[8])  # deps
    )


def _columns_or_text(name: str, lines: Sequence[str], known: Collection[str]) -> str:
    """columns, one word a line, or text, one sentence a line, of a file without tags, or with tags that are known."""
    blocks = [[line.split() for _, line in block] for block in _blocks(lines)]
    rows = [cells for block in blocks for cells in block]
    widths = {len(cells) for cells in rows}
    tagged = sum((schemes.parts(cells[-1])[1] or cells[-1]) in known for cells in rows)
    if widths <= {1} or any("\t" in line for line in lines) or 2 * tagged > len(rows):
        return "columns"
    if len(widths) > 1 or all(len(block) == 1 for block in blocks):
        progress.say(f"{name} is read as plain text, one sentence a line; --format columns reads one word a line")
        return "text"
    raise InputError(
        f"{name} may be plain text, one sentence a line, or columns, one word a line, for each line has "
        f"{widths.pop()} words: say which by --format text or --format columns"
    )


def _blocks(lines: Sequence[str]) -> Iterator[list[tuple[int, str]]]:
    """The numbered lines between empty ones."""
    numbered = ((i, line) for i, line in enumerate(lines, 1))
    for empty, group in groupby(numbered, lambda pair: not pair[1].strip()):
        if not empty:
            yield list(group)


def _columns(reader: TagReader, name: str, lines: Sequence[str], tagged: bool) -> Iterator[Sentence]:
    names, width = _global_columns(lines), 0
    for block in _blocks(lines):
        rows, kept = [], []
        for number, line in block:
            if line.startswith("# ") and (names or "=" in line):
                continue  # a comment, as CoNLL-U Plus has them
            cells = line.split("\t") if "\t" in line else line.split()
            width = width or len(cells)
            if len(cells) != width:
                raise InputError(f"line {number} of {name} has {len(cells)} columns; those before it have {width}")
            rows.append(cells)
            kept.append(line)
        if rows:
            yield _sentence(reader, rows, kept, names, f"line {block[0][0]} of {name}", tagged)


def _global_columns(lines: Sequence[str]) -> list[str]:
    first = next((line for line in lines if line.strip()), "")
    _, mark, rest = first.partition("global.columns =")
    return rest.lower().split() if mark and first.startswith("#") else []


def _conllu(reader: TagReader, name: str, lines: Sequence[str], tagged: bool) -> Iterator[Sentence]:
    # The first and the last column mean the word and the tag in CoNLL columns; here they are the id and anything.
    word, tag = ("form" if reader.word == 0 else reader.word), ("upos" if reader.tag == -1 else reader.tag)
    own = TagReader("conllu", word, tag, reader.features, reader.errors)
    for block in _blocks(lines):
        rows, places = [], []
        for place, (number, line) in enumerate(block):
            if line.startswith("#"):
                continue
            cells = line.split("\t")
            if len(cells) != len(CONLLU):
                raise InputError(
                    f"line {number} of {name} has {len(cells)} columns; CoNLL-U has {len(CONLLU)}. "
                    "If it is something else, say what: --format columns, jsonl or text"
                )
            if cells[0].isdecimal():
                rows.append(cells)
                places.append(place)
        if rows:
            where = f"line {block[0][0]} of {name}"
            sentence = _sentence(own, rows, [line for _, line in block], CONLLU, where, tagged)
            yield sentence._replace(places=places, column=_place(tag, len(CONLLU), CONLLU, where))


def _sentence(
    reader: TagReader, rows: list[list[str]], lines: list[str], names: Sequence[str], where: str, tagged: bool
) -> Sentence:
    width = len(rows[0])
    if tagged and width < 2:
        raise InputError(f"{where} has one column; there must be words and tags")
    word, *features = (_place(column, width, names, where) for column in (reader.word, *reader.features))
    tags = [row[_place(reader.tag, width, names, where)] for row in rows] if tagged else []
    columns = [[row[place] for row in rows] for place in features]
    return Sentence([row[word] for row in rows], tags, columns, lines, where)


def _place(column: Column, width: int, names: Sequence[str], where: str) -> int:
    if isinstance(column, str) and not column.lstrip("-").isdecimal():
        if column.lower() not in names:
            known = ", ".join(names) or f"0 to {width - 1}; no line # global.columns = ... names them"
            raise InputError(f"{where} has no column {column!r}; there are {known}")
        return list(names).index(column.lower())
    place = int(column)
    if not -width <= place < width:
        raise InputError(f"{where} has {width} columns; there is no number {place} (they count from 0)")
    return place % width


def _json_lines(reader: TagReader, name: str, lines: Sequence[str], tagged: bool) -> Iterator[Sentence]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"line {number} of {name}"
        try:
            content = parse_json(line)
            given = content["tokens"], content["tags"] if tagged else []
            columns = {str(column): content[str(column)] for column in reader.features}
        except (ValueError, LookupError, TypeError) as error:
            wanted = "tokens and tags" if tagged else "tokens"
            raise InputError(f"{where} is not JSON with the lists {wanted}: {error!r}") from error
        words, tags = (_listed(texts, field, where) for texts, field in zip(given, ("tokens", "tags"), strict=True))
        features = [_listed(values, field, where, str | int | float) for field, values in columns.items()]
        for other in (tags, *features):
            if len(other) != len(words) and (tagged or other is not tags):
                raise InputError(
                    f"{where} has {len(words)} tokens and {len(other)} of another list; each needs its own"
                )
        yield Sentence(words, tags, features, (), where)


def _listed(given: object, field: str, where: str, accepted: type | UnionType = str) -> list[str]:
    """The texts of a list; one text alone would be read letter by letter."""
    if not isinstance(given, list) or not all(isinstance(value, accepted) for value in given):
        raise InputError(f"{where} has {str(given)[:60]!r} in its field {field!r}, which is not a list of texts")
    return [str(value) for value in given]


def _text(reader: TagReader, name: str, lines: Sequence[str], tagged: bool) -> Iterator[Sentence]:
    for number, line in enumerate(lines, 1):
        if words := line.split():
            yield Sentence(words, (), (), words, f"line {number} of {name}")


READERS: dict[str, Callable[[TagReader, str, Sequence[str], bool], Iterator[Sentence]]] = {
    "columns": _columns, "conllu": _conllu, "jsonl": _json_lines, "text": _text,
}  # fmt: skip
