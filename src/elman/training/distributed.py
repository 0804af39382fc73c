"""Several processes: rows are divided among them, gradients meet in DistributedDataParallel, states stay put.

They talk through gloo, for what is trained is on the CPU.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from elman import progress
from elman import state as states
from elman.state import State


class Ranks:
    """This process among `world` of them. Alone, every method is the identity."""

    def __init__(self, rank: int = 0, world: int = 1) -> None:
        self.rank, self.world = rank, world

    @property
    def first(self) -> bool:
        return self.rank == 0

    def say(self, text: str) -> None:
        """Of several processes, one says it."""
        if self.first:
            progress.say(text)

    def wrap(self, module: nn.Module) -> nn.Module:
        """The module, with its gradients averaged over the processes."""
        return DistributedDataParallel(module) if self.world > 1 else module

    def unsynchronised(self, module: nn.Module, yes: bool) -> AbstractContextManager[None]:
        """A context in which gradients stay in this process: all parts of an accumulated step but the last."""
        if yes and isinstance(module, DistributedDataParallel):
            context: AbstractContextManager[None] = module.no_sync()
            return context
        return nullcontext()

    def sum(self, *values: float) -> list[float]:
        """The sums over all processes."""
        total = torch.tensor(values, dtype=torch.float64)
        if self.world > 1:
            dist.all_reduce(total)
        return total.tolist()

    def from_first(self, *values: float) -> list[float]:
        """What the first process has."""
        shared = torch.tensor(values, dtype=torch.float64)
        if self.world > 1:
            dist.broadcast(shared, 0)
        return shared.tolist()

    def gather(self, leaf: Tensor) -> Tensor:
        """The rows of all processes, in the order of their ranks."""
        if self.world == 1:
            return leaf
        real = (torch.view_as_real(leaf) if leaf.is_complex() else leaf).contiguous()
        parts = [torch.empty_like(real) for _ in range(self.world)]
        dist.all_gather(parts, real)
        whole = torch.cat(parts)
        return torch.view_as_complex(whole) if leaf.is_complex() else whole

    def gather_state(self, state: State) -> State:
        """The state of all rows."""
        return states.map(self.gather, state)

    def own(self, state: State) -> State:
        """The rows of this process, of the state of all."""
        # As tensors of their own: Torch's complex kernels crash where a row begins at no multiple of 16 bytes.
        return states.map(lambda leaf: leaf.chunk(self.world)[self.rank].clone(), state)


@contextmanager
def ranks() -> Iterator[Ranks]:
    """The processes that torchrun started, or this one alone."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        yield Ranks()
        return
    dist.init_process_group("gloo")
    try:
        yield Ranks(dist.get_rank(), world)
    finally:
        dist.destroy_process_group()
