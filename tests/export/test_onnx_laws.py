"""Laws 1 to 5 through ONNX Runtime, for every cell with its options and combinator, beside what Torch computes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

import elman
from elman import Bidirectional, Residual, Reverse, Stack
from elman import state as states
from elman.cells import CELLS
from elman.cells.matrix import Matrix
from elman.compose.attention import Remember
from elman.compose.feedforward import ChannelMixing, FeedForward
from elman.core import Core
from elman.laws.sequence import Sample, draw
from elman.onnx import Session, State

TOLERANCE = 1e-5
NEEDED = pytest.importorskip("onnxruntime")


def cells() -> dict[str, Callable[[], Core]]:
    """Every cell with each of its option sets."""
    return {
        f"{name}-{i}": lambda name=name, options=options: CELLS[name](4, 4, **options)
        for name, kind in CELLS.items()
        for i, options in enumerate(kind.variants)
    }


def elsewhere(core: Core) -> Core:
    """With an initial state of numbers of order one."""
    learned = elman.LearnedStart(core)
    torch.nn.init.normal_(learned.initial_state)
    return learned


COMBINATORS: dict[str, Callable[[], Core]] = {
    "stack": lambda: Stack(elman.cell("gru", 4, 5), elman.cell("lstm", 5, 3), elman.cell("lru", 3, 4)),
    "stack of all": lambda: Stack(elman.cell("gru", 4, 5), elman.cell("mingru", 9, 3), inputs="all"),
    "parallel": lambda: elman.Parallel(elman.cell("gru", 4, 5), elman.Dense(4, 3), elman.cell("window", 4, 2)),
    "residual": lambda: Residual(Residual(elman.cell("gru", 4, 4))),
    "reverse": lambda: Reverse(elman.cell("lstm", 4, 5)),
    "reverse of a loop": lambda: Reverse(Stack(elman.cell("mgu", 4, 5), elman.cell("window", 5, 4))),
    "reverse twice": lambda: Reverse(Reverse(elman.cell("gru", 4, 5))),
    "bidirectional": lambda: Stack(
        Bidirectional(elman.cell("gru", 4, 5), elman.cell("gru", 4, 5)),
        Bidirectional(elman.cell("lstm", 10, 3), elman.cell("gla", 10, 4)),
    ),
    "blocks": lambda: elman.blocks("s5", 4, 4, layers=2),
    "blocks of matrices": lambda: elman.blocks("mlstm", 4, 4, layers=1),
    "dropout": lambda: elman.Dropout(elman.cell("gru", 4, 5), 0.5),
    "zoneout": lambda: elman.Zoneout(elman.cell("lstm", 4, 5), 0.3),
    "weight drop": lambda: elman.WeightDrop(elman.cell("lstm", 4, 5), 0.5),
    "recompute": lambda: elman.Recompute(elman.cell("gru", 4, 5), every=2),
    "learned start": lambda: elsewhere(elman.Stack(elman.cell("gru", 4, 5), elman.cell("lru", 5, 4))),
    "learned starts of both": lambda: Bidirectional(*(elsewhere(elman.cell("lstm", 4, 5)) for _ in range(2))),
    "GLU": lambda: elman.GLU(4, 3),
    "layer norm": lambda: elman.Norm(4),
    "RMS norm": lambda: elman.Norm(4, kind="rms"),
    "columns": lambda: elman.Columns(4, 1, 2),
    "lags": lambda: elman.Lags(4, [0, 2, 3]),
    "scale": lambda: elman.Scale(2, decay=0.9),
    **{f"dense {name}": lambda name=name: elman.Dense(4, 3, activation=name) for name in ("none", "relu", "silu")},
    **{f"pool {name}": lambda name=name: elman.Pool(name, 4) for name in ("last", "mean", "max")},
    "feed-forward": lambda: FeedForward(4, 8, activation="silu"),
    "channel mixing": lambda: ChannelMixing(4, 8),
    "remember": lambda: Remember(elman.cell("mgu", 4, 5)),
    "a residual of a filter": lambda: Residual(Stack(elman.Norm(4), elman.cell("hmm", 4, 4))),
}


BY_EQUATION = {**cells(), **COMBINATORS}
# Those that the operation LinearAttention of ONNX Runtime stands in for: all matrix cells but rwkv7, and what has some.
WITH_MATRICES = ["bidirectional", "blocks of matrices"]
WITH_MATRICES += [name for name, make in cells().items() if isinstance(make(), Matrix) and "rwkv7" not in name]
TABLE = {**BY_EQUATION, **{f"{name} by LinearAttention": BY_EQUATION[name] for name in WITH_MATRICES}}


class Case(NamedTuple):
    """A core as Torch has it, and its two files: without and with resets."""

    core: Core
    sample: Sample
    plain: Session
    episodes: Session

    def state(self, state: states.State, session: Session) -> State:
        names = [leaf["name"] for leaf in session.about["state"]]
        return State(dict(zip(names, map(array, states.leaves(state)), strict=True)), session.fingerprint)


def array(leaf: Tensor) -> np.ndarray:
    return (torch.view_as_real(leaf) if leaf.is_complex() else leaf).numpy()


@pytest.fixture(scope="module")
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    torch.manual_seed(0)
    core, folder = TABLE[request.param]().eval(), tmp_path_factory.mktemp("onnx")
    sessions, fast = [], "LinearAttention" in request.param
    for name, options in {"plain": {"for_onnxruntime": fast}, "episodes": {"with_reset": True}}.items():
        [path] = elman.export.onnx(core, folder / f"{name}.onnx", **options)
        sessions.append(Session(path))
    assert (b"LinearAttention" in (folder / "plain.onnx").read_bytes()) == fast
    return Case(core, draw(core, torch.float32, seed=0, batch_size=5, time=6), *sessions)


def error(a: object, b: object) -> float:
    x, y = np.asarray(a), np.asarray(b)
    assert x.shape == y.shape and x.dtype == y.dtype
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    return float(np.abs(np.where(same, 0, x - np.where(same, 0, y))).max(initial=0))


def close(one: tuple[np.ndarray, State], other: tuple[np.ndarray, State]) -> None:
    assert error(one[0], other[0]) < TOLERANCE
    assert list(one[1]) == list(other[1])
    for name in one[1]:
        assert error(one[1][name], other[1][name]) < TOLERANCE, name


@pytest.mark.parametrize("case", TABLE, indirect=True)
def test_laws(case: Case) -> None:
    core, sample, plain, episodes = case
    x, lengths, reset = sample.x.numpy(), sample.lengths.numpy(), sample.reset.numpy()
    first = case.state(sample.state, plain) if core.causal else None
    before = sample.state if core.causal else None
    with torch.no_grad():
        y, last = core.scan(sample.x, before, lengths=sample.lengths)
        y_reset, last_reset = core.scan(sample.x, before, lengths=sample.lengths, reset=sample.reset)
    after = {True: last, False: ()}[core.causal], {True: last_reset, False: ()}[core.causal]
    whole = plain.scan(x, first, lengths=lengths)
    close(whole, (y.numpy(), case.state(after[0], plain)))
    close(episodes.scan(x, first, lengths=lengths), whole)
    close(episodes.scan(x, first, lengths=lengths, reset=reset), (y_reset.numpy(), case.state(after[1], episodes)))  # 4
    rubbish = np.where(np.arange(x.shape[1])[:, None] < lengths[:, None, None], x, np.float32(np.nan))
    close(plain.scan(rubbish, first, lengths=lengths), whole)  # 5
    for b, length in enumerate(lengths):  # 3
        alone = plain.scan(x[b : b + 1, :length], first and plain.take(first, [b]))
        close(alone, (whole[0][b : b + 1, :length], plain.take(whole[1], [b])))
    if core.causal:
        complete = plain.scan(x, first)
        for session in (plain, episodes):
            close(in_chunks(session, x, first, range(x.shape[1] + 1)), complete)  # 1
            close(in_chunks(session, x, first, [0, 0, 2, 2, x.shape[1], x.shape[1]]), complete)  # 2


def in_chunks(session: Session, x: np.ndarray, state: State | None, cuts: object) -> tuple[np.ndarray, State]:
    ys = []
    for start, end in itertools.pairwise(cuts):
        if end - start == 1:
            y, state = session.step(x[:, start], state)
            ys.append(y[:, None])
        else:
            y, state = session.scan(x[:, start:end], state)
            ys.append(y)
    return np.concatenate(ys, 1), state


def test_the_table_sees_a_wrong_graph(tmp_path: Path) -> None:
    """A file of other weights, and one that does not carry its state, are told apart."""
    torch.manual_seed(1)
    one, other = elman.cell("gru", 4, 4), elman.cell("gru", 4, 4)
    [a], [b] = (elman.export.onnx(core, tmp_path / f"{i}.onnx") for i, core in enumerate((one, other)))
    x = np.ones((1, 2, 4), np.float32)
    with pytest.raises(AssertionError):
        close(Session(a).scan(x), Session(b).scan(x))
