"""elman train: a config, changed by what stands on the command line, becomes a run."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elman.tasks.task import Verb


def run(arguments: Sequence[str]) -> int:
    """Train; 128 plus the signal if it was asked to stop."""
    from elman import tasks
    from elman.cli.output import print_table
    from elman.cli.settings import read_config
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
        verb, answers = next(iter(tasks.find(settings.task).verbs.items()))
        print(f"The model is in {settings.out}. Try: elman {verb} {settings.out}{_needs(answers)}", file=sys.stderr)
    return 0


def _needs(verb: Verb) -> str:
    """What a verb takes beside the run, as it would be typed."""
    parser = argparse.ArgumentParser(add_help=False)
    verb.arguments(parser)
    return "".join(f" {action.metavar or action.dest.upper()}" for action in parser._get_positional_actions())
