"""`--import MODULE`, which every verb takes: a module that adds cells or tasks, here or on the path."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from elman.errors import InputError
from elman.files import plugins


def pop_flag(arguments: Sequence[str]) -> list[str]:
    """Import the modules that the arguments of a verb name; the other arguments."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--import", dest="names", action="append", default=[])
    try:
        given, rest = parser.parse_known_args(arguments)
    except argparse.ArgumentError as error:
        raise InputError(str(error)) from error
    load(given.names)
    return rest


def load(names: Sequence[str]) -> None:
    """Import some modules. The current folder is part of the path, as it is for `python -m`."""
    if names and not {"", os.getcwd()} & set(sys.path):
        sys.path.append(os.getcwd())
    plugins.load(names)


def load_from_config(names: Sequence[str], where: str) -> None:
    """Import the modules that a config names, and say so: it is code that runs. Those that a model names are not
    imported without a flag."""
    for name in plugins.missing(names):
        print(f"elman: importing {name}, which {where} names", file=sys.stderr)
    load(names)
