"""What models are for. Adding a task: its file, a line in TASKS, its page in the docs, its recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from elman.errors import InputError, UnknownNameError
from elman.files import artifact
from elman.tasks.classify.task import ClassifyTask
from elman.tasks.forecast.task import ForecastTask
from elman.tasks.hmm.task import HMMTask
from elman.tasks.image.task import ImageTask
from elman.tasks.predictor import Predictor
from elman.tasks.request import Request, option
from elman.tasks.settings import Settings
from elman.tasks.tag.task import TagTask
from elman.tasks.task import AnyTask, Data, Evaluation, Generated, Task
from elman.tasks.text.lm import LanguageModel, LanguageModelTask
from elman.tasks.text.markov import MarkovTask
from elman.tasks.translate.task import TranslateTask
from elman.tasks.tree.task import TreeTask

TASKS: dict[str, AnyTask] = {
    "lm": LanguageModelTask(),
    "markov": MarkovTask(),
    "tag": TagTask(),
    "classify": ClassifyTask(),
    "forecast": ForecastTask(),
    "translate": TranslateTask(),
    "hmm": HMMTask(),
    "tree": TreeTask(),
    "image": ImageTask(),
}

__all__ = [
    "TASKS", "Data", "Evaluation", "Generated", "LanguageModel", "Predictor", "Request", "Task", "find", "of_folder",
    "of_settings", "option", "respond",
]  # fmt: skip


def find(name: str) -> AnyTask:
    """The task called `name`.

    >>> find("lm").title
    'a language model'
    """
    if name not in TASKS:
        raise UnknownNameError("task", name, TASKS)
    return TASKS[name]


def of_settings(settings: Settings) -> AnyTask:
    """The task of a run's settings, once what all tasks have in them is checked."""
    task = find(settings.task)
    if not isinstance(settings, task.Config):
        wanted, given = (f"{kind.__module__}.{kind.__name__}" for kind in (task.Config, type(settings)))
        raise InputError(f"the task {settings.task} needs a {wanted}, not a {given}")
    if settings.resume not in ("never", "auto"):
        raise UnknownNameError("way to resume", settings.resume, ("never", "auto"))
    if not 0 <= settings.seed < 2**62:  # Torch takes 64 bits, and each process adds a little
        raise InputError(f"seed is {settings.seed}; it must be a whole number of at least 0 and below 2**62")
    return task


def of_folder(folder: Path) -> AnyTask:
    """The task of a saved model."""
    content = artifact.read_model_json(folder)
    # Version 1 had no task for Markov models: they were language models with a cell of that name.
    markov = content["version"] == 1 and dict(content.get("config", {})).get("cell") == "markov"
    return find("markov" if markov else str(content.get("task")))


def respond(model: Predictor[Any], verb: str, /, **keywords: Any) -> Any:
    """What a model answers to a verb, by the keywords that its request has: lines to predict, scores to evaluate.

    `data` are rows as the model reads them; a text; or `request.Files` of names.
    """
    requests = find(model.task).requests
    if verb not in requests:
        raise UnknownNameError("verb", verb, requests)
    kind, response = requests[verb]
    return response(model, kind(**keywords))
