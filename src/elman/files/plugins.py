"""Modules of one's own that add cells or tasks when they are imported: `elman train --import mycells`.

Their names are noted in runs and models. `elman train` imports those that a config names; to load a model runs no code,
from Python or the command line, and says what to import first.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module

from elman.errors import FileError, InputError

_loaded: list[str] = []


def load(names: Sequence[str]) -> None:
    """Import some modules, each once, and note their names."""
    for name in names:
        try:
            import_module(name)
        except ModuleNotFoundError as error:
            raise InputError(
                f"cannot import {name}: there is no module {error.name} on the path. Put it into this folder, or its "
                "folder into PYTHONPATH."
            ) from error
        except Exception as error:
            raise InputError(f"cannot import {name}: {type(error).__name__}: {error}") from error
        if name not in _loaded:
            _loaded.append(name)


def loaded() -> list[str]:
    """The names of what was imported, in that order."""
    return list(_loaded)


def missing(names: Sequence[str]) -> list[str]:
    """Those that are not imported yet.

    >>> missing(["sys", "mycells"])
    ['mycells']
    """
    return [name for name in names if name not in sys.modules]


def noted(content: Mapping[str, object], where: str) -> list[str]:
    """The names under `imports` in the content of a file."""
    names = content.get("imports", [])
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise FileError(f"imports in {where} is {names!r}; it must be a list of names of modules")
    return names
