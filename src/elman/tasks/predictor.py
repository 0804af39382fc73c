"""What users hold: a network with all that it needs to be used. It is a value.

Predicting, evaluating, inspecting and serving change nothing in a predictor: what moves, such as the state of a series,
is an argument and a result. What its attributes give is frozen or a copy, but for the network: its weights are those of
a torch module, which training changes, and so may you. The constructor puts the network that it is given in evaluation
mode.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, NoReturn, Self, TypeVar

import torch
from torch import Tensor, nn

from elman.compose import LearnedStart
from elman.errors import FileError, FrozenError, InputError
from elman.files import artifact
from elman.files.config import Json
from elman.options import whole
from elman.progress import check_cancelled
from elman.tables import Table

M = TypeVar("M", bound=nn.Module)
R = TypeVar("R")
A = TypeVar("A")


class Predictor(Generic[M]):
    """A network and its parts, which a subclass names; they are what its constructor takes, in that order."""

    task: ClassVar[str]  # its name in TASKS
    model: M

    def __init__(self, model: M, **parts: object) -> None:
        vars(self).update(model=model.eval(), **parts)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise FrozenError(self, name)

    def __delattr__(self, name: str) -> NoReturn:
        raise FrozenError(self, name)

    @property
    def config(self) -> Any:
        """What its network is: a copy, for its lists and mappings could be written to."""
        if "config" not in vars(self):
            raise AttributeError(f"a {type(self).__name__} has no config; its options are attributes")
        return copy.deepcopy(vars(self)["config"])

    # What a subclass defines

    def content(self) -> dict[str, Json]:
        """All parts but the network and what begins with _, as model.json has them: by their `to_json`, or by their
        fields."""
        return {
            name: _json_of(part) for name, part in vars(self).items() if name != "model" and not name.startswith("_")
        }

    @classmethod
    def parts(cls, content: artifact.Content) -> tuple[Any, ...]:
        """The parts that `content` wrote, in the order of the constructor."""
        raise NotImplementedError(f"{cls.__name__} does not say what its parts are")

    @classmethod
    def network(cls, *parts: Any, **named: Any) -> M:
        """The network for some parts, with fresh weights."""
        raise NotImplementedError(f"{cls.__name__} does not say what its network is")

    def about(self) -> list[list[str]]:
        """Further lines for `describe`, after its settings: a name and a value each."""
        return []

    # Files

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what `save` wrote. It needs nothing else: not the training data, not the run."""
        folder = Path(path)
        content = artifact.read_model_json(folder)
        with known(folder):
            parts = cls.parts(content)
        model = cls.network(*parts)
        cls.restore(model, folder)
        return cls(model, *parts)

    @classmethod
    def restore(cls, model: M, folder: Path) -> None:
        """Give a network the weights of a folder."""
        read_weights(model, folder)

    def save(self, path: str | Path) -> None:
        """Write it to a folder: tensors in safetensors, all else in JSON."""
        artifact.write(Path(path), self.write_to)

    def write_to(self, folder: Path) -> None:
        """The files of `save`, in a folder that is there."""
        artifact.write_tensors(folder / "model.safetensors", tensors(self.model))
        artifact.write_model_json(folder, self.task, self.content())

    @property
    def fingerprint(self) -> str:
        """What tells this model from every other: a state continues with the model that it came from."""
        return artifact.digest(tensors(self.model))

    # What it is

    @property
    def parameter_count(self) -> int:
        """How many numbers its weights are, those that are shared once."""
        return sum(tensor.numel() for tensor in tensors(self.model).values())

    def describe(self) -> list[Table]:
        """What it is and what it learnt."""
        settings = [[name.replace("_", " "), str(value)] for name, value in asdict(self.config).items() if value]
        rows = [*settings, *self.about(), ["parameters", f"{self.parameter_count:,}"]]
        return [Table("the model", ["setting", "value"], rows)]

    def _repr_html_(self) -> str:
        tables = "".join(table._repr_html_() for table in self.describe())
        return f"<div>{tables}</div>"

    # Computing

    @property
    def device(self) -> torch.device:
        """Where its weights are."""
        return next((tensor.device for tensor in self.model.state_dict().values()), torch.device("cpu"))

    @torch.inference_mode()
    def batched(
        self, rows: Sequence[R], run: Callable[[list[R]], Iterable[A]], batch_size: int,
        size: Callable[[R], int] = lambda row: 0,
    ) -> list[A]:  # fmt: skip
        """What `run` gives for rows, `batch_size` of like `size` at a time; in the order of the rows."""
        whole("batch_size", batch_size)
        order = sorted(range(len(rows)), key=lambda i: -size(rows[i]))
        results: dict[int, A] = {}
        with evaluating(self.model):
            for at in range(0, len(order), batch_size):
                check_cancelled()
                places = order[at : at + batch_size]
                results.update(zip(places, run([rows[i] for i in places]), strict=True))
        return [results[i] for i in range(len(rows))]


def _json_of(part: Any) -> Json:
    if hasattr(part, "to_json"):
        return part.to_json()
    return asdict(part) if is_dataclass(part) and not isinstance(part, type) else part


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Compute without dropout. The network of a predictor is in evaluation mode from the start, and threads share it:
    nothing is written to it, its mode neither."""
    if model.training:
        raise InputError(
            "the network is in training mode, so it would answer with dropout: call predictor.model.eval() when you "
            "have trained it yourself"
        )
    yield


@contextmanager
def known(folder: Path) -> Iterator[None]:
    """Read the content of a folder: what is not there, or is of another kind, makes it a model of another version."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise FileError(f"{folder / 'model.json'} is not a model that this version knows: {error}") from error


# Weights


def tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers, those that are shared once."""
    names: dict[int, str] = {}
    state = model.state_dict(keep_vars=True)
    for name, tensor in state.items():
        names.setdefault(id(tensor), name)
    return {name: state[name].cpu() for name in names.values()}


def read_weights(model: nn.Module, folder: Path) -> None:
    """Give a model the weights that were written to a folder."""
    stored, wanted = artifact.read_tensors(folder / "model.safetensors"), tensors(model)
    if stored.keys() != wanted.keys() or any(stored[name].shape != tensor.shape for name, tensor in wanted.items()):
        raise wrong_weights(folder)
    model.load_state_dict(stored, strict=False)  # what is shared has one name only


def wrong_weights(folder: Path) -> FileError:
    """Weights of something else."""
    return FileError(f"the weights in {folder} are not those of the model that model.json describes")


def copy_weights(source: nn.Module, model: nn.Module) -> int:
    """Give a model the weights of another one, which must have the same; how many tensors they are.

    Only the starts that a model learns may be missing there: they begin where those of the other do.
    """
    learnt, fresh = tensors(source), tensors(model)
    if not any(isinstance(part, LearnedStart) for part in source.modules()):
        names = _names_without_starts(model)
        learnt = {names.get(name, name): tensor for name, tensor in learnt.items()}
        fresh = {name: tensor for name, tensor in fresh.items() if name in names.values()}
    for name in sorted({*learnt, *fresh}):
        there, here = (list(part[name].shape) if name in part else "none" for part in (learnt, fresh))
        if there != here:
            raise InputError(
                f"the model in init_from does not fit this config: the shape of {name} is {there} there and {here} "
                "here. Leave the settings of the model out on the command line; in Python, use those of that model."
            )
    model.load_state_dict(learnt, strict=False)  # what is shared has one name only
    return len(learnt)


def _names_without_starts(model: nn.Module) -> dict[str, str]:
    """The names of a model's tensors but the starts that it learns, by what they would be if it learned none."""
    starts = [f"{name}." if name else "" for name, part in model.named_modules() if isinstance(part, LearnedStart)]
    names = {name: name for name in model.state_dict() if name not in {f"{start}initial_state" for start in starts}}
    for start in sorted(starts, key=len, reverse=True):  # the inner ones first: their names contain the outer ones
        inside = f"{start}core."
        names = {
            start + plain.removeprefix(inside) if plain.startswith(inside) else plain: name
            for plain, name in names.items()
        }
    return names


AnyPredictor = Predictor[Any]  # whatever its network is
