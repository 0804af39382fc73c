"""What models are for. Adding a task: its file, a line in TASKS, its page in the docs, its recipe."""

from __future__ import annotations

from pathlib import Path

from elman import artifact
from elman.errors import UnknownNameError
from elman.tasks.hmm import HMMTask
from elman.tasks.lm import LanguageModel, LanguageModelTask
from elman.tasks.markov import MarkovTask
from elman.tasks.task import AnyTask, Data, Face, Generated, Task, Verb

TASKS: dict[str, AnyTask] = {"lm": LanguageModelTask(), "markov": MarkovTask(), "hmm": HMMTask()}

__all__ = ["TASKS", "Data", "Face", "Generated", "LanguageModel", "Task", "Verb", "find", "of_folder"]


def find(name: str) -> AnyTask:
    """The task called `name`.

    >>> find("lm").title
    'a language model'
    """
    if name not in TASKS:
        raise UnknownNameError("task", name, TASKS)
    return TASKS[name]


def of_folder(folder: Path) -> AnyTask:
    """The task of a saved model."""
    content = artifact.read_model_json(folder)
    # Version 1 had no task for Markov models: they were language models with a cell of that name.
    markov = content["version"] == 1 and dict(content.get("config", {})).get("cell") == "markov"
    return find("markov" if markov else str(content.get("task")))
