"""The suite itself: a package that is missing fails it, files stand where CONTRIBUTING says, no test imports a test."""

import ast
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent
FILES = sorted(path.relative_to(HERE) for path in HERE.rglob("*.py"))


@pytest.mark.parametrize(
    ("everything", "why", "outcome"),
    [
        ("1", "Skipped: could not import 'mambapy.mamba': No module named 'mambapy'", "failed"),
        ("", "Skipped: could not import 'mambapy.mamba': No module named 'mambapy'", "skipped"),
        ("1", "Skipped: strace is not installed", "skipped"),
    ],
)
def test_a_package_that_is_missing_is_a_failure(request, monkeypatch, everything, why, outcome):
    monkeypatch.setenv("ELMAN_ALL_TESTS", everything)
    (conftest,) = (p for p in request.config.pluginmanager.get_plugins() if hasattr(p, "_fail_what_is_missing"))
    report = SimpleNamespace(skipped=True, longrepr=why, outcome="skipped")
    conftest._fail_what_is_missing(report)
    assert report.outcome == outcome


def imported(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def test_no_test_imports_a_test():
    for file in FILES:
        names = {name.rsplit(".")[-1] for name in imported(ast.parse((HERE / file).read_text()))}
        assert not {name for name in names if name.startswith("test_")}, file


def mirrors(file):
    """Whether tests/a/test_b.py has its a/b.py, its package a/b, or its package a where b is a."""
    name, source = file.stem.removeprefix("test_"), ROOT / "src" / "elman" / file.parent
    places = [source / f"{name}.py", source / name / "__init__.py"]
    if file.parent.name == "kernels":
        places += [source / "native" / f"{name}.py", ROOT / "csrc" / f"{name}.cpp"]
    return any(place.exists() for place in places) or (name == file.parent.name and source.exists())


def test_a_test_file_has_a_module_or_is_listed_as_a_promise():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    listed, folder = set(), None
    for word in re.findall("`([^`]*)`", text.split("checks that the list is whole")[-1].split("### Browser")[0]):
        if word.startswith("tests/"):
            folder = Path(word).relative_to("tests")
        elif folder is not None:
            listed.add(folder / f"test_{word}.py")
    alone = {file for file in FILES if file.name.startswith("test_") and not mirrors(file)}
    assert alone == listed
