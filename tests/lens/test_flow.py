"""Flow and reach against brute force: one autograd graph of plain steps, one backward pass for each loss."""

import math

import numpy as np
import pytest
import torch
from ragged_rows import arrays, ragged

import elman
from elman import lens
from elman import state as states
from elman.cells import CELLS
from elman.compose.attention import Additive, Fixed, Luong
from elman.core import Core
from elman.lens.flow import Reach
from elman.lens.layers import flat, jacobian, trajectory, unflat
from elman.lens.sample import Sample
from elman.nn.embed import Embedding
from elman.nn.readout import Pooled, Softmax


def by_steps(core, x, of, first=None, part=lambda state: state):
    """|dL/ds| before each step (B, T), L = of(outputs (B, T, H)): what is carried is a node of its own."""
    first = core.init_state(len(x)) if first is None else first
    state, nodes, ys = states.map(lambda v: v.detach().clone().requires_grad_(), first), [], []
    for t in range(x.shape[1]):
        # A leaf may be the input itself, which needs no gradient.
        state = states.map(lambda v: v.clone() if v.requires_grad else v.clone().requires_grad_(), state)
        nodes.append(state)
        y, state = core.step(x[:, t], state)
        ys.append(y)
    leaves = [leaf for node in nodes for leaf in states.leaves(node)]
    found = iter(torch.autograd.grad(of(torch.stack(ys, 1)), leaves, allow_unused=True, materialize_grads=True))
    return torch.stack([flat(part(states.map(lambda _: next(found), node))).norm(dim=1) for node in nodes], 1)


DECODERS = {
    "0 additive": lambda: Additive(elman.cell("gru", 3 + 5, 4), 5),
    "0 luong": lambda: Luong(elman.cell("lstm", 3 + 4, 4), 5, feeding=True),
    "0 gru": lambda: Luong(elman.cell("gru", 3, 4), 5),
    "0 lru": lambda: Luong(elman.cell("lru", 3, 4), 5),
    "0 elman": lambda: Fixed(elman.cell("elman", 3 + 5, 4), 5),
}


@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_is_looked_at_with_its_memory_and_the_state_that_it_begins_with(name):
    torch.manual_seed(1)
    decoder, x = DECODERS[name]().double(), torch.randn(3, 6, 3, dtype=torch.float64)
    with torch.no_grad():
        core = decoder.given(torch.randn(3, 7, 5, dtype=torch.float64), torch.tensor([7, 1, 4]))
    target = torch.randn(3, 6, 4, dtype=torch.float64)
    first = states.map(torch.randn_like, core.init_state(3))
    sample = Sample(x, target, core=core, state=first).take(torch.tensor([2, 0]))
    [found] = lens.flow(core, sample)
    own = core.take([2, 0])
    leaf = (lambda state: state.core) if name == "0 lru" else lambda state: state  # what Remember holds is not carried
    wanted = by_steps(
        own, x[[2, 0]], lambda y: 0.5 * (y - target[[2, 0]]).square().sum(), states.take(first, [2, 0]), leaf
    )
    torch.testing.assert_close(found.norm, wanted.mean(0), rtol=1e-9, atol=1e-12)
    report = lens.inspect(core, sample)
    assert [part.name for part in report.reach] == [name] == [part.layer for part in report.health]
    assert {gate.layer for gate in report.gates} == ({name} if name not in ("0 lru", "0 elman") else set())
    [layer] = lens.layers_of(core, sample)
    before = trajectory(layer)[0, 3:4]
    found = jacobian(layer, layer.x[0, 3:4], before)[0]
    with elman.kernels.use("reference"):
        step = lambda s: flat(layer.first(1).step(layer.x[:1, 3], unflat(s, layer.cell.init_state(1)))[1])  # noqa: E731
        wanted = torch.autograd.functional.jacobian(step, before)[0, :, 0]
    torch.testing.assert_close(found, wanted, rtol=1e-8, atol=1e-10)


def case(name, T=12):
    torch.manual_seed(1)
    D = 4 if name == "hmm" else 3
    core = elman.cell(name, D, 4).double()
    return core, torch.randn(3, T, D, dtype=torch.float64), torch.randn(3, T, 4, dtype=torch.float64)


@pytest.mark.parametrize("name", CELLS)
def test_flow_is_what_autograd_finds_step_by_step(name):
    core, x, target = case(name)
    [found] = lens.flow(core, Sample(x, target))
    wanted = by_steps(core, x, lambda y: 0.5 * (y - target).square().sum())
    assert wanted.max() > 1e-6
    torch.testing.assert_close(found.norm, wanted.mean(0), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", CELLS)
def test_reach_is_what_autograd_finds_anchor_by_anchor(name):
    core, x, target = case(name)
    [found] = lens.reach(core, Sample(x, target), anchors=3)
    wanted = by_steps(core, x, lambda y: 0.5 * (y - target)[:, -1].square().sum()).mean(0).flip(0)
    n = len(found.raw)
    assert found.tau == list(range(1, n + 1)) and (n == 12 or wanted[n:].max() == 0)  # a window forgets
    torch.testing.assert_close(torch.tensor(found.raw, dtype=torch.float64), wanted[:n], rtol=1e-9, atol=1e-12)


def test_layers_of_a_stack_are_told_apart_with_targets_lengths_and_resets():
    torch.manual_seed(0)
    core = elman.stack("lstm", 3, 4, layers=2, residual=False).double()
    x, y = torch.randn(2, 9, 3, dtype=torch.float64), torch.randn(2, 9, 4, dtype=torch.float64)
    reset = torch.zeros(2, 9, dtype=torch.bool)
    reset[0, 4] = True
    found = lens.flow(core, Sample(x, y, lengths=torch.tensor([9, 9]), reset=reset))
    assert [part.name for part in found] == ["0 lstm", "1 lstm"]
    for number, part in enumerate(found):
        for t in (1, 4, 7):
            with torch.no_grad():
                _, state = core(x[:, :t], reset=reset[:, :t])
            leaves = [leaf.requires_grad_() for leaf in states.leaves(state)]
            out, _ = core(x[:, t:], state, reset=reset[:, t:])
            gradients = torch.autograd.grad(0.5 * (out - y[:, t:]).square().sum(), leaves)[2 * number : 2 * number + 2]
            wanted = torch.cat(gradients, 1).norm(dim=1).mean()
            torch.testing.assert_close(part.norm[t], wanted, rtol=1e-9, atol=1e-12)


def test_long_rows_are_looked_at_where_it_counts():
    torch.manual_seed(0)
    core, x = elman.cell("lru", 2, 3, r_min=0.98).double(), torch.randn(2, 400, 2, dtype=torch.float64)
    [found] = lens.reach(core, Sample(x), anchors=2)
    assert found.tau[:64] == list(range(1, 65)) and found.tau[-1] == 400 and len(found.tau) < 120
    wanted = by_steps(core, x, lambda y: y[:, -1].sum() / 3**0.5).mean(0).flip(0)
    torch.testing.assert_close(
        torch.tensor(found.raw, dtype=torch.float64), wanted[torch.tensor(found.tau) - 1], rtol=1e-8, atol=1e-12
    )


class Delay(Core):
    """y[t] = x[t - 5]."""

    def init_state(self, batch_size):
        return torch.zeros(batch_size, 5)

    def step(self, x, state):
        return state[:, :1], torch.cat([state[:, 1:], x], 1)


class Copy(Core):
    """It keeps its first input for good."""

    def init_state(self, batch_size):
        return torch.zeros(batch_size, 1), torch.zeros(batch_size, 1)

    def step(self, x, state):
        held, filled = state
        held = torch.where(filled > 0, held, x)
        return held, (held, torch.ones_like(filled))


def test_the_reach_of_a_delay_line_is_a_step():
    [found] = lens.reach(Delay(1, 1), Sample(torch.randn(4, 30, 1)), anchors=4)
    assert found.raw == [1.0] * 5 + [0.0] and found.furthest == 30  # there is no more to see
    assert found.horizon == 5 and found.half_life == pytest.approx(5.5)


def test_a_copy_cell_reaches_as_far_as_there_is_anything():
    [found] = lens.reach(Copy(1, 1), Sample(torch.randn(4, 30, 1)), anchors=4)
    assert found.raw == [1.0] * 29 + [0.0]  # before the first input there is nothing that it keeps
    assert found.horizon == 29 and found.slope == 0.0


@pytest.mark.parametrize("lengths", [[12, 12, 12], [12, 11, 12]])
def test_the_state_before_a_beginning_is_nobodys(lengths):
    torch.manual_seed(0)
    core, x = elman.cell("gru", 3, 4), torch.randn(3, 12, 3)
    reset = torch.zeros(3, 12, dtype=torch.bool)
    [whole] = lens.reach(core, Sample(x, lengths=torch.tensor(lengths)), anchors=3)
    reset[:, 0] = True
    [begun] = lens.reach(core, Sample(x, lengths=torch.tensor(lengths), reset=reset), anchors=3)
    assert whole.tau == list(range(1, 13)) and begun.tau == list(range(1, 12)) and begun.furthest == 11
    assert begun.raw[:10] == pytest.approx(whole.raw[:10], rel=1e-5)


def test_few_rows_have_several_anchors():
    [found] = lens.reach(elman.cell("gru", 2, 3), Sample(torch.randn(1, 40, 2)), anchors=8)
    assert found.tau[-1] == 20


def test_a_bidirectional_tagger_has_two_directions():
    """What flows in each is in test_numbers.py."""
    torch.manual_seed(0)
    model = elman.SequenceModel(Embedding(5, 3), elman.stack("gru", 3, 4, bidirectional=True), Softmax(8, 5))
    x = torch.randint(0, 5, (3, 9))
    found = lens.reach(model, Sample(x, x, lengths=torch.tensor([9, 7, 5])))
    assert [part.name for part in found] == ["0 gru", "1 gru (right to left)"]
    assert all(part.raw[0] > 0 for part in found)


def test_a_classifier_answers_once_a_row():
    torch.manual_seed(0)
    core = elman.Stack(elman.cell("gru", 3, 4), elman.Pool("mean", 4))
    model = elman.SequenceModel(Embedding(5, 3), core, Pooled(Softmax(4, 2)))
    [found] = lens.reach(model, Sample(torch.randint(0, 5, (6, 9)), torch.randint(0, 2, (6,))))
    assert found.name == "0 gru" and len(found.raw) == 9


def test_looking_changes_nothing():
    core = elman.stack("gru", 3, 4, layers=2, dropout=0.5)
    core.cores[0].requires_grad_(False)
    before = {name: value.clone() for name, value in core.state_dict().items()}
    lens.inspect(core, torch.randn(2, 9, 3))
    assert core.training and all(part.training for part in core.modules())
    assert all(p.requires_grad != name.startswith("cores.0.") for name, p in core.named_parameters())
    assert all(torch.equal(value, before[name]) for name, value in core.state_dict().items())
    assert all(not part._forward_hooks for part in core.modules())


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


def test_what_is_in_the_padding_has_no_say_in_the_flow_through_both_directions():
    core = elman.compose.Bidirectional(elman.cell("gru", 3, 4), elman.cell("gru", 3, 4))
    x, lengths = torch.randn(2, 6, 3), torch.tensor([6, 4])
    filled = x.clone()
    filled[1, 4:], x[1, 4:] = torch.nan, 0.0
    target = torch.randn(2, 6, 8)
    for got, wanted in zip(
        lens.flow(core, Sample(filled, target, lengths)), lens.flow(core, Sample(x, target, lengths)), strict=True
    ):
        assert wanted.norm.isfinite().all() and torch.equal(got.norm, wanted.norm)
