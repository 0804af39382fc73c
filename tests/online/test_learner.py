"""A learner against back-propagation by autograd; what it refuses; how it is saved, forked and reset."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import elman
from elman import kernels
from elman import state as states
from elman.compose.attention.local import LocalAttention
from elman.core import Core
from elman.errors import FileError, InputError, UnknownNameError
from elman.laws import online as laws
from elman.nn.readout import GaussianReadout, Softmax
from elman.online import RULES, Learner, Optim


def model(core: elman.Core, seed: int = 0) -> elman.SequenceModel:
    torch.manual_seed(seed)
    return elman.SequenceModel(nn.Identity(), core, GaussianReadout(core.output_size, 1)).double()


def quiet(*args: object, **options: object) -> Learner:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Learner(*args, **options)  # type: ignore[arg-type]


def apart(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    return max(float((found[name] - wanted[name]).abs().max()) for name in wanted)


STACK = [
    lambda: elman.stack("mingru", 3, 4, layers=2),
    lambda: elman.blocks("lru", 3, 4, layers=1),
    lambda: elman.compose.Parallel(elman.cell("gru", 3, 2), elman.cell("indrnn", 3, 2)),
]


@pytest.mark.parametrize("build", STACK, ids=["stack", "block", "parallel"])
def test_rtrl_is_exact_for_layers_over_layers(build) -> None:
    net = model(build())
    stream = laws.draw(net.core, torch.float64, 1)
    learner = Learner(net, rule="rtrl")
    assert learner.exact
    found, _ = learner.accumulate(learner.init_state(4), stream.x, stream.y, lengths=stream.lengths, reset=stream.reset)
    assert apart(found, laws.back_propagated(net, stream)) < 1e-9


def shut() -> Core:
    """Rates whose relu no input of the usual size opens."""
    core = elman.cell("rate", 3, 3)
    nn.init.constant_(core.b, -8.0)
    return core


MEMORY = {
    **{f"pool {kind}": lambda kind=kind: elman.Stack(elman.cell("mingru", 3, 3), elman.Pool(kind, 3))
       for kind in ("mean", "max", "attention")},
    "no numbers": lambda: elman.cell("window", 3, 4, k=1),
    "pairs at odd places": lambda: elman.cell("s5", 3, 4, init="lin", state_size=6),
    "pairs after three numbers": lambda: elman.Stack(elman.cell("indrnn", 3, 3), elman.cell("lru", 3, 2)),
    "a ring": lambda: LocalAttention(3, 4, heads=2, groups=1, window=3, rotary=2),
    "shut": shut,
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("build", MEMORY.values(), ids=MEMORY)
def test_rtrl_is_exact_for_what_remembers_in_its_own_way(build, dtype: torch.dtype) -> None:
    net = model(build()).to(dtype)
    stream = laws.draw(net.core, dtype, 1)
    x = 20 * stream.x if build is shut else stream.x
    learner = Learner(net, rule="rtrl")
    assert learner.exact
    found, _ = learner.accumulate(learner.init_state(4), x, stream.y, lengths=stream.lengths, reset=stream.reset)
    wanted = laws.back_propagated(net, replace(stream, x=x))
    size = max(float(g.abs().max()) for g in wanted.values())
    assert apart(found, wanted) < laws.TOLERANCES[dtype] * (1 + size)


def test_spatial_is_exact_in_the_top_layer_and_says_that_it_is_not_below() -> None:
    net = model(elman.stack("mingru", 3, 4, layers=2))
    stream = laws.draw(net.core, torch.float64, 1)
    with pytest.warns(UserWarning, match="mingru remembers what weights below it made"):
        learner = Learner(net, rule="spatial")
    found, _ = learner.accumulate(learner.init_state(4), stream.x, stream.y, lengths=stream.lengths, reset=stream.reset)
    wanted = laws.back_propagated(net, stream)
    top = {name: g for name, g in wanted.items() if "cores.0" not in name}
    assert apart(found, top) < 1e-9 and apart(found, wanted) > 1e-3
    assert not learner.exact


def test_tbptt_is_exact_in_episodes_as_long_as_its_window_and_not_in_longer_ones() -> None:
    net = model(elman.cell("gru", 3, 4))
    x, y = torch.randn(2, 5, 3, dtype=torch.float64), torch.randn(2, 5, 1, dtype=torch.float64)
    stream = laws.Stream(x, y, torch.tensor([5, 3]), torch.zeros(2, 5, dtype=torch.bool))
    errors = []
    for window in (5, 2):
        learner = quiet(net, rule="tbptt", window=window)
        found, _ = learner.accumulate(learner.init_state(2), x, y, lengths=stream.lengths)
        errors.append(apart(found, laws.back_propagated(net, stream)))
    assert errors[0] < 1e-9 and errors[1] > 1e-4


def test_rflo_of_tanh_forgets_the_past_and_of_rates_keeps_the_leak() -> None:
    """Murray's equation 3 by hand: p = (1 - a) p + a phi'(u) x^T, for one unit and its own signal."""
    rate = elman.cell("rate", 2, 1, phi="tanh", dt=1.0, tau=4.0)
    net = model(rate)
    x, y = torch.randn(1, 3, 2, dtype=torch.float64), torch.randn(1, 3, 1, dtype=torch.float64)
    learner = quiet(net, rule="rflo")
    state = learner.accumulate(learner.init_state(1), x, y)[1]
    h = p = torch.zeros(1, 1, dtype=torch.float64)
    a = 0.25
    with torch.no_grad():
        for t in range(3):
            n = torch.tanh(h @ rate.W.T + x[:, t] @ rate.B.T + rate.b)
            p = (1 - a) * p + a * (1 - n * n) * x[:, t]
            h = (1 - a) * h + a * n
    names = [name for name, _ in rate.named_parameters()]
    trace = state.traces[names.index("B")]
    torch.testing.assert_close(trace.reshape(p.shape), p)


def test_rflo_refuses_a_state_that_leaks_through_gates() -> None:
    with pytest.raises(InputError, match='depends on its gates: use rule "snap1"'):
        Learner(model(elman.cell("gru", 3, 4)), rule="rflo")


def test_snap1_says_what_it_leaves_out() -> None:
    with pytest.warns(UserWarning, match="units of lstm have an influence on each other"):
        assert Learner(model(elman.cell("lstm", 3, 4)), rule="snap1").trace_size() < 4 * 4 * 8 * 4


def test_symbols_are_learned_by_a_model_with_an_embedding() -> None:
    torch.manual_seed(0)
    net = elman.SequenceModel(elman.Embedding(5, 3), elman.cell("mingru", 3, 8), Softmax(8, 5))
    learner = quiet(net, rule="spatial", optim=Optim(lr=0.02), example=torch.tensor([0]))
    losses = []
    for t in range(300):
        loss, learner.state = learner.learn(learner.state, torch.tensor([t % 5]), torch.tensor([(t + 1) % 5]))
        losses.append(float(loss))
    assert sum(losses[-20:]) < 0.1 * sum(losses[:20])
    assert int(learner.predict_one(torch.tensor([0])).mode) == 1


def test_the_model_stays_as_it_is_and_a_model_with_what_was_learned_can_be_had() -> None:
    net = model(elman.cell("mingru", 3, 4))
    before = states.fingerprint(net)
    learner = Learner(net, optim=Optim(lr=0.1))
    x, y = torch.randn(1, 6, 3, dtype=torch.float64), torch.randn(1, 6, 1, dtype=torch.float64)
    learner.learn_many(x, y)
    assert states.fingerprint(net) == before
    learned = learner.model()
    assert torch.equal(torch.cat([w.flatten() for w in learned.parameters()]), learner.state.weights)
    state = learned.init_state(1)
    predicted, _ = learned.step(x[:, 0], state)
    again = learner.predict(learner.state._replace(h=state), x[:, 0])
    torch.testing.assert_close(predicted.mean, again.mean)


def test_a_fork_goes_its_own_way_and_a_reset_row_is_that_of_a_fresh_learner() -> None:
    learner = Learner(model(elman.cell("lru", 3, 4)), batch_size=2, optim=Optim(lr=0.1))
    x, y = torch.randn(2, 6, 3, dtype=torch.float64), torch.randn(2, 6, 1, dtype=torch.float64)
    learner.learn_many(x, y)
    fork = learner.fork()
    fork.learn_many(x, y)
    assert not torch.equal(fork.state.weights, learner.state.weights)
    state, start = learner.reset(learner.state, [1]), learner.init_state(2)
    for leaf, old, fresh in zip(*(states.leaves((s.h, s.traces)) for s in (state, learner.state, start)), strict=True):
        assert torch.equal(leaf[1], fresh[1]) and torch.equal(leaf[0], old[0])


def test_another_model_cannot_load_its_state(tmp_path: Path) -> None:
    Learner(model(elman.cell("mingru", 3, 4))).save(tmp_path / "state")
    with pytest.raises(FileError, match="another model"):
        Learner(model(elman.cell("mingru", 3, 4), seed=1)).load(tmp_path / "state")


def test_bad_arguments_are_named() -> None:
    net = model(elman.cell("mingru", 3, 4))
    with pytest.raises(UnknownNameError, match="unknown rule 'rtlr'"):
        Learner(net, rule="rtlr")
    with pytest.raises(InputError, match="takes an elman"):
        Learner(net.core)  # type: ignore[arg-type]
    two = elman.Bidirectional(elman.cell("gru", 3, 2), elman.cell("gru", 3, 2))
    with pytest.raises(InputError, match="reads the future"):
        Learner(model(two))
    with pytest.raises(InputError, match="optim"):
        Optim(lr=-1.0)
    with pytest.raises(InputError, match="LearnedStart"):
        Learner(model(elman.LearnedStart(elman.cell("gru", 3, 2))))
    with pytest.raises(InputError, match="has no state"):
        Learner(model(elman.Dense(3, 4)), rule="uoro")
    learner = Learner(net, batch_size=2)
    with pytest.raises(InputError, match="x has 2 rows, y 1"):
        learner.learn_one(torch.zeros(2, 3, dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64))
    large = elman.stack("gru", 64, 256, layers=2)
    with pytest.raises(InputError, match='use rule "spatial"'):
        Learner(elman.SequenceModel(nn.Identity(), large, GaussianReadout(256, 1)))


def test_adam_is_that_of_torch() -> None:
    weights = torch.randn(7)
    twin = nn.Parameter(weights.clone())
    theirs = torch.optim.Adam([twin], lr=0.1)
    ours = Optim(lr=0.1, clip_norm=0.0)
    moments = ours.init(weights)
    for t in range(5):
        twin.grad = torch.randn(7)
        theirs.step()
        weights, moments = ours.update(weights, twin.grad, moments, torch.tensor([t]))
    torch.testing.assert_close(weights, twin.detach())


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (Optim("sgd", lr=0.1, momentum=0.9, clip_norm=0.0), lambda w: torch.optim.SGD(w, lr=0.1, momentum=0.9)),
        (
            Optim(lr=0.1, betas=(0.8, 0.95), weight_decay=0.3, clip_norm=0.0),
            lambda w: torch.optim.AdamW(w, lr=0.1, betas=(0.8, 0.95), weight_decay=0.3),
        ),
    ],
    ids=["momentum", "weight decay"],
)
def test_momentum_and_weight_decay_are_those_of_torch(ours, theirs) -> None:
    weights = torch.randn(7)
    twin = nn.Parameter(weights.clone())
    other, moments = theirs([twin]), ours.init(weights)
    for t in range(5):
        twin.grad = torch.randn(7)
        other.step()
        weights, moments = ours.update(weights, twin.grad, moments, torch.tensor([t]))
    torch.testing.assert_close(weights, twin.detach())


def test_of_several_rows_the_mean_is_learned_with_a_mask_or_without() -> None:
    """Two rows that are one twice have the step of that row; by sgd, for adam does not see a factor."""
    learner = Learner(model(elman.cell("mingru", 3, 4)), optim=Optim("sgd", lr=0.1, clip_norm=0.0))
    x, y = torch.randn(1, 3, dtype=torch.float64), torch.randn(1, 1, dtype=torch.float64)
    one = learner.learn(learner.init_state(1), x, y)[1].weights
    there = torch.tensor([True, True])
    for mask in ({}, {"valid": there}, {"reset": ~there}):
        both = learner.learn(learner.init_state(2), x.repeat(2, 1), y.repeat(2, 1), **mask)[1].weights
        torch.testing.assert_close(both, one)
    nothing = torch.full_like(x, torch.nan)  # what is no input counts for nothing
    first = learner.learn(
        learner.init_state(2), torch.cat([x, nothing]), y.repeat(2, 1), valid=torch.tensor([True, False])
    )
    torch.testing.assert_close(first[1].weights, one)


def test_where_no_row_is_valid_nothing_moves() -> None:
    """Neither weights, which adam would move by what it remembers, nor a row that would begin an episode."""
    learner = Learner(model(elman.cell("mingru", 3, 4)), batch_size=2, optim=Optim(lr=0.1, weight_decay=0.1))
    x, y = torch.randn(2, 5, 3, dtype=torch.float64), torch.randn(2, 5, 1, dtype=torch.float64)
    learner.learn_many(x, y)
    before, nothing = learner.state, torch.tensor([False, False])
    x = torch.full_like(x, torch.nan)
    loss, after = learner.learn(before, x[:, 0], y[:, 0], valid=nothing, reset=~nothing)
    assert not loss.any() and all(map(torch.equal, states.leaves(after), states.leaves(before)))


def test_a_reset_leaves_the_random_numbers_of_uoro_where_they_are() -> None:
    learner = quiet(model(elman.cell("elman", 3, 4)), rule="uoro", batch_size=2, seed=5)
    x, y = torch.randn(2, 6, 3, dtype=torch.float64), torch.randn(2, 6, 1, dtype=torch.float64)
    assert learner.state.traces[-1].tolist() == [[5, 0], [6, 0]]
    learner.learn_many(x, y)
    draws = learner.state.traces[-1]
    assert bool((draws[:, 1] > 0).all())
    state = learner.reset(learner.state, [1])
    assert torch.equal(state.traces[-1], draws) and not state.traces[0][1].any() and state.traces[0][0].any()
    again = learner.learn(learner.state, x[:, 0], y[:, 0], reset=torch.tensor([False, True]))[1]
    assert bool((again.traces[-1][:, 1] > draws[:, 1]).all())


def test_the_schedule_and_the_clip_are_what_they_say() -> None:
    at = lambda optim, t: float(optim.rate(torch.tensor([t])))  # noqa: E731
    assert at(Optim(lr=1.0, warmup=4), 0) == 0.25 and at(Optim(lr=1.0, warmup=4), 9) == 1.0
    assert at(Optim(lr=1.0, schedule="inverse", halve=10), 10) == 0.5
    assert at(Optim(lr=1.0, schedule="root", halve=10), 30) == 0.5
    clipped = Optim("sgd", lr=1.0, clip_norm=1.0)
    weights, _ = clipped.update(torch.zeros(2), torch.tensor([3.0, 4.0]), torch.zeros(0, 2), torch.zeros(1))
    torch.testing.assert_close(weights, torch.tensor([-0.6, -0.8]))


def test_every_rule_is_listed() -> None:
    assert list(RULES) == ["rtrl", "spatial", "snap1", "rflo", "uoro", "tbptt"]


@pytest.mark.skipif(kernels.active() != "native", reason="the native kernels are not in use")
@pytest.mark.parametrize("name", ["indrnn", "mingru", "minlstm", "lru", "s5", "s4d", "rglru", "gru", "lstm", "rate"])
def test_a_step_is_one_native_call_and_learns_what_torch_does(name: str) -> None:
    net = model(elman.cell(name, 3, 4))
    stream = laws.draw(net.core, torch.float64, 1)
    rule = "snap1" if name in ("rglru", "gru", "lstm", "rate") else "rtrl"
    many = {"lengths": stream.lengths, "reset": stream.reset}
    found = quiet(net, rule=rule, batch_size=4).learn_many(stream.x, stream.y, **many)
    found.learn_one(stream.x[:, 0], stream.y[:, 0])
    assert found._graphs and all(type(graph).__name__ == "Tape" for graph in found._graphs.values())
    with kernels.use("reference"):
        wanted = quiet(net, rule=rule, batch_size=4).learn_many(stream.x, stream.y, **many)
        wanted.learn_one(stream.x[:, 0], stream.y[:, 0])
        assert not any(type(graph).__name__ == "Tape" for graph in wanted._graphs.values())
    for one, other in zip(states.leaves(found.state), states.leaves(wanted.state), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(
        found.predict_one(stream.x[:, 1]).log_prob(stream.y[:, 1]),
        found.model().step(stream.x[:, 1], found.state.h)[0].log_prob(stream.y[:, 1]),
    )


@pytest.mark.skipif(kernels.active() != "native", reason="the native kernels are not in use")
@pytest.mark.parametrize("name", ["indrnn", "mingru", "minlstm", "lru", "s5"])
def test_bits_depend_on_neither_threads_nor_at_one_set_of_weights_the_batch(name: str) -> None:
    torch.manual_seed(0)
    net = elman.SequenceModel(nn.Identity(), elman.cell(name, 5, 37), GaussianReadout(37, 1))
    x, y = torch.randn(33, 4, 5), torch.randn(33, 4, 1)
    threads, ends = torch.get_num_threads(), []
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            ends.append(Learner(net, batch_size=33).learn_many(x, y).state)
    finally:
        torch.set_num_threads(threads)
    assert all(map(torch.equal, *map(states.leaves, ends)))
    still = Optim(lr=0.0)
    together = Learner(net, optim=still, batch_size=33).learn_many(x, y).state
    for row in (0, 20, 32):
        alone = Learner(net, optim=still).learn_many(x[row : row + 1], y[row : row + 1]).state
        leaves = (states.leaves((end.h, end.traces)) for end in (alone, together))
        assert all(torch.equal(one[0], rows[row]) for one, rows in zip(*leaves, strict=True))


def test_a_fork_predicts_by_what_the_other_has_written_down() -> None:
    learner = Learner(model(elman.cell("mingru", 3, 4)))
    fork, x = learner.fork(), torch.randn(1, 3, dtype=torch.float64)
    wanted = learner.predict_one(x).log_prob(torch.zeros(1, 1, dtype=torch.float64))
    assert torch.equal(fork.predict_one(x).log_prob(torch.zeros(1, 1, dtype=torch.float64)), wanted)
