"""HGRN2 against the sum that it stands for, in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from decaying import read_out, rms, sigmoid

from elman import kernels
from elman.cells.hgrn2 import HGRN2
from elman.errors import InputError


@pytest.mark.parametrize("kernel", kernels.available())
@pytest.mark.parametrize("lower", [0.0, 0.3])
def test_scan_is_the_sum(lower: float, kernel: str, randomised) -> None:
    core = randomised(HGRN2(3, 4, heads=2, key_size=3, value_size=5, lower=lower))
    x = torch.randn(1, 14, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with kernels.use(kernel), torch.no_grad():
        y, _ = core.scan(x)
    p = {name: value.detach().numpy() for name, value in core.named_parameters()}
    q, u, v = np.split(x[0].numpy() @ p["U"].T, [6, 12], -1)
    q, f = q * sigmoid(q), lower + (1 - lower) * sigmoid(u)
    heads = [
        read_out(q[:, i : i + 3], 1 - f[:, i : i + 3], v[:, j : j + 5], f[:, i : i + 3]) for i, j in ((0, 0), (3, 5))
    ]
    expected = (p["g"] * rms(np.concatenate(heads, -1))) @ p["O"].T
    assert np.abs(expected).max() > 0.1
    np.testing.assert_allclose(y[0].numpy(), expected, rtol=1e-9, atol=1e-11)


@torch.no_grad()
def test_a_gate_that_is_open_writes_what_is_left_in_float32() -> None:
    """1 - f would be zero from U_f x = 17 on."""
    torch.manual_seed(0)
    core = HGRN2(1, 4)
    core.U[4:8] = 20.0
    _, state = core.scan(torch.ones(1, 1, 1))
    wanted = torch.exp(torch.tensor(-20.0)) * core.U[8:].T.expand(4, 4)
    torch.testing.assert_close(state.S[0, 0], wanted, rtol=1e-4, atol=0)


def test_options_outside_their_range_are_named() -> None:
    with pytest.raises(InputError, match=r"lower is 1\.5"):
        HGRN2(2, 6, lower=1.5)
