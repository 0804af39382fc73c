"""elman evaluate: how good a model is, in numbers that do not depend on how the data are cut."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Sequence

from elman.cli.output import print_json, print_table


def run(arguments: Sequence[str]) -> int:
    """Print the scores of a model on some data, by the metrics of its task."""
    from elman.cli.model_verb import dispatch

    parsed, _, scores = dispatch("evaluate", arguments, "Score a model on some data.", add_common)
    if parsed.json:
        print_json(scores.to_json())
    else:
        print_table(scores.table(f"{parsed.run} on {', '.join(parsed.data)}"))
    return 0


def add_common(parser: ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
