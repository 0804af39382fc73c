"""What tasks there are and what can be set in each, without Torch: for `elman init` and `elman train --help`.

The configs are defined next to the networks that they configure, and importing those takes seconds. Their descriptions
are kept in settings.json, which `make docs` writes; a test compares the two. If modules of a user were imported, which
may add tasks, the configs themselves are read.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from elman.errors import UnknownNameError
from elman.files.config import Json, Setting, describe

if TYPE_CHECKING:
    from elman.tasks.task import AnySettings, AnyTask

FILE = Path(__file__).with_name("settings.json")


class Described(NamedTuple):
    """A task: its title, and its settings with their defaults."""

    title: str
    settings: tuple[Setting, ...]


def described() -> dict[str, Described]:
    """The tasks by name."""
    if "elman.tasks" in sys.modules:
        return live()
    content = json.loads(FILE.read_text(encoding="utf-8"))
    return {name: Described(title, _settings(settings)) for name, (title, settings) in content.items()}


def live() -> dict[str, Described]:
    """The same, as the configs say it now."""
    from elman.tasks import TASKS

    return {name: Described(task.title, describe(defaults(name, task))) for name, task in TASKS.items()}


def defaults(name: str, task: AnyTask) -> AnySettings:
    """The config of a task with the default of the command line for `out`: a folder in runs/."""
    config: AnySettings = task.Config()
    return config if config.out else replace(config, out=f"runs/{name}")


def find(name: str) -> Described:
    """The task called `name`."""
    tasks = described()
    if name not in tasks:
        raise UnknownNameError("task", name, tasks)
    return tasks[name]


def _settings(content: Sequence[Sequence[Json]]) -> tuple[Setting, ...]:
    return tuple(Setting(str(name), str(meaning), value, _settings(parts)) for name, meaning, value, parts in content)  # type: ignore[arg-type]


if __name__ == "__main__":
    FILE.write_text(json.dumps(live(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
