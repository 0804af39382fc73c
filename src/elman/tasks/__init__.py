"""What models are for. Adding a task: its folder, a line in TASKS, its page in the docs, its recipe."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from elman.data.text import Document
from elman.errors import FileError, InputError, UnknownNameError
from elman.files import artifact, config, plugins
from elman.files.config import Json
from elman.lens import Report
from elman.lens import inspect as lens_inspect
from elman.lens.fresh import fresh, rebind
from elman.tasks.classify.task import ClassifyTask
from elman.tasks.forecast.task import ForecastTask
from elman.tasks.hmm.task import HMMTask
from elman.tasks.image.task import ImageTask
from elman.tasks.predictor import AnyPredictor, Predictor
from elman.tasks.request import Files, Request, Rows, option
from elman.tasks.tag.task import TagTask
from elman.tasks.task import AnySettings, AnyTask, Data, Evaluation, Generated, Inspection, Settings, Task
from elman.tasks.text.lm import LanguageModel, LanguageModelTask
from elman.tasks.text.markov import MarkovTask
from elman.tasks.translate.task import TranslateTask
from elman.tasks.tree.task import TreeTask
from elman.training.alone import Undisturbed
from elman.training.record import read_metrics

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
    "TASKS", "Data", "Evaluation", "Generated", "LanguageModel", "Predictor", "Request", "Task", "find", "inspect",
    "load", "of_folder", "of_settings", "open_model", "open_source", "option", "report", "respond",
]  # fmt: skip


def find(name: str) -> AnyTask:
    """The task called `name`.

    >>> find("lm").title
    'a language model'
    """
    if name not in TASKS:
        raise UnknownNameError("task", name, TASKS)
    return TASKS[name]


def of_settings(settings: AnySettings) -> AnyTask:
    """The task of a run's settings, once what all tasks have in them is checked."""
    if not isinstance(settings, Settings):
        raise InputError(
            f"a run needs the config of a task, as elman.LMConfig(); it was given a {type(settings).__name__}"
        )
    task = find(settings.task)
    if not isinstance(settings, task.Config):
        wanted, actual = (f"{kind.__module__}.{kind.__name__}" for kind in (task.Config, type(settings)))
        raise InputError(f"the task {settings.task} needs a {wanted}, not a {actual}")
    if settings.resume not in ("never", "auto"):
        raise UnknownNameError("way to resume", settings.resume, ("never", "auto"))
    if not 0 <= settings.seed < 2**62:  # Torch takes 64 bits, and each process adds a little
        raise InputError(f"seed is {settings.seed}; it must be a whole number of at least 0 and below 2**62")
    return task


def of_folder(folder: Path) -> AnyTask:
    """The task of a saved model."""
    return find(str(artifact.read_model_json(folder).get("task")))


def respond(model: AnyPredictor, verb: str, /, **keywords: Any) -> Any:
    """What a model answers to a verb, by the keywords that its request has: lines to predict, scores to evaluate.

    `data` are rows as the model reads them; a text; or the Path of a file, `request.Files` of several names.
    """
    data = keywords.get("data")
    if isinstance(data, str) and not isinstance(data, Document) and os.path.isfile(data) and Path(data).suffix:
        raise InputError(
            f"data is the text {data!r}, which is the name of a file; a text stands for itself. Give a file as "
            f"pathlib.Path({data!r})."
        )
    requests = find(model.task).requests
    if verb not in requests:
        raise UnknownNameError("verb", verb, requests)
    kind, response = requests[verb]
    return response(model, kind(**keywords))


def inspect(
    run: str | Path | AnyPredictor,
    data: Rows = (),
    *,
    at_init: bool = False,
    command: str = "",
    title: str = "",
    **options: object,
) -> Report:
    """What the lens sees of a model: the report that `elman inspect` makes, whose `save` writes the page.

    The model is that of a run, of a folder that it was saved to, or one in memory. `data` are rows as it reads them, a
    text, or the Path of a file; nothing for the validation data of the run. `options` are those of the command, as
    rows=16. With `at_init` the network has fresh weights. `title` is what the page calls the model, if not by the name
    of its folder. Put other reports beside it on one page with report.save("page.html", [other]).

    >>> settings = {"model": {"size": 8}, "training": {"steps": 2, "evaluate_every": 2}}
    >>> model, _ = elman.train(elman.LMConfig(**settings), "to be or not to be, " * 400, progress=False)
    >>> found = inspect(model, "that is the question", rows=4)
    >>> found.title, len(found.verdict)
    ('lm in memory', 5)

    >>> import tempfile
    >>> folder = tempfile.mkdtemp() + "/run"
    >>> _ = elman.train(elman.LMConfig(**settings), "to be or not to be, " * 400, out=folder, progress=False)
    >>> found = inspect(folder, "that is the question", rows=4)
    >>> found.config["model.size"], len(found.verdict)
    (8, 5)
    >>> found.save(folder + "/page.html")
    """
    named = Files([str(data)]) if isinstance(data, Path) else data
    if isinstance(run, Predictor):
        folder, title = None, title or f"{run.task} in memory"
        inspection = respond(run, "inspect", data=named, **options)
    elif not isinstance(run, str | Path):
        raise InputError(
            f"inspect was given a {type(run).__name__}; it takes a run, by its folder, or a model that was trained or "
            "loaded, such as model_ of an estimator. elman.lens.inspect takes a Core."
        )
    else:
        folder, title = run, title or str(run)
        inspection = respond(load(run), "inspect", data=named, run=str(run), **options)
    return report(inspection, folder, at_init=at_init, command=command, title=title)


def report(
    inspection: Inspection, run: str | Path | None, *, at_init: bool = False, command: str = "", title: str = ""
) -> Report:
    """The report of the lens on an inspection, with the config and the metrics of its run, if it has one."""
    settings: dict[str, Json] = {}
    noted: list[dict[str, float]] = []
    if run is not None:
        folder = Path(run).expanduser()
        settings = config.flat(config.read(folder / config.NAME)) if (folder / config.NAME).exists() else {}
        noted = read_metrics(folder) if (folder / "metrics.jsonl").exists() else []
    if at_init:
        inspection = _at_init(inspection)
    title = title or str(run)
    return replace(
        lens_inspect(inspection.model, inspection.sample, title=f"{title} at init" if at_init else title),
        command=command,
        config=settings,
        training=[line for line in noted if "update_ratio" in line or any(name.startswith("lens") for name in line)],
    )


def _at_init(inspection: Inspection) -> Inspection:
    """The same with fresh weights; what the task shows is of the trained ones, and left out."""
    if inspection.begun is not None:
        return inspection.begun()
    model = fresh(inspection.model)
    return inspection._replace(model=model, sample=replace(rebind(model, inspection.sample), panels=()))


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
        task = of_folder(folder)
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
            f"init_from is {path}; {task.title} is fitted to its data alone, and cannot start from another "
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
        raise FileError(f"there is no folder {root}; give a run directory or a saved model")
    return artifact.find(root / "best") or artifact.find(root / "last") or artifact.find(root) or root
