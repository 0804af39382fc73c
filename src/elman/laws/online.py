"""What learning from a stream promises, for each cell: elman.online.

O1. Where a rule is exact, the gradient that it has accumulated at one set of weights is that of back-propagation
    through the whole sequences: rows of several lengths, of none too, and with episodes that begin inside.
O2. `learn_many` is `learn_one` repeated, to the same bytes, however the stream is cut; and at one set of weights a
    batch has the gradients of its rows alone.
O3. A learner that is saved and loaded in the middle ends in the same bytes.
O4. snap1 is rtrl where the state goes on by itself, number by number.
O5. uoro is right on average: over fixed seeds its mean is within 4 standard errors of the gradient.

Cells whose gates see the state have O1 and O5 too: rtrl is exact for them as well, and dearer.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from elman import state as states
from elman.cells import CELLS
from elman.cells.bank import Bank
from elman.cells.diagonal import Diagonal
from elman.cells.gated import Gated
from elman.cells.indrnn import IndRNN
from elman.cells.rglru import RGLRU
from elman.core import Core, Options
from elman.errors import UnknownNameError
from elman.laws.report import distance, dtype_of
from elman.lengths import valid
from elman.model import SequenceModel
from elman.nn.readout import GaussianReadout
from elman.online import Learner, LearnerState, Optim

TITLES = {
    "O1": "the gradient is that of back-propagation through the whole past",
    "O2": "any cut of a stream is the same bytes, and a batch is its rows",
    "O3": "saved and loaded in the middle is uninterrupted",
    "O4": "snap1 is rtrl where the state is diagonal",
    "O5": "uoro is right on average",
}
LAWS = tuple(TITLES)

# The largest error that is rounding, relative to 1 + the largest value: sums over a sequence, in another order.
TOLERANCES = {torch.float32: 1e-4, torch.float64: 1e-9}
GROUPS, ROWS = 24, 48  # of seeds, for O5


@dataclass(frozen=True)
class OnlineRow:
    """What one law said of a cell with some options; for O5 the error is in units of 4 standard errors."""

    cell: str
    options: Options
    law: str
    ok: bool
    worst_error: float


@dataclass(frozen=True)
class Stream:
    """What a learner is tried on: x (B, T, D), y (B, T, 1), lengths (B,), of which one is 0, and reset (B, T)."""

    x: Tensor
    y: Tensor
    lengths: Tensor
    reset: Tensor


def claims(core: Core) -> tuple[str, ...]:
    """The laws that a core of this kind keeps."""
    if is_diagonal(core):
        return LAWS
    return ("O1", "O2", "O3", "O5") if isinstance(core, Gated | RGLRU) else ()


def is_diagonal(core: Core) -> bool:
    """Whether each number of its state goes on by itself."""
    return isinstance(core, Diagonal | Bank | IndRNN)


def check(core: Core, law: str, *, seed: int = 0) -> float:
    """The worst error of a law for a core: 0 where bytes are equal, in units of 4 standard errors for O5.

    >>> from elman.cells import cell
    >>> check(cell("mingru", 2, 2).double(), "O4")
    0.0
    """
    if law not in LAWS:
        raise UnknownNameError("law", law, LAWS)
    torch.manual_seed(seed)
    model = SequenceModel(nn.Identity(), core, GaussianReadout(core.output_size, 1)).to(dtype_of(core))
    return _LAWS[law](model, draw(core, dtype_of(core), seed))


def rows(names: Iterable[str] = (), laws: Iterable[str] = ()) -> Iterator[OnlineRow]:
    """The table, row by row: every cell (or those named) that keeps such laws, with each of its option sets. O1 and O4
    are checked for all of these, the others, which no option changes, for the first."""
    for name in tuple(names) or CELLS:
        if name not in CELLS:
            raise UnknownNameError("cell", name, CELLS)
        for options in CELLS[name].variants:
            first = options is CELLS[name].variants[0]
            with torch.random.fork_rng(devices=()):
                torch.manual_seed(0)
                core = CELLS[name](4, 4, **options)
                for law in claims(core):
                    if (tuple(laws) and law not in laws) or not (first or law in ("O1", "O4")):
                        continue
                    worst = check(core, law)
                    most = {"O2": TOLERANCES[torch.float32], "O1": TOLERANCES[torch.float32], "O5": 1.0}.get(law, 0.0)
                    yield OnlineRow(name, options, law, worst <= most, worst)


def draw(core: Core, dtype: torch.dtype, seed: int, batch_size: int = 4, time: int = 6) -> Stream:
    """Rows of every kind: one without an input, one that is whole, resets at the start, inside and at the end."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(batch_size, time, core.input_size, generator=generator, dtype=dtype)
    y = torch.randn(batch_size, time, 1, generator=generator, dtype=dtype)
    lengths = torch.randint(1, time + 1, (batch_size,), generator=generator)
    lengths[:2] = torch.tensor([0, time])
    reset = torch.rand(batch_size, time, generator=generator) < 0.2
    reset[2, [0, time // 2, time - 1]] = True
    return Stream(x, y, lengths, reset)


def back_propagated(model: SequenceModel, stream: Stream) -> dict[str, Tensor]:
    """The gradient of the sum of - log P(y) by `scan` and autograd."""
    weights = dict(model.named_parameters())
    predicted, _ = model.scan(stream.x, lengths=stream.lengths, reset=stream.reset)
    there = valid(stream.lengths, stream.x.shape[1])
    loss = -torch.where(there, predicted.log_prob(stream.y), 0.0).sum()
    found = torch.autograd.grad(loss, list(weights.values()), allow_unused=True)
    return {n: torch.zeros_like(w) if g is None else g for (n, w), g in zip(weights.items(), found, strict=True)}


def _exact(model: SequenceModel, stream: Stream) -> float:
    learner = _learner(model, "rtrl", stream)
    found, _ = _accumulated(learner, stream)
    return _apart(found, back_propagated(model, stream))


def _chunk_free(model: SequenceModel, stream: Stream) -> float:
    rule = "rtrl" if is_diagonal(model.core) else "snap1"
    one = _learner(model, rule, stream)
    many, cut, fresh = one.fork(), one.fork(), one.fork()
    many.learn_many(stream.x, stream.y, lengths=stream.lengths, reset=stream.reset)
    there = valid(stream.lengths, stream.x.shape[1])
    for t in range(stream.x.shape[1]):
        now = {"valid": there[:, t], "reset": stream.reset[:, t]}
        one.state = one.learn(one.state, stream.x[:, t], stream.y[:, t], **now)[1]
    for start, end in ((0, 2), (2, 2), (2, 5), (5, stream.x.shape[1])):
        lengths = (stream.lengths - start).clamp(0, end - start)
        x, y, reset = (v[:, start:end] for v in (stream.x, stream.y, stream.reset))
        cut.learn_many(x, y, lengths=lengths, reset=reset)
    if not _same(one, many) or not _same(cut, many):
        return float("inf")
    whole, _ = _accumulated(fresh, stream)
    alone = _learner(model, rule, stream, batch_size=1)
    parts = []
    for b in range(len(stream.x)):
        row = Stream(*(part[b : b + 1] for part in (stream.x, stream.y, stream.lengths, stream.reset)))
        parts.append(_accumulated(alone, row)[0])
    return _apart({name: sum((part[name] for part in parts), torch.zeros(())) for name in whole}, whole)


def _resumes(model: SequenceModel, stream: Stream) -> float:
    rule = "rtrl" if is_diagonal(model.core) else "snap1"
    whole = _learner(model, rule, stream)
    before, after = whole.fork(), whole.fork()
    T = stream.x.shape[1]
    whole.learn_many(stream.x, stream.y, reset=stream.reset)
    before.learn_many(stream.x[:, : T // 2], stream.y[:, : T // 2], reset=stream.reset[:, : T // 2])
    with tempfile.TemporaryDirectory() as folder:
        before.save(Path(folder) / "learner.safetensors")
        after.load(Path(folder) / "learner.safetensors")
    after.learn_many(stream.x[:, T // 2 :], stream.y[:, T // 2 :], reset=stream.reset[:, T // 2 :])
    return 0.0 if _same(after, whole) else float("inf")


def _snap1_is_rtrl(model: SequenceModel, stream: Stream) -> float:
    rtrl, snap1 = _learner(model, "rtrl", stream), _learner(model, "snap1", stream)
    first, state = _accumulated(rtrl, stream)
    second, other = _accumulated(snap1, stream)
    return max(_apart(second, first), distance(other, state))


def _unbiased(model: SequenceModel, stream: Stream) -> float:
    """In units of 4 standard errors, which the means of groups of seeds have between them."""
    stream = Stream(stream.x[2:3, :4], stream.y[2:3, :4], torch.tensor([4]), stream.reset[2:3, :4] & False)
    wanted = torch.cat([g.flatten() for g in back_propagated(model, stream).values()]).double()
    many = Stream(*(states.repeat(part, ROWS) for part in (stream.x, stream.y, stream.lengths, stream.reset)))  # type: ignore[arg-type]
    learner = _learner(model, "uoro", many)
    means = []
    for group in range(GROUPS):
        learner.seed = group * ROWS
        found, _ = learner.accumulate(learner.init_state(ROWS), many.x, many.y)
        means.append(torch.cat([g.flatten() for g in found.values()]).double() / ROWS)
    mean, error = torch.stack(means).mean(0), torch.stack(means).std(0) / GROUPS**0.5
    rounding = TOLERANCES[torch.float32] * (1 + wanted.abs().max())
    return float(((mean - wanted).abs() / (4 * error + rounding)).max())


_LAWS = {"O1": _exact, "O2": _chunk_free, "O3": _resumes, "O4": _snap1_is_rtrl, "O5": _unbiased}


def _learner(model: SequenceModel, rule: str, stream: Stream, batch_size: int | None = None) -> Learner:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Learner(model, rule=rule, optim=Optim(lr=0.01), batch_size=batch_size or len(stream.x))


def _accumulated(learner: Learner, stream: Stream) -> tuple[dict[str, Tensor], LearnerState]:
    state = learner.init_state(len(stream.x))
    return learner.accumulate(state, stream.x, stream.y, lengths=stream.lengths, reset=stream.reset)


def _same(one: Learner, other: Learner) -> bool:
    pairs = zip(states.leaves(one.state), states.leaves(other.state), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def _apart(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    return distance(tuple(found[name] for name in wanted), tuple(wanted.values()))
