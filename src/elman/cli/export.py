"""elman export: write a model for other programs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from elman.cli.model_verb import Help, add_arguments

USAGE = "elman export RUN --to onnx --out book.onnx [options]"


def run(arguments: Sequence[str]) -> int:
    """Export, and print the names of the files."""
    if {"-h", "--help"} & set(arguments):
        print(help_text(), end="")
        return 0
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


def help_text() -> str:
    """What `parser` prints as help, made of what is kept of it (described.py), for it imports Torch."""
    from elman.cli.described import help_of

    return help_of("export", _empty())


def _empty() -> argparse.ArgumentParser:
    return argparse.ArgumentParser(
        prog="elman export", usage=USAGE, description="Write a model for other programs, with its state as a value.",
        allow_abbrev=False, formatter_class=Help,
    )  # fmt: skip


def parser() -> argparse.ArgumentParser:
    """What it takes."""
    from elman.export import TARGETS, ExportRequest

    parser = _empty()
    parser.add_argument("run", metavar="RUN", help="a run directory or a saved model")
    parser.add_argument("--to", required=True, choices=TARGETS, help="for what")
    parser.add_argument("--out", required=True, help="the file, or the folder, to write; it must not be there yet")
    add_arguments(parser, ExportRequest)
    return parser
