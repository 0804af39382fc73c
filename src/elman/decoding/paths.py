"""Paths: what a model draws for the steps ahead, reading each value that it has drawn."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from elman import random
from elman import state as states
from elman.errors import InputError
from elman.kernels.builder import Unstreamable
from elman.kernels.rows import NativeRows
from elman.kernels.trace import slot_of, traced
from elman.model import SequenceModel
from elman.nn.distributions import Categorical, StudentT
from elman.nn.readout import Readout
from elman.progress import check_cancelled
from elman.state import State
from elman.stream import ModelStream, described, frozen

NUMBERS = 1 << 20  # that are drawn in one native call, which cannot be left
PATHS = 4096  # that are drawn side by side: their states stay near the processor


@torch.inference_mode()
def draw_paths(model: SequenceModel, state: State, x: Tensor, draws: Tensor) -> Tensor:
    """S paths of H steps for each of the B rows of a state: (B * S, H, C), in float64.

    x (B, H, D) is what the model reads. The first C columns of all steps but the first do not count: the C numbers that
    were drawn for the step before stand there. draws (B * S, 2) has S paths of the first row, then those of the second.
    A path is the same alone and in any batch.
    """
    if not len(draws) or not x.shape[1]:
        raise InputError(f"x is {list(x.shape)}, for {len(draws)} paths; they need at least one row and one step")
    try:
        native = NativePaths(model)
    except Unstreamable:
        return _stepped(model, state, x, draws)
    return _in_pieces(native, state, model.embed(x), draws)


class NativePaths:
    """Paths in one native call for all, to the bits of `ModelStream.step` and `sample`; or Unstreamable is raised.

    x (B, H, D) is what the core reads.
    """

    def __init__(self, model: SequenceModel) -> None:
        model = frozen(model)
        readout, self._start = model.readout, model.core.init_state(1)
        program, x, y = described(model.core, None)
        if not isinstance(readout, Readout):
            raise Unstreamable(f"{type(readout).__name__} does not describe its step")
        said = readout.distribution(traced(program, readout.describe_step(program, y)))
        if not isinstance(said, StudentT):
            raise Unstreamable(f"a draw from a {type(said).__name__}")
        program.finish(x, program.student_t(*(slot_of(program, part) for part in (said.df, said.mean, said.scale))))
        self._program = program

    def __call__(self, state: State, x: Tensor, draws: Tensor) -> Tensor:
        rows = NativeRows(self._program, self._start, len(x))
        rows.put(np.arange(len(x)), state)
        return rows.paths(x, draws)


def _in_pieces(native: NativePaths, state: State, x: Tensor, draws: Tensor) -> Tensor:
    """Some rows in a native call, or some paths of one row: it can be left between two calls."""
    (B, H), S = x.shape[:2], len(draws) // len(x)
    n = max(1, NUMBERS // (S * H))
    paths = S if n > 1 else max(1, min(S, NUMBERS // H))
    parts = []
    for start in range(0, B, n):
        rows = torch.arange(start, min(start + n, B))
        for first in range(0, S, paths):
            check_cancelled()
            own = draws.reshape(B, S, 2)[rows, first : first + paths].reshape(-1, 2)
            parts.append(native(states.take(state, rows), x[rows], own))
    return torch.cat(parts)


def _stepped(model: SequenceModel, state: State, x: Tensor, draws: Tensor) -> Tensor:
    """The paths of a model whose draws are not native, step by step, those of some rows at a time."""
    S, stream, parts = len(draws) // len(x), ModelStream(model, 1), []
    for start in range(0, len(x), max(1, PATHS // S)):
        rows = torch.arange(start, min(start + max(1, PATHS // S), len(x)))
        some = stream.share(len(rows) * S)
        some.state = states.repeat(states.take(state, rows), S)
        parts.append(_drawn(some, x[rows].repeat_interleave(S, 0), draws[start * S :][: some.batch_size]))
    return torch.cat(parts)


def _drawn(stream: ModelStream, x: Tensor, draws: Tensor) -> Tensor:
    """One path of each row of the stream."""
    drawn: list[Tensor] = []
    for now in x.unbind(1):
        check_cancelled()
        if drawn:
            now = torch.cat([drawn[-1], now[:, drawn[-1].shape[1] :]], -1)
        predicted = stream.step(now)
        y = predicted.sample(draws)
        drawn.append(y.float()[:, None] if isinstance(predicted, Categorical) else y)
        draws = random.after(draws)
    return torch.stack(drawn, 1).double()
