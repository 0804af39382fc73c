"""Recurrent sequence models whose state you own.

The names below are imported when they are first used: `elman --help` must not wait for Torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elman import cells, errors, kernels, laws, state
    from elman.cells import CELLS, cell
    from elman.compose import (
        Bidirectional,
        Dense,
        Dropout,
        Norm,
        Parallel,
        Pool,
        Recompute,
        Residual,
        Reverse,
        Stack,
        WeightDrop,
        Zoneout,
        stack,
    )
    from elman.convert import from_torch, to_torch
    from elman.core import Core
    from elman.errors import ElmanError
    from elman.kernels.stream import Stream
    from elman.model import SequenceModel
    from elman.run import RunConfig, load, train
    from elman.tasks.language_model import LanguageModel

__version__ = "0.1.0"

__all__ = [
    "CELLS", "Bidirectional", "Core", "Dense", "Dropout", "ElmanError", "LanguageModel", "Norm", "Parallel",
    "Pool", "Recompute", "Residual", "Reverse", "RunConfig", "SequenceModel", "Stack", "Stream", "WeightDrop",
    "Zoneout", "cell", "cells", "errors", "from_torch", "kernels", "laws", "load", "stack", "state", "to_torch",
    "train",
]  # fmt: skip

_MODULES = ("cells", "errors", "kernels", "laws", "state")
_NAMES = {
    "cells": ("CELLS", "cell"),
    "compose": (
        "Bidirectional", "Dense", "Dropout", "Norm", "Parallel", "Pool", "Recompute", "Residual", "Reverse",
        "Stack", "WeightDrop", "Zoneout", "stack",
    ),
    "convert": ("from_torch", "to_torch"),
    "core": ("Core",),
    "errors": ("ElmanError",),
    "kernels.stream": ("Stream",),
    "model": ("SequenceModel",),
    "run": ("RunConfig", "load", "train"),
    "tasks.language_model": ("LanguageModel",),
}  # fmt: skip
_HOME = {name: f"elman.{module}" for module, names in _NAMES.items() for name in names}

if not TYPE_CHECKING:  # a type checker must still see that a misspelt name is missing

    def __getattr__(name: str) -> object:
        if name in _MODULES:
            return import_module(f"elman.{name}")
        if name not in _HOME:
            raise AttributeError(f"module 'elman' has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_HOME[name]), name)
        return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
