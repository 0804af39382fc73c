"""The model of a run, or one that was saved: found, and loaded as its task does it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from elman import tasks
from elman.errors import FileError, InputError, UnknownNameError
from elman.files import artifact, plugins
from elman.tasks.task import AnyTask
from elman.training.alone import Undisturbed


def load(path: str | Path) -> Any:
    """The model of a run (its best, or its last), or one that was saved: a `Predictor` of its task.

    >>> import tempfile
    >>> from elman.data import VOCABULARIES
    >>> from elman.tasks.text.lm import LanguageModel, LMModelConfig, build
    >>> lm = LanguageModel(build(LMModelConfig(size=8), 257), VOCABULARIES["byte"](), LMModelConfig(size=8))
    >>> folder = tempfile.mkdtemp() + "/model"
    >>> lm.save(folder)
    >>> load(folder).score("any text")[0] == lm.score("any text")[0]
    True
    """
    return open_model(path)[1]


def open_model(path: str | Path) -> tuple[AnyTask, Any]:
    """The task of a run or of a saved model, and the model."""
    folder = _folder(path)
    try:
        task = tasks.of_folder(folder)
        with Undisturbed():  # a model is built with fresh weights before it gets its own
            return task, task.load(folder)
    except UnknownNameError as error:
        own = plugins.noted(artifact.read_model_json(folder), str(folder / "model.json"))
        missing = plugins.missing(own)
        if not missing:
            raise
        flags = " ".join(f"--import {name}" for name in missing)
        raise FileError(
            f"{path} needs what {', '.join(missing)} adds: import it first, on the command line by {flags}. ({error})"
        ) from error


def open_source(path: str, task: AnyTask) -> Any:
    """The model that a run of a task is to begin with."""
    if task.fitted:
        raise InputError(
            f"init_from is {path}; {task.title} is fitted in one go, to its data alone, and cannot begin with another "
            "model. Fit it to the old data and the new together."
        )
    other, source = open_model(path)
    if other is not task:
        raise InputError(f"init_from is {path}, which is {other.title}; a run of {task.title} needs one of its kind")
    return source


def _folder(path: str | Path) -> Path:
    """The folder of the model of a run, or of one that was saved."""
    root = Path(path).expanduser()
    if not root.is_dir() and artifact.find(root) is None:
        raise FileError(f"there is no folder {root}; give a run directory, or what a model was saved to")
    return artifact.find(root / "best") or artifact.find(root / "last") or artifact.find(root) or root
