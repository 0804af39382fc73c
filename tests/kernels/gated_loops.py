"""Arguments of the gated loops, calls of them, and the check of their bits, which other processes run too."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from elman import kernels
from elman.kernels import native
from elman.kernels.native.gated import KINDS

Step = Callable[[Tensor, tuple[Tensor, ...]], tuple[Tensor, tuple[Tensor, ...]]]


def equations(kind: str, weights: tuple[Tensor, ...]) -> Step:
    """One step of `kind`, written from its equations."""
    s, phi = torch.sigmoid, torch.relu if kind.endswith("relu") else torch.tanh

    def simple(u: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        (h,) = state
        if kind.startswith("indrnn"):
            h = phi(u + weights[0] * h)
        elif kind.startswith("rate"):
            a = weights[1]
            h = (1 - a) * h + a * phi(u + h @ weights[0].t())
        else:
            h = phi(u + h @ weights[0].t())
        return h, (h,)

    def gru(u: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        (h,) = state
        (ur, uz, un), (wr, wz, wn) = u.chunk(3, 1), weights[0].chunk(3)
        r, z = s(ur + h @ wr.t()), s(uz + h @ wz.t())
        if kind == "gru":
            n = torch.tanh(un + r * (h @ wn.t() + weights[1]))
        else:
            n = torch.tanh(un + (r * h) @ wn.t())
        h = (1 - z) * n + z * h
        return h, (h,)

    def lstm(u: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        h, c = state
        *first, g, o = (u + h @ weights[0].t()).chunk(KINDS[kind].gates, 1)
        i = s(first[0])
        f = 1 - i if "coupled" in kind else s(first[1])
        c = f * c + i * (s(g) if "logistic" in kind else torch.tanh(g))
        h = s(o) * torch.tanh(c)
        return h, (h, c)

    def mgu(u: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        (h,) = state
        (uf, un), (wf, wn) = u.chunk(2, 1), weights[0].chunk(2)
        f = s(uf + h @ wf.t())
        h = (1 - f) * h + f * torch.tanh(un + (f * h) @ wn.t())
        return h, (h,)

    return {"gru": gru, "gru_before": gru, "mgu": mgu}.get(kind, lstm if kind.startswith("lstm") else simple)


def arguments(
    kind: str, B: int, T: int, H: int, dtype: torch.dtype, seed: int = 0
) -> tuple[Tensor, tuple[Tensor, ...], tuple[Tensor, ...]]:
    g = torch.Generator().manual_seed(seed)

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64).to(dtype)

    weights = [randn(KINDS[kind].gates * H, H) * 0.7 / H**0.5] if KINDS[kind].matrix else []
    if kind.startswith("indrnn"):
        weights.append(randn(H) * 0.8)
    if kind.startswith("rate"):
        weights.append(torch.rand(H, generator=g, dtype=torch.float64).to(dtype))
    if kind == "gru":
        weights.append(randn(H))
    return (
        randn(B, T, KINDS[kind].gates * H),
        tuple(weights),
        tuple(randn(B, H) * 0.7 for _ in range(KINDS[kind].states)),
    )


def ragged(B: int, T: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Lengths with 0 and T among them; resets at the first, the last and some other steps."""
    g = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, T + 1, (B,), generator=g)
    reset = torch.rand(B, T, generator=g) < 0.2
    if B > 2:
        lengths[0], lengths[1] = T, 0
        if T:
            reset[0, 0] = reset[0, T - 1] = True
            reset[2, 0] = False
    return lengths, reset


def called(
    kind: str, u: Tensor, weights: tuple[Tensor, ...], state: tuple[Tensor, ...], lengths: Tensor, reset: Tensor
) -> tuple[Tensor, tuple[Tensor, ...]]:
    before = native.calls["gated"]
    y, last = kernels.gated(kind, u, weights, state, lengths, reset, equations(kind, weights))
    assert native.calls["gated"] == before + 1
    return y, last  # type: ignore[return-value]


@contextmanager
def on_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def check_bits() -> None:
    """Law 8 for every kind: alone, in any batch, cut anywhere, ragged, on one thread or two, bit for bit."""
    for number, kind in enumerate(KINDS):
        for H in (128, (7, 65, 3)[number % 3]):
            B, T = 64, 48
            u, weights, state = arguments(kind, B, T, H, torch.float32)
            lengths, reset = ragged(B, T)
            torch.set_num_threads(2)
            y, last = called(kind, u, weights, state, lengths, reset)
            for threads in (1, 2):
                torch.set_num_threads(threads)
                for first, count in ((0, 1), (5, 1), (3, 2), (7, 3), (11, 5), (20, 8), (40, 17), (0, 64)):
                    rows = slice(first, first + count)
                    part = called(kind, u[rows], weights, tuple(s[rows] for s in state), lengths[rows], reset[rows])
                    assert torch.equal(part[0], y[rows]), (kind, H, threads, first, count)
                    assert all(torch.equal(a, b[rows]) for a, b in zip(part[1], last, strict=True))
                    if first in (5, 7, 40):
                        now = tuple(s[rows] for s in state)
                        check_chunks(kind, u[rows], weights, now, lengths[rows], reset[rows], *part)


def check_chunks(
    kind: str, u: Tensor, weights: tuple[Tensor, ...], state: tuple[Tensor, ...], lengths: Tensor, reset: Tensor,
    y: Tensor, last: tuple[Tensor, ...],
) -> None:  # fmt: skip
    T = u.shape[1]
    for cuts in ((0, 1, 2, 3, 4, 5, T), (0, 4, 4, T)):
        now, pieces = state, []
        for a, b in itertools.pairwise(cuts):
            piece, now = called(kind, u[:, a:b], weights, now, (lengths - a).clamp(0, b - a), reset[:, a:b])
            pieces.append(piece)
        assert torch.equal(torch.cat(pieces, 1), y), (kind, cuts)
        assert all(torch.equal(a, b) for a, b in zip(now, last, strict=True))
