"""Everything that a run needs to go on as if nothing had happened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from elman import artifact
from elman import state as states
from elman.data import Position
from elman.errors import FileError, InputError
from elman.state import State
from elman.training import optim
from elman.training.distributed import Ranks
from elman.training.optim import Schedule

KIND, VERSION = "elman-training", 1
TEXTS = ("data.train", "data.valid", "data.test")  # in a checkpoint they are fingerprints


@dataclass
class Advance:
    """How far a run has come. Everything in it is a number, so JSON keeps it to the last bit."""

    step: int = 0
    tokens: int = 0
    position: Position = field(default_factory=Position)
    best: float | None = None
    bad: int = 0  # evaluations since the best


@dataclass(frozen=True)
class Checkpoint:
    """What stands in a folder beside the model's own files."""

    advance: Advance
    schedule: dict[str, float]
    optimiser: dict[str, Tensor]
    generators: Tensor  # (world, bytes): Torch's generator of each process
    state: State  # of all streams
    lengths: dict[str, int]  # of the files that are cut back
    config: dict[str, Any]


def save(
    folder: Path,
    save_model: Callable[[Path], None],
    advance: Advance,
    schedule: Schedule,
    optimiser: torch.optim.Optimizer,
    state: State,
    lengths: dict[str, int],
    config: dict[str, Any],
    ranks: Ranks,
) -> None:
    """Write `folder` whole. All processes call it, the first one writes."""
    state = ranks.gather_state(state)
    generators = ranks.gather(torch.get_rng_state()[None])

    def fill(new: Path) -> None:
        save_model(new)
        artifact.write_tensors(new / "optimiser.safetensors", {**optim.tensors(optimiser), "generators": generators})
        states.save(new / "state.safetensors", state)
        content = {"advance": asdict(advance), "schedule": schedule.memory, "lengths": lengths, "config": config}
        artifact.write_json(new / "training.json", KIND, VERSION, {**content, "world": ranks.world})

    if ranks.first:
        artifact.write(folder, fill)


def load(folder: Path, like: State) -> Checkpoint:
    """Read what `save` wrote. `like` is a state of the model."""
    content = artifact.read_json(folder / "training.json", KIND, VERSION)
    tensors = artifact.read_tensors(folder / "optimiser.safetensors")
    state = states.load(folder / "state.safetensors", like)
    try:
        advance = Advance(**{**content["advance"], "position": Position(*content["advance"]["position"])})
        lengths = {name: int(length) for name, length in dict(content["lengths"]).items()}
        schedule, config = dict(content["schedule"]), dict(content["config"])
        generators = tensors.pop("generators")
    except (KeyError, TypeError, ValueError) as error:
        raise FileError(
            f"{folder} is no checkpoint that this version knows: {type(error).__name__} {error}; it may be truncated"
        ) from error
    return Checkpoint(advance, schedule, tensors, generators, state, lengths, config)


def resume(checkpoint: Checkpoint, optimiser: torch.optim.Optimizer, schedule: Schedule, ranks: Ranks) -> State:
    """Put everything back where it was; the state of this process's streams."""
    if len(checkpoint.generators) != ranks.world:
        raise InputError(
            f"the checkpoint was written by {len(checkpoint.generators)} processes; there are {ranks.world} now. "
            "Resume with the same number: each has its own random numbers."
        )
    optim.restore(optimiser, checkpoint.optimiser)
    schedule.memory = dict(checkpoint.schedule)
    torch.set_rng_state(checkpoint.generators[ranks.rank].clone())  # of a row of a tensor, it reads what lies elsewhere
    return ranks.own(checkpoint.state)


def write_config(folder: Path, config: dict[str, Any]) -> None:
    """All that a checkpoint has to say about a model that was fitted in one go."""
    artifact.write_json(folder / "training.json", KIND, VERSION, {"config": config})


def read_config(folder: Path) -> dict[str, Any]:
    """The config of the run that wrote `folder`."""
    return dict(artifact.read_json(folder / "training.json", KIND, VERSION)["config"])


def check_config(stored: dict[str, Any], given: dict[str, Any], where: str) -> None:
    """Raise an InputError that names the first setting that differs."""
    for name in sorted({*_flat(stored), *_flat(given)}, key=lambda name: (name in TEXTS, name)):
        before, now = _flat(stored).get(name), _flat(given).get(name)
        if before != now and name in TEXTS:
            raise InputError(
                f"{where} was started with another text: what {name} stands for has changed, or how it is split. "
                f"A resumed run must be the same run: name the text that it had, or choose another --out."
            )
        if before != now:
            raise InputError(
                f"{where} was started with {name} = {before}, not {now}; a resumed run must be the same run. "
                f"Leave {name} as it was, or start another run with another --out."
            )


def _flat(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, dict):
            flat.update(_flat(value, f"{prefix}{name}."))
        else:
            flat[f"{prefix}{name}"] = list(value) if isinstance(value, tuple) else value
    return flat


def latest(run: Path) -> Path | None:
    """The last checkpoint of a run directory, if there is one."""
    folder = artifact.find(run / "last")
    if folder is not None and not (folder / "training.json").exists():
        raise FileError(f"{folder} holds no checkpoint: there is no training.json in it. It is a model, not a run.")
    return folder
