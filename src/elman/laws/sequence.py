"""The laws every recurrence keeps, and a checker that anyone can run on their own: `print(laws.check(core))`.

1. Step by step is the whole scan. (What reads the future has no step: its first output must depend on the last input.)
2. Cut anywhere, empty chunks included, and carry the state: the whole scan.
3. A ragged row is that row alone, outputs and last state.
4. A reset is a separate episode.
5. What is in the padding is irrelevant, to values and to gradients.
6. Rows commute with `take` and `repeat`.
7. The kernel is the inherited loop over `step`: values, and gradients with respect to inputs, parameters and the
   initial state, with gradient arriving at the outputs and at the last state.
8. On the native kernels, any chunks, any batch, ragged or not, any threads, a Stream of any rows agree bit for bit.

States are not zero, lengths include 0 and T, and resets are at 0, in the middle and at the end.

Laws 1 to 7 make a core correct, law 8 makes it exact: two verdicts, `ok` and `exact`.
"""

from __future__ import annotations

import copy
import itertools
import math
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from elman import kernels
from elman import state as states
from elman.cells import CELLS
from elman.core import Core, Options
from elman.errors import InputError, UnknownNameError
from elman.laws.report import Report, distance, dtype_of, error, try_laws
from elman.lengths import valid
from elman.state import State
from elman.stream import Stream


@dataclass(frozen=True)
class Row:
    """One cell of the conformance table."""

    cell: str
    options: Options
    kernels: str
    law: int
    ok: bool
    worst_error: float


@dataclass(frozen=True)
class Sample:
    """What a core is tried on: x (B, T, D), a state that is not the initial one, lengths (B,) and reset (B, T)."""

    x: Tensor
    state: State
    lengths: Tensor
    reset: Tensor


def check(core: Core, *, seed: int = 0, batch_size: int = 5, time: int = 8) -> Report:
    """Try every law on a core, on the kernels in use, in the dtype of its parameters: the way to test your own cell.

    >>> from elman.cells import cell
    >>> bool(check(cell("elman", 3, 4)))
    True
    """
    if not isinstance(core, Core):
        raise InputError(
            f"laws.check was given {_a(core)}; it takes a Core: a cell, a combinator of elman.compose, or your own "
            "subclass. "
            "elman.from_torch makes a Core of an nn.RNN, nn.GRU or nn.LSTM."
        )
    core = copy.deepcopy(core).eval()
    dtype = dtype_of(core)
    if core.causal:
        _check_step(core, dtype)
    sample = draw(core, dtype, seed=seed, batch_size=batch_size, time=time)
    return try_laws(core, sample, LAWS, TITLES, bitwise=8)


def rows(names: Iterable[str] = (), kernel_names: Iterable[str] = ()) -> Iterator[Row]:
    """The conformance table, row by row as it is computed: every cell (or those named), option set, kernel and law."""
    for name in tuple(names) or CELLS:
        if name not in CELLS:
            raise UnknownNameError("cell", name, CELLS)
        for options in CELLS[name].variants:
            for kernel in tuple(kernel_names) or kernels.available():
                with kernels.use(kernel), torch.random.fork_rng(devices=()):
                    torch.manual_seed(0)
                    report = check(CELLS[name](4, 4, **options))
                for v in report.verdicts:
                    yield Row(name, options, kernel, v.law, v.ok, v.worst_error)


def draw(core: Core, dtype: torch.dtype, *, seed: int, batch_size: int, time: int) -> Sample:
    """A sample with every difficulty: row 0 has no valid input, row 1 has all; resets at 0, inside and at the end."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(batch_size, time, core.input_size, generator=generator, dtype=dtype)
    lengths = torch.randint(0, time + 1, (batch_size,), generator=generator)
    lengths[:2] = torch.tensor([0, time])[:batch_size]
    reset = torch.rand(batch_size, time, generator=generator) < 0.3
    if batch_size > 1 and time > 0:
        reset[1, [0, time // 2, time - 1]] = True
        reset[-1, 0] = False
    warm = torch.randn(batch_size, 3, core.input_size, generator=generator, dtype=dtype)
    with torch.no_grad():
        _, state = _by_definition(core).scan(warm)
    return Sample(x, state, lengths, reset)


def step_is_scan(core: Core, sample: Sample) -> float:
    if not core.causal:
        return _reads_the_future(core, sample)
    with torch.no_grad():
        whole = core.scan(sample.x, sample.state)
        ys, state = [], sample.state
        for t in range(sample.x.shape[1]):
            y, state = core.step(sample.x[:, t], state)
            ys.append(y)
        y = torch.stack(ys, 1) if ys else whole[0]
    return distance(whole, (y, state))


def chunks_are_whole(core: Core, sample: Sample) -> float:
    if not core.causal:
        return 0.0
    T = sample.x.shape[1]
    cuts = [[t] for t in range(T + 1)] + [list(range(T + 1)), [T // 2, T // 2]]
    whole = _scan(core, sample)
    return max(distance(_in_chunks(core, sample, [0, *cut, T]), whole) for cut in cuts)


def ragged_is_alone(core: Core, sample: Sample) -> float:
    y, state = _scan(core, sample)
    worst = 0.0
    for b, length in enumerate(sample.lengths.tolist()):
        row = _take(sample, [b])
        alone = _scan(core.take([b]), Sample(row.x[:, :length], row.state, row.lengths, row.reset[:, :length]))
        worst = max(worst, distance(alone, (y[b : b + 1, :length], states.take(state, [b]))))
        worst = max(worst, error(y[b, length:], torch.zeros_like(y[b, length:])))
    return worst


def reset_is_episode(core: Core, sample: Sample) -> float:
    T = sample.x.shape[1]
    first = sample.state if core.causal else core.init_state(len(sample.x))
    with torch.no_grad():
        y, last = core.scan(sample.x, first, reset=sample.reset)
    worst = 0.0
    for b in range(len(sample.x)):
        starts = sorted({0, T, *sample.reset[b].nonzero().flatten().tolist()})
        state = states.take(first, [b])
        for start, end in itertools.pairwise(starts):
            with torch.no_grad():
                fresh = bool(sample.reset[b, start])
                before = core.init_state(1) if fresh else state
                episode, state = core.take([b]).scan(sample.x[b : b + 1, start:end], before)
            worst = max(worst, error(episode, y[b : b + 1, start:end]))
        if core.causal:  # the last state of what reads backwards is that of the first episode
            worst = max(worst, distance(state, states.take(last, [b])))
    return worst


def padding_is_irrelevant(core: Core, sample: Sample) -> float:
    padding = ~valid(sample.lengths, sample.x.shape[1])
    clean = _gradients(core, sample)
    worst = 0.0
    for rubbish in (math.nan, math.inf, 1e30):
        x = torch.where(padding[..., None], torch.full_like(sample.x, rubbish), sample.x)
        dirty = _gradients(core, Sample(x, sample.state, sample.lengths, sample.reset ^ padding))
        worst = max(worst, distance(tuple(dirty), tuple(clean)))
    return worst


def rows_commute(core: Core, sample: Sample) -> float:
    whole, B = _scan(core, sample), len(sample.x)
    shuffled = [*range(B - 1, -1, -1), *range(0, B, 2)]
    taken = distance(_scan(core.take(shuffled), _take(sample, shuffled)), states.take(whole, shuffled))
    repeated = Sample(*(states.repeat(part, 3) for part in _parts(sample)))  # type: ignore[arg-type]
    return max(taken, distance(_scan(core.repeat(3), repeated), states.repeat(whole, 3)))


def kernel_is_loop(core: Core, sample: Sample) -> float:
    return distance(tuple(_gradients(core, sample)), tuple(_gradients(_by_definition(core), sample)))


def bits_are_the_same(core: Core, sample: Sample) -> float:
    whole, B = _scan(core, sample), len(sample.x)
    worst = max(chunks_are_whole(core, sample), distance(_stream(core, sample), whole) if core.causal and B else 0.0)
    for rows_ in (*([b] for b in range(B)), list(range(B)) * 5):
        worst = max(worst, distance(_scan(core.take(rows_), _take(sample, rows_)), states.take(whole, rows_)))
    threads = torch.get_num_threads()
    try:
        for other in (1, 2, 3):
            torch.set_num_threads(other)
            worst = max(worst, distance(_scan(core, sample), whole))
    finally:
        torch.set_num_threads(threads)
    return worst


LAWS: dict[int, Callable[[Core, Sample], float]] = {
    1: step_is_scan,
    2: chunks_are_whole,
    3: ragged_is_alone,
    4: reset_is_episode,
    5: padding_is_irrelevant,
    6: rows_commute,
    7: kernel_is_loop,
    8: bits_are_the_same,
}

TITLES = {
    1: "step by step is the whole scan",
    2: "any chunking is the whole scan",
    3: "a ragged row is that row alone",
    4: "a reset is a separate episode",
    5: "padding is irrelevant",
    6: "rows commute with take and repeat",
    7: "the kernel is the loop, with gradients",
    8: "bits depend on no batch, chunk or thread",
}


def _check_step(core: Core, dtype: torch.dtype) -> None:
    """Raise an InputError unless a step gives what the protocol says: (y (B, H), a state like the one before it)."""
    B, name = 2, type(core).__name__
    with torch.no_grad():
        before = core.init_state(B)
        result: object = core.take(range(B)).step(torch.zeros(B, core.input_size, dtype=dtype), before)
    if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[0], Tensor):
        raise InputError(f"{name}.step returned {_a(result)}; it must return (y, state), y a tensor (B, H)")
    y, after = result
    if y.shape != (B, core.output_size):
        raise InputError(
            f"{name}.step returned y of shape {list(y.shape)} for {B} rows; it must be (B, H), [{B}, "
            f"{core.output_size}]: the size that the core was made with"
        )
    try:
        states.check(before, core.init_state(0), B)
        states.check(after, core.init_state(0), B)
    except InputError as error:
        raise InputError(f"{name}.step and {name}.init_state do not agree: {error}") from error


def _a(value: object) -> str:
    return states.describe(value) if isinstance(value, Tensor | tuple) else f"a {type(value).__name__}"


def _scan(core: Core, sample: Sample) -> tuple[Tensor, State]:
    with torch.no_grad():
        y, state = core.scan(sample.x, sample.state, lengths=sample.lengths, reset=sample.reset)
    return y, state


def _parts(sample: Sample) -> tuple[Tensor, State, Tensor, Tensor]:
    return sample.x, sample.state, sample.lengths, sample.reset


def _take(sample: Sample, rows: list[int]) -> Sample:
    return Sample(*(states.take(part, rows) for part in _parts(sample)))  # type: ignore[arg-type]


def _in_chunks(core: Core, sample: Sample, cuts: list[int]) -> tuple[Tensor, State]:
    ys, state = [], sample.state
    for start, end in itertools.pairwise(cuts):
        lengths = (sample.lengths - start).clamp(0, end - start)
        y, state = _scan(core, Sample(sample.x[:, start:end], state, lengths, sample.reset[:, start:end]))
        ys.append(y)
    return torch.cat(ys, 1), state


def _stream(core: Core, sample: Sample) -> tuple[Tensor, State]:
    """By a stream, at each time those of the rows that are not over yet."""
    stream, y = Stream(core, len(sample.x)), sample.x.new_zeros(*sample.x.shape[:2], core.output_size)
    stream.state = sample.state
    for t, now in enumerate(valid(sample.lengths, sample.x.shape[1]).T):
        first, rows_ = (sample.reset[:, t] & now).nonzero()[:, 0], now.nonzero()[:, 0]
        stream.put(first, core.init_state(len(first)))
        y[rows_, t] = stream.step(sample.x[rows_, t], rows_)
    return y, stream.state


def _reads_the_future(core: Core, sample: Sample) -> float:
    """0 if the first output changes with the last input, as it must where causal is False; infinity if not."""
    if sample.x.shape[1] < 2:
        return 0.0
    other = torch.cat([sample.x[:, :-1], -sample.x[:, -1:]], 1)
    with torch.no_grad():
        y, changed = core.scan(sample.x)[0], core.scan(other)[0]
    return 0.0 if not torch.equal(y[:, 0], changed[:, 0]) else math.inf


def _gradients(core: Core, sample: Sample) -> list[Tensor]:
    """Outputs, last state, and the gradients of a fixed random function of both, in one list."""
    x = sample.x.detach().clone().requires_grad_()
    state = states.map(lambda leaf: leaf.detach().clone().requires_grad_(_differentiable(leaf)), sample.state)
    y, last = core.scan(x, state, lengths=sample.lengths, reset=sample.reset)
    results = [y, *states.leaves(last)]
    generator = torch.Generator().manual_seed(0)
    total = torch.zeros((), dtype=sample.x.dtype)
    for result in results:
        if _differentiable(result):
            weight = torch.randn(result.shape, generator=generator, dtype=result.dtype)
            total = total + (weight * result).real.sum() if result.is_complex() else total + (weight * result).sum()
    wanted = [t for t in (x, *states.leaves(state), *core.parameters()) if t.requires_grad]
    gradients = torch.autograd.grad(total, wanted, allow_unused=True) if total.requires_grad else ()
    present = [torch.zeros_like(w) if g is None else g for w, g in zip(wanted, gradients, strict=False)]
    return [*(result.detach() for result in results), *present]


def _by_definition(core: Core) -> Core:
    """A copy in which everything that has a step scans by the inherited loop over it."""
    core = copy.deepcopy(core)
    for part in core.modules():
        if isinstance(part, Core) and part.causal:
            part._scan = types.MethodType(Core._scan, part)  # type: ignore[method-assign]
    return core


def _differentiable(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()
