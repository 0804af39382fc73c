"""elman export: write a model for other programs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

USAGE = "elman export RUN --to onnx --out book.onnx [options]"


def run(arguments: Sequence[str]) -> int:
    """Export, and print the names of the files."""
    from elman.export import ExportRequest, write
    from elman.export.c.loss import nats_lost
    from elman.progress import say

    parsed = parser().parse_args(arguments)
    options = {named.name: getattr(parsed, named.name) for named in ExportRequest.options()}
    for path in write(parsed.run, parsed.to, parsed.out, **options):
        print(path)
    if parsed.weights and (line := nats_lost(parsed.run, parsed.weights)):
        say(line)
    return 0


def parser() -> argparse.ArgumentParser:
    """What it takes."""
    from elman.cli.model_verb import Help, add_arguments
    from elman.export import TARGETS, ExportRequest

    parser = argparse.ArgumentParser(
        prog="elman export", usage=USAGE, description="Write a model for other programs, with its state as a value.",
        allow_abbrev=False, formatter_class=Help,
    )  # fmt: skip
    parser.add_argument("run", metavar="RUN", help="a run directory or a saved model")
    parser.add_argument("--to", required=True, choices=TARGETS, help="for what")
    parser.add_argument("--out", required=True, help="the file, or the folder, to write; it must not be there yet")
    add_arguments(parser, ExportRequest)
    return parser
