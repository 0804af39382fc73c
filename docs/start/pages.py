"""Run the pages of this folder as a reader would: `python docs/start/pages.py [--write] [PAGE ...]`.

The blocks of a page run in order in an empty folder: `python` in one session, each line of `sh` as a command. A `text`
block under one of them is what it printed, but for progress, threads and the table of settings. `![](PAGE/FILE.png)` is
a picture that the page made, as FILE.png in any folder. With --write outputs and pictures are put into the page;
without, they are compared: words must be the same, numbers nearly so, for instruction sets round differently. A `text`
block under the comment `<!-- drawn -->` is a random sample, and is not compared.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
BLOCK = re.compile(r"^```(python|sh|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PICTURE = re.compile(r"!\[[^\]]*\]\(([\w-]+/[\w.-]+)\)")
NUMBER = re.compile(r"-?\d[\d,]*\.?\d*(?:e-?\d+)?")
LEFT_OUT = re.compile(r"^(.*(\d/s|left|gain .*)|start \d of \d|computing: .*)\n|^the model\n(  .*\n)*", re.MULTILINE)


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def run_block(kind: str, code: str, names: dict[str, object]) -> str:
    """What the block prints, on either stream."""
    from elman.cli import main

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        if kind == "python":
            exec(compile(code, "a page", "exec"), names)
        else:
            for line in code.replace("\\\n", " ").splitlines():
                program, *arguments = shlex.split(line, comments=True)
                if program != "elman" or main(arguments) != 0:
                    raise RuntimeError(f"{line} failed: {printed.getvalue()}")
    return LEFT_OUT.sub("", "".join(f"{line.rstrip()}\n" for line in printed.getvalue().splitlines()))


def execute(page: Path, folder: Path) -> str:
    """The page with the outputs that it has when it is run in `folder`; what it makes is left there."""
    names: dict[str, object] = {"__name__": "__main__"}
    printed = ""

    def replace(match: re.Match[str]) -> str:
        nonlocal printed
        kind, code = match.groups()
        if kind == "text":
            return f"```text\n{printed}```"
        printed = run_block(kind, code, names)
        return match.group()

    with inside(folder):
        return BLOCK.sub(replace, page.read_text())


def pictures(page: Path) -> list[str]:
    """The pictures that a page shows, as paths from this folder."""
    return PICTURE.findall(page.read_text())


def find_picture(picture: str, folder: Path) -> Path:
    """The file of that name that a page left in `folder`."""
    return next(folder.rglob(Path(picture).name))


def compared(text: str) -> list[str]:
    """The outputs of a page that have to be the same each time."""
    blocks = BLOCK.finditer(text)
    return [m.group(2) for m in blocks if m.group(1) == "text" and not text[: m.start()].endswith("<!-- drawn -->\n")]


def alike(shown: str, printed: str) -> bool:
    """The same words, and numbers within a tenth or 0.05 of each other."""

    def value(number: str) -> float:
        return float(number.replace(",", ""))

    if NUMBER.sub("#", shown).split() != NUMBER.sub("#", printed).split():
        return False
    pairs = zip(map(value, NUMBER.findall(shown)), map(value, NUMBER.findall(printed)), strict=True)
    return all(abs(a - b) <= max(0.05, 0.1 * abs(a)) for a, b in pairs)


def all_pages() -> list[Path]:
    return sorted(path for path in HERE.glob("*.md") if BLOCK.search(path.read_text()))


def main() -> None:
    parser = argparse.ArgumentParser(description="Run the pages of docs/start.")
    parser.add_argument("pages", nargs="*", type=Path, default=all_pages())
    parser.add_argument("--write", action="store_true", help="put outputs and pictures into the pages")
    options = parser.parse_args()
    for page in options.pages:
        with tempfile.TemporaryDirectory() as name:
            text = execute(page.resolve(), Path(name))
            if options.write:
                page.write_text(text)
                for picture in pictures(page):
                    (HERE / picture).parent.mkdir(exist_ok=True)
                    shutil.copy(find_picture(picture, Path(name)), HERE / picture)
            same = all(map(alike, compared(page.read_text()), compared(text)))
        print(f"{page.name}: {'as shown' if same else 'prints something else'}")


if __name__ == "__main__":
    main()
