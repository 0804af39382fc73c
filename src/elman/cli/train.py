"""elman train: a config, changed by what stands on the command line, becomes a run."""

from __future__ import annotations

import difflib
import os
import re
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elman.errors import FileError, InputError, UnknownNameError

if TYPE_CHECKING:
    from elman.run import HMMRunConfig, RunConfig


def run(arguments: Sequence[str]) -> int:
    """Train; 128 plus the signal if it was asked to stop."""
    from elman.run import train
    from elman.training.interrupt import Interrupted

    config = read_config(arguments)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *where, **_: print(f"elman: warning: {message}", file=sys.stderr)
            model, _ = train(config)
    except Interrupted as stop:
        print(f"elman: {stop}", file=sys.stderr)
        return stop.exit_code
    if config.task == "hmm":
        _report(model)
    if os.environ.get("RANK", "0") == "0":  # of several processes, one says it
        print(f"The model is in {config.out}. Try: elman generate {config.out}", file=sys.stderr)
    return 0


def _report(model: Any) -> None:
    from elman.cli.output import print_table
    from elman.tasks.hidden_markov import tables

    for table in tables(model):
        print_table(*table)


def read_config(arguments: Sequence[str]) -> RunConfig | HMMRunConfig:
    """The config that a command line describes. A run that goes on needs no --config: it has its own."""
    from elman.run import CONFIGS

    task = _task(arguments)
    if task not in CONFIGS:
        raise UnknownNameError("task", task, CONFIGS)
    parser = _parser(CONFIGS[task])
    given = _parse(parser, arguments)
    own = Path(given.out) / "config.yaml"
    if given.resume == "auto" and given.config is None and own.exists():
        given = _parse(parser, ["--config", str(own), *arguments])
    return _instance(parser, CONFIGS[task], given)


def _task(arguments: Sequence[str]) -> str:
    """What is trained, which decides what else may be said: from --task, from the config, or from the run in --out."""
    import argparse

    parser = argparse.ArgumentParser(prog="elman train", add_help=False, allow_abbrev=False, exit_on_error=False)
    for name in ("--task", "--config", "--out", "--resume"):
        parser.add_argument(name, nargs="?")
    given = parser.parse_known_args(arguments)[0]
    own = Path(given.out or "") / "config.yaml"
    config = given.config or (own if given.resume == "auto" and given.out and own.exists() else None)
    return given.task or (_task_of(Path(config)) if config else None) or "lm"


def _task_of(config: Path) -> str | None:
    """The task that a config names; what is wrong with the rest of it, the real parser says better."""
    try:
        found = re.search(r"^task:\s*[\"']?([\w-]+)", config.read_text(encoding="utf-8"), re.MULTILINE)
    except (OSError, ValueError):
        return None
    return found[1] if found else None


def _parse(parser: Any, arguments: Sequence[str]) -> Any:
    from jsonargparse import ArgumentError

    try:
        return parser.parse_args(list(arguments))
    except ArgumentError as error:
        raise InputError(_explained(str(error), parser)) from error
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"cannot read the config: {error}") from error


def _parser(config: type[RunConfig] | type[HMMRunConfig]) -> Any:
    from jsonargparse import ArgumentParser

    parser = ArgumentParser(
        prog="elman train",
        exit_on_error=False,
        allow_abbrev=False,
        description="Train a model. `elman init lm` or `elman init hmm` writes a config to begin with; "
        "`elman train --task hmm --help` shows the settings of a hidden Markov model.",
    )
    parser.add_argument("--config", action="config", help="a YAML file; what stands on the command line goes before it")
    parser.add_class_arguments(config, as_group=False)
    return parser


def _instance(parser: Any, config: Any, given: Any) -> RunConfig | HMMRunConfig:
    try:
        parts = vars(parser.instantiate(given))
    except TypeError as error:
        raise InputError(f"a section of the config (data, model, ...) is no mapping: {error}") from error
    built: RunConfig | HMMRunConfig = config(**{name: value for name, value in parts.items() if name != "config"})
    return built


def _explained(message: str, parser: Any) -> str:
    """What jsonargparse says, and the nearest setting if one was named that does not exist."""
    unknown = re.search(r"Group '([\w.]+)' does not accept option '([\w.]+)'|Option '([\w.]+)'|--([\w.]+)", message)
    named = ".".join(part for part in unknown.groups() if part) if unknown else ""
    settings = list(vars(parser.get_defaults().as_flat()))
    # `lr` alone is the one that ends with it; else what is spelt almost so.
    ends = [name for name in settings if name.endswith(f".{named.rpartition('.')[2]}")]
    near = ends if len(ends) == 1 and named not in settings else difflib.get_close_matches(named, settings, n=1)
    return message + (f" Did you mean {near[0]!r}?" if near else "")
