"""The settings that the runs of all tasks have; the config of a task derives from one of these two."""

from __future__ import annotations

from dataclasses import dataclass, field

from elman.files.config import Sections
from elman.training.loop import TrainingConfig
from elman.training.optim import OptimConfig


@dataclass(frozen=True)
class Settings(Sections):
    """Of a run that is fitted in one go.

    Args:
        task: what is fitted
        out: the run directory, which must be new unless a run is resumed
        resume: never, or auto to take the run in `out` if it is done, and else to begin again, to the same end
        seed: of everything that is random
        threads: that compute; 0 to choose by the work. Noted when the run begins, for they decide the last bits
    """

    task: str = ""
    out: str = ""
    resume: str = "never"
    seed: int = 0
    threads: int = 0


@dataclass(frozen=True)
class TrainedSettings(Settings):
    """Of a run that the loop trains. It may begin with a model if the config of its task has `init_from` too.

    Args:
        task: what is trained
        optim: how weights are changed
        training: how long, and what is kept
        resume: never, or auto to go on with the run in `out` if there is one
        device: auto or cpu
    """

    optim: OptimConfig = field(default_factory=OptimConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    device: str = "auto"
