"""elman evaluate: how well a model predicts a text, in numbers that do not depend on how it is cut."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from elman.cli.output import print_json, print_table


def run(arguments: Sequence[str]) -> int:
    """Print nats and bits per token and per character, and the perplexity; or the log-likelihood of observations."""
    given = _parser().parse_args(arguments)
    from elman.run import load
    from elman.tasks import LanguageModel

    model = load(given.run)
    score = _text(model, given) if isinstance(model, LanguageModel) else _observations(model, given)
    if given.json:
        print_json(score)
    else:
        print_table(
            f"{given.run} on {', '.join(given.text)}",
            ("", ""),
            [(k.replace("_", " "), f"{v:.6g}") for k, v in score.items()],
        )
    return 0


def _text(lm: Any, given: argparse.Namespace) -> dict[str, float]:
    from elman.data import encode, open_text
    from elman.data.config import text_errors

    text = open_text(given.text, text_errors(lm.vocabulary.kind, given.errors))
    score: dict[str, float] = lm.evaluate(encode(text, lm.vocabulary, lm.unit), given.batch_size, given.chunk).to_json()
    return score


def _observations(model: Any, given: argparse.Namespace) -> dict[str, float]:
    found = model.reader_(given.text, errors=given.errors)
    return {
        "log_likelihood": model.score(found.X, found.lengths),
        "nats_per_observation": -model.score(found.X, found.lengths) / len(found.X),
        "observations": len(found.X),
        "sequences": len(found.lengths),
        "unknown": found.unknown,
        "aic": model.aic(found.X, found.lengths),
        "bic": model.bic(found.X, found.lengths),
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="elman evaluate", description="How well a model predicts a text, or columns.")
    parser.add_argument("run", help="a run directory or a saved model")
    parser.add_argument("text", nargs="+", help="files, folders, .gz, - or embedded")
    parser.add_argument("--errors", "--data.errors", default="strict", help="invalid UTF-8: strict or replace")
    parser.add_argument(
        "--batch_size", type=int, default=64, help="independent units side by side; does not change the numbers"
    )
    parser.add_argument("--chunk", type=int, default=512, help="tokens at a time; does not change the numbers")
    parser.add_argument("--json", action="store_true", help="the numbers as JSON")
    return parser
