"""Markdown that the generated pages are made of."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; a cell may hold Markdown, but no new line and no bar outside of code."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def code(text: object) -> str:
    """Text in a line as code; nothing for nothing."""
    return f"`` {text} ``" if "`" in str(text) else f"`{text}`" if str(text) else ""


def escape(text: str) -> str:
    """Plain text of a docstring, in which only what is between backticks is marked up."""
    parts = re.split(r"(``.+?``|`[^`]+`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([*_<\[\]|\\])", r"\\\1", part) for part in parts)


def docstring(text: str) -> str:
    """A docstring: paragraphs, examples that begin with >>>, and `Args:` as a list."""
    paragraphs = re.split(r"\n\s*\n", inspect.cleandoc(text))
    return "\n\n".join(_paragraph(paragraph) for paragraph in paragraphs) + "\n"


def summary(text: str) -> str:
    """The first sentence of a docstring."""
    first = " ".join(inspect.cleandoc(text).split("\n\n")[0].split())
    return re.split(r"(?<=[a-z)`\]'])[.:] (?=[A-Z`])", first)[0].rstrip(".")


def _paragraph(text: str) -> str:
    if text.lstrip().startswith(">>>"):
        return f"```pycon\n{inspect.cleandoc(text)}\n```"
    if text.startswith("Args:"):
        arguments = re.findall(r"^    (\w+): (.*(?:\n {5,}.*)*)", text, re.MULTILINE)
        return "\n".join(f"- `{name}`: {escape(' '.join(what.split()))}" for name, what in arguments)
    if text.startswith("    "):  # an equation or a drawing
        return text
    before, example, after = text.partition("\n>>>")  # an example that follows without an empty line
    return escape(before) + (f"\n\n```pycon\n>>>{after}\n```" if example else "")
