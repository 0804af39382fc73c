"""Gated linear attention against the sum that it stands for, in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from decaying import read_out, rms, sigmoid

from elman import kernels
from elman.cells.gla import GLA
from elman.errors import InputError


@pytest.mark.parametrize("kernel", kernels.available())
def test_scan_is_the_sum(kernel: str, randomised) -> None:
    core = randomised(GLA(3, 4, heads=2, key_size=3, value_size=5, rank=2))
    x = torch.randn(1, 14, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with kernels.use(kernel), torch.no_grad():
        y, _ = core.scan(x)
    p = {name: value.detach().numpy() for name, value in core.named_parameters()}
    q, k, v, z = np.split(x[0].numpy() @ p["U"].T, [6, 12, 22], -1)
    a = sigmoid(x[0].numpy() @ p["W_1"].T @ p["W_2"].T + p["b"]) ** (1 / 16)
    heads = [
        read_out(q[:, i : i + 3], k[:, i : i + 3], v[:, j : j + 5], a[:, i : i + 3]) / 3**0.5
        for i, j in ((0, 0), (3, 5))
    ]
    expected = (np.concatenate([p["g"] * rms(s) for s in heads], -1) * z * sigmoid(z)) @ p["O"].T
    assert np.abs(expected).max() > 0.1
    np.testing.assert_allclose(y[0].numpy(), expected, rtol=1e-9, atol=1e-11)


def test_memories_are_long_from_the_start() -> None:
    torch.manual_seed(0)
    core = GLA(8, 64)
    a = core.named_gates(torch.zeros(1, 8), core.init_state(1))["a"]
    torch.testing.assert_close(a, torch.full((1, 32), 0.5 ** (1 / 16)))


def test_options_outside_their_range_are_named() -> None:
    with pytest.raises(InputError, match="rank is 0"):
        GLA(2, 6, rank=0)
