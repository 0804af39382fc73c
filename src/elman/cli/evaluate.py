"""elman evaluate: how good a model is, in numbers that do not depend on how the data are cut."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Sequence

from elman.cli.output import print_json, print_table


def run(arguments: Sequence[str]) -> int:
    """Print the scores of a model on some data, by the metrics of its task."""
    from elman.cli.model_verb import dispatch
    from elman.tables import Table

    parsed, _, scores = dispatch("evaluate", arguments, "Score a model on some data.", add_common)
    if parsed.json:
        print_json(scores.to_json())
    else:
        rows = [(name.replace("_", " "), f"{value:.6g}") for name, value in scores.numbers.items()]
        remark = f" ({scores.remark})" if scores.remark else ""
        print_table(Table(f"{parsed.run} on {', '.join(parsed.data)}{remark}", ("score", "value"), rows))
    return 0


def add_common(parser: ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
