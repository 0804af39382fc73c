"""`elman predict` over HTTP: the data are sent as a text, which the task reads as the file that it would be."""

from __future__ import annotations

import argparse
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from elman.errors import InputError
from elman.progress import quiet
from elman.serve.limits import Limits
from elman.tasks.task import AnyTask

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
            for name in ("filled", "drawn"):  # of those who have them
                if name in given:
                    setattr(given, name, getattr(most, name))
            return [line.rstrip("\n") for line in task.verbs["predict"].answer(face, given)]

    return predict


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
