"""Every kernel in plain Torch: the meaning of the native ones, and what runs where there are none.

`lengths` (B,) and `reset` (B, T) are always tensors here. They act through `where`, on values and on gradients, never
through a product: an infinity before a reset or in the padding would come through a product with zero as NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from elman import state as states
from elman.lengths import masked, valid
from elman.state import AnyState, State

Context = Any  # of an autograd.Function, which stores on it what it needs
Step = Callable[[Tensor, AnyState], tuple[Tensor, AnyState]]

linear = F.linear
sigmoid = torch.sigmoid
tanh = torch.tanh
softplus = F.softplus
silu = F.silu


def log(p: Tensor) -> Tensor:
    """log p of a probability, -inf where p is zero; the gradient there is zero, not infinite: what cannot
    happen has no say."""
    none = p <= 0
    return torch.where(none, -torch.inf, torch.where(none, 1.0, p).log())


def log_sum_exp(v: Tensor) -> Tensor:
    """log sum exp v over the last axis. Where all of v is -inf so is the sum, and its gradient is zero, not NaN.

    >>> log_sum_exp(torch.tensor([[0., 0.], [-torch.inf, -torch.inf]]))
    tensor([0.6931,   -inf])
    """
    top = v.detach().amax(-1, keepdim=True)
    top = torch.where(top == -torch.inf, 0.0, top)
    return log(torch.exp(v - top).sum(-1)) + top[..., 0]


def softmax_log_prob(h: Tensor, weight: Tensor, bias: Tensor | None, symbols: Tensor) -> Tensor:
    """log P(symbol) (M,) of symbols (M,) under a softmax over h W^T + b: h (M, D), weight (V, D), bias (V,)."""
    return -F.cross_entropy(F.linear(h, weight, bias), symbols, reduction="none")


def softmax_log_prob_sum(h: Tensor, weight: Tensor, bias: Tensor | None, symbols: Tensor) -> Tensor:
    """The sum of them."""
    return softmax_log_prob(h, weight, bias, symbols).sum()


def softmax_log_prob_back(
    h: Tensor, weight: Tensor, bias: Tensor | None, symbols: Tensor, g: Tensor
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The gradients of sum over m of g[m] log P(symbols[m]) with respect to h, weight and bias."""
    q = g[:, None] * (F.one_hot(symbols, len(weight)) - F.linear(h, weight, bias).softmax(-1))
    return q @ weight, q.t() @ h, None if bias is None else q.sum(0)


def layer_norm(x: Tensor, gain: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """gain * (x - mean x) / sqrt(var x + eps) + bias over the last axis of x (..., N)."""
    return F.layer_norm(x, gain.shape, gain, bias, eps)


def rms_norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """gain * x / sqrt(mean x^2 + eps) over the last axis of x (..., N)."""
    return F.rms_norm(x, gain.shape, gain, eps)


def loop(
    step: Step, x: Tensor, state: State, init: State, lengths: Tensor, reset: Tensor, size: int
) -> tuple[Tensor, State]:
    """Step through x (B, T, D): the definition of a scan. `init` is what a reset goes back to; y is (B, T, size)."""
    B, T = x.shape[:2]
    ys: list[Tensor] = []
    for t in range(T):
        inside = t < lengths
        y, new = step(x[:, t], states.where(reset[:, t] & inside, init, state))
        state = states.where(inside, new, state)
        ys.append(torch.where(inside[:, None], y, torch.zeros_like(y)))
    # Nothing, but of x: what is differentiated must hang on what it is differentiated by.
    return (torch.stack(ys, 1) if ys else x[..., :1].expand(B, 0, size)), state


class GatedOptions(NamedTuple):
    """What the options of a gated cell add to its loop; None where one is off."""

    peephole: Tensor | None = None  # (gates - 1, H): of the LSTM's i, f and o; of i and o where they are coupled
    P: Tensor | None = None  # (R, H): h = P times what it would have been
    gain: Tensor | None = None  # (gates * H,): W h' is normalised and multiplied by it
    gain_U: Tensor | None = None  # (gates * H,): so is U x, before b is added
    gain_c: Tensor | None = None  # (H,): the LSTM's c is normalised on its way to h
    bias_c: Tensor | None = None


def gated(u: Tensor, state: State, lengths: Tensor, reset: Tensor, recur: Step) -> tuple[Tensor, State]:
    """The gated loop over projected inputs u (B, T, G * H): y (B, T, H) and the last state."""
    init = states.map(torch.zeros_like, state)
    return loop(recur, u, state, init, lengths, reset, states.leaves(state)[0].shape[-1])


class AttendedLoop(NamedTuple):
    """A gated loop with attention inside: `kind`, `weights` and `options` as the cell's loop has them.

    To what x says to the gates it adds what U makes of the context, found before the step by the query Q h'; or, with O
    and o, of the output before, y = tanh(O [h, context] + o), whose query is h.
    """

    kind: str
    U: Tensor  # (gates * H, M) or (gates * H, Z)
    weights: tuple[Tensor, ...]
    options: GatedOptions
    keys: Tensor  # (B, S, A)
    values: Tensor  # (B, S, M)
    sizes: Tensor  # (B,): the lengths of the memory
    v: Tensor | None = None  # (A,)
    Q: Tensor | None = None  # (A, H)
    O: Tensor | None = None  # (Z, H + M)  # noqa: E741
    o: Tensor | None = None  # (Z,)


def attend(query: Tensor, keys: Tensor, values: Tensor, lengths: Tensor, v: Tensor | None) -> tuple[Tensor, Tensor]:
    """a = softmax over j < lengths of query . keys[j], or of v . tanh(query + keys[j]); c = sum a[j] values[j]."""
    if v is None:
        e = query @ keys.transpose(1, 2)
    else:
        e = torch.tanh(query[:, :, None] + keys[:, None]) @ v
    inside = valid(lengths, keys.shape[1])[:, None]
    # A row that sees nothing is not masked until it is over: the softmax of -inf alone is NaN, and so is its gradient.
    a = torch.where(inside | (lengths == 0)[:, None, None], e, -torch.inf).softmax(-1)
    a = torch.where(inside, a, 0.0)
    return a @ values, a


def reverse(x: Tensor, lengths: Tensor) -> Tensor:
    """Reverse the valid prefix of each row of x (B, T, ...); the padding stays where it is."""
    B, T = x.shape[:2]
    t = torch.arange(T, device=x.device)
    source = torch.where(valid(lengths, T), lengths[:, None] - 1 - t, t)
    rows = torch.arange(B, device=x.device)[:, None]
    return x[rows, source]


def json_rows(y: NDArray[np.float32]) -> list[bytes]:
    """Each row of y (n, H) as a JSON array; what is not finite is null. A float32 is spelt as the double that it is."""
    spelt = ((repr(value) if math.isfinite(value) else "null" for value in row) for row in y.tolist())
    return [f"[{','.join(row)}]".encode() for row in spelt]


def philox(draws: Tensor, n: int, first: int = 0) -> Tensor:
    """draws (B, 2): seed and draw of each row -> (B, n), two words of each block of Philox4x32-10 from `first` on.

    Products of two words have 64 bits; that int64 is signed shows in the shift alone, and the mask removes it.
    """
    word = 0xFFFFFFFF
    block = first + torch.arange((n + 1) // 2, device=draws.device)
    k0, k1 = (draws[:, :1] & word), (draws[:, :1] >> 32 & word)
    c0, c1 = (block & word).expand(len(draws), -1), (block >> 32 & word).expand(len(draws), -1)
    c2, c3 = (draws[:, 1:] & word).expand_as(c0), (draws[:, 1:] >> 32 & word).expand_as(c0)
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1 = (p1 >> 32 & word) ^ c1 ^ k0, p1 & word
        c2, c3 = (p0 >> 32 & word) ^ c3 ^ k1, p0 & word
        k0, k1 = (k0 + 0x9E3779B9) & word, (k1 + 0xBB67AE85) & word
    return torch.stack([c0 | c1 << 32, c2 | c3 << 32], -1).flatten(1)[:, :n]


def student_t(draws: Tensor, df: Tensor) -> Tensor:
    """sqrt(df (u^(-2/df) - 1)) cos(2 pi v), u and v the first and the last D uniform numbers of each row's draw.

    By the C library, number by number, as csrc/philox.h does: Torch's and Numpy's own functions may round otherwise.
    """
    u, v = ((philox(draws, 2 * df.shape[1]) >> 12 & (1 << 52) - 1).double() + 0.5).mul(2.0**-52).chunk(2, 1)
    power = _each(_expm1, -2 / df * _each(math.log, u))
    return _each(math.sqrt, df * power) * _each(math.cos, 2 * math.pi * v)


def _each(f: Callable[[float], float], x: Tensor) -> Tensor:
    return x.new_tensor([f(value) for value in x.flatten().tolist()]).reshape(x.shape)


def _expm1(x: float) -> float:
    try:
        return math.expm1(x)
    except OverflowError:
        return math.inf


def linear_scan(a: Tensor, b: Tensor, h0: Tensor, lengths: Tensor, reset: Tensor) -> tuple[Tensor, Tensor]:
    """h[t] = a[t] * h[t-1] + b[t]: h (B, T, C) and the last h (B, C), in log2(T) elementwise passes.

    a (B, T, C), or (C,) when it does not change with time; b (B, T, C); h0 (B, C); real or complex.
    """
    return _LinearScan.apply(a.expand_as(b), b, h0, lengths, reset)


class _LinearScan(torch.autograd.Function):
    """Its gradient is the same recurrence run backwards, so it can be differentiated again."""

    @staticmethod
    def forward(
        ctx: Context, a: Tensor, b: Tensor, h0: Tensor, lengths: Tensor, reset: Tensor
    ) -> tuple[Tensor, Tensor]:
        cut = reset | ~valid(lengths, b.shape[1])
        h = masked(_segmented_doubling(a, b, h0, cut[..., None]), lengths)
        last = _at_end(h, h0, lengths)
        ctx.save_for_backward(a, h, h0, lengths, reset)
        return h, last

    @staticmethod
    def backward(ctx: Context, gh: Tensor, glast: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        a, h, h0, lengths, reset = ctx.saved_tensors
        T = h.shape[1]
        keeps = (valid(lengths, T) & ~reset)[..., None]  # h[t] depends on h[t-1]
        ends = (torch.arange(T, device=h.device) == lengths[:, None] - 1)[..., None]
        gh = masked(gh, lengths)
        gh = gh + torch.where(ends, glast[:, None], torch.zeros_like(gh))
        # g[t] = gh[t] + conj(a[t+1]) g[t+1] where h[t+1] depends on h[t]: a scan from the right.
        onward = torch.cat([a.conj()[:, 1:], torch.zeros_like(a[:, :1])], 1)
        follows = torch.cat([keeps[:, 1:, 0], torch.zeros_like(keeps[:, :1, 0])], 1)
        whole = torch.full_like(lengths, T)
        g, _ = linear_scan(onward.flip(1), gh.flip(1), torch.zeros_like(h0), whole, ~follows.flip(1))
        g = g.flip(1)
        before = torch.cat([h0[:, None], h[:, :-1]], 1)[:, :T]
        ga = torch.where(keeps, g * before.conj(), torch.zeros_like(g))
        gh0 = torch.where(lengths[:, None] == 0, glast, torch.zeros_like(glast))
        if T > 0:
            gh0 = gh0 + torch.where(keeps[:, 0], g[:, 0] * a[:, 0].conj(), torch.zeros_like(gh0))
        return ga, g, gh0, None, None


def _segmented_doubling(a: Tensor, b: Tensor, h0: Tensor, cut: Tensor) -> Tensor:
    """All prefixes of the compositions of h -> a h + b, cut where `cut` says (the scan of Hillis and Steele, 1986)."""
    T = b.shape[1]
    if T == 0:
        return b
    first = torch.where(cut[:, :1], b[:, :1], a[:, :1] * h0[:, None] + b[:, :1])
    h = torch.cat([first, b[:, 1:]], 1)
    # Nothing stands before the first element any more: it is closed like a cut.
    closed = torch.cat([torch.ones_like(cut[:, :1]), cut[:, 1:]], 1)
    distance = 1
    while distance < T:
        joined = a[:, distance:] * h[:, :-distance] + h[:, distance:]
        products = a[:, distance:] * a[:, :-distance]
        open_ = ~closed[:, distance:]
        h = torch.cat([h[:, :distance], torch.where(open_, joined, h[:, distance:])], 1)
        a = torch.cat([a[:, :distance], torch.where(open_, products, a[:, distance:])], 1)
        closed = torch.cat([closed[:, :distance], closed[:, distance:] | closed[:, :-distance]], 1)
        distance *= 2
    return h


def selective_scan(
    x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, h0: Tensor, lengths: Tensor, reset: Tensor
) -> tuple[Tensor, Tensor]:
    """h[t] = exp(delta[t] A) * h[t-1] + delta[t] x[t] B[t], y[t] = sum_n C[t,n] h[t,:,n]: y (B, T, D), last (B, D, N).

    x, delta (B, T, D), A (D, N), B, C (B, T, N), h0 (B, D, N).
    """
    a, b = torch.exp(delta[..., None] * A), (delta * x)[..., None] * B[..., None, :]
    h, last = linear_scan(a.flatten(2), b.flatten(2), h0.flatten(1), lengths, reset)
    y = (h.unflatten(2, A.shape) * C[..., None, :]).sum(-1)
    return masked(y, lengths), last.unflatten(1, A.shape)


def bank_scan(
    x: Tensor, a: Tensor, b: Tensor, c: Tensor, h0: Tensor, lengths: Tensor, reset: Tensor
) -> tuple[Tensor, Tensor]:
    """h[t] = a h[t-1] + b x[t], y[t] = sum_n Re(c[:,n] h[t,:,n]): y (B, T, D), last (B, D, N, 2).

    x (B, T, D), a, b, c (D, N, 2) and h0 (B, D, N, 2): complex numbers as pairs (real, imaginary).
    """
    a, drive, before = (torch.view_as_complex(pairs) for pairs in (a, b * x[..., None, None], h0))
    h, last = linear_scan(a.flatten(), drive.flatten(2), before.flatten(1), lengths, reset)
    parts = torch.view_as_real(h).unflatten(2, a.shape)  # (B, T, D, N, 2), zero past lengths
    y = (parts * c * c.new_tensor([1.0, -1.0])).sum((-2, -1))  # Re(c h) = Re c Re h - Im c Im h
    return y, torch.view_as_real(last).unflatten(1, a.shape)


def convolution(
    x: Tensor, weight: Tensor, bias: Tensor, window: Tensor, lengths: Tensor, reset: Tensor
) -> tuple[Tensor, Tensor]:
    """y[t] = bias + sum_k weight[k] x[t - K + 1 + k], within an episode: y (B, T, C), the last window (B, K - 1, C).

    x (B, T, C), weight (K, C), bias (C,), window (B, K - 1, C): the inputs before the first, the latest last.
    """
    K, T = len(weight), x.shape[1]
    age = _age(reset, K)
    seen, zero = torch.cat([window, x], 1), x.new_zeros(())
    y = bias.expand_as(x)
    for k in range(K):
        y = y + weight[k] * torch.where((age >= K - 1 - k)[..., None], seen[:, k : k + T], zero)
    return masked(y, lengths), _last_window(seen, age, lengths, K)


def _age(reset: Tensor, K: int) -> Tensor:
    """reset (B, T) -> how many inputs of the episode stand before each; at least K if it began before t = 0."""
    t = torch.arange(reset.shape[1], device=reset.device)
    start = torch.where(reset, t, -K)
    return t - (start.cummax(1).values if reset.shape[1] else start)


def _last_window(seen: Tensor, age: Tensor, lengths: Tensor, K: int) -> Tensor:
    """The last K - 1 inputs before each row's end, zero where they are of an earlier episode.

    seen (B, K - 1 + T, C): the window, then the inputs.
    """
    place = torch.arange(K - 1, device=seen.device)  # seen[lengths + place]
    rows = torch.arange(len(seen), device=seen.device)[:, None]
    # Before the first input the window is the one given, as old as may be.
    final = F.pad(age, (1, 0), value=K)[rows, lengths[:, None]]  # (B, 1)
    window = seen[rows, lengths[:, None] + place]
    return torch.where((final >= K - 2 - place)[..., None], window, seen.new_zeros(()))


def _at_end(h: Tensor, h0: Tensor, lengths: Tensor) -> Tensor:
    """h after each row's last valid input; h0 where there was none."""
    if h.shape[1] == 0:
        return h0.clone()
    rows = torch.arange(len(h), device=h.device)
    return torch.where((lengths > 0)[:, None], h[rows, (lengths - 1).clamp(min=0)], h0)
