"""What tasks answer to `elman inspect`: a network, and rows of data as the lens looks at them."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from elman import config
from elman.data import Vocabulary
from elman.data.vocabulary import BOUNDARY
from elman.errors import ElmanError, InputError
from elman.lens import Sample
from elman.options import whole
from elman.tasks.task import AnyTask, Verb

ROWS, STEPS = 64, 1000


class Looked(NamedTuple):
    """What the lens is pointed at."""

    model: nn.Module
    sample: Sample
    begun: Callable[[], Looked] | None = None  # the same with fresh weights, where the data depend on weights


def verb(
    task: AnyTask, read: Callable[[Any, Namespace], Any], arguments: Callable[[ArgumentParser], None] | None = None
) -> Verb:
    """The answer of a task to `elman inspect`: `read(face, given)` reads the data that are named, as part of a
    `Data`; without them it is the run's validation data. `arguments` are those that reading takes."""

    def add(parser: ArgumentParser) -> None:
        parser.add_argument("data", nargs="*", metavar="DATA", help="files; none for the run's validation data")
        parser.add_argument("--errors", "--data.errors", default="strict", help="invalid UTF-8: strict or replace")
        if arguments is not None:
            arguments(parser)
        parser.add_argument("--rows", type=int, default=ROWS, help="pieces of the data that are looked at, at most")
        parser.add_argument("--steps", type=int, default=STEPS, help="inputs in each of them, at most")

    def answer(face: Any, given: Namespace) -> Looked:
        rows, steps = whole("--rows", given.rows), whole("--steps", given.steps)
        part = read(face, given) if given.data else own_data(task, face, Path(given.run))
        return task.look(face, part, rows, steps)

    return Verb(add, answer)


def own_data(task: AnyTask, face: Any, run: Path) -> Any:
    """The validation data of a run; of one that has none, what it was fitted to."""
    path = run / config.NAME
    if not path.exists():
        raise InputError(f"{run} is a saved model and not a run, so it names no data: elman inspect {run} DATA")
    content = {name: value for name, value in config.read(path).items() if name != "imports"}
    try:
        data = task.open(task.Config(**content), face)
    except (ElmanError, TypeError) as error:
        raise InputError(
            f"the data of {run} cannot be read any more ({error}); name others: elman inspect {run} DATA"
        ) from error
    return data.train if data.valid is None else data.valid


def spelt(vocabulary: Vocabulary, ids: Sequence[int]) -> list[str]:
    """The text of each of some symbols, as they stand side by side; nothing for a boundary."""
    decoder = vocabulary.decoder()
    return ["" if symbol == BOUNDARY else decoder.push(symbol) for symbol in ids]


def named(vocabulary: Vocabulary, ids: Sequence[int]) -> list[str]:
    """The text of each of some symbols by itself, a space behind it where symbols are words; nothing for a boundary."""
    space = " " if vocabulary.kind == "word" else ""
    return ["" if symbol == BOUNDARY else vocabulary.decode([symbol]) + space for symbol in ids]
