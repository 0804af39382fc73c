"""A task is one object: what it reads, what it builds of it, what it minimises and how it is scored.

`run.py`, the loop, checkpoints and the command line know tasks only by what is defined here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from torch import nn

from elman.data import Batch, Batches
from elman.data.names import Names
from elman.errors import ElmanError, InputError
from elman.files import config as configs
from elman.files.config import Json, Sections, one_of
from elman.lens import Sample
from elman.state import State
from elman.tasks.predictor import AnyPredictor, copy_weights
from elman.tasks.request import Request, Rows, TextRequest, data_option, is_absent, option
from elman.training.logs import LOGS
from elman.training.loop import TrainingConfig
from elman.training.loss import Loss, negative_log_likelihood
from elman.training.optim import OptimConfig
from elman.training.record import Preview
from elman.training.scores import Scores

if TYPE_CHECKING:
    from elman.tasks.serving import Served


P_co = TypeVar("P_co", bound=AnyPredictor, covariant=True)  # the model that a run of a config gives


@dataclass(frozen=True)
class Settings(Sections, Generic[P_co]):
    """The settings of a run that is fitted in one go, not by the loop.

    Args:
        task: what is fitted
        out: the run directory, which must be new unless a run is resumed
        resume: never, or auto to use the run in `out` if it is complete and to start it again if it is not
        seed: the seed of all random numbers
        threads: how many threads compute; 0 chooses by the amount of work. A run records its number, because the last
            bits depend on it
        log: where metrics are reported to as well, one or several of tensorboard, wandb and mlflow; empty for nowhere
    """

    task: str = ""
    out: str = ""
    resume: str = one_of("never", ("never", "auto"))
    seed: int = 0
    threads: int = 0
    log: Names = field(default_factory=list, metadata={"choices": LOGS})


@dataclass(frozen=True)
class TrainedSettings(Settings[P_co]):
    """The settings of a run that the loop trains. It may start from a model if the task's config has `init_from`.

    Args:
        task: what is trained
        optim: the optimiser
        training: how long to train, and what to save
        resume: never, or auto to continue the run in `out` if there is one
        device: auto or cpu
    """

    optim: OptimConfig = field(default_factory=OptimConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    device: str = one_of("auto", ("auto", "cpu"))


class Data:
    """What a task reads for a run. `valid` and `test` are what its `evaluate` takes; None where there is none."""

    unit: str = "rows"  # what the progress line counts
    valid: Any = None
    test: Any = None
    fingerprint: dict[str, str]  # of the data that settings such as `data.train` name: other content, another run

    def batches(self, rank: int, world: int) -> Batches:
        """What process `rank` of `world` trains on."""
        raise NotImplementedError(f"{type(self).__name__} has no batches: what is fitted in one go needs none")

    def summary(self) -> list[str]:
        """What was read, in a line or a few."""
        return []

    def first(self, part: Any, count: int) -> Any:
        """At most `count` units from the start of a part; the part itself if it has no more."""
        raise InputError(
            f"training.evaluate_tokens is {count}, but these data can only be evaluated as a whole. Leave it at 0."
        )

    def watched(self, most: int) -> tuple[Any, str]:
        """What is evaluated while a model trains, `most` units of `valid` or all if that is 0; and what part that is,
        in words, unless it is all."""
        part = self.first(self.valid, most) if most else self.valid
        return part, "" if part is self.valid else f"first {most:,} {self.unit}"

    def describe_loss(self, loss: float) -> str:
        """The loss, as the progress line shows it."""
        return f"loss {loss:.4f}"


def _nothing(run: Path, step: int) -> Preview:
    return Preview()


@dataclass(frozen=True)
class Evaluation:
    """How good a model is, and what a person would look at, given the run directory and the number of steps."""

    scores: Scores
    preview: Callable[[Path, int], Preview] = _nothing


class Generated(Protocol):
    """What `elman generate` prints: pieces as they come and, when they have come, the whole as JSON."""

    def pieces(self) -> Iterable[str]: ...
    def to_json(self) -> dict[str, Json]: ...


class Inspection(NamedTuple):
    """What the lens is pointed at."""

    model: nn.Module
    sample: Sample
    begun: Callable[[], Inspection] | None = None  # the same with fresh weights, where the data depend on weights


@dataclass(frozen=True)
class InspectRequest(TextRequest):
    """What the lens looks at."""

    data: Rows = data_option("files; by default the run's validation data", least=0)
    rows: int = option(64, "sequences of the data to inspect, at most", least=1)
    steps: int = option(1000, "inputs of each sequence, at most", least=1)
    run: str = option("", "the run whose validation data are read if none are named", inside=True)


Response = Callable[[Any, Any], Any]  # of a model to a request of the type next to it


C = TypeVar("C", bound=Any)
D = TypeVar("D", bound=Data)
F = TypeVar("F", bound=AnyPredictor)


class Task(Generic[C, D, F]):
    """Subclass it, and put an instance into `TASKS`."""

    Config: type[C]  # a frozen dataclass that derives from `Settings`, or `TrainedSettings` where the loop trains
    Model: type[F]  # what users hold
    title: str  # what it trains, in a few words
    fitted: bool = False  # in one go, by `fit`, not by the loop
    reads_columns: bool = False  # its rows may be a mapping of columns by name

    def fits(self, config: C) -> bool:
        """Whether a run of this config is fitted in one go."""
        return self.fitted

    @property
    def requests(self) -> dict[str, tuple[type[Request], Response]]:
        """What it answers: for each verb the kind of request, and the response of a model to one.

        That is a `Scores` to evaluate, lines of text to predict, a `Generated` to generate, an `Inspection` to inspect.
        The first verb is what `elman train` suggests when it is done.
        """
        raise NotImplementedError

    def open(self, config: C, saved: F | None) -> D:
        """Read the data; in a run that is resumed, or starts from another model, as the model that was `saved` does."""
        raise NotImplementedError

    def open_in_memory(self, config: C, saved: F | None, parts: dict[str, Any]) -> D:
        """The same, with data in memory for some `parts` of it (train, valid, test)."""
        raise InputError(f"{self.title} reads files only; name them in the data section of its config")

    def build(self, config: C, data: D) -> F:
        """The model of a config, with fresh parameters."""
        raise NotImplementedError

    def settings(self, predictor: F) -> dict[str, Json]:
        """The settings, by dotted name, that a run which starts from this model has to have, or had better have."""
        return {}

    def copy_weights(self, predictor: F, source: F) -> list[str]:
        """Let a fresh model start with what another has learnt; what was copied, in words."""
        tensors = copy_weights(source.model, predictor.model)
        return [f"weights ({tensors} tensors)"]

    def load(self, folder: Path) -> F:
        """The model whose `write_to` wrote the folder."""
        return self.Model.load(folder)

    def loss(self, model: nn.Module, batch: Batch, state: State | None) -> Loss:
        """The loss of a batch as a sum, the number of its terms, and the state that the next batch continues from."""
        return negative_log_likelihood(model, batch, state)

    def fit(self, predictor: F, config: C, data: D) -> list[dict[str, float]]:
        """Fit in one go; the lines of its metrics, one a step."""
        raise NotImplementedError

    def finish(self, predictor: F, data: D) -> F:
        """The model with what only its weights and all of the training data give; before it is kept as the best, and at
        the end of a run."""
        return predictor

    def unfinished(self, predictor: F) -> F:
        """The model without what `finish` gave it: its weights are about to change."""
        return predictor

    def evaluate(self, predictor: F, part: Any) -> Evaluation:
        """How good a model is on a part of the data."""
        raise NotImplementedError

    def inspect_inputs(self, predictor: F, part: Any, rows: int, steps: int) -> Inspection:
        """What the lens is pointed at: the network, and at most `rows` of at most `steps` inputs of a part of the data.

        A task that has it may answer `elman inspect` (`inspector`), and be trained with `training.lens`.
        """
        raise InputError(f"{self.title} cannot be inspected: its task does not say how (Task.inspect_inputs)")

    def inspector(self, read: Callable[[Any, Any], Any]) -> Response:
        """The response of its models to an `InspectRequest`: `read(predictor, request)` reads the data that are named,
        as part of a `Data`; without them it is the run's validation data."""

        def respond(predictor: F, request: InspectRequest) -> Inspection:
            part = self._own_data(predictor, request.run) if is_absent(request.data) else read(predictor, request)
            return self.inspect_inputs(predictor, part, request.rows, request.steps)

        return respond

    def _own_data(self, predictor: F, run: str) -> Any:
        """The validation data of a run; of one that has none, what it was fitted to."""
        if not run:
            raise InputError("a model in memory has no run whose data could be read: give data to inspect it on")
        path = Path(run) / configs.NAME
        if not path.exists():
            raise InputError(f"{run} is a saved model and not a run, so it names no data: elman inspect {run} DATA")
        content = {name: value for name, value in configs.read(path).items() if name != "imports"}
        try:
            data: Any = self.open(self.Config(**content), predictor)
        except (ElmanError, TypeError) as error:
            raise InputError(
                f"the data of {run} cannot be read any more ({error}); name others: elman inspect {run} DATA"
            ) from error
        return data.train if data.valid is None else data.valid

    def serve(self, predictor: F) -> Served:
        """How `elman serve` runs a model: what goes in, what comes out, and how many sessions run side by side.

        `serving.Numbers` is enough for what reads numbers. `elman predict`, where the task answers that, is served too.
        """
        raise InputError(f"{self.title} cannot be served: its task does not say how (Task.serve)")

    def summary(self, predictor: F) -> str:
        """What a model is, in a line."""
        return repr(predictor)

    def closing(self, lines: Sequence[Mapping[str, float]]) -> str:
        """What has to be said when a run is done, of the lines of its metrics; nothing, as a rule."""
        return ""

    def preview(self, predictor: F, config: C, step: int, evaluation: Evaluation | None) -> Preview:
        """What a person would look at after `step` steps and an evaluation, if there was one."""
        return evaluation.preview(Path(config.out), step) if evaluation else Preview()


AnyTask = Task[Any, Any, Any]
AnySettings = Settings[AnyPredictor]
