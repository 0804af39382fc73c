"""Mamba against a transcription of its recurrence in plain loops, and what its convolution may see."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from elman import kernels
from elman.cells.mamba import Mamba
from elman.core import Core
from elman.errors import InputError

native_only = pytest.mark.skipif("native" not in kernels.available(), reason="a promise of the native kernels")


def silu(v):
    return v / (1 + np.exp(-v))


def block(core, xs, window, h):
    """xs (T, D) through the block, scalar by scalar: ys, and the window and h after them. All NumPy, float64."""
    p = {name: value.detach().numpy() for name, value in core.named_parameters()}
    inner, N, K, R = core.inner, core.state_size, core.conv, core.dt_rank
    window, h = [list(row) for row in window], h.copy()
    ys = []
    for x in xs:
        projected = p["U"] @ x
        u, z = projected[:inner], projected[inner:]
        window.append(list(u))
        v = np.array([silu(p["c"][i] + sum(p["w"][k, i] * window[k - K][i] for k in range(K))) for i in range(inner)])
        window = window[1:]
        selected = p["S"] @ v
        r, B, C = selected[:R], selected[R : R + N], selected[R + N :]
        gated = np.zeros(inner)
        for i in range(inner):
            dt = math.log1p(math.exp(p["W"][i] @ r + p["b"][i]))
            for n in range(N):
                h[i, n] = math.exp(-dt * math.exp(p["A_log"][i, n])) * h[i, n] + dt * B[n] * v[i]
            gated[i] = (sum(C[n] * h[i, n] for n in range(N)) + p["D"][i] * v[i]) * silu(z[i])
        ys.append(p["V"] @ gated)
    return ys, np.array(window).reshape(K - 1, inner), h


@pytest.mark.parametrize("options", [{}, {"state_size": 3, "expand": 1, "conv": 1, "dt_rank": 2}, {"conv": 9}])
def test_scan_is_the_loop_with_lengths_resets_and_a_carried_state(options):
    torch.manual_seed(0)
    core = Mamba(3, 4, **options).double()
    with torch.no_grad():
        for parameter in core.parameters():  # away from the zeros and ones of the start
            parameter.add_(0.3 * torch.randn_like(parameter))
    T, lengths = 8, [8, 5, 0, 3]
    x = torch.randn(4, T, 3, dtype=torch.float64)
    reset = torch.zeros(4, T, dtype=torch.bool)
    reset[0, [0, 3, 4]] = reset[1, [2, 6]] = reset[2, 0] = reset[3, 2] = True
    state = type(core.init_state(0))(*(torch.randn_like(leaf) for leaf in core.init_state(4)))
    y, last = core.scan(x, state, lengths=torch.tensor(lengths), reset=reset)
    for b, length in enumerate(lengths):
        window, h = state.window[b].numpy(), state.h[b].numpy()
        for t in range(length):
            if reset[b, t]:
                window, h = np.zeros_like(window), np.zeros_like(h)
            (expected,), window, h = block(core, x[b, t : t + 1].numpy(), window, h)
            np.testing.assert_allclose(y[b, t].detach().numpy(), expected, rtol=1e-10, atol=1e-12)
        assert (y[b, length:] == 0).all()
        np.testing.assert_allclose(last.window[b].detach().numpy(), window, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(last.h[b].detach().numpy(), h, rtol=1e-10, atol=1e-12)


def test_an_infinity_before_a_reset_is_forgotten():
    torch.manual_seed(0)
    core = Mamba(3, 4)
    x = torch.randn(1, 7, 3)
    clean, _ = core.scan(x[:, 3:])
    x[:, 2] = math.inf
    reset = torch.tensor([[False, False, False, True, False, False, False]])
    y, state = core.scan(x, reset=reset)
    assert not y[:, 2].isfinite().all()
    torch.testing.assert_close(y[:, 3:], clean)
    assert all(leaf.isfinite().all() for leaf in state)


def test_the_convolution_is_the_depthwise_one_of_torch():
    torch.manual_seed(0)
    core = Mamba(3, 4, conv=3).double()
    u = torch.randn(2, 10, core.inner, dtype=torch.float64)
    padded = torch.nn.functional.pad(u.transpose(1, 2), (2, 0))
    expected = torch.nn.functional.conv1d(padded, core.w.T[:, None], core.c, groups=core.inner).transpose(1, 2)
    torch.testing.assert_close(core.convolve(padded.transpose(1, 2)[:, 5:8]), expected[:, 5])
    whole, none = torch.full((2,), 10), torch.zeros(2, 10, dtype=torch.bool)
    y, window = kernels.convolution(u, core.w, core.c, core.init_state(2).window, whole, none)
    torch.testing.assert_close(y, expected)
    assert torch.equal(window, u[:, -2:])


@native_only
def test_training_runs_on_the_native_kernels_and_keeps_no_states():
    torch.manual_seed(0)
    B, T, N = 2, 100, 64
    core, before, kept = Mamba(8, 8, state_size=N), kernels.calls(), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
        y, _ = core.scan(torch.randn(B, T, 8))
    y.sum().backward()
    for name in ("selective_scan", "selective_scan_back", "convolution", "convolution_back"):
        assert kernels.calls()[name] == before.get(name, 0) + 1
    assert max(kept) < B * T * core.inner * N / 8  # the largest is the states of every 32nd step, and S v


@native_only
@pytest.mark.parametrize("conv", [1, 4])
def test_gradients_are_those_of_the_loop_over_steps(conv):
    torch.manual_seed(0)
    core = Mamba(3, 5, conv=conv, state_size=3).double()
    x = torch.randn(3, 40, 3, dtype=torch.float64)
    lengths, reset = torch.tensor([40, 0, 35]), torch.rand(3, 40) < 0.1
    state = type(core.init_state(0))(*(torch.randn_like(leaf) for leaf in core.init_state(3)))
    arriving = torch.randn(3, 40, 5, dtype=torch.float64), *(torch.randn_like(leaf) for leaf in state)

    def gradients(scan):
        leaves = [t.clone().requires_grad_() for t in (x, *state)]
        y, last = scan(leaves[0], type(state)(*leaves[1:]), lengths, reset)
        return torch.autograd.grad((y, *last), (*leaves, *core.parameters()), arriving, materialize_grads=True)

    before = kernels.calls().get("selective_scan_back", 0)
    got = gradients(core._scan)
    assert kernels.calls()["selective_scan_back"] == before + 1
    for given, wanted in zip(got, gradients(lambda *a: Core._scan(core, *a)), strict=True):
        torch.testing.assert_close(given, wanted, rtol=1e-9, atol=1e-10)


def test_the_first_steps_and_decays_are_those_of_the_paper():
    torch.manual_seed(0)
    core = Mamba(2, 500)
    dt = torch.log1p(torch.exp(core.b.detach().double()))
    assert dt.min() >= 0.001 * (1 - 1e-4) and dt.max() <= 0.1 * (1 + 1e-4)
    assert abs(float(dt.log().mean()) - math.log(0.01)) < 5 * math.log(100) / 12**0.5 / 1000**0.5
    torch.testing.assert_close(core.A_log[7].exp(), torch.arange(1.0, 17.0))


@pytest.mark.parametrize(("size", "rank"), [(1, 1), (16, 1), (17, 2), (64, 4)])
def test_automatic_rank_is_a_sixteenth_rounded_up(size, rank):
    assert Mamba(2, size).dt_rank == rank


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"state_size": 0}, "state_size is 0"),
        ({"expand": 1.5}, "expand is 1.5"),
        ({"conv": 0}, "conv is 0"),
        ({"dt_rank": "half"}, "dt_rank is 'half'.*'auto'"),
        ({"dt_rank": 0}, "dt_rank is 0"),
    ],
)
def test_options_outside_their_range_are_named(options, message):
    with pytest.raises(InputError, match=message):
        Mamba(2, 3, **options)
