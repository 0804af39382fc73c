"""What tasks answer to `elman inspect`: a network, and rows of data as the lens looks at them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from elman.data import Vocabulary
from elman.data.vocabulary import BOUNDARY
from elman.errors import ElmanError, InputError
from elman.files import config
from elman.lens import Sample
from elman.tasks.request import Request, Rows, data_option, errors_option, option
from elman.tasks.task import AnyTask, Response

ROWS, STEPS = 64, 1000


class Inspection(NamedTuple):
    """What the lens is pointed at."""

    model: nn.Module
    sample: Sample
    begun: Callable[[], Inspection] | None = None  # the same with fresh weights, where the data depend on weights


@dataclass(frozen=True)
class Inspect(Request):
    """What the lens looks at."""

    data: Rows = data_option("files; none for the run's validation data", least=0)
    errors: str = errors_option()
    rows: int = option(ROWS, "pieces of the data that are looked at, at most", least=1)
    steps: int = option(STEPS, "inputs in each of them, at most", least=1)
    run: str = option("", "the run whose own data are read where none are named", inside=True)


def response(task: AnyTask, read: Callable[[Any, Any], Any]) -> Response:
    """The response of the models of a task to an `Inspect`: `read(predictor, request)` reads the data that are named,
    as part of a `Data`; without them it is the run's validation data."""

    def respond(predictor: Any, request: Inspect) -> Inspection:
        part = read(predictor, request) if len(request.data) else own_data(task, predictor, Path(request.run))
        return task.inspect_inputs(predictor, part, request.rows, request.steps)

    return respond


def own_data(task: AnyTask, predictor: Any, run: Path) -> Any:
    """The validation data of a run; of one that has none, what it was fitted to."""
    path = run / config.NAME
    if not path.exists():
        raise InputError(f"{run} is a saved model and not a run, so it names no data: elman inspect {run} DATA")
    content = {name: value for name, value in config.read(path).items() if name != "imports"}
    try:
        found = task.open(task.Config(**content), predictor)
    except (ElmanError, TypeError) as error:
        raise InputError(
            f"the data of {run} cannot be read any more ({error}); name others: elman inspect {run} DATA"
        ) from error
    return found.train if found.valid is None else found.valid


def spelt(vocabulary: Vocabulary, ids: Sequence[int]) -> list[str]:
    """The text of each of some symbols, as they stand side by side; nothing for a boundary."""
    decoder = vocabulary.decoder()
    return ["" if symbol == BOUNDARY else decoder.push(symbol) for symbol in ids]


def named(vocabulary: Vocabulary, ids: Sequence[int]) -> list[str]:
    """The text of each of some symbols by itself, a space behind it where symbols are words; nothing for a boundary."""
    space = " " if vocabulary.kind == "word" else ""
    return ["" if symbol == BOUNDARY else vocabulary.decode([symbol]) + space for symbol in ids]
