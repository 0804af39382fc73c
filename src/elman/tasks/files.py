"""The files of a predictor whose network is a Torch module: weights as safetensors, all else as JSON."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor, nn

from elman.errors import FileError, InputError
from elman.files import artifact
from elman.files.config import Json


def write(folder: Path, task: str, model: nn.Module, content: dict[str, Json]) -> None:
    """Write the weights of a model, and model.json: its task, and what else is needed to build it."""
    artifact.write_tensors(folder / "model.safetensors", tensors(model))
    artifact.write_model_json(folder, task, content)


def restore(model: nn.Module, folder: Path) -> None:
    """Give a model the weights that were written."""
    stored, wanted = artifact.read_tensors(folder / "model.safetensors"), tensors(model)
    if stored.keys() != wanted.keys() or any(stored[name].shape != tensor.shape for name, tensor in wanted.items()):
        raise foreign(folder)
    model.load_state_dict(stored, strict=False)  # what is shared has one name only


def copy(source: nn.Module, model: nn.Module) -> int:
    """Give a model the weights of another one, which must have the same; how many tensors they are."""
    learnt, fresh = tensors(source), tensors(model)
    for name in sorted({*learnt, *fresh}):
        there, here = (list(part[name].shape) if name in part else "none" for part in (learnt, fresh))
        if there != here:
            raise InputError(
                f"the model in init_from does not fit this config: the shape of {name} is {there} there and {here} "
                "here. Leave the settings of the model out on the command line; in Python, take those of that model."
            )
    model.load_state_dict(learnt, strict=False)  # what is shared has one name only
    return len(learnt)


def foreign(folder: Path) -> FileError:
    """Weights of something else."""
    return FileError(f"the weights in {folder} are not those of the model that model.json describes")


def tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers, those that are shared once."""
    found: dict[int, str] = {}
    state = model.state_dict(keep_vars=True)
    for name, tensor in state.items():
        found.setdefault(id(tensor), name)
    return {name: state[name].cpu() for name in found.values()}
