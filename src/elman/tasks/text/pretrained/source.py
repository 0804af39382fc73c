"""What others saved: a config, and tensors by name. Nothing of it is run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from elman.errors import FileError
from elman.files.artifact import Content
from elman.options import parse_json

UNSAFE = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
NAMED = 8  # names of tensors that a message lists


@dataclass(frozen=True)
class Config:
    """A config.json: `config("hidden_size")` is a setting of it."""

    path: Path
    content: Content

    def __call__(self, name: str, default: Any = None, *, kind: type | tuple[type, ...] = int) -> Any:
        """A setting, which must be of a kind, and above 0 if it is a number; the default where it is not there."""
        value = self.content.get(name)
        value = default if value is None else value
        if value is None:
            raise FileError(f"{self.path} has no {name}, which this needs")
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise FileError(f"{name} is {value!r} in {self.path}; it must be of the type {_named(kind)}")
        if isinstance(value, int | float) and not 0 < value < math.inf:
            raise FileError(f"{name} is {value!r} in {self.path}; it must be larger than 0")
        return value

    def require(self, name: str, *accepted: object) -> None:
        """Refuse a setting that makes another network than can be built; the first that is accepted is the default."""
        value = self.content.get(name, accepted[0])
        if value not in accepted:
            choices = " or ".join(map(repr, accepted))
            raise FileError(f"{name} is {value!r} in {self.path}; networks with {choices} can be read, and no others")

    def token(self, name: str, default: int) -> int:
        """The number of a token; the first, where there are several, and the default where there is none."""
        value: Any = self.content.get(name)
        first = value[0] if isinstance(value, list) and value else value
        if first is not None and (not isinstance(first, int) or isinstance(first, bool)):
            raise FileError(f"{name} is {value!r} in {self.path}; it must be the number of a token, or several")
        return default if first is None else first


def _named(kind: type | tuple[type, ...]) -> str:
    return kind.__name__ if isinstance(kind, type) else " or ".join(part.__name__ for part in kind)


WEIGHTS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)  # others are quantised, with scales elsewhere


class Tensors:
    """Tensors by name. Which of them were wanted, and were not there or of another shape, `finish` says."""

    def __init__(self, path: Path, shapes: Mapping[str, tuple[int, ...]], read: Callable[[str], Tensor]) -> None:
        self.path, self.shapes, self._read = path, shapes, read
        self._left = set(shapes)
        self._missing: list[str] = []
        self._wrong: list[str] = []
        self._no_weights: list[str] = []

    def __contains__(self, name: str) -> bool:
        return name in self.shapes

    def shape(self, name: str) -> tuple[int, int]:
        """The shape of a matrix that settings are read from."""
        if name not in self.shapes:
            raise FileError(f"{self.path} has no tensor {name}; it has {_listed(self.shapes)}")
        if len(self.shapes[name]) != 2 or 0 in self.shapes[name]:
            raise FileError(
                f"{name} is {list(self.shapes[name])} in {self.path}; it must be a matrix that is not empty"
            )
        rows, columns = self.shapes[name]
        return rows, columns

    def ignore(self, names: Iterable[str]) -> None:
        """Tensors that nothing is computed with."""
        self._left -= set(names)

    @torch.no_grad()
    def copy(self, parameter: Tensor | None, *names: str, make: Callable[..., Tensor] | None = None) -> None:
        """Give a parameter the values of a tensor, of several one below the other, or what `make` makes of them."""
        assert parameter is not None
        self._left -= set(names)
        missing = [name for name in names if name not in self.shapes]
        self._missing += missing
        if missing:
            return
        parts = [self._read(name) for name in names]
        for name, part in zip(names, parts, strict=True):
            if part.dtype not in WEIGHTS:
                self._no_weights.append(f"{name} in {str(part.dtype).removeprefix('torch.')}")
            elif not part.isfinite().all():
                self._no_weights.append(f"{name} with NaN or infinity")
        try:
            value = make(*parts) if make else torch.cat(parts) if len(parts) > 1 else parts[0]
        except (IndexError, RuntimeError, TypeError):  # they have other dimensions than what is made of them
            self._wrong += [f"{name} {list(part.shape)}" for name, part in zip(names, parts, strict=True)]
            return
        if value.shape != parameter.shape:
            self._wrong.append(f"{' and '.join(names)} {list(value.shape)} instead of {list(parameter.shape)}")
        else:
            parameter.copy_(value)

    def zero(self, *parameters: nn.Parameter | None) -> None:
        """What a family does not have, and what changes nothing as zeros."""
        for parameter in parameters:
            if parameter is not None:
                nn.init.zeros_(parameter)

    def finish(self) -> None:
        """Raise a FileError if anything was missing, had another shape, or is left over."""
        problems = [
            f"{what}: {_listed(names)}"
            for what, names in (
                ("missing", self._missing),
                ("unknown", self._left),
                ("of another shape", self._wrong),
                ("no weights", self._no_weights),
            )
            if names
        ]
        if problems:
            raise FileError(f"the tensors of {self.path} are not those of its config. " + "; ".join(problems))


def _listed(names: Iterable[str]) -> str:
    known = sorted(names)
    more = f" and {len(known) - NAMED:,} more" if len(known) > NAMED else ""
    return ", ".join(known[:NAMED]) + more


def open_folder(folder: Path) -> tuple[Config, Tensors]:
    """A folder as Hugging Face has them: config.json and safetensors, in one file or in several with an index."""
    if (folder / "model.json").exists():
        raise FileError(f"{folder} is a model of Elman already: elman.load reads it")
    config = Config(folder / "config.json", _json(folder / "config.json"))
    index, single = folder / "model.safetensors.index.json", folder / "model.safetensors"
    if index.exists():
        homes = _json(index).get("weight_map")
        if not isinstance(homes, dict) or not homes:
            raise FileError(f"{index} has no weight_map, which says in which files tensors are")
        files = sorted({str(name) for name in homes.values()})
        return config, open_safetensors(folder, [folder / Path(name).name for name in files])
    if single.exists():
        return config, open_safetensors(folder, [single])
    unsafe = sorted(path.name for pattern in UNSAFE for path in folder.glob(pattern))
    if unsafe:
        raise FileError(
            f"{folder} has its weights in {unsafe[0]}, which can hold code and is not opened. Take the "
            "model.safetensors of the same model, or make one where you trust the file"
        )
    raise FileError(f"{folder} has no model.safetensors")


def open_safetensors(source: Path, files: Iterable[Path]) -> Tensors:
    """The tensors of some files, each read when it is wanted."""
    shapes: dict[str, tuple[int, ...]] = {}
    homes: dict[str, Any] = {}
    for path in files:
        try:
            file = safe_open(path, framework="pt")
            for name in file.keys():  # noqa: SIM118 (it is no mapping)
                shapes[name], homes[name] = tuple(file.get_slice(name).get_shape()), file
        except (SafetensorError, OSError) as error:
            raise FileError(f"{path} cannot be read ({error}); it is truncated, missing or not safetensors") from error
    return Tensors(source, shapes, lambda name: homes[name].get_tensor(name))


def open_pth(path: Path) -> Tensors:
    """The tensors of a .pth, which could hold code: Torch reads tensors out of it, and refuses everything else."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # of Torch or zipfile, as the file has it
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise FileError(f"{path} is not a file of tensors alone, whole and as Torch writes it ({reason})") from error
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise FileError(f"{path} holds something else than tensors by name")
    return Tensors(path, {str(name): tuple(value.shape) for name, value in content.items()}, content.__getitem__)


def _json(path: Path) -> Content:
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise FileError(f"{path.parent} has no {path.name}; a folder of Hugging Face has one") from error
    except (OSError, ValueError) as error:
        raise FileError(f"{path} cannot be read ({error}); it may be truncated") from error
    if not isinstance(content, dict):
        raise FileError(f"{path} is not a JSON object")
    return content
