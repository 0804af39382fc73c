"""Retention against the paper's parallel form, (Q K^T * D) V with complex rotations, in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from elman import kernels
from elman.cells.retnet import RetNet
from elman.errors import InputError


def parallel(core: RetNet, x: np.ndarray, first: int = 0) -> np.ndarray:
    """x (T, D) of an episode whose first input has the number `first` -> y (T, H), equations 5 to 8 of the paper."""
    p = {name: value.detach().numpy() for name, value in core.named_parameters()}
    H, K, V, T = core.heads, core.key_size, core.value_size, len(x)
    Q, Kx, X, Z = np.split(x @ p["U"].T, np.cumsum([H * K, H * K, H * V]), -1)
    n = first + np.arange(T)
    theta = 10000.0 ** (-2 * np.arange(K // 2) / K)
    turned = np.exp(1j * n[:, None] * theta)
    heads = []
    for h in range(H):
        q, k = (part[:, h * K : (h + 1) * K] for part in (Q, Kx))
        q, k = ((part[:, : K // 2] + 1j * part[:, K // 2 :]) * turned for part in (q, k))
        scores = (q @ k.conj().T).real / K**0.5
        D = np.where(n[:, None] >= n, (1 - 2.0 ** (-5 - h)) ** (n[:, None] - n), 0)
        s = (scores * D) @ X[:, h * V : (h + 1) * V]
        heads.append(p["g"] * s / np.sqrt((s**2).mean(-1, keepdims=True) + 1e-5))
    return (np.concatenate(heads, -1) * Z / (1 + np.exp(-Z))) @ p["O"].T


@pytest.mark.parametrize("kernel", kernels.available())
def test_scan_is_the_parallel_form_with_lengths_and_a_reset(kernel: str, randomised) -> None:
    core = randomised(RetNet(3, 4, heads=3, key_size=4, value_size=5))
    x = torch.randn(2, 12, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    reset = torch.zeros(2, 12, dtype=torch.bool)
    reset[1, 5] = True
    with kernels.use(kernel), torch.no_grad():
        y, state = core.scan(x, lengths=torch.tensor([7, 12]), reset=reset)
    expected = [parallel(core, x[0, :7].numpy()), parallel(core, x[1, :5].numpy()), parallel(core, x[1, 5:].numpy())]
    assert np.abs(expected[0]).max() > 0.1
    np.testing.assert_allclose(y[0, :7].numpy(), expected[0], rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(y[1].numpy(), np.concatenate(expected[1:]), rtol=1e-9, atol=1e-11)
    assert (y[0, 7:] == 0).all()
    turned = torch.polar(torch.ones(2, dtype=torch.float64), 7 * torch.tensor([1.0, 0.01], dtype=torch.float64)) - 1
    torch.testing.assert_close(state.h, turned.expand(2, -1))  # seven inputs in the last episode of both


def test_only_differences_of_position_count() -> None:
    """As rotations must have it: an episode before which the angles have turned has the same outputs."""
    torch.manual_seed(0)
    core = RetNet(3, 4, heads=2)
    x, start = torch.randn(1, 9, 3), core.init_state(1)
    _, turned = core.scan(torch.randn(1, 10_000, 3))
    later = start._replace(h=turned.h)
    torch.testing.assert_close(core.scan(x, start)[0], core.scan(x, later)[0], rtol=1e-4, atol=1e-5)


def test_keys_are_turned_in_pairs() -> None:
    assert RetNet(2, 3).key_size == 4
    with pytest.raises(InputError, match="key_size is 3; it must be even"):
        RetNet(2, 6, key_size=3)
