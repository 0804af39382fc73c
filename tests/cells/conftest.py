"""How a cell is held against somebody else's: same outputs, same gradients with respect to the cell's own tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from elman.cells.matrix import Convolved

TOLERANCE = {"rtol": 1e-10, "atol": 1e-10}


def _same(ours: Sequence[Tensor], theirs: Sequence[Tensor], wrt: Mapping[str, Tensor]) -> None:
    generator = torch.Generator().manual_seed(7)
    for a, b in zip(ours, theirs, strict=True):
        assert a.abs().max() > 1e-3, "outputs of zero would agree with anything"
        torch.testing.assert_close(a, b, **TOLERANCE)
    arriving = [torch.randn(b.shape, generator=generator, dtype=b.dtype) for b in theirs]
    got = torch.autograd.grad(ours, list(wrt.values()), arriving)
    expected = torch.autograd.grad(theirs, list(wrt.values()), arriving)
    for name, a, b in zip(wrt, got, expected, strict=True):
        assert b.abs().max() > 0, f"no gradient reaches {name}"
        torch.testing.assert_close(a, b, **TOLERANCE, msg=lambda text, name=name: f"gradient of {name}: {text}")


@pytest.fixture
def same() -> Callable[..., None]:
    return _same


@pytest.fixture
def randomised() -> Callable[[nn.Module], nn.Module]:
    """The same core in float64 with every parameter random, so that no zero bias or shut peephole hides a mistake."""

    def randomise(core: nn.Module) -> nn.Module:
        generator = torch.Generator().manual_seed(3)
        with torch.no_grad():
            for p in core.double().parameters():
                p.copy_(0.5 * torch.randn(p.shape, generator=generator, dtype=p.dtype))
        return core

    return randomise


@pytest.fixture
def draw() -> Callable[..., Tensor]:
    """A random float64 tensor that takes gradients: draw(seed, *shape)."""

    def make(seed: int, *shape: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()

    return make


@pytest.fixture
def orthogonal() -> Callable[..., None]:
    """Each of the `gates` blocks of W has orthonormal rows or columns, whichever are fewer."""

    def check(W: Tensor, gates: int = 1) -> None:
        for block in W.detach().double().chunk(gates):
            small = block @ block.T if block.shape[0] <= block.shape[1] else block.T @ block
            torch.testing.assert_close(small, torch.eye(len(small), dtype=torch.float64), atol=1e-5, rtol=0)

    return check


# What a delta rule has of an input: u, r, a (H, K), and what y is multiplied by (H * V).
Parts = Callable[[Tensor], tuple[Tensor, Tensor, Tensor, Tensor]]


@torch.no_grad()
def _delta_rule(core: Convolved[Any], parts: Parts) -> None:
    H, K, V, G = core.heads, core.key_size, core.value_size, core.groups
    x = torch.randn(1, 6, core.input_size, dtype=torch.float64)
    start = type(core.init_state(0))(*(torch.randn_like(leaf) for leaf in core.init_state(1)))
    reset = torch.tensor([[False, False, False, True, False, False]])
    y, last = core.scan(x, start, reset=reset)
    S, window = start.S[0].clone(), start.window[0]
    for t in range(6):
        if reset[0, t]:
            S, window = torch.zeros_like(S), torch.zeros_like(window)
        u, r, a, gate = parts(x[0, t])
        window = torch.cat([window, u[None]])
        c = (core.w * window).sum(0)
        q, k, v = (part.view(-1, width) for part, width in zip(
            (c * torch.sigmoid(c)).split([G * K, G * K, H * V]), (K, K, V), strict=True
        ))  # fmt: skip
        window, reads = window[1:], []
        for h in range(H):
            qh, kh = q[h // (H // G)], k[h // (H // G)]
            qh, kh = qh / torch.sqrt(qh @ qh + 1e-6) / K**0.5, kh / torch.sqrt(kh @ kh + 1e-6)
            b = torch.sigmoid(r[h])
            S[h] = (torch.eye(K, dtype=b.dtype) - b * torch.outer(kh, kh)) @ torch.diag(a[h]) @ S[h] + b * torch.outer(
                kh, v[h]
            )
            s = S[h].T @ qh
            reads.append(core.g * s / torch.sqrt((s**2).mean() + 1e-5))
        torch.testing.assert_close(y[0, t], core.O @ (torch.cat(reads) * gate), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(last.S[0], S, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(last.window[0], window)


@pytest.fixture
def delta_rule() -> Callable[[Convolved[Any], Parts], None]:
    """S = (I - b k k^T) diag(a) S' + b k v^T, as the papers have it, with whole matrices, from a carried state and
    through a reset."""
    return _delta_rule
