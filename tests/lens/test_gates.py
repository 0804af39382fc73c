"""Gates, and the health of units: dead, saturated, not finite."""

import math

import numpy as np
import pytest
import torch
from ragged_rows import JUNK, arrays, layer_of, ragged, sigmoid

import elman
from elman import lens
from elman.lens.gates import health
from elman.lens.layers import trajectory


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
    layer = layer_of(core, x, lengths=torch.tensor(lengths))
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
    layer = layer_of(core, x, lengths=torch.tensor(lengths))
    [gate] = lens.gates(layer, trajectory(layer))
    assert gate.name == "a" and gate.keeps
    np.testing.assert_allclose(gate.mean, sigmoid(-(inside @ U[:3].T + b[:3])).mean(0), rtol=1e-9)


def states_of(spreads, T=400):
    """A layer, and states whose numbers alternate so that their standard deviations are these, around one half."""
    layer = layer_of(elman.cell("elman", 2, len(spreads)), torch.zeros(1, T, 2))
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
    layer = layer_of(core, x, lengths=torch.tensor(lengths))
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


def test_gates_and_health():
    torch.manual_seed(0)
    core = elman.cell("lstm", 2, 3, forget_bias=10.0)
    report = lens.inspect(core, torch.randn(2, 30, 2))
    gates = {gate.name: gate for gate in report.gates}
    assert set(gates) == {"i", "f", "o"} and gates["f"].high.min() == 1.0 and gates["f"].keeps
    assert report.timescale["0 lstm"].min() > 50  # -1 / ln s(10)
    with torch.no_grad():
        core.U[:], core.W[:], core.b[:] = 0.0, 0.0, 0.0
    assert lens.inspect(core, torch.randn(2, 30, 2)).health[0].dead == [0, 1, 2, 3, 4, 5]
