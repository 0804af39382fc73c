"""Writing what was not there before: a folder that is there whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from elman.errors import FileError, InputError


def refuse_existing(path: Path) -> None:
    """Raise an InputError where something is already."""
    if path.exists():
        raise InputError(f"{path} exists; choose another --out, or delete it")


def write_folder(path: Path, fill: Callable[[Path], None]) -> list[Path]:
    """A new folder that `fill` has filled: the paths of its files."""
    refuse_existing(path)
    temporary = path.absolute().with_name(f".{path.absolute().name}.{os.getpid()}.tmp")
    try:
        temporary.mkdir(parents=True)
        fill(temporary)
        temporary.rename(path)
    except OSError as error:
        raise FileError(f"cannot write {path}: {error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return sorted(path.iterdir())
