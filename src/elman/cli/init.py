"""elman init: a complete config to begin with, every line with what it means."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from elman.errors import UnknownNameError


def run(arguments: Sequence[str]) -> int:
    """Print the config of a task."""
    from elman.run import CONFIGS
    from elman.training.record import render

    parser = argparse.ArgumentParser(prog="elman init", description="Print a complete config: elman init lm > run.yaml")
    parser.add_argument("task", metavar="TASK", help="lm: a language model; hmm: a hidden Markov model")
    task = parser.parse_args(arguments).task
    if task not in CONFIGS:
        raise UnknownNameError("task", task, CONFIGS)
    print(render(CONFIGS[task]()), end="")
    return 0
