"""elman predict: the hidden states of observations, as CSV."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from elman.errors import FileError, InputError


def run(arguments: Sequence[str]) -> int:
    """Write sequence, step and state of each observation; with --posteriors, the probability of each state too."""
    given = _parser().parse_args(arguments)
    from elman.hmm.estimator import HiddenMarkovEstimator
    from elman.run import load

    model = load(given.run)
    if not isinstance(model, HiddenMarkovEstimator):
        raise InputError(f"{given.run} is no hidden Markov model, so it has no states to predict; see `elman evaluate`")
    lines = _lines(model, model.reader_(given.files, errors=given.errors), given.posteriors)
    if given.out is None:
        sys.stdout.writelines(lines)
        return 0
    _write(Path(given.out), lines)
    return 0


def _write(path: Path, lines: Iterator[str]) -> None:
    """Under another name until it is whole; what is there already stays."""
    if path.exists():
        raise InputError(f"{path} exists; it is not overwritten. Choose another --out.")
    temporary = path.with_name(path.name + ".part")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.writelines(lines)
        temporary.rename(path)
    except OSError as error:
        raise FileError(f"cannot write {path}: {error}") from error
    finally:  # also when the observations turn out to be bad, or Ctrl-C comes
        with suppress(OSError):
            temporary.unlink()


def _lines(model: Any, found: Any, posteriors: bool) -> Iterator[str]:
    states = model.predict(found.X, found.lengths)
    probabilities = model.predict_proba(found.X, found.lengths) if posteriors else [()] * len(states)
    names = [f"p{k}" for k in range(model.n_components)] if posteriors else []
    yield ",".join(["sequence", "step", "state", *names]) + "\n"
    places = ((number, step) for number, n in enumerate(found.lengths) for step in range(n))
    for (number, step), state, row in zip(places, states, probabilities, strict=True):
        yield ",".join([str(number), str(step), str(state), *(f"{p:.6g}" for p in row)]) + "\n"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="elman predict", description="The most probable path of hidden states, one observation a line, as CSV."
    )
    parser.add_argument("run", help="the run directory of a hidden Markov model, or a saved one")
    parser.add_argument("files", nargs="+", help="files, folders, .gz, - or embedded")
    parser.add_argument("--out", help="a new file to write to, instead of standard output")
    parser.add_argument("--posteriors", action="store_true", help="the probabilities of the states too")
    parser.add_argument("--errors", default="strict", help="invalid UTF-8: strict or replace")
    return parser
