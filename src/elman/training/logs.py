"""What a run reports to TensorBoard, Weights & Biases or MLflow, if its setting `log` names them.

They get what the run directory gets: the settings once, every line of metrics with its step, the best score, previews.
A log is a convenience: one that fails is given up with a warning, and the training continues. What it draws at random
is not drawn from the run's numbers. A resumed run continues its log: logs.json in the run directory has the name that
the log knows it by. Rows after the checkpoint come twice then, with the same values.
"""

from __future__ import annotations

import html
import io
import json
import os
import secrets
import textwrap
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from elman.errors import MissingExtraError, UnknownNameError
from elman.files import artifact
from elman.files.config import Json
from elman.options import parse_json, several

if TYPE_CHECKING:
    from elman.training.record import Preview

NAME = "logs.json"  # in a run directory
PROJECT = "elman"  # the project of wandb, the experiment of MLflow, unless the environment names one
MOST_PARAMETERS, LONGEST_PARAMETER = 100, 500  # of one call of MLflow; the length that every version of it stores


class Start(NamedTuple):
    """What a log is opened with: the run directory, its settings, the steps that are done, and the name that the log
    knows the run by, if it was opened before."""

    folder: Path
    settings: Mapping[str, Json]
    step: int
    known: str


class Log:
    """Where a run is reported to. `known` is the name that the log knows it by."""

    package: str  # the module that it needs
    known: str = ""

    def __init__(self, start: Start) -> None:
        raise NotImplementedError

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """A line of metrics."""
        raise NotImplementedError

    def preview(self, step: int, preview: Preview) -> None:
        """Text or a picture."""
        raise NotImplementedError

    def close(self, finished: bool) -> None:
        """No more is to come from this process."""
        raise NotImplementedError


class TensorBoard(Log):
    """Event files in the folder `tensorboard` of the run directory."""

    package = "torch.utils.tensorboard"

    def __init__(self, start: Start) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # What an earlier process wrote of the steps to come is not shown.
        self.writer = SummaryWriter(
            str(start.folder / "tensorboard"), purge_step=start.step + 1 if start.step else None
        )
        if not start.step:
            self.writer.add_text("settings", f"```json\n{json.dumps(start.settings, indent=1)}\n```", 0)

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def preview(self, step: int, preview: Preview) -> None:
        if preview.text:
            self.writer.add_text("preview", f"```\n{preview.text}\n```", step)
        if preview.picture:
            self.writer.add_image("preview", _pixels(preview.picture), step, dataformats="HWC")

    def close(self, finished: bool) -> None:
        self.writer.close()


class Wandb(Log):
    """A run of Weights & Biases; WANDB_PROJECT, WANDB_MODE=offline and its other variables have their meaning."""

    package = "wandb"

    def __init__(self, start: Start) -> None:
        import wandb

        self.known = start.known or secrets.token_hex(4)
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT), id=self.known, name=start.folder.name, resume="allow",
            config=dict(start.settings), settings=wandb.Settings(console="off"),
        )  # fmt: skip
        # A step of its own: that of wandb must not fall, as it does where a run that was killed resumes.
        self.run.define_metric("step")
        self.run.define_metric("*", step_metric="step")

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        self.run.log({"step": step, **values})

    def preview(self, step: int, preview: Preview) -> None:
        import wandb

        if preview.text:
            self.run.log({"step": step, "preview": wandb.Html(f"<pre>{html.escape(preview.text)}</pre>")})
        if preview.picture:
            self.run.log({"step": step, "picture": wandb.Image(_pixels(preview.picture))})

    def close(self, finished: bool) -> None:
        self.run.finish(exit_code=0 if finished else 1)


class MLflow(Log):
    """A run of MLflow; MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME have their meaning."""

    package = "mlflow"

    def __init__(self, start: Start) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        self.client, self.metric = MlflowClient(), Metric
        self.known = start.known
        if self.known:
            self.client.update_run(self.known, status="RUNNING")
            return
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        experiment = self.client.get_experiment_by_name(name)
        place = experiment.experiment_id if experiment else self.client.create_experiment(name)
        self.known = self.client.create_run(place, run_name=start.folder.name).info.run_id
        settings = [Param(key, _text(value)[:LONGEST_PARAMETER]) for key, value in start.settings.items()]
        for at in range(0, len(settings), MOST_PARAMETERS):
            self.client.log_batch(self.known, params=settings[at : at + MOST_PARAMETERS])

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        self.client.log_batch(self.known, metrics=[self.metric(key, float(v), now, step) for key, v in values.items()])

    def preview(self, step: int, preview: Preview) -> None:
        if preview.text:
            self.client.log_text(self.known, preview.text, f"previews/{step}.txt")
        if preview.picture:
            self.client.log_image(self.known, _pixels(preview.picture), f"previews/{step}.png")

    def close(self, finished: bool) -> None:
        self.client.set_terminated(self.known, "FINISHED" if finished else "KILLED")


LOGS: dict[str, type[Log]] = {"tensorboard": TensorBoard, "wandb": Wandb, "mlflow": MLflow}


def names_of(log: Any) -> list[str]:
    """The names in a setting `log`: one, a list of them, or none."""
    return several("log", [log] if isinstance(log, str) and log else log or [], "names of logs")


def check(log: object) -> None:
    """Raise an error for a log that is not known, or whose package is not installed, before any work is done."""
    for name in names_of(log):
        if name not in LOGS:
            raise UnknownNameError("log", name, LOGS)
        try:
            import_module(LOGS[name].package)
        except ImportError as error:
            raise MissingExtraError(name, name) from error


class Logs:
    """The open logs of a run; none by default. One that raises is closed, with a warning."""

    def __init__(self) -> None:
        self.open: dict[str, Log] = {}

    def start(self, names: Sequence[str], folder: Path, settings: Mapping[str, Json], step: int = 0) -> Logs:
        """Open some logs of the run in a folder, after so many steps; those that it had before, again."""
        for name in dict.fromkeys(names):
            self._attempt(name, partial(self._open, name, folder, settings, step))
        return self

    def _open(self, name: str, folder: Path, settings: Mapping[str, Json], step: int) -> None:
        path = folder / NAME
        known = parse_json(path.read_text(encoding="utf-8")) if path.exists() else {}
        self.open[name] = log = LOGS[name](Start(folder, settings, step, str(known.get(name, ""))))
        if log.known:
            artifact.replace(path, partial(_write, json.dumps({**known, name: log.known}) + "\n"))

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """A line of metrics, to each."""
        for name, log in list(self.open.items()):
            self._attempt(name, partial(log.metrics, step, values))

    def preview(self, step: int, preview: Preview) -> None:
        """A preview, to each."""
        for name, log in list(self.open.items()):
            self._attempt(name, partial(log.preview, step, preview))

    def close(self, finished: bool = True) -> None:
        """Close them all; not `finished` if the run is to be resumed."""
        for name, log in list(self.open.items()):
            self._attempt(name, partial(log.close, finished))
        self.open = {}

    def _attempt(self, name: str, call: Callable[[], None]) -> None:
        try:
            with torch.random.fork_rng(devices=[]):
                call()
        except Exception as error:  # whatever it is: it is not the training that failed
            self.open.pop(name, None)
            reason = textwrap.shorten(f"{type(error).__name__}: {error}", 300, placeholder=" ...")
            warnings.warn(f"nothing more is logged to {name}: {reason}. The training continues.", stacklevel=2)


def _pixels(picture: bytes) -> Any:
    """The pixels (rows, columns, 3) of a PNG file, which matplotlib wrote, with Pillow, which it needs."""
    import numpy as np
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(picture)).convert("RGB"))


def _write(text: str, path: Path) -> None:
    path.write_text(text, encoding="utf-8")


def _text(value: Json) -> str:
    return value if isinstance(value, str) else json.dumps(value)
