"""One training at a time in a process, and the caller's random numbers as they were.

Fresh weights and dropout come from Torch's own generator, which all threads of a process share. Two trainings side by
side would draw each other's numbers, and none of them could be resumed to the same bytes: the second waits for the
first. Afterwards the generator stands where the caller had left it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from elman import progress

_turn = threading.RLock()  # again in the same thread, as in a callback, is no matter: what is inside leaves no trace
DRAWING = {  # what fresh weights are drawn by
    "rand", "randn", "randint", "randperm", "normal", "bernoulli", "multinomial", "uniform_", "normal_", "random_",
    "bernoulli_", "exponential_", "log_normal_", "cauchy_", "geometric_", "trunc_normal_", "kaiming_uniform_",
    "kaiming_normal_", "xavier_uniform_", "xavier_normal_", "orthogonal_", "sparse_",
}  # fmt: skip


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


class Undisturbed(TorchFunctionMode):
    """In the block, this thread draws from numbers of its own: Torch's generator stays as it is, for the caller and for
    a training in another thread, which is not waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator()

    def __torch_function__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if getattr(function, "__name__", "") in DRAWING and given.get("generator") is None:
            given["generator"] = self.generator
        return function(*args, **given)


def seed(number: int) -> None:
    """Begin Torch's random numbers on the CPU anew. `torch.manual_seed` would reset those of the caller's GPU too."""
    torch.default_generator.manual_seed(number)
