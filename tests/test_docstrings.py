"""Every example in a docstring runs, and every public function and class has one."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
from dataclasses import fields
from types import ModuleType

import pytest
import torch

import elman
from elman.tasks import TASKS

CONFIGS = [task.Config() for task in TASKS.values()]
MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(elman.__path__, "elman.")
    if module.name not in ("elman.__main__", "elman._native")
)


def importable(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        if name.startswith("elman.kernels.native"):
            pytest.skip(f"not built here: {error}")
        raise


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name: str) -> None:
    module = importable(name)
    torch.manual_seed(0)
    names = {"torch": torch, "elman": elman}
    finder = doctest.DocTestFinder(exclude_empty=True)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    for example in finder.find(module, name, globs={**names, **vars(module)}):
        runner.run(example)
    assert runner.failures == 0


def test_a_wrong_example_is_found() -> None:
    runner = doctest.DocTestRunner(verbose=False)
    example = doctest.DocTestParser().get_doctest(">>> 1 + 1\n3\n", {}, "wrong", None, 0)
    assert runner.run(example, out=lambda _: None).failed == 1


# The sections of a config stand in the example of the config.
SECTIONS = {type(getattr(config, part.name)) for config in CONFIGS for part in fields(config)}
PUBLIC = [
    name
    for name in elman.__all__
    if inspect.isfunction(value := getattr(elman, name)) or (inspect.isclass(value) and value not in SECTIONS)
]


@pytest.mark.parametrize("name", PUBLIC)
def test_public_names_have_an_example(name: str) -> None:
    documentation = inspect.getdoc(getattr(elman, name)) or ""
    assert ">>>" in documentation, f"elman.{name} has no example in its docstring"
