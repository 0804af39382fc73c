"""Data in memory, in the place of what a config names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from elman.data.text import MEMORY
from elman.errors import InputError, UnknownNameError
from elman.tasks.settings import Settings
from elman.tasks.task import AnyTask

Opened = Callable[[Any, Any], Any]  # a config and a model that was saved -> data


def given(task: AnyTask, settings: Any, data: Any) -> tuple[Any, Opened]:
    """The settings of a run to which `data` were given, or None; and how its data are opened."""
    if data is None:
        return settings, task.open
    parts = _parts(settings, data)
    named = replace(settings, data=replace(settings.data, **dict.fromkeys(parts, MEMORY)))
    return named, partial(task.open_held, given=parts)


def _parts(settings: Settings, data: Any) -> dict[str, Any]:
    """The parts of the data by name."""
    parts = dict(data) if isinstance(data, Mapping) else {"train": data}
    known = [name for name in ("train", "valid", "test") if hasattr(getattr(settings, "data", None), name)]
    for name in parts:
        if name not in known:
            raise UnknownNameError("part of the data", name, known)
    if "train" not in parts:
        raise InputError(f"data has {', '.join(parts) or 'nothing'}; it needs train")
    return parts
