"""The scalar LSTM against its equations without a stabiliser, in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from elman import kernels, laws
from elman.cells.slstm import SLSTM
from elman.errors import InputError


def sigmoid(v: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-v))


@pytest.mark.parametrize("kernel", kernels.available())
@torch.no_grad()
def test_the_stabiliser_cancels_out(kernel: str, randomised) -> None:
    """Equations 8 to 14 of the paper: c = f c' + exp(i) tanh(z), n = f n' + exp(i), h = o c / n; then a reset."""
    core = randomised(SLSTM(3, 6, heads=2))
    x = torch.randn(1, 8, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    reset = torch.zeros(1, 8, dtype=torch.bool)
    reset[0, 5] = True
    with kernels.use(kernel):
        y, state = core.scan(x, reset=reset)
    p = {name: value.detach().numpy() for name, value in core.named_parameters()}
    for t, xt in enumerate(x[0].numpy()):
        if t in (0, 5):
            h, c, n = np.zeros(6), np.zeros(6), np.zeros(6)
        recurrent = [np.concatenate([p["R"][gate, j] @ h[3 * j : 3 * j + 3] for j in range(2)]) for gate in range(4)]
        i, f, z, o = np.split(p["U"] @ xt + np.concatenate(recurrent) + p["b"], 4)
        c = sigmoid(f) * c + np.exp(i) * np.tanh(z)
        n = sigmoid(f) * n + np.exp(i)
        h = sigmoid(o) * c / n
        heads = h.reshape(2, 3)
        normed = (heads - heads.mean(1, keepdims=True)) / np.sqrt(heads.var(1, keepdims=True) + 1e-5)
        np.testing.assert_allclose(y[0, t].numpy(), p["g"] * normed.flatten(), rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(state.h[0].numpy(), h, rtol=1e-9)
    np.testing.assert_allclose((state.c / state.n)[0].numpy(), c / n, rtol=1e-9)


@pytest.mark.parametrize("kernel", kernels.available())
def test_heads_keep_the_laws(kernel: str) -> None:
    """The table has sizes that only one head divides."""
    torch.manual_seed(0)
    with kernels.use(kernel):
        report = laws.check(SLSTM(3, 6, heads=3))
        assert report.ok and (report.exact or kernel == "reference"), str(report)


@torch.no_grad()
def test_a_fresh_row_does_not_depend_on_its_neighbours_or_on_the_size_of_its_gate() -> None:
    """A library decides by `torch.all(n == 0)` how the stabiliser starts; and exp(i - m) may be zero in float32."""
    torch.manual_seed(0)
    core = SLSTM(3, 4)
    core.b[:4] = -200.0
    x = torch.randn(2, 3, 3)
    old = core.scan(x[:1])[1]
    both = type(old)(*(torch.cat([a, b]) for a, b in zip(old, core.init_state(1), strict=True)))
    y, state = core.scan(x, both)
    alone, last = core.scan(x[1:])
    assert y.isfinite().all() and y[1].abs().max() > 0.1
    assert torch.equal(y[1:], alone) and all(torch.equal(a[1:], b) for a, b in zip(state, last, strict=True))


@torch.no_grad()
def test_gates_beyond_the_range_of_float32_stay_finite() -> None:
    torch.manual_seed(0)
    core = SLSTM(3, 4)
    core.b.fill_(200.0)
    y, state = core.scan(torch.randn(2, 300, 3))
    assert y.isfinite().all() and all(leaf.isfinite().all() for leaf in state)


def test_heads_must_divide_the_size() -> None:
    assert SLSTM(2, 100).heads == 2 and SLSTM(2, 67).heads == 1
    with pytest.raises(InputError, match="heads is 3, and the size 4"):
        SLSTM(2, 4, heads=3)
