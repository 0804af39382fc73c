"""The drawing of the house: which package imports which, as a table of squares under the diagonal."""

from __future__ import annotations

import ast
import html
import re
from pathlib import Path

from md import summary

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "elman"
ROW, FIRST, TEXT, WORDS = 16, 92, 8, 250  # a row's height, where squares begin, from a square to the words, their room


def drawing() -> str:
    """One line for each package in the order of the layout, and a square under each package that it imports."""
    names = [name for name in layout() if name not in ("_native", "__main__")]
    width, height = FIRST + ROW * len(names) + WORDS, ROW * (len(names) + 1)
    rows = "".join(_row(names, i) for i in range(len(names)))
    title = "Which package imports which"
    return f'<div class="house"><svg viewBox="0 0 {width} {height}" role="img" aria-label="{title}">{rows}</svg></div>'


def layout() -> list[str]:
    """The packages from the first to the last, as the test of the architecture has them."""
    text = (ROOT / "tests" / "test_architecture.py").read_text()
    found = re.search(r"^LAYOUT = (\[.*?\])", text, re.MULTILINE | re.DOTALL)
    assert found
    return list(ast.literal_eval(found[1]))


def _row(names: list[str], i: int) -> str:
    y, imported = ROW * i, _imports(names[i])
    kinds = ["uses" if name in imported else "free" for name in names[:i]]
    squares = "".join(
        f'<rect x="{FIRST + ROW * j + 2}" y="{y + 2}" width="{ROW - 4}" height="{ROW - 4}" rx="3" class="{kind}">'
        f"<title>{names[i]} {'imports' if kind == 'uses' else 'does not import'} {names[j]}</title></rect>"
        for j, kind in enumerate(kinds)
    )
    squares += f'<circle cx="{FIRST + ROW * (i + 0.5)}" cy="{y + ROW / 2}" r="4"/>'
    words = html.escape(_about(names[i]))
    return (
        f'<text x="{FIRST - TEXT}" y="{y + 12}" text-anchor="end" class="name">{names[i]}</text>{squares}'
        f'<text x="{FIRST + ROW * (i + 1) + TEXT}" y="{y + 12}">{words}</text>'
    )


def _files(name: str) -> list[Path]:
    return sorted((SOURCE / name).rglob("*.py")) or [SOURCE / f"{name}.py"]


def _imports(name: str) -> set[str]:
    """The packages that one imports anywhere, inside functions and for types too."""
    found = set()
    for path in _files(name):
        for node in ast.walk(ast.parse(path.read_text())):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module == "elman":
                modules = [f"elman.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                modules = [node.module or ""]
            found |= {module.split(".")[1] for module in modules if module.startswith("elman.")}
    return found


def _about(name: str) -> str:
    path = SOURCE / name / "__init__.py"
    text = ast.get_docstring(ast.parse((path if path.exists() else SOURCE / f"{name}.py").read_text())) or ""
    return re.split(r"[,:;](?= )", summary(text).replace("`", ""))[0]
