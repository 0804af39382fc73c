"""elman generate: text from a model, as it comes."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from elman.cli.output import print_json

SETTINGS = ("max_new_tokens", "temperature", "top_k", "top_p", "repetition_penalty", "num_beams", "stop")


def run(arguments: Sequence[str]) -> int:
    """Print the prompt and what follows it."""
    given = _parser().parse_args(arguments)
    from elman import state as states
    from elman.run import load

    lm = load(given.run)
    start: Any = states.load(given.state, lm.init_state([])) if given.state else None
    generation = lm.start(
        given.prompt, state=start, seed=given.seed, **{name: getattr(given, name) for name in SETTINGS}
    )
    text = _print(generation, given)
    if given.save_state:
        states.save(given.save_state, generation.state)
    if given.json:
        print_json({"prompt": given.prompt, "text": text})
    return 0


def _print(generation: Any, given: argparse.Namespace) -> str:
    if not given.json:
        print(given.prompt, end="", flush=True)
    pieces = []
    for (piece,) in generation:
        pieces.append(piece)
        if not given.json:
            print(piece, end="", flush=True)
    if not given.json:
        print()
    return "".join(pieces)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="elman generate", description="Generate text.")
    parser.add_argument("run", help="a run directory or a saved model")
    parser.add_argument("--prompt", default="", help="what the text begins with")
    parser.add_argument("--max_new_tokens", type=int, default=200)
    parser.add_argument("--temperature", type=float, default=1.0, help="0 takes the most probable symbol")
    parser.add_argument("--top_k", type=int, default=0, help="choose among so many symbols; 0 for all")
    parser.add_argument(
        "--top_p", type=float, default=1.0, help="choose among the symbols that have this probability together"
    )
    parser.add_argument("--repetition_penalty", type=float, default=1.0)
    parser.add_argument("--num_beams", type=int, default=1, help="above 1, search for the most probable text")
    parser.add_argument("--stop", action="append", help="end with this string; may be given several times")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--state", help="go on from this file")
    parser.add_argument("--save_state", help="write there what the next token needs")
    parser.add_argument("--json", action="store_true", help="prompt and text as JSON")
    return parser
