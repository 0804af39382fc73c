"""What the README and the pages say is true: code runs, commands exist, the tables are what the laws say."""

from __future__ import annotations

import doctest
import importlib.util
import io
import json
import math
import re
import shlex
from pathlib import Path
from types import ModuleType

import pytest

from elman import laws
from elman.cells import CELLS
from elman.cli import VERBS, main

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


# Others are run by tests/test_start.py: in a folder of their own, in one session, or as the task that they are.
OWN_FOLDER = {ROOT / "README.md", ROOT / "docs/guides/your-own-task.md", *(ROOT / "docs/start").glob("*.md")}
SCRIPTS = [
    (path, code)
    for path in PAGES
    if path not in OWN_FOLDER
    for code in blocks(path.read_text(), "python")
    if not code.startswith(">>>")
]


@pytest.mark.parametrize(("path", "code"), SCRIPTS, ids=[path.stem for path, _ in SCRIPTS])
def test_code_runs(path: Path, code: str) -> None:
    exec(compile(code, str(path), "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_sessions_run(path: Path) -> None:
    """Examples that start with >>> show what they print; those of a page continue from each other."""
    assert doctest.testfile(str(path), module_relative=False).failed == 0


def commands() -> list[str]:
    """The lines of the block of commands, as they would be pasted."""
    page = (ROOT / "docs" / "reference" / "commands.md").read_text()
    return [line.partition("#")[0].strip() for line in blocks(page, "")[0].splitlines()]


SMALL = [
    "--model.size",
    "8",
    "--training.steps",
    "3",
    "--data.batch_size",
    "2",
    "--data.window",
    "8",
    "--preview.tokens",
    "5",
]


@pytest.mark.slow
def test_the_commands_run_as_pasted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """In order, in one folder. Only the network is made smaller than the default, for time."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ELMAN_CACHE", str(tmp_path / "cache"))
    text = "Once upon a time there was a cat that sat on a mat. " * 40
    for name in ("book.txt", "other.txt"):
        Path(name).write_text(text)
    rows = (f"{math.sin(t) + 5 * (t // 20 % 2):.3f},{math.cos(t):.3f}" for t in range(200))
    Path("readings.csv").write_text("x,y\n" + "\n".join(rows))
    sentence = "He B-NP\nsees B-VP\na B-NP\ncat I-NP"
    for name in ("train.txt", "dev.txt"):
        Path(name).write_text(f"{sentence}\n\n" * 20)
    Path("reviews.tsv").write_text("text\tlabel\n" + "fine film\tgood\ndull film\tbad\n" * 20)
    rows = (f"{name},{t},{t % 5}" for name in "ab" for t in range(40))
    Path("series.csv").write_text("unique_id,ds,y\n" + "\n".join(rows))
    Path("rows.jsonl").write_text("".join(json.dumps({"a": t % 3, "y": t % 3}) + "\n" for t in range(9)))
    for name in ("train.en", "train.de"):
        Path(name).write_text("a cat sat\na mat\n" * 20)
    ran = [command for command in commands() if command != "elman laws lstm gru --json"]  # it has tests of its own
    assert len(ran) > 8
    for command in ran:
        words, _, target = command.partition(" > ")
        words, _, source = words.partition(" < ")
        arguments = shlex.split(words)[1:]
        monkeypatch.setattr("sys.stdin", io.StringIO(Path(source).read_text() if source else ""))
        trains = arguments[0] == "train" and "--task" not in arguments and "--resume" not in arguments
        few = {"tag", "classify", "forecast", "translate"} & set(arguments) or "--training.steps" in arguments
        assert main([*arguments, *(SMALL if trains else ["--training.steps", "5"] if few else [])]) == 0, command
        out = capfd.readouterr().out
        assert out, command
        if target:
            Path(target).write_text(out)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_commands_exist(path: Path) -> None:
    text = path.read_text()
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    code = "\n".join([*blocks(text, ""), *re.findall(r"`([^`\n]+)`", text)])
    assert set(re.findall(r"^make ([a-z]+)", code, flags=re.MULTILINE)) <= set(targets)
    assert set(re.findall(r"^elman ([a-z]+)", code, flags=re.MULTILINE)) <= set(VERBS)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    """Files exist, and a heading of the page has the name after the #."""
    for target, _, heading in (link.partition("#") for link in re.findall(r"\]\(([^)\s]+)\)", path.read_text())):
        if "://" in target:
            continue
        page = path.parent / target if target else path
        assert page.exists(), f"{path.name} links to {target}"
        assert not heading or heading in anchors(page), f"{path.name} links to {target}#{heading}"


def anchors(page: Path) -> list[str]:
    """The names that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]


def tables() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tables", ROOT / "docs" / "tables.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def expected_rows() -> list[dict]:
    """The rows that `elman laws --json` gives when every law holds, which the conformance tests assert."""
    return [
        {"cell": cell, "options": options, "kernels": kernel, "law": law, "ok": True}
        for cell in CELLS
        for kernel in ("reference", "native")
        for options in CELLS[cell].variants
        for law in laws.LAWS
        if law != 8 or kernel == "native"
    ]


@pytest.mark.parametrize(("document", "table"), [("concepts/laws.md", "summary"), ("reference/conformance.md", "full")])
def test_the_table_says_nothing_that_is_not_so(document: str, table: str) -> None:
    """A cell that was added since may be missing until `make docs` has run: adding one touches three places only."""
    shown = tables().block((ROOT / "docs" / document).read_text()).splitlines()
    assert len(shown) > 12
    assert set(shown) <= set(getattr(tables(), table)(expected_rows()))


def test_the_changelog_lists_every_verb() -> None:
    (line,) = re.findall(r"^- The command `elman` with (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", line)) == set(VERBS)
