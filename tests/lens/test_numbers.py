"""Each number of the lens against one that is computed anew here, in Numpy and float64, from the equations."""

import math

import numpy as np
import pytest
import torch

import elman
from elman import lens
from elman.core import Core
from elman.lens.flow import Reach
from elman.lens.gates import health
from elman.lens.layers import trajectory
from elman.lens.sample import Sample

JUNK = 50.0  # what stands in the padding


def sigmoid(v):
    return 1 / (1 + np.exp(-v))


def arrays(core, letters):
    return [core.get_parameter(letter).detach().numpy() for letter in letters]


def layer_of(core, sample):
    [layer] = lens.layers_of(core, sample)
    return layer


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


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_what_is_not_finite_in_the_padding_is_no_news(name):
    torch.manual_seed(0)
    core, x = elman.cell(name, 2, 3), torch.randn(2, 9, 2)
    for lengths, wanted in (([5, 9], None), ([9, 9], 5)):
        x[0, 5:] = torch.nan
        [layer] = lens.layers_of(core, lens.Sample(x, lengths=torch.tensor(lengths)))
        assert health(layer, trajectory(layer)).not_finite == wanted


def test_isometry_multiplies_the_later_step_from_the_left():
    core, x, J = tanh_network()
    found = lens.isometry(layer_of(core, Sample(x)), places=3, furthest=4)
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
    found = lens.lyapunov(layer_of(core, Sample(x)))
    wanted = np.mean([np.linalg.slogdet(step)[1] for step in J[T // 10 :]])
    assert found.sum().item() == pytest.approx(wanted, rel=1e-10)


def test_without_recurrent_matrices_the_spectrum_is_that_of_the_jacobian_in_the_middle(monkeypatch):
    core, x, J = tanh_network()
    monkeypatch.setattr(core, "recurrent", dict)
    [found] = lens.spectrum(layer_of(core, Sample(x)))
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
    found = lens.lyapunov(layer_of(Turning(6), Sample(x)), k)
    counts = x[0, 7:] if k is None else x[0, :-7]
    np.testing.assert_allclose(found, np.full(k or 6, counts.log().mean()), rtol=1e-10)


def ragged(name, size=3, **options):
    """A cell, three rows of which the first is short, with junk in the padding."""
    torch.manual_seed(0)
    core, x = elman.cell(name, 2, size, **options).double(), torch.randn(3, 20, 2, dtype=torch.float64)
    x[1] *= 4
    x[0, 12:], x[2, 17:] = JUNK, JUNK
    return core, x, [12, 20, 17]


def test_exponents_spectrum_and_time_scales_of_a_diagonal_cell_are_those_of_the_first_row():
    """minGRU: a = 1 - z = s(-(U_z x + b_z))."""
    core, x, lengths = ragged("mingru")
    U, b = arrays(core, "Ub")
    logs = np.log(sigmoid(-(x[0, :12].numpy() @ U[:3].T + b[:3]))).mean(0)
    layer = layer_of(core, Sample(x, lengths=torch.tensor(lengths)))
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
    layer = layer_of(core, Sample(x, lengths=torch.tensor(lengths)))
    wanted = -1 / np.log([own[t] for t in range(3, 12)]).mean(0)
    np.testing.assert_allclose(lens.timescale(layer, trajectory(layer)), wanted, rtol=1e-9)


def test_time_scales_of_complex_numbers_stand_beside_both_their_parts():
    torch.manual_seed(0)
    core = elman.cell("lru", 2, 3, state_size=4, r_min=0.3, r_max=0.99).double()
    layer = layer_of(core, Sample(torch.randn(2, 6, 2, dtype=torch.float64)))
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
    layer = layer_of(core, Sample(torch.randn(1, 5, 3, dtype=torch.float64)))
    log_dt, A_log = arrays(core, ["log_dt", "A_log"])
    wanted = np.repeat((1 / (np.exp(log_dt)[:, None] * np.exp(A_log))).ravel(), 2)
    np.testing.assert_allclose(lens.timescale(layer, trajectory(layer)), wanted, rtol=1e-6)


def test_a_time_scale_is_infinite_where_a_number_grows():
    core = elman.cell("elman", 1, 1, phi="relu").double()
    with torch.no_grad():
        core.W.fill_(1.5), core.U.fill_(1.0)
    layer = layer_of(core, Sample(torch.ones(1, 9, 1, dtype=torch.float64)))
    assert lens.timescale(layer, trajectory(layer)).tolist() == [math.inf]


def lstm_gates(core, x):
    """i, f, o (T, H) of one row x (T, D)."""
    W, U, b = arrays(core, "WUb")
    H = W.shape[1]
    h, c, found = np.zeros(H), np.zeros(H), []
    for step in x:
        i, f, g, o = np.split(W @ h + U @ step + b, 4)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        found.append([sigmoid(i), sigmoid(f), sigmoid(o)])
    return np.array(found).swapaxes(0, 1)


def test_gates_are_means_over_the_steps_that_are_not_padding():
    core, x, lengths = ragged("lstm")
    with torch.no_grad():
        core.U.mul_(3)  # so that some are below 0.1 and some above 0.9
    layer = layer_of(core, Sample(x, lengths=torch.tensor(lengths)))
    rows = [lstm_gates(core, x[row, :n].numpy()) for row, n in enumerate(lengths)]
    found = lens.gates(layer, trajectory(layer))
    assert [(gate.name, gate.keeps) for gate in found] == [("i", False), ("f", True), ("o", False)]
    for gate, wanted in zip(found, np.concatenate(rows, 1), strict=True):
        np.testing.assert_allclose(gate.mean, wanted.mean(0), rtol=1e-9)
        np.testing.assert_allclose(gate.low, (wanted < 0.1).mean(0), rtol=1e-6)
        np.testing.assert_allclose(gate.high, (wanted > 0.9).mean(0), rtol=1e-6)
        assert 0 < gate.low.sum() < 3 and 0 < gate.high.sum() < 3
        assert gate.saturation == pytest.approx(((wanted < 0.1) | (wanted > 0.9)).mean(), rel=1e-6)


def test_the_decay_of_a_diagonal_cell_is_its_gate_without_padding():
    core, x, lengths = ragged("mingru")
    U, b = arrays(core, "Ub")
    inside = np.concatenate([x[row, :n].numpy() for row, n in enumerate(lengths)])
    layer = layer_of(core, Sample(x, lengths=torch.tensor(lengths)))
    [gate] = lens.gates(layer, trajectory(layer))
    assert gate.name == "a" and gate.keeps
    np.testing.assert_allclose(gate.mean, sigmoid(-(inside @ U[:3].T + b[:3])).mean(0), rtol=1e-9)


def linear_row(core, x, n, target):
    """|dL/ds| before each of the n steps of a row of h = tanh(W h' + U x + b), L = sum |h - target|^2 / 2."""
    W, U, b = arrays(core, "WUb")
    h, hs = np.zeros(len(b)), []
    for t in range(n):
        h = np.tanh(W @ h + U @ x[t] + b)
        hs.append(h)
    g, norms = np.zeros(len(b)), []
    for t in range(n - 1, -1, -1):
        g = W.T @ ((1 - hs[t] ** 2) * (g + hs[t] - target[t]))
        norms.append(np.linalg.norm(g))
    return norms[::-1]


def flows(core, x, lengths, target):
    """Row by row, NaN past the lengths."""
    found = np.full(x.shape[:2], np.nan)
    for row, n in enumerate(lengths):
        found[row, :n] = linear_row(core, x[row].numpy(), n, target[row].numpy())
    return found


def test_flow_is_the_mean_over_the_rows_that_are_so_long():
    core, x, lengths = ragged("elman")
    target = torch.randn(3, 20, 3, dtype=torch.float64)
    [found] = lens.flow(core, Sample(x, target, lengths=torch.tensor(lengths)))
    np.testing.assert_allclose(found.norm, np.nanmean(flows(core, x, lengths, target), 0), rtol=1e-9)
    assert found.steps == list(range(20)) and found.units.shape == (20, 3)
    np.testing.assert_allclose(found.units[:12].norm(dim=1), flows(core, x, lengths, target)[0, :12], rtol=1e-9)
    assert not found.units[12:].any()


def test_flow_from_right_to_left_stands_where_the_inputs_stand():
    """Before its own step k, which reads the input at lengths - 1 - k, the state comes from the right."""
    torch.manual_seed(0)
    core = elman.Bidirectional(elman.cell("elman", 2, 3), elman.cell("elman", 2, 3)).double()
    x, lengths = torch.randn(3, 9, 2, dtype=torch.float64), [9, 4, 7]
    target = torch.randn(3, 9, 6, dtype=torch.float64)
    left, right = lens.flow(core, Sample(x, target, lengths=torch.tensor(lengths)))
    assert (left.name, right.name) == ("0 elman", "1 elman (right to left)")
    forward, backward = core.cores[0], core.cores[1].core
    np.testing.assert_allclose(left.norm, np.nanmean(flows(forward, x, lengths, target[..., :3]), 0), rtol=1e-9)
    turned = [torch.zeros_like(part) for part in (x, target[..., 3:])]
    for row, n in enumerate(lengths):
        for part, whole in zip(turned, (x, target[..., 3:]), strict=True):
            part[row, :n] = whole[row, :n].flip(0)
    own = flows(backward, turned[0], lengths, turned[1])
    for row, n in enumerate(lengths):
        own[row, :n] = own[row, :n][::-1].copy()
    np.testing.assert_allclose(right.norm, np.nanmean(own, 0), rtol=1e-9)


def test_reach_of_ragged_rows_begins_at_the_end_of_each():
    core, x, lengths = ragged("elman")
    target = torch.randn(3, 20, 3, dtype=torch.float64)
    [found] = lens.reach(core, Sample(x, target, lengths=torch.tensor(lengths)), anchors=3)
    W, U, b = arrays(core, "WUb")
    by_row = np.full((3, 20), np.nan)
    for row, n in enumerate(lengths):
        h, hs = np.zeros(3), []
        for t in range(n):
            h = np.tanh(W @ h + U @ x[row, t].numpy() + b)
            hs.append(h)
        g = hs[-1] - target[row, n - 1].numpy()
        for tau in range(1, n + 1):
            g = W.T @ ((1 - hs[n - tau] ** 2) * g)
            by_row[row, tau - 1] = np.linalg.norm(g)
    wanted = np.nanmean(by_row, 0)
    assert found.tau == list(range(1, 18))  # as long as half of the rows go back so far
    np.testing.assert_allclose(found.raw, wanted[:17], rtol=1e-9)


class Decay(Core):
    """h = a h' + x."""

    def __init__(self, a):
        super().__init__(1, 1)
        self.a = a

    def init_state(self, batch_size):
        return torch.zeros(batch_size, 1, dtype=torch.float64)

    def step(self, x, h):
        h = self.a * h + x
        return h, h


def test_horizon_half_life_and_slope_of_a_known_decay():
    """dL[a] / ds[a - tau] = 0.9^tau: a hundredth of the first is reached between tau - 1 = 43 and 44."""
    [found] = lens.reach(Decay(0.9), Sample(torch.zeros(1, 60, 1, dtype=torch.float64)), anchors=1)
    np.testing.assert_allclose(found.raw, [0.9**tau for tau in found.tau], rtol=1e-12)
    assert math.floor(math.log(0.01) / math.log(0.9)) == 43 and found.horizon == 44
    high, low = 0.9**6, 0.9**7  # at tau = 7 and 8
    assert found.half_life == pytest.approx(7 + (high - 0.5) / (high - low), rel=1e-12)
    assert found.slope == pytest.approx(math.log(0.9), rel=1e-9)


def test_a_hundredth_is_within_the_horizon():
    raw = [8.0, 4.0, 0.08, 0.0799, 0.05]
    found = Reach("0 x", [1, 2, 3, 5, 9], raw)
    assert found.horizon == 3 and found.half_life == 2.0 and found.furthest == 9
    tau, logs = np.array([1, 2, 3]), np.log([8.0, 4.0, 0.08])
    assert found.slope == pytest.approx(np.polyfit(tau, logs, 1)[0], rel=1e-12)
    assert Reach("0 x", [1, 2, 3], [0.0, 2.0, 1.5]).relative == [0.0, 1.0, 0.75]


def states_of(spreads, T=400):
    """A layer, and states whose numbers alternate so that their standard deviations are these, around one half."""
    layer = layer_of(elman.cell("elman", 2, len(spreads)), Sample(torch.zeros(1, T, 2)))
    signs = torch.ones(T + 1, dtype=torch.float64)
    signs[1::2] = -1
    return layer, 0.5 + signs[None, :, None] * torch.tensor(spreads, dtype=torch.float64)


def test_dead_is_a_hundred_thousandth_of_the_median_spread():
    layer, states = states_of([0.02, 0.9e-5 * 0.02, 1.1e-5 * 0.02, 0.02, 0.4])
    assert health(layer, states).dead == [1]
    # Were it the mean, or the largest, the third would be dead too.
    layer, states = states_of([0.0, 0.0, 0.0, 0.3, 2e-6])
    assert health(layer, states).dead == [0, 1, 2, 4]  # where more than half do not move, the largest decides


def test_padding_does_not_bring_a_unit_to_life():
    core, x, lengths = ragged("elman")
    layer = layer_of(core, Sample(x, lengths=torch.tensor(lengths)))
    states = trajectory(layer).clone()
    states[..., 1] = 0.25
    for row, n in enumerate(lengths):
        states[row, n + 1 :] = JUNK
    found = health(layer, states)
    assert found.dead == [1] and found.largest <= 1


def test_saturated_is_beyond_099_at_more_than_95_in_100_steps():
    layer, states = states_of([0.1] * 4, T=100)
    states[0, 1:97, 1], states[0, 1:96, 2], states[0, 1:, 3] = -0.991, 0.991, 0.989  # 96 steps, 95 steps, not beyond
    assert health(layer, states).saturated == [1]
    states[0, 5, 0] = 1.01  # then it is not a tanh, and nothing is known of its range
    assert health(layer, states).saturated == []


def test_the_first_step_that_is_not_finite():
    layer, states = states_of([0.1] * 2, T=20)
    states[0, 8, 1], states[0, 13, 0] = math.nan, math.inf
    assert health(layer, states).not_finite == 7  # the state before step 7 is the last that is
