"""What `elman stream` runs: a face, what its rows are, and the folder that it is kept in."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from elman.errors import InputError, UnknownNameError
from elman.files import artifact
from elman.online.faces import Classifier, Face, Regressor
from elman.online.series import Bytes, Forecaster

TASKS: dict[str, type[Face]] = {
    "regress": Regressor,
    "classify": Classifier,
    "forecast": Forecaster,
    "lm": Bytes,
}
ROWS = {"target": "y", "horizon": 1}  # what is said of the rows rather than of the learner, and by default
FILE, KIND, VERSION = "stream.json", "elman-stream", 1
LEARNER = "learner"


class Session:
    """A stream that is predicted, and learned from, row by row: each row a dict with its target among the features.

    >>> session = Session("forecast", {"size": 4})
    >>> [session.row({"y": float(t)})["forecast"] for t in range(4)][-1]
    [4.0]
    """

    def __init__(self, task: str, settings: Mapping[str, Any], *, learns: bool = True) -> None:
        if task not in TASKS:
            raise UnknownNameError("task", task, TASKS)
        own = {name: settings.get(name, value) for name, value in ROWS.items()}
        self.task, self.target, self.horizon, self.learns = task, str(own["target"]), int(own["horizon"]), learns
        self.face = _face(TASKS[task], {name: value for name, value in settings.items() if name not in ROWS})
        self.folder = Path()

    @classmethod
    def open(cls, folder: str | os.PathLike[str], settings: Mapping[str, Any], *, learns: bool) -> Self:
        """The session of a folder, where it stood; a new one with these settings if there is none and it learns."""
        path = Path(folder)
        stored = artifact.find(path)
        if stored is None:
            if not learns:
                raise InputError(f"there is no learner in {path}; begin one with --learn and --task")
            if "task" not in settings:
                raise InputError(f"{path} is a new learner, so it needs --task: one of {', '.join(TASKS)}")
            session = cls(str(settings["task"]), {k: v for k, v in settings.items() if k != "task"})
        else:
            content = artifact.read_json(stored / FILE, KIND, VERSION)
            session = cls(content["task"], content["rows"], learns=learns)
            session.face = TASKS[session.task].load(stored / LEARNER)
            session._refuse_changes(settings)
        session.folder = path
        return session

    @property
    def rows(self) -> int:
        """How many rows have come."""
        return self.face.rows

    def row(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """What is predicted of a row, and is learned then if it has a target."""
        x = {name: value for name, value in row.items() if name != self.target}
        y = row.get(self.target)
        said = self._respond(x, y, row)
        if self.learns and y is None and self.task != "lm":
            self.face.pass_over()
        return {"row": self.rows if self.learns else None, **said}

    def save(self) -> None:
        """Write the folder; the one that was there is replaced whole."""
        if self.face.state is None:  # no row has come
            return

        def fill(new: Path) -> None:
            rows = {"target": self.target, "horizon": self.horizon}
            artifact.write_json(new / FILE, KIND, VERSION, {"task": self.task, "rows": rows})
            self.face.save(new / LEARNER)

        artifact.write(self.folder, fill)

    def _respond(self, x: dict[str, Any], y: Any, row: Mapping[str, Any]) -> dict[str, Any]:
        face, learns = self.face, self.learns and y is not None
        if isinstance(face, Bytes):
            text = str(row["text"])
            return {"nats": face.learn_one(text) if self.learns else face.predict_one(text)}
        if isinstance(face, Forecaster):
            if learns:
                face.learn_one(_target(y), x)
            return {"forecast": face.forecast(self.horizon, [x] * self.horizon if x else None)}
        if isinstance(face, Classifier):
            probabilities = face.predict_proba_one(x)
            if learns:
                face.learn_one(x, y)
            return {
                "prediction": max(probabilities, key=probabilities.__getitem__, default=None),
                "probabilities": {str(label): p for label, p in probabilities.items()},
            }
        assert isinstance(face, Regressor)
        prediction = face.predict_one(x)
        if learns:
            face.learn_one(x, _target(y))
        return {"prediction": prediction}

    def _refuse_changes(self, settings: Mapping[str, Any]) -> None:
        now = {"task": self.task, "target": self.target, "horizon": self.horizon, **self.face.settings()}
        for name, value in settings.items():
            if now.get(name) != value:
                raise InputError(
                    f"--{name} is {value!r}, and of the learner in this folder {now.get(name)!r}: leave "
                    "the flag out, or begin another folder"
                )


def _face(kind: type[Face], settings: dict[str, Any]) -> Face:
    try:
        return kind(**settings)
    except TypeError:
        known = ", ".join(kind().settings())
        raise InputError(f"{kind.__name__} was given {', '.join(settings)}; its settings are {known}") from None


def _target(y: object) -> float:
    try:
        return float(y)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise InputError(f"the target is {y!r}; it must be a number, for a label use --task classify") from None
