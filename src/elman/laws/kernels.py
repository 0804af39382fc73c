"""Each kernel in use, gradients included, against the reference in double precision: what `elman doctor` prints.

A problem is small and has every difficulty: rows of different lengths, one of them empty; resets; a state that is not
zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from elman import kernels
from elman import state as states
from elman.cells import CELLS
from elman.compose import Bidirectional
from elman.compose.attention import Additive, Decoder, Luong
from elman.core import Core, Options
from elman.laws.report import TOLERANCES, distance
from elman.state import State
from elman.trees import Forest, TreeCore, shape, tree

B, T, C = 5, 9, 7
LENGTHS = torch.tensor([T, 4, 0, T, 1])
RESET = torch.zeros(B, T, dtype=torch.bool)
RESET[0, 4] = RESET[1, 0] = RESET[3, T - 1] = True
SIZES = torch.tensor([3, 1, 0, 2, 3])  # of memories
DRAWS = torch.tensor([[7, 0], [2**40, 3]])
TREES = Forest.of([shape([2, 2, 4, 4, -1]), shape([-1])])  # one is a single node

# The cell that each gated kernel belongs to.
GATED: dict[str, tuple[str, Options]] = {
    "elman_tanh": ("elman", {}),
    "elman_relu": ("elman", {"phi": "relu"}),
    "indrnn_tanh": ("indrnn", {"phi": "tanh"}),
    "indrnn_relu": ("indrnn", {"phi": "relu"}),
    "rate_tanh": ("rate", {"phi": "tanh"}),
    "rate_relu": ("rate", {"phi": "relu"}),
    "gru": ("gru", {}),
    "gru_before": ("gru", {"reset_after": False}),
    "gru, normed": ("gru", {"layer_norm": True}),
    "gru_before, normed": ("gru", {"reset_after": False, "layer_norm": True}),
    "lstm": ("lstm", {}),
    "lstm_logistic": ("lstm", {"candidate": "logistic"}),
    "lstm_coupled": ("lstm", {"coupled": True}),
    "lstm_coupled_logistic": ("lstm", {"coupled": True, "candidate": "logistic"}),
    "lstm, all options": ("lstm", {"peephole": True, "projection": 4, "layer_norm": True}),
    "mgu": ("mgu", {}),
}

Problem = Callable[[torch.dtype], tuple[Tensor, ...]]  # outputs and gradients, in a dtype
Outputs = Tensor | tuple[Tensor, ...]


@dataclass(frozen=True)
class KernelCheck:
    """What was found of a kernel; an error that it raised."""

    kernel: str
    dtype: str
    runs_on: str
    worst_error: float
    ok: bool
    error: str


def check_kernels() -> Iterator[KernelCheck]:
    """A row per kernel and dtype."""
    for name, problem in problems():
        with kernels.use("reference"):
            expected = problem(torch.float64)
        for dtype, tolerance in TOLERANCES.items():
            if kernels.active() == "reference" and dtype == torch.float64:
                continue  # it would be compared with itself
            before = kernels.calls()
            worst, error = _worst(problem, dtype, expected)
            runs_on = "native" if _was_called(name, before) else "reference"
            yield KernelCheck(name, str(dtype).removeprefix("torch."), runs_on, worst, worst <= tolerance, error)


def _worst(problem: Problem, dtype: torch.dtype, expected: tuple[Tensor, ...]) -> tuple[float, str]:
    try:
        results = tuple(result.to(wanted.dtype) for result, wanted in zip(problem(dtype), expected, strict=True))
        return distance(results, expected), ""
    except Exception as error:  # whatever a broken installation raises, the report must get written
        return math.inf, f"{type(error).__name__}: {error}"


def _was_called(name: str, before: dict[str, int]) -> bool:
    """Whether the native operation that the row `name` is about has run since `before` was counted."""
    family = name.partition(",")[0]
    return any(op.startswith(family) and count > before.get(op, 0) for op, count in kernels.calls().items())


def problems() -> Iterator[tuple[str, Problem]]:
    """Each kernel with its problem."""
    for name, function, inputs in (*_maps(), *_scans(), *_matrices(), *_chains()):
        yield name, _problem(function, inputs)
    # The upper halves of the words, which a double holds exactly.
    yield "philox", lambda dtype: ((kernels.philox(DRAWS, 5) >> 32).double(),)
    yield "student_t", lambda dtype: (kernels.student_t(DRAWS, torch.tensor([[2.5, 7.0], [3.0, 1e3]]).double()),)
    traces = random((B, 2, C, 3), (B, 2, 2, C), (B, 2, C), (B, 2, C, 3))
    yield "trace_step", lambda dtype: kernels.trace_step(*(part.to(dtype) for part in traces))
    for name, (cell, options) in GATED.items():
        yield f"gated, {name}", _network(partial(CELLS[cell], C, 6, **options), _scan, random((B, T, C)))
    yield "gated_pair, gru and lstm", _network(_both_directions, _scan, random((B, T, C)))
    for name in ("recursive", "binary_tree_lstm", "child_sum_tree_lstm"):
        yield f"gathered, {name}", _network(partial(tree, name, C, 6), _climb, random((6, C)))
    for cell in ("gru", "lstm"):
        for name, make in (("additive", _additive), ("fed", _input_feeding)):
            yield f"attended, {name} {cell}", _network(partial(make, cell), _attend, random((B, T, C), (B, 3, 4)))


def random(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Tensors of some shapes, the same every time."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(*sizes, generator=generator, dtype=dtype) for sizes in shapes]


# Kernels that are functions: a name, a function, and what it is given


class Case(NamedTuple):
    name: str
    function: Callable[..., Outputs]
    inputs: list[Tensor]


def _maps() -> Iterator[Case]:
    """What has no state."""
    yield Case("linear", kernels.linear, random((B, T, C), (3, C), (3,)))
    softmaxes = {
        "softmax_log_prob": kernels.softmax_log_prob,
        "softmax_log_prob, sum": kernels.softmax_log_prob_sum,
    }
    for name, function in softmaxes.items():
        yield Case(name, partial(_with_symbols, function), random((B, T, C), (3, C), (3,)))
    yield Case(
        "student_t_log_prob", lambda x, d, m, s: kernels.student_t_log_prob(x, d.exp(), m, s.exp()),
        random(*[(B, T)] * 4),
    )  # fmt: skip
    yield Case("negative_binomial_log_prob", _of_counts, random((B, T), (B, T)))
    for name in ("sigmoid", "tanh", "softplus", "silu", "exp", "sin", "cos"):
        yield Case(name, getattr(kernels, name), random((B, T, C)))
    yield Case("log", kernels.log, [x.sigmoid() for x in random((B, T, C))])
    yield Case("norm, layer", lambda x, g, b: kernels.layer_norm(x, g, b, 1e-5), random((B, C), (C,), (C,)))
    yield Case("norm, rms", lambda x, gain: kernels.rms_norm(x, gain, 1e-5), random((B, C), (C,)))
    yield Case("norm, rms of heads", lambda x, gain: kernels.rms_norm(x, gain, 1e-5, 2), random((B, 2 * C), (2 * C,)))
    yield Case("norm, l2 of heads", lambda x: kernels.l2_norm(x, 1e-6, 2), random((B, T, 2 * C)))
    yield Case("reverse", lambda x: kernels.reverse(x, LENGTHS), random((B, T, C)))
    memory = ((B, T, C), (B, 3, C), (B, 3, 4))
    yield Case("attend, dot", lambda q, k, m: kernels.attend(q, k, m, SIZES, None), random(*memory))
    yield Case("attend, additive", lambda q, k, m, v: kernels.attend(q, k, m, SIZES, v), random(*memory, (C,)))


def _with_symbols(function: Callable[..., Tensor], h: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return function(h, weight, bias, torch.arange(B * T).reshape(B, T) % len(weight))


def _of_counts(logits: Tensor, shape: Tensor) -> Tensor:
    return kernels.negative_binomial_log_prob(torch.arange(B * T).reshape(B, T), logits, shape.exp())


def _scans() -> Iterator[Case]:
    """Linear recurrences."""

    def linear(a: Tensor, b: Tensor, h0: Tensor) -> Outputs:
        return kernels.linear_scan(a, b, h0, LENGTHS, RESET)

    for name, dtype in (("linear_scan", torch.float32), ("linear_scan, complex", torch.complex64)):
        a, b, h0 = random((B, T, C), (B, T, C), (B, C), dtype=dtype)
        a = a / (1 + a.abs())  # a recurrence that does not grow
        yield Case(name, linear, [a, b, h0])
        yield Case(f"{name}, constant", linear, [a[0, 0], b, h0])
    yield Case(
        "convolution", lambda x, w, b, before: kernels.convolution(x, w, b, before, LENGTHS, RESET),
        random((B, T, C), (4, C), (C,), (B, 3, C)),
    )  # fmt: skip
    yield Case(
        "selective_scan",
        lambda x, d, A, b, c, h0: kernels.selective_scan(x, d.sigmoid(), -A.exp(), b, c, h0, LENGTHS, RESET),
        random((B, T, C), (B, T, C), (C, 3), (B, T, 3), (B, T, 3), (B, C, 3)),
    )
    yield Case(
        "bank_scan", lambda x, a, b, c, h0: kernels.bank_scan(x, a.tanh() / 2, b, c, h0, LENGTHS, RESET),
        random((B, T, C), (C, 3, 2), (C, 3, 2), (C, 3, 2), (B, C, 3, 2)),
    )  # fmt: skip


def _matrices() -> Iterator[Case]:
    """Matrix states of four heads in two groups, and the maximum that exponential gates are divided by."""

    def scan(q: Tensor, k: Tensor, v: Tensor, a: Tensor, S0: Tensor, **correction: Tensor) -> Outputs:
        return kernels.matrix_scan(q, k, v, a.sigmoid(), S0, LENGTHS, RESET, **correction)

    keys, shapes = (B, T, 2, 3), ((B, T, 2, 3), (B, T, 2, 3), (B, T, 4, C))
    yield Case("matrix_scan", scan, random(*shapes, (B, T, 4), (B, 4, 3, C)))
    yield Case(
        "matrix_scan, delta rule", lambda q, k, v, a, S0, b: scan(q, k / 2, v, a, S0, b=b.sigmoid()),
        random(*shapes, (B, T, 4, 3), (B, 4, 3, C), (B, T, 4)),
    )  # fmt: skip
    yield Case(
        "matrix_scan, corrected", lambda q, k, v, a, S0, m, n: scan(q, k, v, a, S0, alpha=m / 2, beta=n / 2),
        random(*shapes, (B, T, 4, 3), (B, 4, 3, C), keys, (B, T, 4, 3)),
    )  # fmt: skip
    yield Case(
        "max_scan", lambda a, b, m: kernels.max_scan(a, b, m, LENGTHS, RESET), random((B, T, C), (B, T, C), (B, C))
    )


def _chains() -> Iterator[Case]:
    """Hidden Markov models."""
    x, *scores = random((B, T, C), (C,), (C, C), (B, C))
    start, transition, state = (score.softmax(-1) for score in scores)
    yield Case(
        "hmm_filter", lambda x, s, t, p: kernels.hmm_filter(x, s, t, p, LENGTHS, RESET), [x, start, transition, state]
    )
    yield Case("hmm_expected", lambda x, s, t: kernels.hmm_expected(x, s, t, LENGTHS, RESET), [x, start, transition])
    yield Case("viterbi", lambda x, s, t: kernels.viterbi(x, s, t, LENGTHS, RESET), [x, start, transition])


def _problem(function: Callable[..., Outputs], inputs: Sequence[Tensor]) -> Problem:
    def solve(dtype: torch.dtype) -> tuple[Tensor, ...]:
        own = [_cast(x, dtype) for x in inputs]
        outputs = function(*own)
        return _with_gradients(outputs if isinstance(outputs, tuple) else (outputs,), own)

    return solve


# Kernels that networks call


def _network(make: Callable[[], nn.Module], run: Callable[..., tuple[State, State]], inputs: list[Tensor]) -> Problem:
    """`run(network, *inputs)` gives what it computes, and the state that it began with."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = make()

    def solve(dtype: torch.dtype) -> tuple[Tensor, ...]:
        own, model = [_cast(x, dtype) for x in inputs], network.to(dtype)
        outputs, state = run(model, *own)
        return _with_gradients(states.leaves(outputs), [*own, *states.leaves(state), *model.parameters()])

    return solve


def _scan(core: Core, x: Tensor) -> tuple[State, State]:
    state = states.map(lambda leaf: (leaf + 0.5).requires_grad_(), core.init_state(len(x)))
    return core.scan(x, state, lengths=LENGTHS, reset=RESET), state


def _both_directions() -> Core:
    return Bidirectional(CELLS["gru"](C, 6), CELLS["lstm"](C, 4))


def _additive(cell: str) -> Decoder:
    return Additive(CELLS[cell](C + 4, 6), 4)


def _input_feeding(cell: str) -> Decoder:
    return Luong(CELLS[cell](C + 6, 6), 4, feeding=True)


def _attend(decoder: Decoder, x: Tensor, memory: Tensor) -> tuple[State, State]:
    return _scan(decoder.given(memory, SIZES), x)


def _climb(core: TreeCore, x: Tensor) -> tuple[State, State]:
    return core.scan(x, TREES)[1], ()


def _cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.detach().to(dtype.to_complex() if x.is_complex() else dtype, copy=True).requires_grad_()


def _with_gradients(outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The outputs, and the gradients of half their squared norm: each output matters, and each differently."""
    smooth = [y for y in outputs if y.requires_grad]  # the states that Viterbi finds are not
    gradients = torch.autograd.grad(smooth, inputs, [y.detach() for y in smooth], allow_unused=True) if smooth else ()
    found = (torch.zeros_like(x) if g is None else g for g, x in zip(gradients, inputs, strict=False))
    return (*(y.detach() for y in outputs), *found)
