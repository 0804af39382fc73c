"""A table to read: what a model says about itself, and what verbs print."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Table(NamedTuple):
    """A title, names of columns, and rows of text.

    >>> print("\\n".join(Table("a title", ["cell", "law 1"], [["lstm", "ok"]]).lines()))
    a title
      cell  law 1
      lstm  ok
    """

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def lines(self) -> list[str]:
        """The table as aligned lines."""
        every = [list(self.header), *(list(row) for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*every, strict=True)]
        return [self.title, *("  " + "  ".join(map(str.ljust, line, widths)).rstrip() for line in every)]
