"""How many threads a run computes on. Sums of gradients are divided among them, so that their number decides the last
bits: a run keeps the number that it began with, whatever the environment of a later process says.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

import torch
from torch import nn

from elman import progress
from elman.data import Batches, Position
from elman.errors import InputError
from elman.files import config
from elman.options import MOST_THREADS, whole

# A step of some 15 ms on one thread: below, several gain little alone on the machine, and lose beside a busy process.
WORTH = 150_000_000


class Counted(Protocol):
    """The settings of a run; a frozen dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def out(self) -> str: ...
    @property
    def resume(self) -> str: ...
    @property
    def threads(self) -> int: ...


S = TypeVar("S", bound=Counted)


@contextmanager
def of_run(settings: S) -> Iterator[S]:
    """Compute the block on the threads of a run; its settings, with their number, or 0 where that is to be chosen."""
    before = torch.get_num_threads()
    threads, out = whole("threads", settings.threads, 0, MOST_THREADS), Path(settings.out)
    begun = _begun(out) if settings.resume == "auto" else 0
    if begun and threads not in (0, begun):
        raise InputError(
            f"{out} was begun with threads = {begun}, not {threads}; a resumed run must be the same run, to the last "
            "bit. Leave threads as it was, or start another run with another --out."
        )
    if begun and begun != before:
        progress.say(f"{out} was begun with threads = {begun}, and continues with them.")
    try:
        yield replace(settings, threads=_use(begun or threads))
    finally:
        torch.set_num_threads(before)


def resolve_threads(settings: S, work: int) -> S:
    """The settings of a run with the number of its threads, where neither they nor an earlier process say: one if a
    step does not have `work` enough, in multiply-adds, else as many as Torch takes.
    """
    if settings.threads > 0:
        return settings
    return replace(settings, threads=_use(1 if work < WORTH else torch.get_num_threads()))


def work(model: nn.Module, batches: Batches) -> int:
    """The multiply-adds of a step, about: each parameter meets each term once."""
    terms = int(batches.batch(Position()).lengths.sum())
    return terms * sum(parameter.numel() for parameter in model.parameters())


@contextmanager
def one() -> Iterator[None]:
    """Compute the block on one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _use(threads: int) -> int:
    if threads > 0:
        torch.set_num_threads(threads)
    return threads


def _begun(out: Path) -> int:
    """How many threads the run in `out` was begun with; 0 where there is none, and for one that did not note it."""
    path = out / config.NAME
    noted = config.read(path).get("threads", 0) if path.exists() else 0
    return noted if isinstance(noted, int) else 0
