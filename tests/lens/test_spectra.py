"""Exponents and singular values that are known."""

import math

import numpy as np
import pytest
import torch
from ragged_rows import arrays, layer_of, ragged, sigmoid

import elman
from elman import lens
from elman.core import Core
from elman.lens.layers import flat, jacobian, trajectory, unflat
from elman.lens.sample import Sample


class Linear(Core):
    """h = A h' + x."""

    def __init__(self, A):
        super().__init__(len(A), len(A))
        self.A = torch.nn.Parameter(A)

    def init_state(self, batch_size):
        return self.zeros(batch_size, self.output_size)

    def step(self, x, h):
        h = h @ self.A.T + x
        return h, h

    def recurrent(self):
        return {"A": self.A}


def made_of(*eigenvalues):
    """A matrix with these eigenvalues, in a basis that is not orthogonal."""
    torch.manual_seed(0)
    basis = torch.randn(len(eigenvalues), len(eigenvalues), dtype=torch.float64)
    return basis @ torch.diag(torch.tensor(eigenvalues, dtype=torch.float64)) @ basis.inverse()


@pytest.mark.parametrize("k", [None, 1])
def test_the_exponents_of_a_linear_recurrence_are_the_logarithms_of_its_eigenvalues(k):
    core = Linear(made_of(0.95, 0.7, 0.5, -0.3, 0.1))
    found = lens.lyapunov(layer_of(core, torch.randn(1, 600, 5, dtype=torch.float64)), k)
    wanted = torch.tensor([0.95, 0.7, 0.5, 0.3, 0.1], dtype=torch.float64).log()[:k]
    torch.testing.assert_close(found, wanted, rtol=0, atol=0.01)


def test_an_orthogonal_matrix_keeps_everything():
    torch.manual_seed(0)
    A = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64))[0]
    layer = layer_of(Linear(A), torch.randn(1, 80, 6, dtype=torch.float64))
    assert lens.lyapunov(layer).abs().max() < 1e-12
    found = lens.isometry(layer)
    assert found.tau == [1, 4, 16]
    assert all((values - 1).abs().max() < 1e-12 for values in found.values)


class Henon(Core):
    """x = 1 - 1.4 x'^2 + y', y = 0.3 x': it reads nothing."""

    def init_state(self, batch_size):
        return torch.full((batch_size, 2), 0.1, dtype=torch.float64)

    def step(self, x, state):
        new = torch.stack([1 - 1.4 * state[:, 0] ** 2 + state[:, 1], 0.3 * state[:, 0]], 1)
        return new, new


@pytest.mark.slow
def test_the_henon_map():
    found = lens.lyapunov(layer_of(Henon(1, 2), torch.zeros(1, 6000, 1, dtype=torch.float64)))
    assert found[0] == pytest.approx(0.419, abs=0.01) and found[1] == pytest.approx(-1.623, abs=0.01)
    assert found.sum() == pytest.approx(math.log(0.3), abs=1e-6)


def test_diagonal_cells_are_exact_and_agree_with_tangent_vectors():
    torch.manual_seed(0)
    core = elman.cell("lru", 3, 4, r_min=0.3, r_max=0.9).double()
    layer = layer_of(core, torch.randn(1, 500, 3, dtype=torch.float64))
    exact = lens.lyapunov(layer)
    assert exact.tolist() == pytest.approx(
        core.eigenvalues().abs().log().sort(descending=True).values.repeat_interleave(2).tolist()
    )
    from elman.lens import spectra

    states = trajectory(layer)[0]
    pushed = spectra._exponents(spectra._push_forward(layer, states, 500, torch.eye(8, dtype=torch.float64)), 500)
    torch.testing.assert_close(pushed, exact, rtol=0, atol=0.02)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("elman", {}), ("gru", {}), ("gru", {"reset_after": False}), ("gru", {"layer_norm": True}), ("lstm", {}),
        ("lstm", {"peephole": True}), ("lstm", {"coupled": True}), ("lstm", {"projection": 3}),
        ("lstm", {"layer_norm": True}), ("mamba", {"state_size": 2}),
    ],
)  # fmt: skip
def test_jacobians_are_those_of_torch(name, options):
    torch.manual_seed(0)
    core = elman.cell(name, 3, 4, **options).double()
    with torch.no_grad():
        for parameter in core.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))  # peepholes and biases that begin at zero count too
    layer = layer_of(core, torch.randn(1, 6, 3, dtype=torch.float64))
    states = trajectory(layer)[0]
    ours = jacobian(layer, layer.x[0], states[:-1])
    with elman.kernels.use("reference"):
        for t in range(6):
            step = lambda s, t=t: flat(core.step(layer.x[:, t], unflat(s[None], core.init_state(1)))[1])[0]  # noqa: E731
            torch.testing.assert_close(ours[t], torch.func.jacrev(step)(states[t]), rtol=1e-9, atol=1e-12)


def test_the_trajectory_is_the_state_after_each_prefix():
    torch.manual_seed(0)
    for name in ("gru", "lstm", "s5"):
        core, x = elman.cell(name, 3, 4).double(), torch.randn(2, 7, 3, dtype=torch.float64)
        found = trajectory(layer_of(core, x))
        for t in (0, 3, 7):
            torch.testing.assert_close(found[:, t], flat(core(x[:, :t])[1]), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["gru", "lstm"])
def test_the_trajectory_of_a_row_that_begins_anew_while_others_go_on(name):
    torch.manual_seed(0)
    core, x = elman.cell(name, 3, 4).double(), torch.randn(2, 7, 3, dtype=torch.float64)
    reset = torch.zeros(2, 7, dtype=torch.bool)
    reset[1, 3] = True
    [layer] = lens.layers_of(core, Sample(x, reset=reset))
    found = trajectory(layer)
    for t in (3, 4, 7):
        torch.testing.assert_close(found[:, t], flat(core(x[:, :t], reset=reset[:, :t])[1]), rtol=1e-12, atol=1e-12)


def test_spectra_time_constants_and_periods():
    [found] = lens.spectrum(layer_of(Linear(torch.tensor([[0.0, -0.5], [0.5, 0.0]])), torch.zeros(1, 3, 2)))
    assert found.name == "A" and found.values.abs().tolist() == pytest.approx([0.5, 0.5])
    assert found.periods.tolist() == pytest.approx([4.0, 4.0])
    assert found.time_constants.tolist() == pytest.approx([1 / math.log(2)] * 2)
    core = elman.cell("s4d", 2, 3)
    [disc] = lens.spectrum(layer_of(core, torch.randn(1, 4, 2)))
    assert disc.values.abs().max() < 1
    assert [part.name for part in lens.spectrum(layer_of(elman.cell("gru", 2, 3), torch.randn(1, 4, 2)))] == [
        "W_r", "W_z", "W_n",
    ]  # fmt: skip


def tanh_network(T=57, size=3):
    """An Elman network whose Jacobians do not commute, its one row, and J[t] of every step."""
    torch.manual_seed(3)
    core, x = elman.cell("elman", 2, size).double(), torch.randn(1, T, 2, dtype=torch.float64)
    with torch.no_grad():
        core.W.add_(0.4 * torch.randn(size, size))
    W, U, b = arrays(core, "WUb")
    h, steps = np.zeros(size), []
    for t in range(T):
        h = np.tanh(W @ h + U @ x[0, t].numpy() + b)
        steps.append((1 - h**2)[:, None] * W)
    return core, x, steps


def test_isometry_multiplies_the_later_step_from_the_left():
    core, x, J = tanh_network()
    found = lens.isometry(layer_of(core, x), places=3, furthest=4)
    assert found.tau == [1, 4]
    for i, end in enumerate([4, 30, 57]):  # of 4 ... 57, three at equal distances
        one, four = J[end - 1], J[end - 1] @ J[end - 2] @ J[end - 3] @ J[end - 4]
        np.testing.assert_allclose(found.values[0][i], np.linalg.svd(one, compute_uv=False), rtol=1e-9)
        np.testing.assert_allclose(found.values[1][i], np.linalg.svd(four, compute_uv=False), rtol=1e-9)
    turned = np.linalg.svd(J[0] @ J[1] @ J[2] @ J[3], compute_uv=False)
    assert abs(found.values[1][0][0].item() / turned[0] - 1) > 0.01  # the other order would be seen


@pytest.mark.parametrize("T", [9, 57, 100])
def test_exponents_are_means_over_all_steps_but_the_first_tenth(T):
    """Whatever the tangent vectors are, all exponents together are the mean of ln |det J|."""
    core, x, J = tanh_network(T)
    found = lens.lyapunov(layer_of(core, x))
    wanted = np.mean([np.linalg.slogdet(step)[1] for step in J[T // 10 :]])
    assert found.sum().item() == pytest.approx(wanted, rel=1e-10)


def test_without_recurrent_matrices_the_spectrum_is_that_of_the_jacobian_in_the_middle(monkeypatch):
    core, x, J = tanh_network()
    monkeypatch.setattr(core, "recurrent", dict)
    [found] = lens.spectrum(layer_of(core, x))
    assert found.name == "J"
    np.testing.assert_allclose(
        np.sort_complex(found.values.numpy()), np.sort_complex(np.linalg.eigvals(J[28])), rtol=1e-9
    )


class Turning(Core):
    """h = x R h', R orthogonal: a step stretches every direction by |x|."""

    def __init__(self, size):
        super().__init__(1, size)
        self.R = torch.nn.Parameter(torch.linalg.qr(torch.randn(size, size, dtype=torch.float64))[0])

    def init_state(self, batch_size):
        return self.zeros(batch_size, self.output_size) + 1

    def step(self, x, h):
        h = x * (h @ self.R.T)
        return h, h


@pytest.mark.parametrize("k", [None, 1])
def test_the_steps_in_which_tangent_vectors_settle_do_not_count(k):
    """All exponents go forwards and leave out the first tenth; few of many go backwards, and leave out the last."""
    torch.manual_seed(0)
    x = torch.rand(2, 70, 1, dtype=torch.float64) + 0.5
    x[:, :7], x[:, -7:] = 30.0, 0.02
    found = lens.lyapunov(layer_of(Turning(6), x), k)
    counts = x[0, 7:] if k is None else x[0, :-7]
    np.testing.assert_allclose(found, np.full(k or 6, counts.log().mean()), rtol=1e-10)


def test_exponents_spectrum_and_time_scales_of_a_diagonal_cell_are_those_of_the_first_row():
    """minGRU: a = 1 - z = s(-(U_z x + b_z))."""
    core, x, lengths = ragged("mingru")
    U, b = arrays(core, "Ub")
    logs = np.log(sigmoid(-(x[0, :12].numpy() @ U[:3].T + b[:3]))).mean(0)
    layer = layer_of(core, x, lengths=torch.tensor(lengths))
    np.testing.assert_allclose(lens.lyapunov(layer), np.sort(logs)[::-1], rtol=1e-12)
    np.testing.assert_allclose(lens.lyapunov(layer, 1), [logs.max()], rtol=1e-12)
    [found] = lens.spectrum(layer)
    np.testing.assert_allclose(found.values.real, np.exp(logs), rtol=1e-12)
    np.testing.assert_allclose(lens.timescale(layer, trajectory(layer)), -1 / logs, rtol=1e-12)


def test_time_scales_of_other_cells_are_those_of_steps_of_the_first_row():
    """Elman: ds_i[t] / ds_i[t-1] = (1 - h_i[t]^2) W_ii, at 16 steps from a quarter of the row to its end."""
    core, x, lengths = ragged("elman")
    W, U, b = arrays(core, "WUb")
    h, own = np.zeros(3), []
    for t in range(12):
        h = np.tanh(W @ h + U @ x[0, t].numpy() + b)
        own.append(np.abs((1 - h**2) * np.diag(W)))
    layer = layer_of(core, x, lengths=torch.tensor(lengths))
    wanted = -1 / np.log([own[t] for t in range(3, 12)]).mean(0)
    np.testing.assert_allclose(lens.timescale(layer, trajectory(layer)), wanted, rtol=1e-9)


def test_time_scales_of_complex_numbers_stand_beside_both_their_parts():
    torch.manual_seed(0)
    core = elman.cell("lru", 2, 3, state_size=4, r_min=0.3, r_max=0.99).double()
    layer = layer_of(core, torch.randn(2, 6, 2, dtype=torch.float64))
    nu, theta = arrays(core, ["nu", "theta"])
    found = lens.timescale(layer, trajectory(layer))
    np.testing.assert_allclose(found, np.repeat(1 / np.exp(nu), 2), rtol=1e-9)  # |lambda| = exp(-exp(nu))
    assert len(found) == trajectory(layer).shape[2] == 8
    np.testing.assert_allclose(lens.lyapunov(layer), np.sort(np.repeat(-np.exp(nu), 2))[::-1], rtol=1e-9)
    [modes] = lens.spectrum(layer)
    np.testing.assert_allclose(modes.values, np.exp(-np.exp(nu) + 1j * np.exp(theta)), rtol=1e-9)
    np.testing.assert_allclose(modes.time_constants, 1 / np.exp(nu), rtol=1e-9)
    angle = np.abs(np.angle(np.exp(1j * np.exp(theta))))
    np.testing.assert_allclose(modes.periods, 2 * math.pi / angle, rtol=1e-9)


def test_time_scales_of_a_bank():
    """S4D: |a| = exp(dt Re A), Re A = -exp(A_log), channel by channel."""
    torch.manual_seed(0)
    core = elman.cell("s4d", 3, 3, state_size=4).double()
    with torch.no_grad():
        core.A_log.add_(torch.randn(3, 2))
    layer = layer_of(core, torch.randn(1, 5, 3, dtype=torch.float64))
    log_dt, A_log = arrays(core, ["log_dt", "A_log"])
    wanted = np.repeat((1 / (np.exp(log_dt)[:, None] * np.exp(A_log))).ravel(), 2)
    np.testing.assert_allclose(lens.timescale(layer, trajectory(layer)), wanted, rtol=1e-6)


def test_a_time_scale_is_infinite_where_a_number_grows():
    core = elman.cell("elman", 1, 1, phi="relu").double()
    with torch.no_grad():
        core.W.fill_(1.5), core.U.fill_(1.0)
    layer = layer_of(core, torch.ones(1, 9, 1, dtype=torch.float64))
    assert lens.timescale(layer, trajectory(layer)).tolist() == [math.inf]
