"""The operations that cells are made of: native where that is built, plain Torch where it is not.

Callers name the operation and never ask which one runs. Only this file knows whether the native module is there.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd import forward_ad

from elman import state as states
from elman.errors import InputError, KernelError, UnknownNameError
from elman.kernels import reference, trace
from elman.kernels.builder import Unstreamable
from elman.kernels.dropout import dropout
from elman.kernels.gaussian import GaussianParameters, GaussianPriors
from elman.kernels.parallel_in_time.adjoint import parallel_bptt
from elman.kernels.parallel_in_time.newton import NewtonReport, newton_scan
from elman.kernels.reference import AttendedLoop, GatedLoop, GatedOptions, Gather, Step, loop
from elman.kernels.reference.choice import Choice
from elman.state import State, leaves

if TYPE_CHECKING:
    from elman.kernels.native.hmm import HmmGaussian as HmmGaussian
    from elman.kernels.native.program import Program

__all__ = [
    "AttendedLoop", "Choice", "GatedLoop", "GatedOptions", "Gather", "GaussianParameters", "GaussianPriors",
    "NewtonReport", "Step", "active", "attend", "attended", "available", "bank_scan", "best_path", "calls", "choose",
    "convolution", "cos", "digest", "dropout", "exp", "gated", "gated_pair", "gathered", "hmm_expected", "hmm_filter",
    "hmm_gaussian", "hmm_log_prob", "hmm_posterior", "isa", "isas", "json_rows", "l2_norm", "layer_norm", "linear",
    "linear_scan", "log", "loop", "matrix_scan", "max_scan", "negative_binomial_log_prob", "newton_scan",
    "parallel_bptt", "philox", "program", "record", "release_memory", "reverse", "rms_norm", "selective_scan",
    "sigmoid", "silu", "sin", "softmax_log_prob", "softmax_log_prob_sum", "softplus", "sqrt", "student_t",
    "student_t_log_prob", "tanh", "trace_step", "use", "viterbi", "why_not_native", "windows",
]  # fmt: skip

_native: ModuleType | None = None
_why: str = ""
if os.environ.get("ELMAN_NATIVE") == "0":
    _why = "ELMAN_NATIVE=0 is set"
else:
    try:
        from elman.kernels import native as _native
    except ImportError as error:
        if str(error).startswith("ELMAN_ISA"):  # a typo must not select the slow kernels in silence
            raise KernelError(str(error)) from None
        _why = f"the native module is not built ({error})"

_table: ModuleType = reference if _native is None else _native
_recording = False  # whether a function is being written down that shall run natively
_NATIVE_TYPES = (torch.float32, torch.float64, torch.complex64, torch.complex128)


def available() -> tuple[str, ...]:
    """The kernels that this installation has: 'reference', and 'native' if it was compiled.

    >>> "reference" in available()
    True
    """
    return ("reference",) if _native is None else ("reference", "native")


def active() -> str:
    """Which of them is in use."""
    return "reference" if _table is reference else "native"


def why_not_native() -> str:
    """Why the native kernels are not available; empty if they are."""
    return _why


def isa() -> str:
    """The instruction set that the native kernels use ('avx2', say); empty without them."""
    return "" if _native is None else str(_native.isa())


def isas() -> tuple[str, ...]:
    """Every instruction set that they can use on this machine, slowest first. ELMAN_ISA forces one."""
    return () if _native is None else tuple(_native.isas())


def calls() -> dict[str, int]:
    """How often each native operation has run in this process: how one knows that it was not the reference."""
    return {} if _native is None else dict(_native.calls)


def release_memory() -> None:
    """Give back to the system what the native kernels keep between calls: up to 64 MB a thread to work in, and up to
    256 MB of large outputs that no tensor holds any more. With fresh memory the next calls take longer. The weights
    that a stream has packed are not among it: they go with their model.

    >>> release_memory()
    """
    if _native is not None:
        _native.release_memory()


@contextmanager
def use(name: str) -> Iterator[None]:
    """Run the block on the kernels called `name`: for debugging and second derivatives. For the whole process.

    >>> with use("reference"):
    ...     print(active())
    reference
    """
    global _table
    if name not in ("reference", "native"):
        raise UnknownNameError("kernels", name, ("reference", "native"))
    if name not in available():
        raise KernelError(f"native kernels were requested, but {_why}. `elman doctor` says what to do.")
    before, _table = _table, (reference if name == "reference" or _native is None else _native)
    try:
        yield
    finally:
        _table = before


def record(function: Callable[..., list[Tensor]], arguments: Sequence[Tensor]) -> Callable[..., list[Tensor]]:
    """The same function for tensors of these shapes and types, without what Python does in it: a list of operations,
    derivatives included, written down as they run on the reference kernels. On the native kernels the list is one call,
    whose bits do not depend on threads, unless an operation is in it that `native/tape/operations.py` does not list.
    What it reads and is not given, it may read once for all: what changes is an argument.

    >>> twice = record(lambda x: [x + x], [torch.zeros(2)])
    >>> twice(torch.ones(2))[0].tolist()
    [2.0, 2.0]
    """
    from torch.fx.experimental.proxy_tensor import make_fx  # not whenever Elman is imported: it takes a while

    global _recording
    native = _table is not reference
    before, _recording = _recording, native
    try:
        with use("reference"), torch.no_grad():
            graph = make_fx(function)(*[argument.detach().clone() for argument in arguments])
    finally:
        _recording = before
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return _native.lower(graph, arguments) if native and _native is not None else graph


def trace_step(e: Tensor, factors: Tensor, share: Tensor, immediate: Tensor) -> tuple[Tensor, Tensor]:
    """The influence e (B, C, R, W) of weights on a state, carried one step on, and the gradient (R, W) that it gives:

        e'[c] = sum over d of factors[c, d] e[d] + immediate[c]        gradient = sum over rows and c of share[c] e[c]

    W entries of a weight side by side have the same number of the state, for each of C colours: factors (B, C, C, R),
    share (B, C, R), immediate (B, C, R, W). It has no derivative; a function that is recorded has it natively.

    >>> e, ones = torch.ones(1, 1, 2, 3), torch.ones(1, 1, 2)
    >>> trace_step(e, 0.5 * ones[:, None], ones, e)[0].flatten().tolist()
    [1.5, 1.5, 1.5, 1.5, 1.5, 1.5]
    """
    given = (e, factors, share, immediate)
    if _recording and _native is not None and e.is_cpu and e.dtype in (torch.float32, torch.float64):
        return cast(tuple[Tensor, Tensor], _native.trace_step(*given))
    return cast(tuple[Tensor, Tensor], _table_for(*given).trace_step(*given))


def native_for(*tensors: Tensor) -> bool:
    """Whether the native kernels take these: active, and all of one dtype that they know, on the CPU."""
    return _table_for(*tensors) is not reference


def _table_for(*tensors: Tensor) -> ModuleType:
    if isinstance(tensors[0], trace.Traced):
        return trace
    dtype = tensors[0].dtype  # a kernel knows one dtype; where activations and state differ, Torch promotes
    fits = dtype in _NATIVE_TYPES and all(t.device.type == "cpu" and t.dtype == dtype for t in tensors)
    if fits and _table is not reference and not torch.compiler.is_compiling():
        _check_plain(tensors)
    return _table if fits else reference


def _given(tensor: Tensor | None) -> tuple[Tensor, ...]:
    return () if tensor is None else (tensor,)


def _check_plain(tensors: tuple[Tensor, ...]) -> None:
    """Refuse what torch.func or forward-mode differentiation follows: it would get lost in a native kernel."""
    forward = forward_ad._current_level >= 0 and any(forward_ad.unpack_dual(t).tangent is not None for t in tensors)
    if forward or torch._C._functorch.peek_interpreter_stack() is not None:
        how = "forward-mode differentiation" if forward else "torch.func"
        raise InputError(
            f"native kernels do not support {how}: they have their own backward pass, and no other derivative. Run "
            'this inside `with elman.kernels.use("reference"):`, where everything is plain Torch.'
        )


def program(dtype: torch.dtype, weights: str | None = None) -> Program:
    """A native program in `dtype`, to describe a step to (kernels/builder.py); raises Unstreamable without one.

    The weights of its products are stored as `weights` says (one of builder.WEIGHTS); by default in `dtype`.
    """
    if _table is reference:
        raise Unstreamable("the reference kernels have no programs")
    made: Program = _table.Program(dtype, weights)
    return made


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x (..., D), weight (N, D), bias (N,) -> (..., N), in the wider dtype of x and weight.

    >>> linear(torch.ones(2, 3), torch.ones(4, 3)).tolist()[0]
    [3.0, 3.0, 3.0, 3.0]
    """
    dtype = torch.promote_types(x.dtype, weight.dtype)
    x, weight, bias = x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
    return _table_for(x, weight, *_given(bias)).linear(x, weight, bias)


def windows(x: Tensor, weight: Tensor, bias: Tensor | None, stride: int) -> Tensor:
    """`linear` of every window of K columns of x, `stride` apart, side by side: x (..., D), weight (N, K), bias (N,)
    -> (..., P * N), P = (D - K) // stride + 1. A convolution in time of rows that are a stretch of it: frames of sound.

    >>> windows(torch.arange(6.0), torch.ones(1, 2), None, stride=2).tolist()
    [1.0, 5.0, 9.0]
    """
    if isinstance(x, trace.Traced):
        return trace.windows(x, weight, bias, stride)
    K = weight.shape[1]
    if stride < 1 or not 1 <= K <= x.shape[-1]:
        raise InputError(f"windows of {K} columns, {stride} apart, of {x.shape[-1]}: at least one must fit")
    return linear(x.unfold(-1, K, stride), weight, bias).flatten(-2)


def softmax_log_prob(h: Tensor, weight: Tensor, bias: Tensor | None, symbols: Tensor) -> Tensor:
    """log P(symbol) under a softmax over h W^T + b, without its logits: h (..., D), weight (V, D), bias (V,), symbols
    (...) int64 -> (...), in the wider dtype of h and weight.

    >>> softmax_log_prob(torch.zeros(1, 3), torch.ones(4, 3), None, torch.tensor([2])).exp().item()
    0.25
    """
    flat, at, weight, bias = _softmax_arguments(h, weight, bias, symbols)
    return _table_for(flat, weight, *_given(bias)).softmax_log_prob(flat, weight, bias, at).reshape(symbols.shape)


def softmax_log_prob_sum(h: Tensor, weight: Tensor, bias: Tensor | None, symbols: Tensor) -> Tensor:
    """The sum of them: with its gradients it takes three products, where `softmax_log_prob` takes four."""
    flat, at, weight, bias = _softmax_arguments(h, weight, bias, symbols)
    return _table_for(flat, weight, *_given(bias)).softmax_log_prob_sum(flat, weight, bias, at)


def _softmax_arguments(
    h: Tensor, weight: Tensor, bias: Tensor | None, symbols: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    dtype = torch.promote_types(h.dtype, weight.dtype)
    flat = h.reshape(-1, h.shape[-1]).to(dtype)
    return flat, symbols.reshape(-1), weight.to(dtype), None if bias is None else bias.to(dtype)


def student_t_log_prob(x: Tensor, df: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    """log p(x) under Student's t, number by number: each has its own parameters, or shares them by broadcasting.

    >>> one = torch.ones(1)
    >>> round(student_t_log_prob(0 * one, one, 0 * one, one).exp().item(), 4)  # Cauchy's: 1 / pi
    0.3183
    """
    given = torch.broadcast_tensors(*_promote(x, df, mean, scale))
    return _table_for(*given).student_t_log_prob(*given)


def negative_binomial_log_prob(x: Tensor, logits: Tensor, shape: Tensor) -> Tensor:
    """The same of counts under the negative binomial of mean softplus(logits).

    >>> zero = torch.zeros(1)
    >>> round(negative_binomial_log_prob(zero, zero, zero + 1).exp().item(), 4)  # 1 / (1 + log 2)
    0.5906
    """
    given = torch.broadcast_tensors(*_promote(x, logits, shape))
    return _table_for(*given).negative_binomial_log_prob(*given)


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x)), elementwise."""
    return _table_for(x).sigmoid(x)


def tanh(x: Tensor) -> Tensor:
    """tanh(x), elementwise."""
    return _table_for(x).tanh(x)


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)), elementwise."""
    return _table_for(x).softplus(x)


def silu(x: Tensor) -> Tensor:
    """x * sigmoid(x), elementwise."""
    return _table_for(x).silu(x)


def log(p: Tensor) -> Tensor:
    """log p of probabilities, elementwise: -inf at zero, with a gradient of zero there.

    >>> log(torch.tensor([1.0, 0.0])).tolist()
    [0.0, -inf]
    """
    return _table_for(p).log(p)


def exp(x: Tensor) -> Tensor:
    """e^x, elementwise."""
    return _table_for(x).exp(x)


def sin(x: Tensor) -> Tensor:
    """The sine of x in radians, elementwise, of any size: an angle is reduced by all the digits of pi that it takes."""
    return _table_for(x).sin(x)


def cos(x: Tensor) -> Tensor:
    """The cosine of x in radians, elementwise, as `sin` is."""
    return _table_for(x).cos(x)


def sqrt(x: Tensor) -> Tensor:
    """The square root, elementwise. In float32 it is the nearest number, which `torch.sqrt` misses now and then by one.

    >>> sqrt(torch.tensor([0.0, 4.0])).tolist()
    [0.0, 2.0]
    """
    return trace.sqrt(x) if isinstance(x, trace.Traced) else x.double().sqrt().to(x.dtype)


def layer_norm(x: Tensor, gain: Tensor, bias: Tensor | None, eps: float, heads: int = 1) -> Tensor:
    """gain * (x - mean x) / sqrt(var x + eps) + bias over the last axis of x (..., heads * N), each head of it by
    itself; gain and bias (heads * N,), or (N,), the same for all heads; one dtype for all."""
    return _table_for(x, gain, *_given(bias)).layer_norm(x, gain, bias, eps, heads)


def rms_norm(x: Tensor, gain: Tensor, eps: float, heads: int = 1) -> Tensor:
    """gain * x / sqrt(mean x^2 + eps) over the last axis of x (..., heads * N), each head of it by itself; gain
    (heads * N,), or (N,), the same for all heads; of x's dtype."""
    return _table_for(x, gain).rms_norm(x, gain, eps, heads)


def l2_norm(x: Tensor, eps: float, heads: int = 1) -> Tensor:
    """x / sqrt(sum x^2 + eps) over the last axis of x (..., heads * N), each head of it by itself.

    >>> l2_norm(torch.tensor([3.0, 4.0]), 0.0).tolist()
    [0.6000000238418579, 0.800000011920929]
    """
    return _table_for(x).l2_norm(x, eps, heads)


def reverse(x: Tensor, lengths: Tensor) -> Tensor:
    """Reverse the valid prefix of each row of x (B, T, ...); the padding stays where it is.

    >>> reverse(torch.tensor([[1., 2., 3.]]), torch.tensor([2])).tolist()
    [[2.0, 1.0, 3.0]]
    """
    return _table_for(x).reverse(x, lengths)


def json_rows(y: NDArray[np.float32]) -> list[bytes]:
    """Each row of y (n, H) as a JSON array. Read as float32 the numbers have the same bits; what is not finite is null.

    >>> json_rows(np.array([[0.5, -2.0]], np.float32))
    [b'[0.5,-2.0]']
    """
    return _table.json_rows(y)


def philox(draws: Tensor, n: int, first: int = 0) -> Tensor:
    """`n` random 64-bit words for each row of `draws` (B, 2) int64, its seed and its draw: (B, n) int64.

    Philox4x32-10 with the key seed and the counter (block, draw), two words of each block from block `first` on.
    `elman.random` makes random numbers of them.

    >>> hex(philox(torch.tensor([[0, 0]]), 1).item() % 2**64)
    '0xe169c58d6627e8d5'
    """
    table = _table if draws.device.type == "cpu" else reference
    return table.philox(draws, n, first)


def choose(
    choice: Choice, logits: NDArray[np.floating], seen: NDArray[np.bool_], u: NDArray[np.float64]
) -> NDArray[np.int64]:
    """A symbol for each row (B,), from logits (B, V), the symbols seen (B, V) and uniform numbers u (B, 1).

    >>> always = Choice(temperature=0.0, top_k=0, top_p=1.0, penalty=1.0, banned=torch.tensor([2]))
    >>> choose(always, np.array([[0.0, 1.0, 2.0]]), np.zeros((1, 3), bool), np.array([[0.5]])).tolist()
    [1]
    """
    chosen: NDArray[np.int64] = _table.choose(choice, logits, seen, u)
    return chosen


def digest(x: Tensor) -> int | None:
    """64 bits that tell a tensor from what it was before; None where there is no quick way."""
    if _native is None or x.device.type != "cpu" or not x.is_contiguous():
        return None
    found: int = _native.digest(x)
    return found


def student_t(draws: Tensor, df: Tensor) -> Tensor:
    """Student's t with df (B, D) float64 degrees of freedom, one event of D numbers for each row of draws (B, 2)."""
    table = _table if draws.device.type == "cpu" else reference
    return table.student_t(draws, df)


def linear_scan(a: Tensor, b: Tensor, h0: Tensor, lengths: Tensor, reset: Tensor) -> tuple[Tensor, Tensor]:
    """h[t] = a[t] * h[t-1] + b[t]: h (B, T, C), zero past lengths, and the last h (B, C).

    a (B, T, C), or (C,) when it does not change with time; b (B, T, C); h0 (B, C); real or complex, one dtype.
    """
    return _table_for(a, b, h0).linear_scan(a, b, h0, lengths, reset)


def selective_scan(
    x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, h0: Tensor, lengths: Tensor, reset: Tensor
) -> tuple[Tensor, Tensor]:
    """h[t] = exp(delta[t] A) * h[t-1] + delta[t] x[t] B[t], y[t] = sum_n C[t,n] h[t,:,n], without h in memory.

    x, delta (B, T, D), A (D, N), B, C (B, T, N), h0 (B, D, N): y (B, T, D), zero past lengths, and the last h.
    """
    table = _table_for(x, delta, A, B, C, h0)
    return table.selective_scan(x, delta, A, B, C, h0, lengths, reset)


def bank_scan(
    x: Tensor, a: Tensor, b: Tensor, c: Tensor, h0: Tensor, lengths: Tensor, reset: Tensor
) -> tuple[Tensor, Tensor]:
    """h[t] = a h[t-1] + b x[t], y[t] = sum_n Re(c[:,n] h[t,:,n]), without h in memory: a bank of N complex numbers for
    each channel, which its input drives.

    x (B, T, D), a, b, c (D, N, 2) and h0 (B, D, N, 2), complex numbers as pairs (real, imaginary): y (B, T, D), zero
    past lengths, and the last h (B, D, N, 2).
    """
    return _table_for(x, a, b, c, h0).bank_scan(x, a, b, c, h0, lengths, reset)


def matrix_scan(
    q: Tensor, k: Tensor, v: Tensor, a: Tensor | None, S0: Tensor, lengths: Tensor, reset: Tensor,
    b: Tensor | None = None, alpha: Tensor | None = None, beta: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """A state that is a matrix, for each of H heads, written by an outer product and read after that:

        S[t] = diag(a) S[t-1] + k v^T                            without b, alpha and beta
        S[t] = diag(a) S[t-1] + k (b (v - (a * k)^T S[t-1]))^T   with b: the delta rule
        S[t] = diag(a) S[t-1] + beta (alpha^T S[t-1]) + k v^T    with alpha and beta: any correction of rank one
        y[t] = S[t]^T q

    v (B, T, H, V), S0 (B, H, K, V). q, k (B, T, G, K): G divides H, and the heads of a group stand side by side. a is
    None for no decay, (B, T, H) for one a head, (B, T, H or G, K) for one a key; b (B, T, H); alpha, beta
    (B, T, H or G, K). Out: y (B, T, H, V), zero past lengths, and the last S (B, H, K, V). One dtype for all.

    >>> k, v = torch.eye(2)[None, :, None], torch.tensor([5.0, 7.0]).reshape(1, 2, 1, 1)  # two keys, a value for each
    >>> lengths, reset = torch.tensor([2]), torch.zeros(1, 2, dtype=torch.bool)
    >>> y, S = matrix_scan(k, k, v, None, torch.zeros(1, 1, 2, 1), lengths, reset)
    >>> y.flatten().tolist(), S.flatten().tolist()
    ([5.0, 7.0], [5.0, 7.0])
    """
    if (alpha is None) != (beta is None) or (b is not None and alpha is not None):
        raise InputError("matrix_scan takes b, or alpha and beta together, or none of the three")
    table = _table_for(q, k, v, S0, *_given(a), *_given(b), *_given(alpha), *_given(beta))
    return table.matrix_scan(q, k, v, a, S0, lengths, reset, b, alpha, beta)


def max_scan(a: Tensor, b: Tensor, m0: Tensor, lengths: Tensor, reset: Tensor) -> tuple[Tensor, Tensor]:
    """m[t] = max(a[t] + m[t-1], b[t]), which stabilises exponential gates: m (B, T, C), zero past lengths, and the
    last m (B, C). a, b (B, T, C), m0 (B, C), one dtype; a reset begins with m = 0. Where both are equal, each has half
    of the gradient.
    """
    return _table_for(a, b, m0).max_scan(a, b, m0, lengths, reset)


def convolution(
    x: Tensor, weight: Tensor, bias: Tensor, window: Tensor, lengths: Tensor, reset: Tensor
) -> tuple[Tensor, Tensor]:
    """y[t] = bias + sum_k weight[k] x[t - K + 1 + k], channel by channel, within an episode: y (B, T, C), zero past
    lengths, and the last K - 1 inputs before them (B, K - 1, C).

    x (B, T, C), weight (K, C), bias (C,), window (B, K - 1, C): what came before the first input, the latest last.
    """
    table = _table_for(x, weight, bias, window)
    return table.convolution(x, weight, bias, window, lengths, reset)


def gated(
    kind: str,
    x: Tensor,
    weights: tuple[Tensor, ...],
    state: State,
    lengths: Tensor,
    reset: Tensor,
    recur: Step,
    U: Tensor | None = None,
    b: Tensor | None = None,
    options: GatedOptions | None = None,
    project: Callable[[Tensor], Tensor] | None = None,
    every: int | None = None,
    backwards: bool = False,
    narrow: bool = False,
) -> tuple[Tensor, State]:
    """The gated loop over u = U x + b, x (B, T, D), from and to a state of (B, H) leaves: y (B, T, H), state.

    `recur(u_t, state)` defines it, and `project(x)` defines u where options make it another; `kind` and `options` name
    the native loop that does the same. Without U, x is u itself. With `every`, the native loop saves only its state
    every so many steps for the backward pass, which computes the rest again. Backwards, each row is read from its last
    valid input to its first: `state` is the one after its end, the one returned that after its first input. `narrow`,
    a native loop in float32 without `every` saves in bfloat16.
    """
    if U is not None and U.dtype != x.dtype:
        dtype = torch.promote_types(x.dtype, U.dtype)
        x, U, b = x.to(dtype), U.to(dtype), None if b is None else b.to(dtype)
    given = [t for t in (*weights, *(options or ())) if t is not None]
    if _table_for(x, *given, *leaves(state)) is reference:
        u = project(x) if project else x if U is None else linear(x, U, b)
        return reference.gated(u, state, lengths, reset, recur, backwards)
    return _table.gated(
        kind, x, weights, state, lengths, reset, U, b, options or GatedOptions(), every, backwards, narrow
    )


def gated_pair(
    x: Tensor, loops: tuple[GatedLoop, GatedLoop], lengths: Tensor, reset: Tensor
) -> tuple[Tensor, tuple[State, State]]:
    """Two gated loops over the same x (B, T, D): their outputs side by side, and the states after them."""
    tensors = [t for of in loops for t in (*of.weights, *leaves(of.state), of.U, of.b, *of.options) if t is not None]
    if _table_for(x, *tensors) is not reference:
        both: tuple[Tensor, tuple[State, State]] = _table.gated_pair(x, loops, lengths, reset)
        return both
    (left, first), (right, second) = (
        gated(
            of.kind, x, of.weights, of.state, lengths, reset, of.recur, of.U, of.b, of.options, of.project,
            backwards=of.backwards, narrow=of.narrow,
        )
        for of in loops
    )  # fmt: skip
    return torch.cat([left, right], -1), (first, second)


def attend(query: Tensor, keys: Tensor, values: Tensor, lengths: Tensor, v: Tensor | None) -> tuple[Tensor, Tensor]:
    """a[t, j] = softmax over j < lengths of query[t] . keys[j], or, with v, of v . tanh(query[t] + keys[j]).

    query (B, T, A), keys (B, S, A), values (B, S, M), v (A,): sum over j of a[t, j] values[j] (B, T, M), zero where
    there is nothing to see, and a (B, T, S), zero past the lengths (B,).

    >>> attend(torch.zeros(1, 1, 2), torch.ones(1, 3, 2), torch.ones(1, 3, 4), torch.tensor([2]), None)[1].tolist()
    [[[0.5, 0.5, 0.0]]]
    """
    given = [query, keys, values] if v is None else [query, keys, values, v]
    return _table_for(*given).attend(query, keys, values, lengths, v)


def attended(
    loop: AttendedLoop | None,
    project: Callable[[Tensor], Tensor],
    x: Tensor,
    state: State,
    init: State,
    lengths: Tensor,
    reset: Tensor,
    recur: Step,
    size: int,
) -> tuple[Tensor, State]:
    """A decoder whose recurrence depends on its attention, over x (B, T, D): what it gives (B, T, size), and the state.

    `recur(x_t, state)` defines it. `loop` names the native loop that does the same with `project(x)`, what x says to
    the gates; None where there is none.
    """
    if loop is None or not _attends(loop, x, state):
        return reference.loop(recur, x, state, init, lengths, reset, size)
    y, last = _table.attended(loop, project(x), leaves(state), lengths, reset)
    ends = iter(last)
    return y, states.map(lambda leaf: next(ends), state)


def _attends(loop: AttendedLoop, x: Tensor, state: State) -> bool:
    tensors = [t for t in (*loop.weights, *loop[4:]) if t is not None and t is not loop.sizes]
    table = _table_for(x, loop.U, *tensors, *leaves(state))
    return table is _native and _native is not None and bool(_native.attended_fits(loop))


def gathered(
    kind: str, u: Tensor, w: Tensor, b: Tensor, gather: Gather, state: tuple[Tensor, ...] | None = None
) -> tuple[Tensor, ...]:
    """The gated loop whose state before is gathered from other rows: h (N, H), and c unless the kind is "recursive".

    u (M, A * H) = U x + b for the first A gates, w (G * H, P * H), b (G * H,) for what has no u; `state` of the rows in
    front of `gather.levels[0]`. `reference/gathered.py` has the kinds "recursive", "lstm" and "child_sum".
    """
    return _table_for(u, w, b, *(state or ())).gathered(kind, u, w, b, gather, state)


def hmm_filter(
    x: Tensor, start: Tensor, transition: Tensor, state: Tensor, lengths: Tensor, reset: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The forward filter of a hidden Markov model: x (B, T, K) = log p(o[t] | z[t] = k), from the prediction
    `state` (B, K).

    Returns log p(o[t] | o[<t]) (B, T) and the predictions p(z[t+1] | o[<=t]) (B, T, K), both zero past lengths; the
    last prediction (B, K). `start` (K,) is the prediction at a reset.
    """
    x, start, transition, state = _promote(x, start, transition, state)
    return _table_for(x, start, transition, state).hmm_filter(x, start, transition, state, lengths, reset)


def hmm_log_prob(x: Tensor, start: Tensor, transition: Tensor, state: Tensor, lengths: Tensor, reset: Tensor) -> Tensor:
    """The first output of `hmm_filter` alone, log p(o[t] | o[<t]) (B, T), for less memory and time; right also where
    a state that was once too improbable for a number turns out to be the one.

    The gradients of its sum are what forward-backward computes: with respect to x the posterior marginals,
    with respect to log start and log transition the expected counts.
    """
    x, start, transition, state = _promote(x, start, transition, state)
    return _table_for(x, start, transition, state).hmm_log_prob(x, start, transition, state, lengths, reset)


def hmm_expected(
    x: Tensor, start: Tensor, transition: Tensor, lengths: Tensor, reset: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The sum of `hmm_log_prob` of sequences that begin where `reset` says, and its gradients with respect to x, start
    and transition: what EM needs, without a graph, whose making takes longer than a short sequence."""
    x, start, transition = _promote(x.detach(), start.detach(), transition.detach())
    return _table_for(x).hmm_expected(x, start, transition, lengths, reset)


def hmm_posterior(
    x: Tensor, start: Tensor, transition: Tensor, lengths: Tensor, reset: Tensor
) -> tuple[Tensor, Tensor]:
    """The first two of `hmm_expected`, the gradient with respect to x being the posterior: the counts of many states
    take as long again."""
    x, start, transition = _promote(x.detach(), start.detach(), transition.detach())
    return _table_for(x).hmm_posterior(x, start, transition, lengths, reset)


def hmm_gaussian(
    o: Tensor, lengths: Tensor, reset: Tensor, parameters: GaussianParameters, priors: GaussianPriors, spherical: bool
) -> HmmGaussian:
    """Steps of EM of a hidden Markov model with Gaussian emissions, o (B, T, D) without missing values, each of them
    one call. Only where `native_for(o, *parameters)`: elsewhere densities, `hmm_expected` and sums do the same."""
    assert _native is not None
    steps: HmmGaussian = _native.HmmGaussian(o, lengths, reset, parameters, priors, spherical)
    return steps


def viterbi(x: Tensor, start: Tensor, transition: Tensor, lengths: Tensor, reset: Tensor) -> tuple[Tensor, Tensor]:
    """The most probable states (B, T), -1 past lengths, and the log of their joint probability with the data (B,)."""
    return best_path(x, start.log(), transition.log(), None, lengths, reset)


def best_path(
    x: Tensor, start: Tensor, transition: Tensor, stop: Tensor | None, lengths: Tensor, reset: Tensor
) -> tuple[Tensor, Tensor]:
    """The same of scores, which need not be logarithms of probabilities: x (B, T, K), start (K,), transition (K, K) and
    stop (K,), added at each row's last step."""
    x, start, transition = _promote(x.detach(), start.detach(), transition.detach())  # a choice has no gradient
    stop = None if stop is None else stop.detach().to(x.dtype)
    return _table_for(x).best_path(x, start, transition, stop, lengths, reset)


def _promote(*tensors: Tensor) -> tuple[Tensor, ...]:
    if all(t.dtype == tensors[0].dtype for t in tensors):
        return tensors
    dtype = functools.reduce(torch.promote_types, (t.dtype for t in tensors))
    return tuple(t.to(dtype) for t in tensors)
