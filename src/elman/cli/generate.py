"""elman generate: text from a model, as it comes; or observations from a hidden Markov model."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from elman.cli.output import print_json
from elman.errors import InputError

SETTINGS = ("max_new_tokens", "temperature", "top_k", "top_p", "repetition_penalty", "num_beams", "stop")


def run(arguments: Sequence[str]) -> int:
    """Print the prompt and what follows it."""
    parser = _parser()
    given = parser.parse_args(arguments)
    from elman.run import load
    from elman.tasks import LanguageModel

    model = load(given.run)
    if isinstance(model, LanguageModel):
        _text(model, given)
    else:
        _observations(model, given, parser)
    return 0


def _observations(model: Any, given: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """A sequence drawn from a hidden Markov model, as it would stand in a file."""
    for name, value in vars(given).items():
        if name not in ("run", "max_new_tokens", "seed", "json") and value != parser.get_default(name):
            raise InputError(f"--{name} is for language models; {given.run} takes --max_new_tokens, --seed and --json")
    if given.max_new_tokens < 1:
        raise InputError(f"max_new_tokens is {given.max_new_tokens}; it must be at least 1")
    X, states = model.sample(given.max_new_tokens, random_state=given.seed or 0)
    if given.json:
        print_json({"observations": X.tolist(), "states": states.tolist(), "text": model.reader_.text(X)})
    else:
        print(model.reader_.text(X))


def _text(lm: Any, given: argparse.Namespace) -> None:
    from elman import state as states

    start: Any = states.load(given.state, lm.init_state([])) if given.state else None
    generation = lm.start(
        given.prompt, state=start, seed=given.seed, **{name: getattr(given, name) for name in SETTINGS}
    )
    text = _print(generation, given)
    if given.save_state:
        states.save(given.save_state, generation.state)
    if given.json:
        print_json({"prompt": given.prompt, "text": text})


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
    parser = argparse.ArgumentParser(prog="elman generate", description="Generate text, or observations.")
    parser.add_argument("run", help="a run directory or a saved model")
    parser.add_argument("--prompt", default="", help="what the text begins with")
    parser.add_argument("--max_new_tokens", type=int, default=200, help="tokens, or observations")
    parser.add_argument("--temperature", type=float, default=1.0, help="0 takes the most probable symbol")
    parser.add_argument("--top_k", type=int, default=0, help="choose among so many symbols; 0 for all")
    parser.add_argument(
        "--top_p", type=float, default=1.0, help="choose among the symbols that have this probability together"
    )
    parser.add_argument("--repetition_penalty", type=float, default=1.0)
    parser.add_argument("--num_beams", type=int, default=1, help="above 1, search for the most probable text")
    parser.add_argument("--stop", action="append", help="end with this string; may be given several times")
    parser.add_argument("--seed", type=int, help="0, or where --state is given what that goes on with, unless you say")
    parser.add_argument("--state", help="go on from this file")
    parser.add_argument("--save_state", help="write there what the next token needs")
    parser.add_argument("--json", action="store_true", help="prompt and text as JSON")
    return parser
