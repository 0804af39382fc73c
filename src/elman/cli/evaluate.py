"""elman evaluate: how well a model predicts a text, in numbers that do not depend on how it is cut."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from elman.cli.output import print_json, print_table


def run(arguments: Sequence[str]) -> int:
    """Print nats and bits per token and per character, and the perplexity."""
    given = _parser().parse_args(arguments)
    from elman.data import encode, open_text
    from elman.data.config import text_errors
    from elman.run import load

    lm = load(given.run)
    text = open_text(given.text, text_errors(lm.vocabulary.kind, given.errors))
    score = lm.evaluate(encode(text, lm.vocabulary, lm.unit), given.batch_size, given.chunk)
    if given.json:
        print_json(score.to_json())
    else:
        print_table(
            f"{given.run} on {', '.join(given.text)}",
            ("", ""),
            [(k.replace("_", " "), f"{v:.6g}") for k, v in score.to_json().items()],
        )
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="elman evaluate", description="How well a model predicts a text.")
    parser.add_argument("run", help="a run directory or a saved model")
    parser.add_argument("text", nargs="+", help="files, folders, .gz, - or embedded")
    parser.add_argument("--errors", default="strict", help="invalid UTF-8: strict or replace")
    parser.add_argument(
        "--batch_size", type=int, default=64, help="independent units side by side; does not change the numbers"
    )
    parser.add_argument("--chunk", type=int, default=512, help="tokens at a time; does not change the numbers")
    parser.add_argument("--json", action="store_true", help="the numbers as JSON")
    return parser
