"""elman predict: what a model predicts for each input, a line each."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from elman.errors import FileError, InputError


def run(arguments: Sequence[str]) -> int:
    """Write the lines of a model's predictions."""
    from elman.cli.model_verb import dispatch

    parsed, _, lines = dispatch(
        "predict", arguments, "Print what a model predicts for each input, a line each.", _common
    )
    if parsed.out is None:
        sys.stdout.writelines(lines)
    else:
        _write(Path(parsed.out).expanduser(), lines)  # of `--out=~/states.csv` a shell leaves the ~ alone
    return 0


def _write(path: Path, lines: Iterable[str]) -> None:
    """Write under another name until it is complete; an existing file is never replaced."""
    if path.exists():
        raise InputError(f"{path} exists, and is not overwritten; choose another --out")
    temporary = path.with_name(path.name + ".part")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.writelines(lines)
        temporary.rename(path)
    except OSError as error:
        raise FileError(f"cannot write {path}: {error}") from error
    finally:  # also when the data turn out to be bad, or Ctrl-C comes
        with suppress(OSError):
            temporary.unlink()


def _common(parser: ArgumentParser) -> None:
    parser.add_argument("--out", help="a new file to write to, instead of standard output")
