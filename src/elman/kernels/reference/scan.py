"""Linear recurrences over time: the scan, the scans that are made of it, and the convolution."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from elman.lengths import masked, valid

Context = Any  # of an autograd.Function, which stores on it what it needs


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
    # Nothing comes before the first element any more: it is closed like a cut.
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
    """reset (B, T) -> how many inputs of the episode come before each; at least K if it began before t = 0."""
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


def trace_step(e: Tensor, factors: Tensor, share: Tensor, immediate: Tensor) -> tuple[Tensor, Tensor]:
    """e' = J e + I (B, C, R, W), J (B, C, C, R) of the number that W entries share, and the sum over rows and colours
    of share e (R, W)."""
    after = sum((factors[:, :, d, :, None] * e[:, None, d] for d in range(e.shape[1])), immediate)
    return after, (share[..., None] * e).sum((0, 1))
