"""`elman predict` over HTTP: the data are sent as a text, which the task reads as the file that it would be."""

from __future__ import annotations

import argparse
import re
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from elman.errors import ElmanError, InputError
from elman.progress import quiet
from elman.serve.limits import Limits
from elman.tasks.task import AnyTask

BATCH = 256  # rows that a prediction computes side by side, at most

Predictor = Callable[[str, str, dict[str, str | bool]], list[str]]


def predictor(task: AnyTask, face: Any, limits: Limits | None = None) -> Predictor:
    """What answers for a model: lines, of data, the ending of the file that they would be, and options.

    The model is shared by all who ask, side by side: a verb that changes it would show one of them to another.
    """
    most = limits or Limits()

    def predict(data: str, ending: str, options: dict[str, str | bool]) -> list[str]:
        if not re.fullmatch(r"[a-z0-9]{1,8}", ending):
            raise InputError(f"ending is {ending!r}; it is that of a file, such as csv")
        parser = _Parser(add_help=False, allow_abbrev=False)
        task.verbs["predict"].arguments(parser)
        with quiet(), tempfile.TemporaryDirectory() as folder:  # what is said of a file is for whoever named it
            path = Path(folder) / f"data.{ending}"
            path.write_text(data, encoding="utf-8")
            given = parser.parse_args([str(path), *_words(parser, options)])
            _limit(given, most)
            try:
                return _lines(task.verbs["predict"].answer(face, given), most.prediction)
            except ElmanError as error:  # whoever sent the data knows no such file
                raise InputError(str(error).replace(str(path), "data").replace(folder, "data")) from error

    return predict


def _limit(given: argparse.Namespace, most: Limits) -> None:
    """Hold the options that a task has to the limits of the server."""
    for name in ("filled", "drawn"):
        if name in given:
            setattr(given, name, getattr(most, name))
    for name in ("num_beams", "n_best"):
        if (number := getattr(given, name, None) or 0) > most.beams:
            raise InputError(f"{name} is {number}; it must be at most {most.beams}")
    if "batch_size" in given:  # which changes no answer
        given.batch_size = min(given.batch_size, BATCH)


def _lines(answer: Iterable[str], most: int) -> list[str]:
    found, size = [], 0
    for line in answer:
        found.append(line.rstrip("\n"))
        size += len(found[-1])
        if size > most:
            raise InputError(f"the answer has more than {most:,} bytes, which is the limit; send less data at once")
    return found


def _words(parser: argparse.ArgumentParser, options: dict[str, str | bool]) -> list[str]:
    """Options as a command line has them. Only flags and numbers: a string might name a file of the server's."""
    allowed = {
        name.removeprefix("--"): action.nargs == 0
        for action in parser._actions
        for name in action.option_strings
        if action.nargs == 0 or action.type in (int, float)
    }
    words = []
    for name, value in options.items():
        if name not in allowed:
            raise InputError(f"there is no option {name!r}; there are {', '.join(sorted(allowed)) or 'none'}")
        if allowed[name] and value is True:
            words.append(f"--{name}")
        elif not allowed[name] and isinstance(value, str):
            words.append(f"--{name}={value}")
        else:
            raise InputError(f"{name} is {value!r}; it must be {'true' if allowed[name] else 'a number, as a string'}")
    return words


class _Parser(argparse.ArgumentParser):
    """One that does not end the process."""

    def error(self, message: str) -> Any:
        raise InputError(message)
