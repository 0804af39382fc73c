"""Every kernel, forward and backward, and every stream on two and three threads, and in several threads of Python.

For `make sanitize-threads`, whose build uses several threads at any amount of work: python tests/kernels/threads.py
"""

import threading

import numpy as np
import torch

from elman import _native, kernels
from elman.cells import CELLS
from elman.compose import Bidirectional, Recompute, save_bfloat16, stack
from elman.core import Core
from elman.laws.kernels import problems
from elman.model import SequenceModel
from elman.nn.embed import Embedding
from elman.nn.readout import Softmax
from elman.stream import Stream, stream_of

# Wide enough to be divided by units; products that wait for each other once and twice a step; whole rows.
WIDE = (("gru", {}), ("gru", {"reset_after": False}), ("lstm", {}), ("mgu", {}), ("lstm", {"layer_norm": True}))


def train(core: Core, B: int, T: int) -> None:
    x = torch.randn(B, T, core.input_size, requires_grad=True)
    y, _ = core.scan(x, lengths=torch.tensor([T, 0, T // 2, *[T - 1] * 13])[:B])
    y.square().sum().backward()


def every_kernel() -> None:
    for _, problem in problems():
        problem(torch.float32)
    for made in CELLS.values():
        core = made(24, 24)
        for B in (1, 5):
            train(core, B, 12)
        stream = Stream(core, 150)
        for _ in range(2):
            stream.step(torch.randn(150, 24))


def wide_loops() -> None:
    for name, options in WIDE:
        core = CELLS[name](128, 128, **options)
        for B in (1, 3, 16):
            train(core, B, 30)
            train(Recompute(core, every=10), B, 30)
            train(Bidirectional(core, core), B, 30)
        for B in (1, 3, 16):
            train(save_bfloat16(core), B, 30)


def matrices() -> None:
    """Several windows of time, parts of columns and groups of heads; rows that end at different steps."""
    lengths, reset = torch.tensor([70, 0, 33]), torch.zeros(3, 70, dtype=torch.bool)
    reset[0, 40] = True
    q, k, v, S0 = (
        torch.randn(3, 70, 2, 24),
        torch.randn(3, 70, 2, 24) / 8,
        torch.randn(3, 70, 4, 130),
        torch.randn(3, 4, 24, 130),
    )
    a, b = torch.rand(3, 70, 4, 24), torch.rand(3, 70, 4)
    for correction in ({}, {"b": b}, {"alpha": k, "beta": -k}):
        given = [x.clone().requires_grad_() for x in (q, k, v, a, S0)]
        y, last = kernels.matrix_scan(*given, lengths, reset, **correction)
        (y.sum() + last.sum()).backward()


def wide_streams() -> None:
    """The units of one row are divided among threads: one step at a time, and many in a call."""
    for name in ("gru", "lstm", "mgu"):
        for weights in (None, "bfloat16", "int8"):
            stream = Stream(stack(name, 400, 400, layers=2).eval(), 1, weights)
            for _ in range(3):
                stream.step(torch.randn(1, 400))
    model = SequenceModel(Embedding(7, 400), stack("gru", 400, 400, layers=2), Softmax(400, 7)).eval()
    stream_of(model, 2).read(np.array([1, 5, 2, 2, 6]), 1)


def python_threads() -> None:
    cores = [CELLS[name](64, 64) for name in ("lstm", "mamba", "s4d", "mingru")] * 2
    workers = [threading.Thread(target=lambda core=core: [train(core, 4, 20) for _ in range(5)]) for core in cores]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


if __name__ == "__main__":
    for threads in (2, 3):
        torch.set_num_threads(threads)
        every_kernel()
        wide_loops()
        matrices()
        wide_streams()
        python_threads()
    print(f"No race was found; {_native.teams_dissolved()} teams were dissolved.")
