"""One training at a time in a process, and the caller's random numbers as they were.

Fresh weights and dropout come from Torch's own generator, which all threads of a process share. Two trainings side by
side would draw each other's numbers, and none of them could be resumed to the same bytes: the second waits for the
first. Afterwards the generator stands where the caller had left it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from elman import progress

_turn = threading.RLock()  # again in the same thread, as in a callback, is no matter: what is inside leaves no trace


@contextmanager
def alone() -> Iterator[None]:
    """Wait for the trainings of other threads; inside, Torch's generator (on the CPU) belongs to the block."""
    if not _turn.acquire(blocking=False):
        progress.say("waiting for a training in another thread: a process has one at a time")
        _turn.acquire()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        _turn.release()


@contextmanager
def undisturbed() -> Iterator[None]:
    """Draw in the block, and leave the caller's random numbers as they were; do not wait for a training elsewhere."""
    free = _turn.acquire(blocking=False)
    try:
        if not free:  # to put the generator back would let the other training draw its numbers twice
            yield
            return
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        if free:
            _turn.release()


def seed(number: int) -> None:
    """Begin Torch's random numbers on the CPU anew. `torch.manual_seed` would reset those of the caller's GPU too."""
    torch.default_generator.manual_seed(number)
