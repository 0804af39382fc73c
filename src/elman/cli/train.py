"""elman train: a config, changed by what stands on the command line, becomes a run."""

from __future__ import annotations

import argparse
import difflib
import os
import re
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elman.errors import FileError, InputError

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser

    from elman.tasks.task import Settings


def run(arguments: Sequence[str]) -> int:
    """Train; 128 plus the signal if it was asked to stop."""
    from elman import tasks
    from elman.cli.output import print_table
    from elman.run import train
    from elman.training.interrupt import Interrupted

    settings = read_config(arguments)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *where, **_: print(f"elman: warning: {message}", file=sys.stderr)
            face, _ = train(settings)
    except Interrupted as stop:
        print(f"elman: {stop}", file=sys.stderr)
        return stop.exit_code
    if os.environ.get("RANK", "0") == "0":  # of several processes, one says it
        for table in face.describe():
            print_table(table)
        verb = next(iter(tasks.find(settings.task).verbs))
        print(f"The model is in {settings.out}. Try: elman {verb} {settings.out}", file=sys.stderr)
    return 0


def read_config(arguments: Sequence[str]) -> Settings:
    """The config that a command line describes. A run that goes on needs no --config: it has its own."""
    from elman import config, tasks

    named = _named(arguments)
    default = next(iter(tasks.TASKS))
    path = named.config
    if path is None and named.resume == "auto":
        own = Path(named.out or tasks.find(named.task or default).Config().out) / config.NAME
        if own.exists():
            path, arguments = str(own), ["--config", str(own), *arguments]
    settings = config.read(Path(path)) if path else {}
    task = tasks.find(named.task or str(settings.get("task", default)))
    parser = _parser(task.Config)
    return _instance(parser, task.Config, _parse(parser, arguments))


def _named(arguments: Sequence[str]) -> argparse.Namespace:
    """What must be known before the rest can be read: the task decides which settings there are."""
    parser = argparse.ArgumentParser(prog="elman train", add_help=False, allow_abbrev=False, exit_on_error=False)
    for name in ("--task", "--config", "--out", "--resume"):
        parser.add_argument(name, nargs="?")
    return parser.parse_known_args(arguments)[0]


def _parse(parser: ArgumentParser, arguments: Sequence[str]) -> Any:
    from jsonargparse import ArgumentError

    try:
        return parser.parse_args(list(arguments))
    except ArgumentError as error:
        raise InputError(_explained(str(error), parser)) from error
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"cannot read the config: {error}") from error


def _parser(config: type) -> ArgumentParser:
    from jsonargparse import ArgumentParser

    from elman.tasks import TASKS

    settings = "; ".join(f"`elman train --task {name} --help` for {task.title}" for name, task in TASKS.items())
    parser = ArgumentParser(
        prog="elman train",
        exit_on_error=False,
        allow_abbrev=False,
        description=f"Train a model. `elman init TASK` writes a config to begin with. Settings: {settings}.",
    )
    parser.add_argument("--config", action="config", help="a YAML file; what stands on the command line goes before it")
    parser.add_class_arguments(config, as_group=False)
    return parser


def _instance(parser: ArgumentParser, config: type, given: Any) -> Any:
    try:
        parts = vars(parser.instantiate(given))
    except TypeError as error:
        raise InputError(f"a section of the config (data, model, ...) is not a mapping: {error}") from error
    return config(**{name: value for name, value in parts.items() if name != "config"})


def _explained(message: str, parser: ArgumentParser) -> str:
    """What jsonargparse says, and the nearest setting if one was named that does not exist."""
    unknown = re.search(r"Group '([\w.]+)' does not accept option '([\w.]+)'|Option '([\w.]+)'|--([\w.]+)", message)
    named = ".".join(part for part in unknown.groups() if part) if unknown else ""
    settings = list(vars(parser.get_defaults().as_flat()))
    # `lr` alone is the one that ends with it; else what is spelt almost so.
    ends = [name for name in settings if name.endswith(f".{named.rpartition('.')[2]}")]
    near = ends if len(ends) == 1 and named not in settings else difflib.get_close_matches(named, settings, n=1)
    return message + (f" Did you mean {near[0]!r}?" if near else "")
