"""The first minute: README's code and figures, and each page of docs/start as a reader runs it."""

from __future__ import annotations

import importlib.util
import math
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def load_pages() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pages", ROOT / "docs" / "start" / "pages.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


pages = load_pages()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELMAN_CACHE", str(tmp_path / "cache"))


@pytest.mark.slow
@pytest.mark.parametrize("page", pages.all_pages(), ids=lambda page: page.stem)
def test_a_page_prints_and_draws_what_it_shows(page: Path, tmp_path: Path) -> None:
    """If it is meant to show something else now: `python docs/start/pages.py --write`."""
    shown = pages.compared(page.read_text())
    printed = pages.compared(pages.execute(page, tmp_path))
    assert shown and all(shown), "an output is empty"
    for there, here in zip(shown, printed, strict=True):
        assert pages.alike(there, here), f"the page shows\n{there}\nbut prints\n{here}"
    assert pages.pictures(page), "a page has a picture"
    for picture in pages.pictures(page):
        assert pages.find_picture(picture, tmp_path).stat().st_size > 1000
        assert (ROOT / "docs" / "start" / picture).exists()


def test_there_is_a_page_for_every_task() -> None:
    tasks = {match for page in pages.all_pages() for match in re.findall(r"--task (\w+)", page.read_text())}
    assert tasks == {"tag", "classify", "forecast", "translate", "hmm", "tree", "image"}  # and text, the default


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("accuracy 0.95 of 300", "accuracy  0.93 of 301\n", True),
        ("accuracy 0.95", "accuracy 0.60", False),
        ("accuracy 0.95", "recall 0.95", False),
        ("1,000 rows", "1,500 rows", False),
        ("a\nb", "a", False),
    ],
)
def test_outputs_are_compared_by_words_and_numbers(shown: str, printed: str, same: bool) -> None:
    assert pages.alike(shown, printed) == same


@pytest.mark.slow
def test_the_code_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it stands, but for fewer steps."""
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    assert '"steps": 600' in code and len(code.splitlines()) <= 20
    exec(compile(code.replace('"steps": 600', '"steps": 5'), "README.md", "exec"), {"__name__": "__main__"})
    assert "<html" in (tmp_path / "report.html").read_text()[:200]


def numbers(text: str) -> set[float]:
    """The numbers of a text; microseconds as milliseconds, which is what the tables have."""
    found = re.findall(r"(?<![\w.-])(\d[\d,]*(?:\.\d+)?)( µs)?", text)
    return {float(digits.replace(",", "")) * (0.001 if unit else 1) for digits, unit in found}


FIGURES = re.findall(r"^\| ([^|]*) \| ([^|]*) \| ([^|]*) \| \[[^]]*\]\(([^)#]*)[^)]*\) \|$", README, re.MULTILINE)


@pytest.mark.parametrize(("what", "ours", "peers", "page"), FIGURES, ids=[what for what, *_ in FIGURES])
def test_a_figure_stands_on_the_page_that_it_links_to(what: str, ours: str, peers: str, page: str) -> None:
    """A new run of `bench.all` changes the pages, and README with them."""
    there = numbers((ROOT / page).read_text())
    for figure in numbers(ours) | numbers(peers):
        assert any(math.isclose(figure, number, rel_tol=1e-9) for number in there), f"{figure} is not in {page}"


def test_the_readme_has_its_figures_and_a_small_picture() -> None:
    assert 3 <= len(FIGURES) <= 6
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", README)
    assert pictures and all((ROOT / picture).stat().st_size < 500_000 for picture in pictures)
    assert len(README.split()) < 800


def test_the_guide_to_tasks_shows_the_task_that_is_tested() -> None:
    guide = (ROOT / "docs" / "guides" / "your-own-task.md").read_text()
    assert (ROOT / "tests" / "tasks" / "counted_bits.py").read_text() in guide
    first = re.findall(r"^```python\n(.*?)^```", guide, re.MULTILINE | re.DOTALL)[0]
    exec(compile(first, "your-own-task.md", "exec"), {})
