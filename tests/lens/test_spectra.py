"""Exponents and singular values that are known."""

import math

import pytest
import torch

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


def layer_of(core, x):
    [layer] = lens.layers_of(core, Sample(x))
    return layer


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
