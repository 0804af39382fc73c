"""Build the site from docs/: python docs/site/build.py [FOLDER]; FOLDER/index.html is its first page.

FOLDER (build/site by default) has the pages and nothing else. They are built in a temporary folder, a project of
zensical: a copy of docs/ and mkdocs.yml, in which the reference is filled in and links that leave docs/ are replaced. A
warning is an error.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import api
import house
import reference

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
# What a page of docs/ has in place of what is generated.
MARKS = {
    "<!-- site: api -->": api.index,
    "<!-- site: cells -->": reference.cells,
    "<!-- site: commands -->": reference.commands,
    "<!-- site: config -->": reference.config,
    "<!-- site: server -->": reference.server,
    "<!-- site: house -->": house.drawing,
}
# Files outside docs/ that are pages of the site, and the page that each is.
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing/guide.md",
    "CHANGELOG.md": "contributing/changelog.md",
}


def build(folder: Path) -> None:
    """Build the site; `folder` is replaced by its pages."""
    with tempfile.TemporaryDirectory() as project:
        shutil.copy(ROOT / "mkdocs.yml", project)
        collect(Path(project) / "docs")
        subprocess.run([sys.executable, "-m", "zensical", "build", "--clean", "--strict"], cwd=project, check=True)
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(Path(project) / "site", folder)


def collect(out: Path) -> None:
    """Write all pages of the site, in Markdown, and what they show to `out`."""
    shutil.copytree(DOCS, out, ignore=shutil.ignore_patterns("*.py", "__pycache__", "site"))
    shutil.copytree(DOCS / "site" / "assets", out / "assets")
    for path in out.rglob("*.md"):
        path.write_text(_fill(relink(path.read_text(), DOCS / path.relative_to(out), out)))
    first = out / "index.md"
    first.write_text("---\nhide: [navigation, toc]\n---\n\n" + first.read_text())
    for name in ("CONTRIBUTING.md", "CHANGELOG.md"):
        _write(out / PAGES[name], relink((ROOT / name).read_text(), ROOT / name, out))
    for name, text in api.pages().items():
        _write(out / "reference" / "api" / f"{name}.md", text)


def relink(text: str, source: Path, out: Path) -> str:
    """The text of a page with links to files outside docs/ replaced: to the page that it is here, or to a copy."""
    page = DOCS / PAGES.get(source.name, "") if source.parent == ROOT else source

    def link(match: re.Match[str]) -> str:
        target, hash_, heading = match[1].partition("#")
        goal = (source.parent / target).resolve()
        if "://" in target or not target or (goal.is_relative_to(DOCS) and source.is_relative_to(DOCS)):
            return match[0]
        if goal.is_relative_to(DOCS):
            there = goal
        elif goal.parent == ROOT and goal.name in PAGES:
            there = DOCS / PAGES[goal.name]
        else:
            name = goal.relative_to(ROOT)
            there = DOCS / "files" / name
            (out / "files" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(goal, out / "files" / name)
        return f"]({os.path.relpath(there, page.parent)}{hash_}{heading})"

    return re.sub(r"\]\(([^)\s]+)\)", link, text)


def _fill(text: str) -> str:
    """Generated parts in place of their marks; blocks of commands marked as such, so that comments stand out."""
    commands = r"^```\n(?=(?:elman|make|python|pip|git|curl|torchrun|apt-get) )"
    text = re.sub(commands, "```sh\n", text, flags=re.MULTILINE)
    for mark, generate in MARKS.items():
        if mark in text:
            text = text.replace(mark, generate())
    return text


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


if __name__ == "__main__":
    where = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build" / "site")
    build(where)
    print(f"The site is in {where}. Open {where / 'index.html'}.")
