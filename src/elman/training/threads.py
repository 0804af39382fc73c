"""How many threads a run computes on. Sums of gradients are divided among them, so that their number decides the last
bits: a run keeps the number that it began with, whatever the environment of a later process says.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import torch

from elman import config, progress
from elman.errors import InputError
from elman.options import whole

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

S = TypeVar("S", bound="DataclassInstance")


@contextmanager
def of_run(settings: S) -> Iterator[S]:
    """Compute the block on the threads of a run; its settings, with their number."""
    before = torch.get_num_threads()
    if not hasattr(settings, "threads"):  # the config of a task need not have it
        yield settings
        return
    threads, out = whole("threads", settings.threads, least=0), Path(getattr(settings, "out", ""))
    begun = _begun(out) if getattr(settings, "resume", "never") == "auto" else 0
    if begun and threads not in (0, begun):
        raise InputError(
            f"{out} was begun with threads = {begun}, not {threads}; a resumed run must be the same run, to the last "
            "bit. Leave threads as it was, or start another run with another --out."
        )
    if begun and begun != before:
        progress.say(f"{out} was begun with threads = {begun}, and goes on so.")
    count = begun or threads or before
    torch.set_num_threads(count)
    try:
        yield replace(settings, threads=count)
    finally:
        torch.set_num_threads(before)


def _begun(out: Path) -> int:
    """How many threads the run in `out` was begun with; 0 where there is none, and for one that did not note it."""
    path = out / config.NAME
    noted = config.read(path).get("threads", 0) if path.exists() else 0
    return noted if isinstance(noted, int) else 0
