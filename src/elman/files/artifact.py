"""A model, a checkpoint: a folder of safetensors and JSON that is there whole or not at all.

A folder is written under a temporary name, flushed and renamed; the one that was there before stays until then. The
checksums of its files are in checksums.json, and are verified whenever one of them is read. A folder
without it is read as it is.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from elman.errors import FileError
from elman.files import plugins
from elman.options import parse_json

Content = dict[str, Any]  # of a JSON file: whoever reads it checks what it uses

MODEL = "elman-model"  # what model.json is
MODEL_VERSION = 2
CHECKSUMS = "checksums.json"
REMEDY = "Take the other of the run's best/ and last/, put back a copy, or train again."


def write(path: Path, fill: Callable[[Path], None]) -> None:
    """Replace the folder `path` by one that `fill` has filled. A folder that holds anything else is left alone."""
    path = path.absolute()  # `.` has no name
    new, old = _new(path), _old(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir()
        fill(new)
        _note_checksums(new)
        _refuse_to_lose(path, new)
        _flush(new)
        if path.exists():
            shutil.rmtree(old, ignore_errors=True)
            path.rename(old)
        new.rename(path)
        _sync(path.parent)
        shutil.rmtree(old, ignore_errors=True)
    except (OSError, FileError) as error:
        shutil.rmtree(new, ignore_errors=True)
        kept = f"; what {path} held before is still there" if find(path) else ""
        raise FileError(f"cannot write {path}: {error}{kept}. Free some space, or choose another folder.") from error


def _refuse_to_lose(path: Path, new: Path) -> None:
    if path.exists() and not path.is_dir():
        raise FileError("it is a file")
    others = {p.name for p in path.glob("*")} - {p.name for p in new.iterdir()}
    if others:
        raise FileError(f"it holds {min(others)}, which would be lost")


def replace(path: Path, write: Callable[[Path], None]) -> None:
    """Replace the file `path` by one that `write` has written: flushed, then renamed, so it is there whole or not."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write(temporary)
        _sync(temporary)
        temporary.rename(path)
        _sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def verify(path: Path) -> None:
    """Raise a FileError if `path` does not hold the bytes that `write` left there."""
    try:
        noted = parse_json((path.parent / CHECKSUMS).read_text(encoding="utf-8"))["files"].get(path.name)
    except FileNotFoundError:
        return
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise FileError(
            f"{path.parent / CHECKSUMS} cannot be read ({error}), so {path.name} cannot be verified. {REMEDY}"
        ) from error
    if noted is not None and path.exists() and noted != _checksum(path):
        raise FileError(f"{path} is damaged: its bytes are not those that Elman wrote. {REMEDY}")


def digest(tensors: Mapping[str, Tensor]) -> str:
    """sha256 of the names, dtypes, shapes and bytes of tensors, in whatever order and on whatever device they are.

    >>> digest({"a": torch.zeros(2), "b": torch.ones(1)}) == digest({"b": torch.ones(1), "a": torch.zeros(2)})
    True
    """
    total = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        total.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        total.update(tensor.detach().resolve_conj().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def find(path: Path) -> Path | None:
    """The folder `path`; or the one before it, if the process died between the two renames; or None."""
    path = path.absolute()  # `.` has no name
    return next((folder for folder in (path, _old(path)) if folder.is_dir()), None)


def write_model_json(folder: Path, task: str, content: Content) -> None:
    """Write model.json: the task of a model, modules of one's own, and what else is needed to build it."""
    own = {"imports": plugins.loaded()} if plugins.loaded() else {}
    write_json(folder / "model.json", MODEL, MODEL_VERSION, {"task": task, **own, **content})


def read_model_json(folder: Path) -> Content:
    """Read model.json."""
    return read_json(folder / "model.json", MODEL, MODEL_VERSION)


def write_json(path: Path, kind: str, version: int, content: Content) -> None:
    """JSON with what it is and which version of that."""
    path.write_text(
        json.dumps({"format": kind, "version": version, **content}, indent=1, ensure_ascii=False), encoding="utf-8"
    )


def read_json(path: Path, kind: str, version: int) -> Content:
    """What `write_json` wrote; a FileError if it is something else, or damaged."""
    verify(path)
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise FileError(f"{path.parent} holds no {kind}: there is no {path.name} in it") from error
    except (OSError, ValueError) as error:
        raise FileError(f"{path} cannot be read ({error}); it may be truncated") from error
    if not isinstance(content, dict) or content.get("format") != kind:
        raise FileError(
            f"{path} is not an {kind}: its format is {content.get('format') if isinstance(content, dict) else None!r}"
        )
    if not isinstance(content.get("version"), int):
        raise FileError(f"{path} says nothing about its version; it is not an {kind} that Elman wrote")
    if content["version"] != version:
        newer = content["version"] > version
        raise FileError(
            f"{path} was written by {'a newer' if newer else 'an early'} version of Elman: it is version "
            f"{content['version']} of {kind}, this one reads version {version}. "
            + ("Upgrade Elman." if newer else "Train again, with another --out, or use the Elman that wrote it.")
        )
    return content


def write_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file with the permissions of the other files of its folder."""
    try:
        path.touch()
        mode = path.stat().st_mode  # safetensors would give it to its owner alone
        save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, path, metadata)
        path.chmod(mode)
    except SafetensorError as error:  # how safetensors reports a full disk
        raise OSError(str(error)) from error


def read_tensors(path: Path) -> dict[str, Tensor]:
    """What `write_tensors` wrote; a FileError if it is something else, or damaged."""
    verify(path)
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise FileError(f"{path} cannot be read ({error}); it is missing or truncated") from error


def _note_checksums(folder: Path) -> None:
    files = {file.name: _checksum(file) for file in sorted(folder.iterdir()) if file.is_file()}
    write_json(folder / CHECKSUMS, "elman-checksums", 1, {"files": files})


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _new(path: Path) -> Path:
    return path.with_name(f".{path.name}.new")


def _old(path: Path) -> Path:
    return path.with_name(f".{path.name}.old")


def _flush(folder: Path) -> None:
    for file in folder.iterdir():
        _sync(file)
    _sync(folder)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
