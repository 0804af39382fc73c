"""Everything that a run needs to continue as if nothing had happened."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from elman import state as states
from elman.data import Position
from elman.errors import FileError, InputError
from elman.files import artifact
from elman.files import config as configs
from elman.files.config import Identity
from elman.options import flag, number, whole
from elman.state import State
from elman.training import optim
from elman.training.loop import LoopState, Progress

KIND, VERSION = "elman-training", 2
FILE = "training.json"
AVERAGE = "average.safetensors"
KEYS = {"evals_since_best": "bad", "stop_early": "settled", "primary": "decides"}  # of a Progress, as files have them


@dataclass(frozen=True)
class Checkpoint:
    """What stands in a folder beside the model's own files."""

    progress: Progress
    schedule: dict[str, float]
    optimiser: dict[str, Tensor]
    generators: Tensor  # (world, bytes): Torch's generator of each process
    state: State | None  # of all rows; None where nothing is carried from batch to batch
    lengths: dict[str, int]  # of the files that are cut back
    identity: Identity
    average: dict[str, Tensor]  # the weights at the last evaluations; none where training.average is 1


def snapshot(state: LoopState, identity: Identity, lengths: dict[str, int]) -> Checkpoint:
    """The checkpoint of a run as it stands. All processes call it: each has some rows and its own random numbers."""
    carried = None if state.state is None else state.ranks.gather_state(state.state)
    generators = state.ranks.gather(torch.get_rng_state()[None])
    return Checkpoint(
        state.progress, state.schedule.memory, optim.tensors(state.optimiser), generators, carried, lengths, identity,
        state.average.tensors(),
    )  # fmt: skip


def save(folder: Path, fill_model: Callable[[Path], None], checkpoint: Checkpoint) -> None:
    """Write `folder` whole: the model's files, and the checkpoint beside them."""

    def fill(new: Path) -> None:
        fill_model(new)
        tensors = {**checkpoint.optimiser, "generators": checkpoint.generators}
        artifact.write_tensors(new / "optimiser.safetensors", tensors)
        if checkpoint.state is not None:
            states.save(new / "state.safetensors", checkpoint.state)
        if checkpoint.average:
            artifact.write_tensors(new / AVERAGE, checkpoint.average)
        parts = {"schedule": checkpoint.schedule, "lengths": checkpoint.lengths, "identity": checkpoint.identity}
        artifact.write_json(new / FILE, KIND, VERSION, {"advance": _to_json(checkpoint.progress), **parts})

    artifact.write(folder, fill)


def load(folder: Path, like: Callable[[], State]) -> Checkpoint:
    """Read what `save` wrote. `like` gives a state of the model, where it has one."""
    content = artifact.read_json(folder / FILE, KIND, VERSION)
    tensors = artifact.read_tensors(folder / "optimiser.safetensors")
    stored = folder / "state.safetensors"
    state = states.load(stored, like()) if stored.exists() else None
    try:
        progress = _from_json(content["advance"])
        lengths = {name: whole(name, length, least=0) for name, length in dict(content["lengths"]).items()}
        schedule, identity = dict(content["schedule"]), dict(content["identity"])
        for name, value in schedule.items():
            number(name, value, 0)
        generators = tensors.pop("generators")
    except (KeyError, TypeError, ValueError) as error:
        what = str(error) if isinstance(error, InputError) else f"{type(error).__name__} {error}"
        raise FileError(
            f"{folder} is not a checkpoint that this version knows: {what}. It may be damaged: {artifact.REMEDY}"
        ) from error
    average = artifact.read_tensors(folder / AVERAGE) if (folder / AVERAGE).exists() else {}
    return Checkpoint(progress, schedule, tensors, generators, state, lengths, identity, average)


def _to_json(progress: Progress) -> artifact.Content:
    return {KEYS.get(name, name): value for name, value in asdict(progress).items()}


def _from_json(content: artifact.Content) -> Progress:
    """How far a run has come, every number of it a number that it can be."""
    epoch, window = content["position"]
    position = Position(whole("position", epoch, least=0), whole("position", window, least=0))
    step, count, bad = (whole(name, content[name], least=0) for name in ("step", "count", "bad"))
    best = None if content["best"] is None else number("best", content["best"], -math.inf)
    settled, larger = (flag(name, content[name]) for name in ("settled", "larger_is_better"))
    return Progress(step, count, position, best, bad, settled, str(content["decides"]), larger)


def resume(checkpoint: Checkpoint, state: LoopState) -> None:
    """Put everything back where it was."""
    ranks = state.ranks
    if len(checkpoint.generators) != ranks.world:
        raise InputError(
            f"the checkpoint was written by {len(checkpoint.generators)} processes; there are {ranks.world} now. "
            "Resume with the same number: each has its own random numbers."
        )
    optim.restore(state.optimiser, checkpoint.optimiser)
    state.schedule.memory = dict(checkpoint.schedule)
    # Cloned: of a row of a tensor, Torch would read what lies elsewhere.
    torch.set_rng_state(checkpoint.generators[ranks.rank].clone())
    state.state = None if checkpoint.state is None else ranks.own(checkpoint.state)
    state.progress = checkpoint.progress
    state.average.restore(checkpoint.average)


def save_fitted(folder: Path, fill_model: Callable[[Path], None], identity: Identity, progress: Progress) -> None:
    """Write a model that was fitted in one go, and all that there is to resume of it: which run it is."""

    def fill(new: Path) -> None:
        fill_model(new)
        artifact.write_json(new / FILE, KIND, VERSION, {"identity": identity, "advance": _to_json(progress)})

    artifact.write(folder, fill)


def read_identity(folder: Path) -> Identity:
    """The identity of the run that wrote `folder`."""
    return dict(artifact.read_json(folder / FILE, KIND, VERSION).get("identity", {}))


def read_primary(out: Path) -> tuple[str, bool]:
    """The score by which the best model of the run in `out` is chosen, and whether more of it is better; no name where
    there is no checkpoint yet."""
    content = _noted(out, "last") or _noted(out, "best")
    return str(content.get("decides", "")), bool(content.get("larger_is_better", False))


def read_step(out: Path) -> int:
    """How many steps the checkpoint of the run in `out` has done; 0 where there is none."""
    return int(_noted(out, "last").get("step", 0))


def is_fitted(out: Path) -> bool:
    """Whether the run in `out` was fitted in one go, and is done: what the loop trains keeps its checkpoint in last."""
    best = artifact.find(out / "best")
    return best is not None and (best / FILE).exists()


def ended_early(out: Path, patience: int) -> bool:
    """Whether the loop saw no use in more steps of the run in `out`."""
    content = _noted(out, "last")
    return bool(content.get("settled")) or 0 < patience <= int(content.get("bad", 0))


def _noted(out: Path, name: str) -> artifact.Content:
    """How far the run in `out` has come, as one of its folders has it; nothing where that has no checkpoint."""
    folder = artifact.find(out / name)
    there = folder is not None and (folder / FILE).exists()
    return dict(artifact.read_json(folder / FILE, KIND, VERSION).get("advance", {})) if folder and there else {}


def latest(out: Path, resume: str) -> Path | None:
    """The checkpoint in the run directory `out` to continue from, if there is one and that is wanted.

    A folder with anything else in it is refused: a run is never overwritten.
    """
    last = artifact.find(out / "last") if resume == "auto" else None
    if last is not None and not (last / FILE).exists():
        raise FileError(f"{last} holds no checkpoint: there is no {FILE} in it. It is a model, not a run.")
    ours = resume == "auto" and (out / configs.NAME).exists()
    if last is None and not ours and out.exists() and (not out.is_dir() or _holds_something(out)):
        raise InputError(
            f"{out} exists; a run is never overwritten. Choose another --out, or continue it with --resume auto."
        )
    return last


def _holds_something(folder: Path) -> bool:
    """Half a config is nothing: the process that wrote it died before its run began."""
    return any(path.name != f".{configs.NAME}" for path in folder.iterdir())
