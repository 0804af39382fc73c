"""What a report says of rows of several lengths, of long ones, and of decoders: computed anew in Numpy."""

import numpy as np
import pytest
import torch

import elman
from elman import lens
from elman.compose.attention import Additive
from elman.lens.layers import trajectory
from elman.lens.sample import Sample
from elman.lens.units import properties, units

LENGTHS = [5, 9, 7]


def arrays(core):
    return [core.get_parameter(letter).detach().numpy() for letter in "WUb"]


def elman_states(core, x):
    """h after each input of one row x (T, D), from zero."""
    W, U, b = arrays(core)
    h, found = np.zeros(len(b)), []
    for step in x:
        h = np.tanh(W @ h + U @ step + b)
        found.append(h)
    return np.array(found)


def last_gradients(core, x, target):
    """|dL/ds| tau = 1, 2, ... steps before the end of a row, L = |h - target|^2 / 2 at its last step."""
    W = arrays(core)[0]
    hs = elman_states(core, x)
    g, found = hs[-1] - target[-1], []
    for h in hs[::-1]:
        g = W.T @ ((1 - h**2) * g)
        found.append(np.linalg.norm(g))
    return found


@pytest.fixture
def rows():
    """An Elman cell, ragged rows with junk behind them, and targets."""
    torch.manual_seed(1)
    core, x = elman.cell("elman", 2, 3).double(), torch.randn(3, 9, 2, dtype=torch.float64)
    for row, n in enumerate(LENGTHS):
        x[row, n:] = 50.0
    return core, x, torch.randn(3, 9, 3, dtype=torch.float64), torch.tensor(LENGTHS)


def auc(values, there):
    """P(v > v'), ties one half, by comparing all pairs."""
    high, low = values[there][:, None], values[~there][None]
    return (high > low).mean() + 0.5 * (high == low).mean()


def test_the_loss_is_the_mean_over_the_steps_that_count(rows):
    core, x, target, lengths = rows
    terms = [
        0.5 * ((elman_states(core, x[row, :n].numpy()) - target[row, :n].numpy()) ** 2).sum(1)
        for row, n in enumerate(LENGTHS)
    ]
    report = lens.inspect(core, x, target, lengths=lengths)
    assert report.loss == pytest.approx(np.concatenate(terms).mean(), rel=1e-6)


def test_context_is_of_the_last_inputs_that_count(rows):
    core, x, target, lengths = rows

    def loss(n):
        ends = [
            0.5 * ((elman_states(core, x[row, max(0, L - n) : L].numpy())[-1] - target[row, L - 1].numpy()) ** 2).sum()
            for row, L in enumerate(LENGTHS)
        ]
        return np.mean(ends)

    found = lens.context(core, Sample(x, target, lengths=lengths))
    assert found.n == [1, 2, 4, 8, 9] and found.loss == pytest.approx(loss(9), rel=1e-9)
    np.testing.assert_allclose(found.excess, [loss(n) - loss(9) for n in found.n], rtol=1e-9, atol=1e-12)


def test_units_of_a_layer_from_right_to_left_stand_where_their_inputs_stand(rows):
    _, x, _, lengths = rows
    torch.manual_seed(2)
    core = elman.Bidirectional(elman.cell("elman", 2, 3), elman.cell("elman", 2, 3)).double()
    flag = (torch.rand(3, 9) > 0.5).double()
    target = torch.randn(3, 9, 6, dtype=torch.float64)
    report = lens.inspect(core, x, target, lengths=lengths, labels={"flag": flag})
    backward = core.cores[1].core
    states = [elman_states(backward, x[row, :n].flip(0).numpy())[::-1] for row, n in enumerate(LENGTHS)]
    [shown] = [one for one in report.traces if "right to left" in one.layer]
    np.testing.assert_allclose(shown.values[:5], states[0][:, shown.units], rtol=1e-6)
    [follower] = [one for one in report.units if "right to left" in one.layer and one.label == "flag"]
    values, there = np.concatenate(states), np.concatenate([flag[row, :n] for row, n in enumerate(LENGTHS)]) > 0.5
    for unit, found in zip(follower.units, follower.auc, strict=True):
        assert found == pytest.approx(auc(values[:, unit], there), rel=1e-9)


def test_a_number_holds_above_its_median():
    """Most are zero, which is the median: it holds at two steps, not at all of them."""
    torch.manual_seed(0)
    values, where = torch.randn(1, 7, 4, dtype=torch.float64), torch.tensor([[0.0, 0, 1, 0, 0, 2, 0]])
    [found] = units("0 x", values, {"count": where}, torch.ones(1, 7, dtype=torch.bool))
    for unit, value in zip(found.units, found.auc, strict=True):
        assert value == pytest.approx(auc(values[0, :, unit].numpy(), (where[0] > 0).numpy()))


def test_flow_of_long_rows_from_right_to_left():
    """Of 301 steps every second is looked at: before its own steps 0, 2, 4 ..., the last of them first."""
    torch.manual_seed(0)
    core = elman.Reverse(elman.cell("elman", 2, 3)).double()
    x, target = torch.randn(2, 301, 2, dtype=torch.float64), torch.randn(2, 301, 3, dtype=torch.float64)
    lengths = [301, 299]
    [found] = lens.flow(core, Sample(x, target, lengths=torch.tensor(lengths)))
    assert found.steps == list(range(0, 301, 2))
    wanted = np.full((2, 151), np.nan)
    W = arrays(core.core)[0]
    for row, n in enumerate(lengths):
        hs = elman_states(core.core, x[row, :n].flip(0).numpy())
        goals, g, norms = target[row, :n].flip(0).numpy(), np.zeros(3), np.zeros(n)
        for t in range(n - 1, -1, -1):
            g = W.T @ ((1 - hs[t] ** 2) * (g + hs[t] - goals[t]))
            norms[t] = np.linalg.norm(g)
        own = norms[::2][::-1]
        wanted[row, : len(own)] = own
    np.testing.assert_allclose(found.norm, np.nanmean(wanted, 0), rtol=1e-9)


def test_anchors_of_few_rows_are_all_pieces_of_all_rows(rows):
    core, _, _, _ = rows
    torch.manual_seed(3)
    x, target = torch.randn(2, 20, 2, dtype=torch.float64), torch.randn(2, 20, 3, dtype=torch.float64)
    [found] = lens.reach(core, Sample(x, target), anchors=8)
    pieces = [(row, start) for row in range(2) for start in (0, 3, 7, 10)]
    by_piece = [
        last_gradients(core, x[row, start : start + 10].numpy(), target[row, start : start + 10].numpy())
        for row, start in pieces
    ]
    assert found.tau == list(range(1, 11))
    np.testing.assert_allclose(found.raw, np.mean(by_piece, 0), rtol=1e-9)


def test_isometry_is_reported_by_quantiles_of_the_singular_values(rows):
    core, x, target, lengths = rows
    report = lens.inspect(core, x, target, lengths=lengths)
    [layer] = lens.layers_of(core, Sample(x, target, lengths=lengths))
    values = lens.isometry(layer).values
    for found, part in zip(report.to_json()["isometry"][0]["quantiles"], values, strict=True):
        shares = np.linspace(1, 0, len(found))
        np.testing.assert_allclose(found, np.mean([np.quantile(step, shares) for step in part.numpy()], 0), rtol=1e-4)
        assert found[0] > found[-1]


def test_gates_of_a_decoder_are_those_of_the_steps_that_it_takes(monkeypatch):
    """What its core is given at each step, and the state before that, are noted while the decoder steps."""
    torch.manual_seed(0)
    decoder = Additive(elman.cell("lstm", 3 + 5, 4), 5).double()
    bound = decoder.given(torch.randn(2, 7, 5, dtype=torch.float64))
    x, seen, step = torch.randn(2, 6, 3, dtype=torch.float64), [], decoder.core.step
    monkeypatch.setattr(decoder.core, "step", lambda *given: seen.append(given) or step(*given))
    state = bound.init_state(2)
    with torch.no_grad():
        for t in range(6):
            _, state = bound.step(x[:, t], state)
    monkeypatch.undo()
    W, U, b = arrays(decoder.core)
    assert len(seen) == 6
    sums = np.array([before.h.numpy() @ W.T + given.numpy() @ U.T + b for given, before in seen])
    i, f, _, o = np.split(1 / (1 + np.exp(-sums)), 4, -1)
    [layer] = lens.layers_of(bound, Sample(x))
    found = {gate.name: gate.mean for gate in lens.gates(layer, trajectory(layer))}
    assert found.keys() == {"i", "f", "o"}
    for name, values in zip("ifo", (i, f, o), strict=True):
        np.testing.assert_allclose(found[name], values.mean((0, 1)), rtol=1e-6)


class Twice(elman.Core):
    """A combinator of somebody's own: a core, and another that reads what that one puts out, backwards if it is a
    Reverse. It says what is inside by `parts`."""

    def __init__(self, first, second):
        super().__init__(first.input_size, second.output_size)
        self.first, self.second = first, second
        self.causal = first.causal and second.causal

    def init_state(self, batch_size):
        return self.first.init_state(batch_size), self.second.init_state(batch_size)

    def step(self, x, state):
        y, first = self.first.step(x, state[0])
        y, second = self.second.step(y, state[1])
        return y, (first, second)

    def _scan(self, x, state, lengths, reset):
        y, first = self.first.scan_unchecked(x, state[0], lengths, reset)
        y, second = self.second.scan_unchecked(y, state[1], lengths, reset)
        return y, (first, second)

    def parts(self, state):
        return [(self.first, state[0]), (self.second, state[1])]


def test_the_lens_looks_into_a_combinator_of_one_s_own(rows):
    _, x, target, lengths = rows
    torch.manual_seed(5)
    one, two = elman.cell("elman", 2, 4).double(), elman.cell("gru", 4, 3).double()
    own, ours = Twice(one, two), elman.Stack(one, two)
    for found, wanted in zip(*(lens.flow(core, Sample(x, target, lengths)) for core in (own, ours)), strict=True):
        assert found.name == wanted.name
        torch.testing.assert_close(found.norm, wanted.norm)
    names = [layer.name for layer in lens.layers_of(Twice(one, elman.Reverse(two)), Sample(x, target, lengths))]
    assert names == ["0 elman", "1 gru (right to left)"]
    own.parts = lambda state: None  # then it is one recurrence
    [whole] = lens.layers_of(own, Sample(x, target, lengths))
    assert whole.cell is own


def episodes(core, x, begins):
    """h after each input of one row that begins anew where `begins` says so."""
    W, U, b = arrays(core)
    h, found = np.zeros(len(b)), []
    for step, anew in zip(x, begins, strict=True):
        h = np.tanh(W @ (np.zeros(len(b)) if anew else h) + U @ step + b)
        found.append(h)
    return np.array(found)


def test_states_begin_anew_in_the_rows_that_do(rows):
    core, x, _, _ = rows
    reset = torch.zeros(3, 9, dtype=torch.bool)
    reset[0, 4] = reset[2, 7] = True
    [layer] = lens.layers_of(core, Sample(x, reset=reset))
    for row in range(3):
        wanted = episodes(core, x[row].numpy(), reset[row])
        np.testing.assert_allclose(trajectory(layer)[row, 1:], wanted, rtol=1e-9)


def test_influence_forgets_what_came_before_a_reset(rows):
    """A sequence that begins before the last inputs, which alone are looked at."""
    core, _, _, _ = rows
    torch.manual_seed(4)
    x, reset = torch.randn(1, 12, 2, dtype=torch.float64), torch.zeros(1, 12, dtype=torch.bool)
    reset[0, 5] = True
    found = lens.influence(core, Sample(x, reset=reset), window=5)
    alone = lens.influence(core, Sample(x[:, 5:]), window=5)
    torch.testing.assert_close(found.values, alone.values)
    assert not torch.allclose(found.values, lens.influence(core, Sample(x), window=5).values, rtol=1e-6)


def test_exponents_of_a_row_that_begins_with_a_reset_are_those_from_its_second_input_on(rows):
    core, _, _, _ = rows
    torch.manual_seed(6)
    x, target = torch.randn(1, 40, 2, dtype=torch.float64), torch.randn(1, 40, 3, dtype=torch.float64)
    reset = torch.zeros(1, 40, dtype=torch.bool)
    reset[0, 0] = True
    found = lens.inspect(core, Sample(x, target, reset=reset)).lyapunov["0 elman"]
    with torch.no_grad():
        _, state = core.scan(x[:, :1])
    [layer] = lens.layers_of(core, Sample(x[:, 1:], target[:, 1:], state=state))
    np.testing.assert_allclose(found, lens.lyapunov(layer, len(found)), rtol=1e-9)
    W = arrays(core)[0]
    steps = [(1 - h**2)[:, None] * W for h in elman_states(core, x[0].numpy())[1:]]
    assert sum(found) == pytest.approx(np.mean([np.linalg.slogdet(J)[1] for J in steps[39 // 10 :]]), rel=1e-9)


def test_a_part_that_its_owner_put_into_evaluation_stays_there(rows):
    _, x, target, lengths = rows
    core = elman.Stack(elman.cell("elman", 2, 4), elman.cell("elman", 4, 3)).double().train()
    core.cores[0].eval()
    core.cores[1].W.requires_grad_(False)
    lens.inspect(core, x, target, lengths=lengths)
    assert core.training and not core.cores[0].training and core.cores[1].training
    assert core.cores[0].W.requires_grad and not core.cores[1].W.requires_grad


class Fading(elman.Core):
    """h = a h' + x."""

    def __init__(self, a):
        super().__init__(1, 1)
        self.a = torch.nn.Parameter(torch.tensor(a, dtype=torch.float64))

    def init_state(self, batch_size):
        return torch.zeros(batch_size, 1, dtype=torch.float64)

    def step(self, x, h):
        h = self.a * h + x
        return h, h


def test_a_layer_that_forgets_fast_does_not_end_the_reach_of_one_that_does_not():
    core = elman.Parallel(Fading(1e-4), Fading(0.99))
    fast, slow = lens.reach(core, Sample(torch.zeros(1, 60, 1, dtype=torch.float64)), anchors=1)
    assert slow.tau[-1] == 60 and slow.horizon == 60
    np.testing.assert_allclose(slow.relative, [0.99 ** (tau - 1) for tau in slow.tau], rtol=1e-9)
    assert fast.horizon == 1


def test_a_bracket_that_closes_nothing_is_no_bracket():
    found = properties([list("a) (b) c")], 8)["in brackets"]
    assert found[0].tolist() == [0.0, 0, 0, 1, 1, 0, 0, 0]
