"""elman train: a config, changed by what stands on the command line, becomes a run."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elman.errors import FileError, InputError

if TYPE_CHECKING:
    from elman.run import RunConfig


def run(arguments: Sequence[str]) -> int:
    """Train; 128 plus the signal if it was asked to stop."""
    import sys

    from elman.run import train
    from elman.training.interrupt import Interrupted

    config = read_config(arguments)
    try:
        lm, _ = train(config)
    except Interrupted as stop:
        print(f"elman: {stop}", file=sys.stderr)
        return stop.exit_code
    print(f"The model is in {config.out}. Try: elman generate {config.out}", file=sys.stderr)
    return 0


def read_config(arguments: Sequence[str]) -> RunConfig:
    """The config that a command line describes. A run that goes on needs no --config: it has its own."""
    given = _parse(arguments)
    own = Path(given.out) / "config.yaml"
    if given.resume == "auto" and given.config is None and own.exists():
        given = _parse(["--config", str(own), *arguments])
    return _instance(given)


def _parse(arguments: Sequence[str]) -> Any:
    from jsonargparse import ArgumentError

    parser = _parser()
    try:
        return parser.parse_args(list(arguments))
    except ArgumentError as error:
        raise InputError(_explained(str(error), parser)) from error
    except OSError as error:
        raise FileError(f"cannot read the config: {error}") from error


def _parser() -> Any:
    from jsonargparse import ArgumentParser

    from elman.run import RunConfig

    parser = ArgumentParser(
        prog="elman train",
        exit_on_error=False,
        allow_abbrev=False,
        description="Train a model. `elman init lm` writes a config to begin with.",
    )
    parser.add_argument("--config", action="config", help="a YAML file; what stands on the command line goes before it")
    parser.add_class_arguments(RunConfig, as_group=False)
    return parser


def _instance(given: Any) -> RunConfig:
    from elman.run import RunConfig

    try:
        parts = vars(_parser().instantiate(given))
    except TypeError as error:
        raise InputError(f"a section of the config (data, model, optim, training) is no mapping: {error}") from error
    return RunConfig(**{name: value for name, value in parts.items() if name != "config"})


def _explained(message: str, parser: Any) -> str:
    """What jsonargparse says, and the nearest setting if one was named that does not exist."""
    unknown = re.search(r"Group '([\w.]+)' does not accept option '([\w.]+)'|Option '([\w.]+)'|--([\w.]+)", message)
    named = ".".join(part for part in unknown.groups() if part) if unknown else ""
    near = difflib.get_close_matches(named, vars(parser.get_defaults().as_flat()), n=1)
    return message + (f" Did you mean {near[0]!r}?" if near else "")
