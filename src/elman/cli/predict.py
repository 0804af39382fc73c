"""elman predict: what a model predicts for each input, a line each."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from elman.errors import FileError, InputError
from elman.options import text_ending


def run(arguments: Sequence[str]) -> int:
    """Write the lines of a model's predictions."""
    from elman.cli.model_verb import dispatch

    parsed, _, lines = dispatch(
        "predict", arguments, "Print what a model predicts for each input, a line each.", add_common, _check
    )
    if parsed.out is None:
        sys.stdout.writelines(lines)
    else:
        _write(Path(parsed.out), lines)
    return 0


def _write(path: Path, lines: Iterable[str]) -> None:
    """Write under another name until it is complete."""
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


def _check(flags: Namespace) -> None:
    if flags.out is None:
        return
    flags.out = os.path.expanduser(flags.out)  # of `--out=~/states.csv` a shell leaves the ~ alone
    text_ending("--out", flags.out)
    if Path(flags.out).exists():
        raise InputError(f"{flags.out} exists, and is not overwritten; choose another --out")


def add_common(parser: ArgumentParser) -> None:
    parser.add_argument("--out", help="a new file to write to, instead of standard output")
