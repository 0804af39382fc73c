"""How a cell is held against somebody else's: same outputs, same gradients with respect to the cell's own tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest
import torch
from torch import Tensor, nn

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
