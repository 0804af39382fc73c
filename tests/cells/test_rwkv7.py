"""RWKV-7's time mixing against its equations in NumPy, head by head, with whole matrices of transitions."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from elman import kernels
from elman.cells.rwkv7 import RWKV7
from elman.errors import InputError


def sigmoid(v: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-v))


def mix(core: RWKV7, x: np.ndarray, last: np.ndarray, S: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One input x (D,), the one before and the states S (H, V, K), rows of values as in the paper -> y and S."""
    p = {name: value.detach().numpy() for name, value in core.named_parameters()}
    xr, xw, xk, xv, xa, xg = (x + (last - x) * mu for mu in p["mu"])
    r, k, v = p["W_r"] @ xr, p["W_k"] @ xk, p["W_v"] @ xv
    w = np.exp(-np.exp(-0.5) * sigmoid(p["w_0"] + p["D_2"] @ np.tanh(p["D_1"] @ xw)))
    a = sigmoid(p["a_0"] + p["A_2"] @ (p["A_1"] @ xa))
    g = p["G_2"] @ sigmoid(p["G_1"] @ xg)
    kk, k = k * p["k_k"], k * (1 + (a - 1) * p["k_a"])
    out, states, n = [], [], core.key_size
    for h in range(core.heads):
        own = slice(h * n, (h + 1) * n)
        unit = kk[own] / np.linalg.norm(kk[own])
        transition = np.diag(w[own]) - np.outer(
            unit, a[own] * unit
        )  # equation 17: the state is multiplied on the right
        states.append(S[h] @ transition + np.outer(v[own], k[own]))
        s = states[-1] @ r[own]
        normed = (s - s.mean()) / np.sqrt(s.var() + 64e-5) * p["g"][own] + p["c"][own]
        out.append(normed + (r[own] * p["r_k"][own]) @ k[own] * v[own])
    return p["O"] @ (np.concatenate(out) * g), np.array(states)


@pytest.mark.parametrize("kernel", kernels.available())
@torch.no_grad()
def test_scan_is_the_equations_with_a_carried_state_and_a_reset(kernel: str, randomised) -> None:
    core = randomised(RWKV7(3, 4, heads=2, head_size=3, rank=2, gate_rank=5))
    x = torch.randn(1, 8, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    start = type(core.init_state(0))(*(torch.randn_like(leaf) for leaf in core.init_state(1)))
    reset = torch.zeros(1, 8, dtype=torch.bool)
    reset[0, 4] = True
    with kernels.use(kernel):
        y, state = core.scan(x, start, reset=reset)
    S, last = start.S[0].mT.numpy(), start.last[0].numpy()
    for t in range(8):
        if reset[0, t]:
            S, last = np.zeros_like(S), np.zeros_like(last)
        expected, S = mix(core, x[0, t].numpy(), last, S)
        last = x[0, t].numpy()
        np.testing.assert_allclose(y[0, t].numpy(), expected, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(state.S[0].mT.numpy(), S, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(state.last[0].numpy(), last)


def test_memories_are_spread_over_the_keys_of_a_head() -> None:
    torch.manual_seed(0)
    core = RWKV7(4, 128)
    w = core.named_gates(torch.zeros(1, 4), core.init_state(1))["a"].view(2, 64)
    steps = -1 / torch.log(w)
    assert torch.equal(w[0], w[1]) and 300 < steps[0, 0] < 500 and 2 < steps[0, -1] < 6


def test_ranks_are_those_of_the_paper() -> None:
    """Of the model of 0.1 billion: decay and in-context rate 64, gate 128."""
    with torch.device("meta"):
        core = RWKV7(768, 768)
    assert (core.heads, core.key_size, core.rank, core.gate_rank) == (12, 64, 64, 128)


def test_options_outside_their_range_are_named() -> None:
    for name in ("heads", "head_size", "rank", "gate_rank"):
        with pytest.raises(InputError, match=f"{name} is 0"):
            RWKV7(2, 6, **{name: 0})
