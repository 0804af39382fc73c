"""A learned start: every law from a state that is not zero, and episodes against scans of each from that state."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import elman
from elman import kernels, laws
from elman import state as states
from elman.cells import CELLS, cell
from elman.compose import (
    Bidirectional,
    Dense,
    Dropout,
    LearnedStart,
    Parallel,
    Pool,
    Recompute,
    Residual,
    Reverse,
    Scale,
    Stack,
    WeightDrop,
    Zoneout,
    learn_start,
    stack,
)
from elman.compose.attention import Additive, Fixed, Layers, Luong
from elman.compose.attention.local import LocalAttention
from elman.core import Core
from elman.errors import InputError

NOTHING_TO_LEARN = (("window", {"k": 1}), ("hmm", {}))
VARIANTS = [
    (name, options) for name, kind in CELLS.items() for options in kind.variants
    if (name, options) not in NOTHING_TO_LEARN
]  # fmt: skip
IDS = ["-".join([name, *(f"{k}={v}" for k, v in options.items())]) for name, options in VARIANTS]
each_variant = pytest.mark.parametrize(("name", "options"), VARIANTS, ids=IDS)


def elsewhere(core: Core, dtype: torch.dtype = torch.float64) -> Core:
    """The core in evaluation mode; all starts in it are numbers of order one."""
    generator = torch.Generator().manual_seed(1)
    core = core.to(dtype).eval()
    for part in core.modules():
        if isinstance(part, LearnedStart):
            part.initial_state.data.normal_(generator=generator)
    return core


def made(name: str, **options: Any) -> Core:
    torch.manual_seed(0)
    return cell(name, 3, 3, **options)


def a_learned(name: str) -> Core:
    return LearnedStart(made(name))


CORES: dict[str, Callable[[], Core]] = {
    "around a stack": lambda: LearnedStart(Stack(made("lstm"), made("lru"), Dense(3, 2))),
    "around blocks": lambda: LearnedStart(elman.blocks("s4d", 3, 4, layers=2)),
    "around residual": lambda: LearnedStart(Residual(Stack(Parallel(made("gru"), made("mamba")), Dense(6, 3)))),
    "around zoneout": lambda: LearnedStart(Zoneout(made("gru"), 0.3)),
    "around recompute": lambda: LearnedStart(Recompute(Stack(made("gru"), made("lru")), 2)),
    "around weight drop": lambda: LearnedStart(WeightDrop(made("lstm"), 0.5)),
    "around dropout, pool": lambda: LearnedStart(Stack(Dropout(made("gru"), 0.5), Pool("mean", 3))),
    "in a stack": lambda: Stack(a_learned("gru"), made("elman"), a_learned("rwkv7")),
    "in stack of skips": lambda: Stack(a_learned("gru"), LearnedStart(cell("gru", 6, 2)), inputs="all"),
    "in residual": lambda: Residual(Stack(Parallel(a_learned("gru"), made("gru")), Dense(6, 3))),
    "in zoneout": lambda: Zoneout(a_learned("gru"), 0.3),
    "in recompute": lambda: Recompute(a_learned("mlstm"), 2),
    "in weight drop": lambda: WeightDrop(a_learned("lstm"), 0.5, names=("core.W",)),
    "in dropout, pool": lambda: Stack(Dropout(a_learned("gru"), 0.5), Pool("max", 3)),
    "in reverse": lambda: Reverse(a_learned("lstm")),
    "in both directions": lambda: learn_start(stack("gru", 3, 3, layers=2, bidirectional=True, residual=True)),
    "in itself": lambda: LearnedStart(Stack(a_learned("gru"), made("lru"))),
}  # fmt: skip


@each_variant
def test_every_cell_keeps_the_laws_from_a_learned_start(name, options):
    report = laws.check(elsewhere(LearnedStart(made(name, **options)), torch.float32))
    assert all(verdict.ok for verdict in report.verdicts), str(report)


@pytest.mark.parametrize("name", ["gru", "lru", "mamba", "rglru", "slstm", "kda"])
def test_the_reference_keeps_them_too(name):
    with kernels.use("reference"):
        report = laws.check(elsewhere(a_learned(name)))
    assert all(verdict.ok for verdict in report.verdicts), str(report)


@pytest.mark.parametrize("name", CORES)
def test_combinators_keep_the_laws_around_it_and_inside(name):
    report = laws.check(elsewhere(CORES[name](), torch.float32))
    assert all(verdict.ok for verdict in report.verdicts), str(report)


DECODERS = {
    "additive": lambda core: Additive(core(3 + 5), 5),
    "luong": lambda core: Luong(core(3), 5),
    "feeding": lambda core: Luong(core(3 + 4), 5, feeding=True),
    "fixed": lambda core: Fixed(core(3 + 5), 5),
    "layers": lambda core: Layers(Additive(core(3 + 5), 5), LearnedStart(cell("gru", 4, 2))),
}


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("kind", ["gru", "lru"])
def test_decoders_keep_the_laws_with_a_core_that_starts_elsewhere(name, kind):
    torch.manual_seed(0)
    decoder = DECODERS[name](lambda width: LearnedStart(cell(kind, width, 4)))
    elsewhere(decoder)
    memory = torch.randn(5, 4, 5, dtype=torch.float64)
    report = laws.check(decoder.given(memory))
    assert all(verdict.ok for verdict in report.verdicts), str(report)


@each_variant
def test_gradient_of_the_start(name, options):
    core = elsewhere(LearnedStart(made(name, **options)))
    sample = laws.draw(core, torch.float64, seed=1, batch_size=3, time=4)

    def scan(x: Tensor, start: Tensor) -> tuple[Tensor, ...]:
        y, last = torch.func.functional_call(
            core, {"initial_state": start}, (x, sample.state), {"lengths": sample.lengths, "reset": sample.reset}
        )
        return (y, *states.leaves(last))

    assert bool((sample.reset & (torch.arange(4) < sample.lengths[:, None]))[:, 1:].any())
    assert torch.autograd.gradcheck(scan, (sample.x.requires_grad_(), core.initial_state), fast_mode=True)


@pytest.mark.parametrize("name", ["gru", "lstm", "lru", "mamba", "gated_deltanet", "rglru"])
def test_episodes_are_scans_of_the_bare_core_from_the_start(name):
    """To the last bit: of each episode alone, which the bare core reads from the state that is learned."""
    core = elsewhere(a_learned(name), torch.float32)
    B, T = 4, 50
    generator = torch.Generator().manual_seed(2)
    x, lengths = torch.randn(B, T, 3, generator=generator), torch.tensor([50, 0, 33, 50])
    reset = torch.rand(B, T, generator=generator) < torch.tensor([0.3, 0.3, 0.05, 0.0])[:, None]
    given = states.map(lambda leaf: leaf + 1, core.init_state(B))
    y, last = core.scan(x, given, lengths=lengths, reset=reset)
    start = states.detach(core.init_state(1))
    for b, length in enumerate(lengths.tolist()):
        cuts = sorted({0, length, *(t for t in reset[b].nonzero()[:, 0].tolist() if t < length)})
        state = states.take(given, [b])
        for first, end in itertools.pairwise(cuts):
            alone, state = core.core.scan(x[b : b + 1, first:end], start if reset[b, first] else state)
            assert torch.equal(alone, y[b : b + 1, first:end])
        assert not y[b, length:].any()
        assert all(map(torch.equal, states.leaves(state), states.leaves(states.take(last, [b]))))


def test_rows_of_a_stream_begin_there():
    core = elsewhere(a_learned("lstm"), torch.float32)
    x = np.ones((2, 3), np.float32)
    stream = elman.Stream(core, 2)
    before = copy.deepcopy(core)
    with torch.no_grad():
        core.initial_state.zero_()
    for rows in (stream, stream.share(2)):  # later changes of the core do not reach it
        assert rows.native and torch.equal(rows.state.c, before.init_state(2).c)
        assert np.array_equal(rows.step(x), before.scan(torch.ones(2, 1, 3))[0][:, 0].detach().numpy())
    assert not elman.Stream(core, 1).state.c.any()


def test_the_start_is_one_vector_and_at_first_the_core_s_own():
    torch.manual_seed(0)
    bare = Stack(cell("lstm", 3, 4), cell("lru", 4, 4, state_size=2), Dense(4, 2))
    core = LearnedStart(bare)
    assert core.initial_state.shape == (4 + 4 + 2 * 2,)
    x, reset = torch.randn(2, 6, 3), torch.rand(2, 6) < 0.3
    assert torch.equal(core.scan(x, reset=reset)[0], bare.scan(x, reset=reset)[0])
    with torch.no_grad():
        core.initial_state.copy_(torch.arange(12.0))
    (lstm, lru, _) = core.init_state(2)
    assert lstm.h[1].tolist() == [0, 1, 2, 3] and lstm.c[0].tolist() == [4, 5, 6, 7]
    assert lru.h.tolist() == [[8 + 9j, 10 + 11j]] * 2
    lstm.h.zero_()  # a value: the parameter stays as it is
    assert core.initial_state[1] == 1
    core.reset_parameters()
    assert not core.initial_state.any()


def test_what_counts_or_sums_begins_as_it_did():
    core = LearnedStart(Stack(*(made(name) for name in ("rglru", "slstm", "mlstm", "retnet")), Pool("mean", 3)))
    with torch.no_grad():
        core.initial_state.fill_(1.0)
    rglru, slstm, mlstm, retnet, pool = core.init_state(1)
    assert not any(leaf.any() for leaf in (rglru.t, slstm.n, slstm.m, mlstm.m, retnet.h, pool.sum, pool.number))
    assert all(leaf.bool().all() for leaf in (rglru.h, rglru.window, slstm.h, slstm.c, mlstm.C, mlstm.n, retnet.S))


def test_a_window_without_an_episode_of_its_own_has_a_gradient_of_zero():
    """As the windows of a long text have, all but the first: a run that tunes the start alone reads them too."""
    core = a_learned("gru").requires_grad_(False)
    core.initial_state.requires_grad_()
    y, _ = core.scan(torch.randn(2, 5, 3), core.init_state(2))
    y.sum().backward()
    assert core.initial_state.grad.any()
    core.initial_state.grad = None
    y, _ = core.scan(torch.randn(2, 5, 3), states.detach(core.init_state(2)))
    y.sum().backward()
    assert not core.initial_state.grad.any()


def test_long_and_short_episodes_are_not_padded_to_the_longest():
    seen = []

    class Watched(elman.GRU):
        def _scan(self, x, state, lengths, reset):
            seen.append(x.shape[:2])
            return super()._scan(x, state, lengths, reset)

    core = LearnedStart(Watched(3, 4))
    reset = torch.zeros(2, 256, dtype=torch.bool)
    reset[0] = True
    core.scan(torch.randn(2, 256, 3), reset=reset)
    assert sum(rows * steps for rows, steps in seen) <= 1.5 * 512 and len(seen) <= 8


def test_hooks_see_all_episodes_in_one_call():
    core, seen = LearnedStart(stack("gru", 3, 4)), []
    core.core.cores[0].register_forward_hook(lambda cell, given, result: seen.append(given[0].shape))
    reset = torch.zeros(2, 64, dtype=torch.bool)
    reset[0] = True
    core.scan(torch.randn(2, 64, 3), reset=reset)
    assert seen == [(65, 64, 3)]


def test_narrow_activations_start_from_a_wide_state():
    core = elsewhere(a_learned("lru"), torch.float32).bfloat16()
    y, state = core.scan(torch.ones(2, 4, 3).bfloat16(), reset=torch.ones(2, 4, dtype=torch.bool))
    assert y.dtype == torch.bfloat16 and state.h.dtype == torch.complex64
    assert core.init_state(1).h.dtype == torch.complex64 and core.init_state(1).h.any()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LearnedStart(Bidirectional(made("gru"), made("gru"))), r"Bidirectional\(LearnedStart\(left\)"),
        (lambda: LearnedStart(Dense(3, 3)), "nothing in it whose start could be learned"),
        (lambda: LearnedStart(Scale(3)), "nothing in it whose start could be learned"),
        (lambda: LearnedStart(LocalAttention(4, 4, heads=2, window=3)), "nothing in it whose start could be learned"),
        (lambda: LearnedStart(made("hmm")), "nothing in it whose start could be learned"),
        (lambda: LearnedStart(Luong(made("gru"), 5).given(torch.zeros(2, 4, 5))), "the core in the decoder"),
    ],
)
def test_what_it_refuses(make, message):
    with pytest.raises(InputError, match=message):
        make()
