"""A table to read: what a model says about itself, and what verbs print; and the HTML that a notebook shows.

HTML has no colours but shades of the text's, so it is readable in light and dark themes. All text is escaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

MOST_ROWS, LONGEST_CELL = 60, 200  # that a notebook shows


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

    def _repr_html_(self) -> str:
        rows = [_row("th", self.header), *(_row("td", row) for row in self.rows[:MOST_ROWS])]
        left = len(self.rows) - MOST_ROWS
        more = paragraph(f"and {left} more rows") if left > 0 else ""
        return f"<div><b>{cut(self.title)}</b><table>{''.join(rows)}</table>{more}</div>"


def _row(kind: str, cells: Sequence[str]) -> str:
    every = "".join(f"<{kind} style='text-align: left'>{cut(cell)}</{kind}>" for cell in cells)
    return f"<tr>{every}</tr>"


def cut(text: str, most: int = LONGEST_CELL) -> str:
    """A text in HTML, of so many characters at most.

    >>> cut("<b>" + "a" * 9, 5)
    '&lt;b&gt;a…'
    """
    return escape(text if len(text) <= most else text[: most - 1] + "…")


def paragraph(text: str) -> str:
    """A paragraph in HTML."""
    return f"<p>{cut(text, 2000)}</p>"


def drawing(width: float, height: float, shapes: Sequence[str]) -> str:
    """A picture in HTML: shapes of SVG, in the colour of the text."""
    inside = "".join(shapes)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" viewBox="0 0 {width:g} '
        f'{height:g}" style="max-width: 100%; height: auto" font-family="sans-serif" font-size="11" '
        f'fill="currentColor" stroke="none">{inside}</svg>'
    )


def caption(x: float, y: float, text: str, anchor: str = "middle", most: int = 40) -> str:
    """A text in a drawing."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{cut(text, most)}</text>'
