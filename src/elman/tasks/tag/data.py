"""Sentences with a tag for each word: CoNLL columns, CoNLL-U, JSON lines; and plain text, one sentence a line.

Columns are separated by spaces or tabs, sentences by an empty line. They are chosen by number, from 0, or from the
end as -1; or by name, where a line `# global.columns = FORM UPOS` names them. In CoNLL-U the lines of multi-word tokens
(1-2) and of empty nodes (1.1) repeat or add to the words, and are left out.

The format auto goes by the name of a file and, where that says nothing, by what is in it (`_guess`).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any, NamedTuple

from elman import progress
from elman.data import splits
from elman.data.records import json_fields, texts_field
from elman.data.tables import ABSENT, texts_of, values_of
from elman.data.text import at_least_one, read_lines
from elman.errors import InputError
from elman.options import choice
from elman.tasks.tag import schemes

FORMATS = ("auto", "columns", "conllu", "jsonl", "text")
CONLLU = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
SENTENCE = "sentence"  # the column of a frame that says which sentence a word is of
WORDS = ("tokens", "words", "token", "word", "form")  # usual names of columns of a frame
TAGS = ("tags", "tag", "labels", "label")
Column = int | str


class Sentence(NamedTuple):
    """Words, their tags if there are any, further columns, the lines they came from, where that was, its number.

    In CoNLL-U `places` has the line of each word, and `column` where its tag is; elsewhere every line is a word.
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
    """How sentences are read, as the data section of a config says it (`TagDataConfig`)."""

    format: str = "auto"
    word: Column = 0
    tag: Column = -1
    features: tuple[Column, ...] = ()
    errors: str = "strict"

    def __call__(self, names: Sequence[str], *, tagged: bool = True, known: Collection[str] = ()) -> list[Sentence]:
        """The sentences of some files; `tagged` says whether each word must have a tag.

        What has no tags may be plain text. The types of tags that are `known` tell columns from it.
        """
        choice("data.format", self.format, FORMATS)
        sentences: list[Sentence] = []
        for name, lines in read_lines(names, self.errors):
            format = self.format if self.format != "auto" else _guess(self, name, lines, tagged, known)
            if format == "text" and tagged:
                raise InputError(f"{name} is read as plain text, which has no tags; use columns, conllu or jsonl")
            if format != "jsonl" and self.features and format == "text":
                raise InputError(f"{name} is plain text; this model reads the columns {[*self.features]} too")
            sentences.extend(READERS[format](self, name, lines, tagged))
        return [row._replace(number=i) for i, row in enumerate(at_least_one(sentences, names, "sentence"))]

    def frame(self, frame: object, *, tagged: bool = True) -> list[Sentence]:
        """The sentences of a frame of pandas or polars: a row for each, with lists in its cells; or a row for each
        word, and then a column `sentence` or rows without a word say where one ends.

        Where data.word and data.tag name no columns, those are taken that have one of WORDS and one of TAGS for a name,
        and else, of two columns, the first and the last.
        """
        columns = values_of(frame)
        ends = columns.pop(SENTENCE, None)
        names = [name.lower() for name in columns]
        own = _columns_by_name(self, names)
        wanted = [own.word, *([own.tag] if tagged else []), *own.features]
        places = [_place(column, len(names), names, "the frame") for column in wanted]
        if tagged and places[0] == places[1]:
            raise InputError(f"the frame has one column, {', '.join(columns)}; there must be words and tags")
        lists = [[*columns.values()][place] for place in places]
        given = next((cell for cell in lists[0] if not _is_absent(cell)), "")
        if isinstance(given, str):
            rows = _cut(ends, [texts_of(cells) for cells in lists])
        else:
            rows = [[_texts_in(cell, i) for cell in cells] for i, cells in enumerate(zip(*lists, strict=True))]
        found = [_frame_sentence(row, tagged, i) for i, row in enumerate(rows)]
        return [row._replace(number=i) for i, row in enumerate(at_least_one(found, ["the frame"], "sentence"))]


def fingerprint(sentences: Iterable[Sentence]) -> str:
    """sha256 of words, tags and features, in order."""
    return splits.fingerprint(
        json.dumps([[*row.words], [*row.tags], [[*column] for column in row.features]]).encode() for row in sentences
    )


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
        # Comments are as CoNLL-U Plus has them.
        words = [(number, line) for number, line in block if not (line.startswith("# ") and (names or "=" in line))]
        rows = [line.split("\t") if "\t" in line else line.split() for _, line in words]
        width = width or (len(rows[0]) if rows else 0)
        for (number, _), cells in zip(words, rows, strict=True):
            if len(cells) != width:
                raise InputError(f"line {number} of {name} has {len(cells)} columns; those before it have {width}")
        if rows:
            kept = [line for _, line in words]
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


def _columns_by_name(reader: TagReader, names: Sequence[str]) -> TagReader:
    """The reader of a frame, in which columns have names: where nobody has said which they are, the usual ones."""
    word: Column = next((name for name in WORDS if name in names), 0) if reader.word == 0 else reader.word
    tag: Column = next((name for name in TAGS if name in names), -1) if reader.tag == -1 else reader.tag
    same = len(names) > 1 and (word, tag) == (names[-1], -1)  # the only name that is known stands last
    if same or ((word == 0 or tag == -1) and len(names) > 2 + len(reader.features)):
        raise InputError(
            f"the frame has the columns {', '.join(names)}, and nothing says which are words and tags: call them word "
            "and tag, or name them by data.word and data.tag"
        )
    return replace(reader, word=word, tag=tag)


def _cut(ends: Sequence[object] | None, columns: list[list[str]]) -> list[list[list[str]]]:
    """The columns of each sentence of a frame that has a row for each word."""
    words, blank = columns[0], [not word for word in columns[0]]
    if ends is None and not any(blank):
        raise InputError(
            f"the frame has {len(words)} words, and nothing says where a sentence ends: add a column {SENTENCE!r} that "
            "numbers the sentences, or give a row for each sentence, with lists of its words and of its tags"
        )
    keys = [(None if ends is None else str(ends[i]), sum_) for i, sum_ in enumerate(accumulate(blank))]
    groups = [[i for i in group if not blank[i]] for _, group in groupby(range(len(words)), keys.__getitem__)]
    rows = [group for group in groups if group]
    twice = Counter(str(ends[row[0]]) for row in rows).most_common(1) if ends is not None else []
    if twice and twice[0][1] > 1:
        raise InputError(f"sentence {twice[0][0]} stands in {twice[0][1]} places of the frame; keep its words together")
    return [[[column[i] for i in row] for column in columns] for row in rows]


def _texts_in(cell: Any, number: int) -> list[str]:
    """The texts in a cell that holds a list; those of tags may be numbers."""
    if isinstance(cell, str) or not hasattr(cell, "__iter__"):
        raise InputError(f"row {number} of the frame has {cell!r}, where others have a list; give it one too")
    return texts_of(cell)


def _frame_sentence(columns: Sequence[list[str]], tagged: bool, number: int) -> Sentence:
    words, tags, features = columns[0], columns[1] if tagged else [], columns[2 if tagged else 1 :]
    where = f"sentence {number} of the frame"
    if any(len(column) != len(words) for column in columns):
        raise InputError(f"{where} has lists of {[len(column) for column in columns]} values; each word needs its own")
    if not all(words) or not all(tags):
        raise InputError(f"{where} has a word or a tag that is missing: {' '.join(words)[:60]!r}; correct it")
    return Sentence(words, tags, features, (), where)


def _is_absent(cell: Any) -> bool:
    return not isinstance(cell, list) and str(cell) in ABSENT


def _json_lines(reader: TagReader, name: str, lines: Sequence[str], tagged: bool) -> Iterator[Sentence]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"line {number} of {name}"
        lists, columns = ("tokens", "tags") if tagged else ("tokens",), [str(column) for column in reader.features]
        record = json_fields(line, where, (*lists, *columns))
        words, *tags = (texts_field(record, field, where) for field in lists)
        features = [texts_field(record, field, where, str | int | float) for field in columns]
        other = next((texts for texts in (*tags, *features) if len(texts) != len(words)), None)
        if other is not None:
            raise InputError(f"{where} has {len(words)} tokens and {len(other)} of another list; each needs its own")
        yield Sentence(words, tags[0] if tagged else [], features, (), where)


def _text(reader: TagReader, name: str, lines: Sequence[str], tagged: bool) -> Iterator[Sentence]:
    for number, line in enumerate(lines, 1):
        if words := line.split():
            yield Sentence(words, (), (), words, f"line {number} of {name}")


READERS: dict[str, Callable[[TagReader, str, Sequence[str], bool], Iterator[Sentence]]] = {
    "columns": _columns, "conllu": _conllu, "jsonl": _json_lines, "text": _text,
}  # fmt: skip
