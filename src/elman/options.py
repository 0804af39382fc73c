"""What settings accept: whole numbers, numbers in a range, names from a list, flags. One check each, one message each.

Every check takes the name of the setting as its user knows it, and returns the value, or raises an InputError that says
what the value is and what is accepted. A numpy number counts as a number; True and False are flags, never numbers.
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real
from pathlib import PurePath
from typing import Any, TypeGuard, TypeVar

from elman.errors import InputError, nearest

T = TypeVar("T")
MOST_THREADS = 256  # OpenMP ends the process, without an exception, where it cannot start as many as were set
# Endings of files that no text has: a reader that trusts one would not find what it says.
NO_TEXT = (
    ".arrow", ".bz2", ".feather", ".gif", ".gz", ".h5", ".hdf5", ".htm", ".html", ".jpeg", ".jpg", ".json", ".mat",
    ".npy", ".npz", ".orc", ".parquet", ".pdf", ".pkl", ".png", ".pt", ".safetensors", ".sqlite", ".svg",
    ".webp", ".xls", ".xlsx", ".xml", ".xz", ".zip", ".zst",
)  # fmt: skip


def whole(name: str, value: object, least: int = 1, most: int | None = None) -> int:
    """`value`, if it is a whole number of at least `least` (and at most `most`).

    >>> whole("layers", 2)
    2
    """
    if isinstance(value, Integral) and not isinstance(value, bool):
        result = int(value)
        if result >= least and (most is None or result <= most):
            return result
    upper = "" if most is None else f" and at most {most}"
    raise InputError(f"{name} is {value!r}; it must be a whole number of at least {least}{upper}")


def whole_or_auto(name: str, value: object) -> int | None:
    """`value`, if it is a whole number of at least 1; None if it is 'auto'.

    >>> whole_or_auto("every", "auto"), whole_or_auto("every", 8)
    (None, 8)
    """
    if value == "auto":
        return None
    try:
        return whole(name, value)
    except InputError as error:
        raise InputError(f"{error}, or 'auto'") from None


def number(name: str, value: object, low: float, high: float | None = None) -> float:
    """`value`, if it is a number in [low, high]; without `high`, any number of at least `low` that is not infinite.

    >>> number("dale", 0.8, 0, 1)
    0.8
    """
    most = math.nextafter(math.inf, 0) if high is None else high
    if _is_number(value) and low <= float(value) <= most:
        return float(value)
    accepted = f"number of at least {low:g}" if high is None else f"number from {low:g} to {high:g}"
    raise InputError(f"{name} is {value!r}; it must be a {accepted}")


def positive(name: str, value: object) -> float:
    """`value`, if it is a number above 0 that is not infinite.

    >>> positive("temperature", 0.8)
    0.8
    """
    if _is_number(value) and 0 < float(value) < math.inf:
        return float(value)
    raise InputError(f"{name} is {value!r}; it must be a number above 0")


def fraction(name: str, value: object) -> float:
    """`value`, if it is a number of at least 0 and below 1, such as a dropout or a momentum.

    >>> fraction("dropout", 0.5)
    0.5
    """
    if _is_number(value) and 0 <= float(value) < 1:
        return float(value)
    raise InputError(f"{name} is {value!r}; it must be a number of at least 0 and below 1")


def choice(name: str, value: object, accepted: Iterable[str]) -> str:
    """`value`, if it is one of the names that the setting `name` accepts.

    >>> choice("phi", "tanh", ("tanh", "relu"))
    'tanh'
    """
    names = tuple(accepted)
    if isinstance(value, str) and value in names:
        return value
    raise InputError(f"{name} is {value!r}; it must be one of {', '.join(map(repr, names))}")


def ending(name: str, path: str, accepted: Sequence[str]) -> str:
    """The ending of the file `path`, if `name` can be written as what it says.

    >>> ending("plot", "fan.SVG", (".png", ".svg"))
    '.svg'
    """
    found = PurePath(path).suffix.lower()
    if found in accepted:
        return found
    raise InputError(f"{name} is {path!r}; it must be a file that ends with {' or '.join(accepted)}")


def text_ending(name: str, path: str) -> None:
    """Raise an InputError if the ending of the file `path` is that of another format than lines of text.

    >>> text_ending("out", "states.csv")
    """
    found = PurePath(path).suffix.lower()
    if found in NO_TEXT:
        raise InputError(
            f"{name} is {path!r}, but lines of text are written, not {found}; choose another ending, such as .csv or "
            ".txt"
        )


def flag(name: str, value: object) -> bool:
    """`value`, if it is True or False: a string such as 'no' would count as true.

    >>> flag("peephole", True)
    True
    """
    if isinstance(value, bool):
        return value
    raise InputError(f"{name} is {value!r}; it must be True or False")


def several(name: str, values: Iterable[T], what: str) -> list[T]:
    """`values` as a list. One string would be read letter by letter, a frame or a mapping as the names of its columns,
    a set in any order: they are refused.

    >>> several("texts", ("a text", "another"), "texts")
    ['a text', 'another']
    """
    kind = type(values).__name__
    if isinstance(values, str | bytes):
        raise InputError(f"{name} is a string, {values[:40]!r}; it must be a list of {what}")
    if isinstance(values, Mapping) or hasattr(values, "columns"):
        raise InputError(
            f"{name} is a {kind}, which would be read as the names of its columns; it must be a list of {what}, such "
            "as one of the columns"
        )
    if isinstance(values, set | frozenset):
        raise InputError(f"{name} is a {kind}, which has no order; it must be a list of {what}")
    try:
        return list(values)
    except TypeError:
        raise InputError(f"{name} is a {kind}; it must be a list of {what}") from None


def a_text(name: str, value: object) -> str:
    """`value`, if it is a string.

    >>> a_text("prompt", "Once")
    'Once'
    """
    if isinstance(value, str):
        return value
    raise InputError(f"{name} is a {type(value).__name__}; it must be a string")


def _is_number(value: object) -> TypeGuard[Real]:
    return isinstance(value, Real) and not isinstance(value, bool)


def refuse_unknown(name: str, made: type, options: Iterable[str], others: Sequence[str] = ()) -> None:
    """Raise an InputError for the first option that the cell `name` of class `made` does not have, with the nearest of
    its options or of `others`."""
    parameters = inspect.signature(made).parameters
    known = [option for option in parameters if option not in ("input_size", "size")]
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return  # a class of a user may accept anything
    for option in options:
        if option not in known:
            hint = nearest(option, [*known, *others])
            raise InputError(f"{name} has no option {option!r}; it has {', '.join(known) or 'none'}.{hint}")


def parse_json(text: str | bytes) -> Any:
    """JSON from outside, parsed; a ValueError if it is not JSON, or nested too deeply to be read.

    >>> try:
    ...     parse_json("[" * 100_000)
    ... except ValueError as error:
    ...     print(error)
    it is nested too deeply
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
