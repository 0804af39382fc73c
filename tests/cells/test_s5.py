"""S5 against the dense real system that it diagonalises, discretised by the matrix exponential."""

from __future__ import annotations

import math

import pytest
import torch

from elman.cells.s5 import INITIAL, S5, S5State
from elman.errors import InputError


def normal_hippo(N):
    """HiPPO-LegS plus the rank-one matrix that makes it normal, as Gu et al. (2022, S4) give them."""
    A, P = torch.zeros(N, N, dtype=torch.float64), torch.zeros(N, 1, dtype=torch.float64)
    for n in range(N):
        P[n] = math.sqrt(n + 0.5)
        for k in range(n):
            A[n, k] = -math.sqrt((2 * n + 1) * (2 * k + 1))
        A[n, n] = -(n + 1)
    return A + P @ P.T


def rotations(N):
    return torch.block_diag(
        *(torch.tensor([[-0.5, -math.pi * n], [math.pi * n, -0.5]], dtype=torch.float64) for n in range(N // 2))
    )


@pytest.mark.parametrize(("init", "dense"), [("hippo", normal_hippo), ("lin", rotations)])
@pytest.mark.parametrize("N", [2, 6, 16])
def test_half_of_the_eigenvectors_and_their_conjugates_make_the_dense_matrix(init, dense, N):
    poles, V = INITIAL[init](N)
    torch.testing.assert_close(2 * (V @ torch.diag(poles) @ V.mH).real, dense(N), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(2 * (V @ V.mH).real, torch.eye(N, dtype=torch.float64), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("init", "dense"), [("hippo", normal_hippo), ("lin", rotations)])
def test_output_is_that_of_the_dense_system(init, dense):
    """One step length for all states, so that the dense system has one too: exp(dt [[A, B], [0, 0]]) steps it."""
    torch.manual_seed(0)
    N, D, H, T, dt = 6, 3, 4, 15, 0.2
    core = S5(D, H, state_size=N, init=init).double()
    with torch.no_grad():
        core.reset_parameters()  # once more, in float64
        core.log_dt.fill_(math.log(dt))
    _, V = INITIAL[init](N)
    B = 2 * (V @ torch.view_as_complex(core.B.detach())).real
    C = 2 * (torch.view_as_complex(core.C.detach()) @ V.mH).real
    augmented = torch.zeros(N + D, N + D, dtype=torch.float64)
    augmented[:N, :N], augmented[:N, N:] = dense(N), B
    stepped = torch.linalg.matrix_exp(dt * augmented)
    x = torch.randn(2, T, D, dtype=torch.float64)
    s = torch.randn(2, N, dtype=torch.float64)
    y, _ = core.scan(x, S5State(s.to(V.dtype) @ V.conj()))
    for t in range(T):
        s = s @ stepped[:N, :N].T + x[:, t] @ stepped[:N, N:].T
        torch.testing.assert_close(y[:, t], s @ C.T + x[:, t] @ core.D.T, rtol=1e-9, atol=1e-9)


def test_each_state_has_a_step_of_its_own():
    torch.manual_seed(0)
    core = S5(2, 3, state_size=8, dt_min=0.01, dt_max=0.5).double()
    a, _, _ = core.coefficients(torch.zeros(1, 2, dtype=torch.float64))
    dt = torch.exp(core.log_dt)
    assert len(dt.unique()) == 4 and dt.min() >= 0.01 - 1e-9 and dt.max() <= 0.5 + 1e-9
    torch.testing.assert_close(a.abs(), torch.exp(-dt * core.A_log.exp()))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"state_size": 7}, "state_size is 7; it must be even"),
        ({"init": "inv"}, "'hippo', 'lin'"),
        ({"dt_max": 0.0001}, "dt_max 0.0001"),
    ],
)
def test_options_outside_their_range_are_named(options, message):
    with pytest.raises(InputError, match=message):
        S5(3, 3, **options)


@pytest.mark.parametrize("init", ["hippo", "lin"])
def test_the_dense_system_starts_with_unit_gain(init):
    """Entries of the dense B have variance 1 / D, those of C 1 / N (5 standard errors)."""
    torch.manual_seed(0)
    N, D, H = 64, 100, 50
    core = S5(D, H, state_size=N, init=init)
    _, V = INITIAL[init](N)
    B = 2 * (V @ torch.view_as_complex(core.B.detach().double())).real
    C = 2 * (torch.view_as_complex(core.C.detach().double()) @ V.mH).real
    assert abs(float(B.var() * D) - 1) < 5 * (2 / (N * D)) ** 0.5
    assert abs(float(C.var() * N) - 1) < 5 * (2 / (H * N)) ** 0.5
