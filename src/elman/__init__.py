"""Recurrent sequence models whose state you own.

`__init__.pyi` lists the public names and where they come from. They are imported when they are first used: `elman
--help` must not wait for Torch.
"""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

__version__ = "0.1.0"

_HOMES = {
    alias.name: str(node.module)
    for node in ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")).body
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'elman' has no attribute {name!r}")
    home = _HOMES[name]
    value = import_module(f"elman.{name}") if home == "elman" else getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
