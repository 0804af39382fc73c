"""Names that users give: of files, of columns, of classes. One or several, none twice, none that only looks another."""

from __future__ import annotations

import os
from collections.abc import Iterable

from elman.errors import InputError

Names = list[str] | str


def names_of(names: Names | os.PathLike[str]) -> list[str]:
    """One name or several, as a list.

    >>> names_of("a.txt"), names_of(["a.txt", "b.txt"])
    (['a.txt'], ['a.txt', 'b.txt'])
    """
    return [os.fspath(name) for name in ([names] if isinstance(names, str | os.PathLike) else names)]


def file_list(files: Names) -> str:
    """The names of files, the first few of many.

    >>> file_list(["a", "b", "c", "d"])
    'a, b, c and 1 more'
    """
    names = names_of(files)
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def refuse_twice(columns: Iterable[str], where: str) -> None:
    """Raise an InputError at a column that is named twice; spreadsheets leave several without a name, which may be.

    >>> refuse_twice(["ds", "y", "", ""], "series.csv")
    """
    seen: set[str] = set()
    for name in columns:
        if name in seen:
            raise InputError(f"{where} has the column {name!r} twice; leave one out, or give it another name")
        seen |= {name} - {""}


def refuse_alike(names: Iterable[str], what: str) -> None:
    """Raise an InputError at two names that differ in the spaces around them alone: one class, spelt in two ways.

    >>> refuse_alike(["pos", "neg"], "labels")
    """
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(name.strip(), name)
        if other != name:
            raise InputError(
                f"the {what} {other!r} and {name!r} differ only in spaces, but would be two classes; write both alike"
            )
