"""Mamba-3 against the recurrence and the parallel form of its paper, in NumPy."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pytest
import torch
from decaying import sigmoid

from elman import kernels
from elman.cells.mamba3 import Mamba3, Mamba3State
from elman.errors import InputError

TWO_PI = 2 * math.pi


class Parts(NamedTuple):
    """What the paper's equations read of x (T, D), for every head."""

    z: np.ndarray  # (T, H, V)
    v: np.ndarray  # (T, H, V)
    k: np.ndarray  # (T, H, N), before it is turned
    q: np.ndarray  # (T, H, N)
    dt: np.ndarray  # (T, H)
    a: np.ndarray  # (T, H)
    lam: np.ndarray  # (T, H)
    theta: np.ndarray  # (T, H, R), by how much angles grow


def parts(core: Mamba3, x: np.ndarray) -> Parts:
    p = {name: value.detach().numpy() for name, value in core.named_parameters()}
    H, N, V, G, T = core.heads, core.key_size, core.value_size, core.key_groups, len(x)
    widths = [H * V, H * V, G * N, G * N, H, H, H]
    z, v, u, w, r, rate, lam, f = np.split(x @ p["U"].T, np.cumsum(widths), -1)
    keys = []
    for part, gain, bias in ((u, p["g"], p["c"]), (w, p["g_q"], p["c_q"])):
        groups = part.reshape(T, G, N)
        groups = gain * groups / np.sqrt((groups**2).mean(-1, keepdims=True) + 1e-5)
        keys.append(np.repeat(groups, H // G, 1) + bias.reshape(H, N))
    dt = np.log1p(np.exp(r + p["b"]))
    a = np.exp(-dt * np.maximum(np.log1p(np.exp(rate)), 1e-4))
    theta = math.pi * np.tanh(f)[:, None] * dt[..., None]
    return Parts(z.reshape(T, H, V), v.reshape(T, H, V), *keys, dt, a, sigmoid(lam), theta)


def out(core: Mamba3, s: np.ndarray, of: Parts) -> np.ndarray:
    """s (T, H, V) -> y (T, size)."""
    y = (s + core.D.detach().numpy()[:, None] * of.v) * of.z * sigmoid(of.z)
    return y.reshape(len(s), -1) @ core.O.detach().numpy().T


def turn(k: np.ndarray, phi: np.ndarray) -> np.ndarray:
    """k (H, N) with column i turned by phi_i (H, R) towards column i + R."""
    R = phi.shape[1]
    x, y = k[:, :R], k[:, R : 2 * R]
    sides = x * np.cos(phi) - y * np.sin(phi), x * np.sin(phi) + y * np.cos(phi)
    return np.concatenate([*sides, k[:, 2 * R :]], 1)


def parallel(core: Mamba3, x: np.ndarray) -> np.ndarray:
    """An episode at once: (mask of decays and of two bands * Q K^T) V, its keys complex numbers."""
    of, R = parts(core, x), core.angles
    phi, T = np.cumsum(of.theta, 0), len(x)
    s = np.zeros_like(of.v)
    for h in range(core.heads):
        turned = np.exp(1j * phi[:, h])
        q, k = ((part[:, h, :R] + 1j * part[:, h, R : 2 * R]) * turned for part in (of.q, of.k))
        scores = (q @ k.conj().T).real + of.q[:, h, 2 * R :] @ of.k[:, h, 2 * R :].T
        kept, gamma = np.cumsum(np.log(of.a[:, h])), of.lam[:, h] * of.dt[:, h]
        late = np.append((of.dt[:, h] - gamma)[1:], 0)  # what the next step adds of an input
        weights = np.tril(np.exp(kept[:, None] - kept)) * (gamma + np.tril(np.ones((T, T)), -1) * late)
        s[:, h] = (weights * scores) @ of.v[:, h]
    return out(core, s, of)


@pytest.mark.parametrize("kernel", kernels.available())
@pytest.mark.parametrize("groups", [1, 2])
def test_scan_is_the_parallel_form_with_lengths_and_a_reset(kernel: str, groups: int, randomised) -> None:
    core = randomised(Mamba3(3, 4, state_size=7, heads=4, groups=groups, angles=2))
    x = torch.randn(2, 12, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    reset = torch.zeros(2, 12, dtype=torch.bool)
    reset[1, 5] = True
    with kernels.use(kernel), torch.no_grad():
        y, _ = core.scan(x, lengths=torch.tensor([7, 12]), reset=reset)
    expected = [parallel(core, x[0, :7].numpy()), parallel(core, x[1, :5].numpy()), parallel(core, x[1, 5:].numpy())]
    assert np.abs(expected[0]).max() > 0.1
    np.testing.assert_allclose(y[0, :7].numpy(), expected[0], rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(y[1].numpy(), np.concatenate(expected[1:]), rtol=1e-9, atol=1e-11)
    assert (y[0, 7:] == 0).all()


@torch.no_grad()
def test_two_writes_a_step_from_a_carried_state(randomised) -> None:
    """S = a S' + (1 - lambda) dt a k' v'^T + lambda dt k v^T as it stands, angles as remainders of 2 pi."""
    core = randomised(Mamba3(3, 4, state_size=6, heads=2, angles=3))
    H, N, V = core.heads, core.key_size, core.value_size
    x = torch.randn(1, 6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    start = Mamba3State(*(torch.randn_like(leaf) for leaf in core.init_state(1)))
    reset = torch.tensor([[False, False, False, True, False, False]])
    y, last = core.scan(x, start, reset=reset)

    k, v, gamma = (part[0].numpy() for part in start.last.split([H * N, H * V, H], -1))
    k, v = k.reshape(H, N), v.reshape(H, V)
    S = start.S[0].numpy() + gamma[:, None, None] * k[..., None] * v[:, None]
    phi = torch.angle(start.h + 1)[0].numpy().reshape(H, -1)
    of = parts(core, x[0].numpy())
    for t in range(6):
        if reset[0, t]:
            S, k, v, phi = np.zeros_like(S), np.zeros_like(k), np.zeros_like(v), np.zeros_like(phi)
        phi = (phi + of.theta[t]) % TWO_PI
        dt, a, lam = (part[t][:, None, None] for part in (of.dt, of.a, of.lam))
        S = a * S + (1 - lam) * dt * a * k[..., None] * v[:, None]
        k, v = turn(of.k[t], phi), of.v[t]
        written = lam * dt * k[..., None] * v[:, None]
        S = S + written
        s = np.einsum("hnv,hn->hv", S, turn(of.q[t], phi))
        at_t = Parts(*(part[t : t + 1] for part in of))
        np.testing.assert_allclose(y[0, t].numpy(), out(core, s[None], at_t)[0], rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(last.S[0].numpy(), S - written, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(last.h[0].numpy(), np.exp(1j * phi).flatten() - 1, rtol=1e-9, atol=1e-11)


def test_half_turns_tell_odd_from_even() -> None:
    """What no decay between 0 and 1 can: each one turns the state by pi, each zero leaves it."""
    core = Mamba3(1, 1, state_size=2, heads=1)
    with torch.no_grad():
        core.U.zero_()
        core.U[-1, 0] = 30.0  # f, whose tanh is 1 or 0
        core.b.fill_(math.log(math.e - 1))  # dt = 1
    ones = torch.randint(2, (1, 1000, 1), generator=torch.Generator().manual_seed(0)).float()
    for T in range(995, 1001):
        _, state = core.scan(ones[:, :T])
        parity = float(ones[:, :T].sum()) % 2
        # 0 after an even number, -2 after an odd one, but for a rounding in each of 500 turns.
        assert abs(complex(state.h[0, 0].detach()) + 2 * parity) < 1e-3


def test_gradients_of_everything() -> None:
    torch.manual_seed(0)
    core = Mamba3(2, 2, state_size=5, heads=2, angles=2).double()
    state = Mamba3State(*(0.5 * torch.randn_like(leaf) for leaf in core.init_state(2)))
    inputs = [torch.randn(2, 4, 2, dtype=torch.float64), *state, *core.parameters()]
    names = [name for name, _ in core.named_parameters()]
    reset = torch.tensor([[False, False, True, False], [False] * 4])

    def scan(x: torch.Tensor, *others: torch.Tensor) -> tuple[torch.Tensor, ...]:
        weights = dict(zip(names, others[3:], strict=True))
        kept = {"lengths": torch.tensor([4, 3]), "reset": reset}
        y, last = torch.func.functional_call(core, weights, (x, Mamba3State(*others[:3])), kept)
        return y, *last

    assert torch.autograd.gradcheck(scan, [t.detach().requires_grad_() for t in inputs])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"state_size": 1}, "state_size is 1; it must be at least 2, since pairs of columns are turned"),
        ({"state_size": 0}, "state_size is 0"),
        ({"expand": 1.5}, r"expand is 1\.5"),
        ({"heads": 3, "groups": 2}, "groups is 2, and there are 3 heads; it must divide them"),
        ({"state_size": 7, "angles": 4}, "angles is 4; it must be a whole number of at least 1 and at most 3"),
        ({"angles": 0}, "angles is 0"),
    ],
)
def test_options_outside_their_range_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Mamba3(2, 3, **options)


def test_the_defaults_are_those_of_the_paper() -> None:
    torch.manual_seed(0)
    core = Mamba3(2, 256)
    assert (core.heads, core.value_size, core.key_size, core.angles) == (8, 64, 128, 32)
    dt = torch.log1p(torch.exp(core.b.detach().double()))
    assert dt.min() >= 0.001 * (1 - 1e-4) and dt.max() <= 0.1 * (1 + 1e-4)
