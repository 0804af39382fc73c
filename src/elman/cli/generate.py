"""elman generate: text or observations from a model, printed as they are generated."""

from __future__ import annotations

import warnings
from argparse import ArgumentParser
from collections.abc import Sequence

from elman.cli.output import print_json
from elman.progress import say


def run(arguments: Sequence[str]) -> int:
    """Print what is generated, piece by piece, or the whole as JSON."""
    from elman.cli.model_verb import dispatch

    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *where, **_: say(f"elman: warning: {message}")
        parsed, _, generated = dispatch("generate", arguments, "Generate text, observations or images.", add_common)
    for piece in generated.pieces():
        if not parsed.json:
            print(piece, end="", flush=True)
    if parsed.json:
        print_json(generated.to_json())
    return 0


def add_common(parser: ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
