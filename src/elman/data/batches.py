"""What a training step reads: a batch; where the next one is, is a value, so that a run can resume anywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from elman import state as trees
from elman.errors import InputError
from elman.options import whole
from elman.state import State as Tree


class Batch(NamedTuple):
    """Inputs and targets, each a tensor or a tuple of tensors; where sequences begin; how much of each row counts."""

    x: Tree  # (B, T, ...)
    y: Tree  # (B, T, ...), or (B, ...) where a row has one target
    reset: Tensor  # (B, T) bool
    lengths: Tensor  # (B,) int64

    def to(self, device: torch.device) -> Batch:
        """The same batch on a device."""
        x, y, reset, lengths = (trees.map(lambda leaf: leaf.to(device), part) for part in self)
        assert isinstance(reset, Tensor) and isinstance(lengths, Tensor)
        return Batch(x, y, reset, lengths)


class Position(NamedTuple):
    """The next batch: number `window` of pass number `epoch`."""

    epoch: int = 0
    window: int = 0


class Batches(Protocol):
    """The batch at a position, and the position that follows."""

    def batch(self, at: Position) -> Batch: ...
    def after(self, at: Position) -> Position: ...


class Order(Protocol):
    """Which examples make the batch at a position."""

    def rows(self, at: Position) -> list[int]: ...
    def after(self, at: Position) -> Position: ...


class OrderedBatches:
    """Batches that `make` makes of the numbers of their examples and of their position: what the loop reads."""

    def __init__(self, order: Order, make: Callable[[list[int], Position], Batch]) -> None:
        self.order, self.make, self.after = order, make, order.after

    def batch(self, at: Position) -> Batch:
        return self.make(self.order.rows(at), at)


def check_shared(batch_size: int, world: int) -> int:
    """`batch_size`, if `world` processes can have an equal share of it each."""
    if whole("batch_size", batch_size) % world:
        raise InputError(f"batch_size is {batch_size}; {world} processes need a multiple of {world}")
    return batch_size


class Shuffled:
    """Which of `n` examples make a batch: `batch_size` at a time over all processes, each pass in an order of its own.

    Of several processes each has every `world`-th example of a batch; a last batch with fewer examples than processes
    is left out.

    >>> order = Shuffled(5, batch_size=2, seed=0)
    >>> sorted(order.rows(Position(0, 0)) + order.rows(Position(0, 1)) + order.rows(Position(0, 2)))
    [0, 1, 2, 3, 4]
    >>> order.after(Position(0, 2))
    Position(epoch=1, window=0)
    """

    def __init__(self, n: int, batch_size: int, seed: int, rank: int = 0, world: int = 1) -> None:
        check_shared(batch_size, world)
        if n < world:
            raise InputError(f"there are {n} examples to train on; {world} processes need at least one each")
        self.n, self.batch_size, self.seed, self.rank, self.world = n, batch_size, seed, rank, world
        rest = n % batch_size
        self.number = n // batch_size + (rest >= world)

    def rows(self, at: Position) -> list[int]:
        """The examples at a position that this process has."""
        order = torch.randperm(self.n, generator=torch.Generator().manual_seed(self.seed + at.epoch))
        start = at.window * self.batch_size
        chosen: list[int] = order[start : start + self.batch_size][self.rank :: self.world].tolist()
        return chosen

    def after(self, at: Position) -> Position:
        """The position that follows."""
        return Position(at.epoch, at.window + 1) if at.window + 1 < self.number else Position(at.epoch + 1, 0)


class Bucketed:
    """Which examples make a batch of at most `tokens` places, padding included, with like lengths side by side.

    Each pass has an order of its own, from the seed: examples are shuffled, sorted by length, cut into batches, and the
    batches shuffled. Of several processes each has every `world`-th example of a batch; a batch with fewer examples
    than processes is left out.

    >>> order = Bucketed([3, 1, 3, 1], tokens=6, seed=0)
    >>> sorted(sorted(order.rows(Position(0, i))) for i in range(2))
    [[0, 2], [1, 3]]
    """

    def __init__(self, lengths: Sequence[int], tokens: int, seed: int, rank: int = 0, world: int = 1) -> None:
        self.lengths, self.tokens = torch.tensor(lengths, dtype=torch.int64), whole("batch_tokens", tokens)
        self.seed, self.rank, self.world = seed, rank, world
        self._epoch, self._batches = -1, [[0]]
        if not self.of_epoch(0):
            raise InputError(f"there are {len(lengths)} examples to train on; {world} processes need one each at least")

    def of_epoch(self, epoch: int) -> list[list[int]]:
        """The batches of a pass, in order."""
        if epoch != self._epoch:
            random = torch.Generator().manual_seed(self.seed + epoch)
            order = torch.randperm(len(self.lengths), generator=random)
            order = order[self.lengths[order].argsort(stable=True)]
            cut = [batch for batch in self._cut(order.tolist()) if len(batch) >= self.world]
            places = torch.randperm(len(cut), generator=random).tolist()
            self._epoch, self._batches = epoch, [cut[i] for i in places]
        return self._batches

    def _cut(self, order: list[int]) -> Iterator[list[int]]:
        """Rising lengths: the last of a batch is its longest."""
        batch: list[int] = []
        lengths = self.lengths.tolist()
        for i in order:
            if batch and lengths[i] * (len(batch) + 1) > self.tokens:
                yield batch
                batch = []
            batch.append(i)
        if batch:
            yield batch

    def rows(self, at: Position) -> list[int]:
        """The examples at a position that this process has."""
        return self.of_epoch(at.epoch)[at.window][self.rank :: self.world]

    def after(self, at: Position) -> Position:
        """The position that follows."""
        last = at.window + 1 >= len(self.of_epoch(at.epoch))
        return Position(at.epoch + 1, 0) if last else Position(at.epoch, at.window + 1)


class Alike(Bucketed):
    """The same with `batch_size` examples in a batch, whatever their lengths: trees of like height side by side.

    >>> order = Alike([3, 1, 3, 1], 2, seed=0)
    >>> sorted(sorted(order.rows(Position(0, i))) for i in range(2))
    [[0, 2], [1, 3]]
    """

    def __init__(self, lengths: Sequence[int], batch_size: int, seed: int, rank: int = 0, world: int = 1) -> None:
        super().__init__(lengths, check_shared(batch_size, world), seed, rank, world)

    def _cut(self, order: list[int]) -> Iterator[list[int]]:
        for at in range(0, len(order), self.tokens):
            yield order[at : at + self.tokens]


class Examples:
    """Sequences x (T[i], ...) of unequal length, each with one target y[i], padded to a batch.

    >>> data = Examples([torch.ones(2, 1), torch.ones(3, 1)], torch.tensor([0, 1]))
    >>> data.batch([0, 1]).lengths.tolist(), data.batch([0, 1]).x.shape
    ([2, 3], torch.Size([2, 3, 1]))
    """

    def __init__(self, x: Sequence[Tensor], y: Tensor) -> None:
        if len(x) != len(y):
            raise InputError(f"there are {len(x)} sequences and {len(y)} targets; each needs its own")
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def batch(self, rows: Sequence[int]) -> Batch:
        """Some of the examples, each the first of its own episode."""
        x, lengths = padded([self.x[i] for i in rows])
        reset = torch.zeros(x.shape[:2], dtype=torch.bool)
        reset[:, :1] = True
        return Batch(x, self.y[list(rows)], reset, lengths)


def padded(rows: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Rows (T[i], ...) as one tensor (B, T, ...), zeros after each row's end; and their lengths (B,)."""
    lengths = torch.tensor([len(row) for row in rows], dtype=torch.int64)
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True), lengths
