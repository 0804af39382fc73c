"""elman init: a complete config to start from, every line commented."""

from __future__ import annotations

import argparse
from collections.abc import Sequence


def run(arguments: Sequence[str]) -> int:
    """Print the config of a task."""
    from elman.cli.described import find
    from elman.files.config import render_settings

    print(render_settings(find(parser().parse_args(arguments).task).settings), end="")
    return 0


def parser() -> argparse.ArgumentParser:
    """What it takes."""
    from elman.cli.described import described

    titles = "; ".join(f"{name}: {task.title}" for name, task in described().items())
    parser = argparse.ArgumentParser(
        prog="elman init", description="Print a complete config: elman init TASK > run.yaml"
    )
    parser.add_argument("task", metavar="TASK", help=titles)
    return parser
