"""A request is the one description of what a verb takes.

The flags of the command and their help, the keywords in Python, and the body over HTTP with its schema and its limits
are all made from it. An option is one line:

    num_beams: int = option(1, "beams of the search", least=1, limit="beams")
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, NamedTuple, Union, cast, get_args, get_origin, get_type_hints

from elman.data.text import Document
from elman.errors import InputError
from elman.options import a_text, choice, ending, flag, number, several, whole

LOWEST = -(2**63)


class Files(tuple[str, ...]):
    """Names of files, as a command names them: they are read as the model reads files."""


Default = Any  # the default of a field, or the field itself: a checker takes its type from the annotation
Rows = Any  # Files; a Document, which is a text; or rows, as a request says what they are


@dataclass(frozen=True)
class Option:
    """What an option has in addition to its name, type and default.

    Args:
        help: what it is for
        least: the smallest value
        most: the largest value
        choices: the words that it may be
        endings: it names a file to write, and these are the endings that it may have
        limit: the limit of a server that a value must not pass, by its name there
        local: it names files of the machine that computes, so it is not for others: there is none over HTTP
        inside: it is for code alone, and has no flag; a server gives it the value of its limit
        also: another name of its flag
        metavar: the name of its value in help
        group: the group of flags that it belongs to
        together: one flag takes several values; else a flag may be given several times
    """

    help: str
    least: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()
    endings: tuple[str, ...] = ()
    limit: str = ""
    local: bool = False
    inside: bool = False
    also: str = ""
    metavar: str | None = None
    group: str = ""
    together: bool = False


@dataclass(frozen=True)
class DataOption:
    """What is known of the data: what they are for, how many names there are at least, and what a row is in JSON."""

    help: str
    least: int = 1
    rows: Any = None  # the type of the rows; None where only files are read
    metavar: str = "DATA"


class Named(NamedTuple):
    """An option of a request, with its name, its type (without None), whether it may be None, and its default."""

    name: str
    kind: Any
    optional: bool
    default: Default
    option: Option


def option(default: Default, help: str, **known: Default) -> Default:
    """A field of a request; `known` as `Option` has it."""
    return field(default=default, metadata={"option": Option(help, **known)})


def data_option(help: str, **known: Default) -> Default:
    """The field `data` of a request; `known` as `DataOption` has it."""
    return field(default=(), metadata={"data": DataOption(help, **known)})


def batch_size(default: int, what: str) -> Default:
    """How much is computed side by side."""
    return option(default, f"{what} at a time; does not change the numbers", least=1, limit="batch")


@dataclass(frozen=True)
class Request:
    """What a verb is given. A subclass is a frozen dataclass, whose fields are made by `data_option` and `option`.

    >>> @dataclass(frozen=True)
    ... class Count(Request):
    ...     least: int = option(1, "how many", least=1)
    >>> Count(least=2).least
    2
    >>> Count(least=0)
    Traceback (most recent call last):
    elman.errors.InputError: least is 0; it must be a whole number of at least 1
    """

    @classmethod
    @cache  # to evaluate the annotations takes longer than a short answer
    def options(cls) -> tuple[Named, ...]:
        """Its options, in order."""
        hints, found = get_type_hints(cls), []
        for one in fields(cls):
            if "option" in one.metadata:
                kinds = [kind for kind in _members(hints[one.name]) if kind is not NoneType]
                optional = len(kinds) < len(_members(hints[one.name]))
                found.append(Named(one.name, kinds[0], optional, one.default, one.metadata["option"]))
        return tuple(found)

    @classmethod
    def reads(cls) -> DataOption | None:
        """What it says of its data; None where it has none."""
        return next((one.metadata["data"] for one in fields(cls) if "data" in one.metadata), None)

    def __post_init__(self) -> None:
        for named in self.options():
            value = getattr(self, named.name)
            if get_origin(named.kind) is tuple and value is not None:  # an iterator can be read once
                value = tuple(several(named.name, value, "values"))
                object.__setattr__(self, named.name, value)
            check(named, value)


def _members(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def check(named: Named, value: object) -> None:
    """Raise an InputError for a value that an option does not take."""
    if value is None and named.optional:
        return
    if get_origin(named.kind) is tuple:
        each, values = named._replace(kind=get_args(named.kind)[0], optional=False), cast(Iterable[object], value)
        for one in several(named.name, values, "values"):
            check(each, one)
        return
    name, _, _, _, known = named
    if named.kind is bool:
        flag(name, value)
    elif named.kind is int:
        most = None if known.most is None else int(known.most)
        whole(name, value, LOWEST if known.least is None else int(known.least), most)
    elif named.kind is float:
        number(name, value, -1e308 if known.least is None else known.least, known.most)
    elif named.kind is str:
        text = a_text(name, value)
        if known.choices:
            choice(name, text, known.choices)
        if known.endings:
            ending(name, text, known.endings)


def opened(data: Rows) -> list[str] | None:
    """The names that a reader opens: of files, or of the text that was given itself; None where rows were given."""
    if isinstance(data, Files):
        return list(data)
    if isinstance(data, Path):
        return [str(data)]
    if isinstance(data, str):
        return [data if isinstance(data, Document) else Document(data)]
    return None


def is_absent(data: Rows) -> bool:
    """Whether no data are given at all, which is another thing than data without a row."""
    return isinstance(data, tuple) and not data


def rows_of(data: Rows, what: str) -> list[Any]:
    """Rows that were given, one at least."""
    rows = several("data", data, what)
    if not rows:
        raise InputError(f"data is empty; give {what}")
    return rows


@dataclass(frozen=True)
class TextRequest(Request):
    """A request whose data may be files of text."""

    data: Rows = data_option("files")
    errors: str = option("strict", "invalid UTF-8: strict or replace", also="data.errors", local=True)
