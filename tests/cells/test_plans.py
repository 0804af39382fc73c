"""Law 8 by chance: rows of a matrix cell in any company and order, cut into pieces of any lengths, which are scanned on
any number of threads or streamed, have the bits of one scan of all of them.

`python tests/cells/test_plans.py 10000 [CELL ...]` carries out as many plans of each.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

import elman
from elman import kernels
from elman import state as states
from elman.cells import CELLS
from elman.cells.matrix import Matrix
from elman.core import Core
from elman.state import State

B, T = 5, 24  # enough for threads, with heads of this size: tails of keys and of columns
OPTIONS: dict[str, dict[str, Any]] = {
    "mamba2": {"state_size": 17, "expand": 1}, "mamba3": {"state_size": 17, "expand": 1}
}  # fmt: skip
MATRIX = sorted(name for name, cell in CELLS.items() if isinstance(cell, type) and issubclass(cell, Matrix))
EACH = 50  # plans on one sample


class Sample(NamedTuple):
    x: Tensor
    state: State
    lengths: Tensor
    reset: Tensor
    y: Tensor
    last: State


@contextmanager
def any_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)


def sample(core: Core, random: np.random.Generator) -> Sample:
    torch.manual_seed(int(random.integers(1 << 30)))
    x, state = torch.randn(B, T, 5), states.map(torch.randn_like, core.init_state(B))
    lengths, reset = torch.from_numpy(random.integers(0, T + 1, B)), torch.rand(B, T) < 0.1
    lengths[0] = T
    y, last = core.scan(x, state, lengths=lengths, reset=reset)
    return Sample(x, state, lengths, reset, y, last)


def carry_out(core: Core, stream: elman.Stream, s: Sample, random: np.random.Generator) -> None:
    """A plan: which rows, where they are cut, and what is streamed."""
    rows = torch.from_numpy(random.permutation(B)[: random.integers(1, B + 1)])
    x, lengths, reset, state = s.x[rows], s.lengths[rows], s.reset[rows], states.take(s.state, rows)
    cuts = sorted(random.integers(0, T + 1, random.integers(5)).tolist())
    ys = []
    for first, end in pairwise([0, *cuts, T]):
        torch.set_num_threads(int(random.integers(1, 4)))
        part, left = slice(first, end), (lengths - first).clamp(0, end - first)
        if end - first < 6 and random.random() < 0.5:
            y, state = streamed(core, stream, x[:, part], state, left, reset[:, part])
        else:
            y, state = core.scan(x[:, part], state, lengths=left, reset=reset[:, part])
        ys.append(y)
    assert torch.equal(torch.cat(ys, 1), s.y[rows]), f"rows {rows.tolist()} cut at {cuts}: y"
    for leaf, whole in zip(states.leaves(state), states.leaves(states.take(s.last, rows)), strict=True):
        assert torch.equal(leaf, whole), f"rows {rows.tolist()} cut at {cuts}: the last state"


def streamed(
    core: Core, stream: elman.Stream, x: Tensor, state: State, lengths: Tensor, reset: Tensor
) -> tuple[Tensor, State]:
    places, y = torch.arange(len(x)), x.new_zeros(*x.shape[:2], core.output_size)
    stream.put(places, state)
    for t in range(x.shape[1]):
        now = places[t < lengths]
        begins = now[reset[now, t]]
        stream.put(begins, core.init_state(len(begins)))
        if len(now):
            y[now, t] = stream.step(x[now, t], now)
    return y, stream.take(places)


@torch.no_grad()
def carry_out_many(name: str, count: int, seed: int = 0) -> None:
    core = elman.cell(name, 5, 33, heads=2, **OPTIONS.get(name, {}))
    stream, random = elman.Stream(core, B), np.random.default_rng(seed)
    assert stream.native
    with any_threads():
        for i in range(count):
            if i % EACH == 0:
                s = sample(core, random)
            carry_out(core, stream, s, random)


@pytest.mark.skipif("native" not in kernels.available(), reason="exact bits are promised of the native kernels")
@pytest.mark.parametrize("name", MATRIX)
def test_any_plan_has_the_same_bits(name: str) -> None:
    carry_out_many(name, 20)


if __name__ == "__main__":
    for each in sys.argv[2:] or MATRIX:
        carry_out_many(each, int(sys.argv[1]), seed=1)
        print(each, sys.argv[1], flush=True)
