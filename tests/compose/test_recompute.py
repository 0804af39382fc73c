"""Recompute against the core inside it: the same numbers, the same gradients, less to remember."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from elman import kernels, laws
from elman import state as states
from elman.cells import CELLS, cell
from elman.compose import (
    Dense,
    Dropout,
    Norm,
    Parallel,
    Recompute,
    Residual,
    Reverse,
    Stack,
    WeightDrop,
    Zoneout,
    stack,
)
from elman.core import Core
from elman.errors import InputError

VARIANTS = [(name, options) for name, cell_ in CELLS.items() for options in cell_.variants]
IDS = ["-".join([name, *(f"{k}={v}" for k, v in options.items())]) for name, options in VARIANTS]
S = 6


class Learned(Core):
    """h = tanh(W h' + x), from a learned state, counting its inputs in a leaf of whole numbers."""

    def __init__(self, size: int) -> None:
        super().__init__(size, size)
        self.W = nn.Parameter(torch.randn(size, size) / size)
        self.first = nn.Parameter(torch.randn(size))

    def init_state(self, batch_size: int) -> tuple[Tensor, Tensor]:
        return self.first.expand(batch_size, -1), torch.zeros(batch_size, 1, dtype=torch.long)

    def step(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        h = kernels.tanh(kernels.linear(state[0], self.W) + x)
        return h + state[1], (h, state[1] + 1)


def floating(leaf: Tensor) -> bool:
    return leaf.is_floating_point() or leaf.is_complex()


def outcome(core: Core, sample: laws.Sample, read: Callable[[], Any] = lambda: None) -> tuple[list[Tensor], ...]:
    """Outputs and last state; gradients of the input and the state; gradients of the parameters."""
    x = sample.x.clone().requires_grad_()
    state = states.map(lambda leaf: leaf.detach().clone().requires_grad_(floating(leaf)), sample.state)
    y, last = core.scan(x, state, lengths=sample.lengths, reset=sample.reset)
    results = [y, *states.leaves(last)]
    generator = torch.Generator().manual_seed(0)
    total = torch.zeros((), dtype=x.dtype)
    for result in filter(floating, results):
        weight = torch.randn(result.shape, generator=generator, dtype=x.dtype)
        total = total + (weight * (result.real + result.imag if result.is_complex() else result)).sum()
    read()
    near, far = [x, *filter(floating, states.leaves(state))], list(core.parameters())
    gradients = torch.autograd.grad(total, [*near, *far], allow_unused=True, materialize_grads=True)
    return results, list(gradients[: len(near)]), list(gradients[len(near) :])


def pair(core: Core, dtype: torch.dtype, every: int | str = "auto", **sizes: int) -> tuple[Any, Any]:
    core = core.to(dtype).eval()
    sample = laws.draw(core, dtype, seed=0, **{"batch_size": 5, "time": 23, **sizes})
    return outcome(core, sample), outcome(Recompute(core, every), sample)


def assert_close(one: list[Tensor], two: list[Tensor], dtype: torch.dtype) -> None:
    for a, b in zip(one, two, strict=True):
        scale = 1 + max((float(v) for v in a.detach().abs().flatten()), default=0.0)
        torch.testing.assert_close(a, b, rtol=0, atol=laws.TOLERANCES[dtype] * scale)


@pytest.mark.slow
@pytest.mark.skipif("native" not in kernels.available(), reason="bit for bit is the native kernels' promise")
@pytest.mark.parametrize("every", ["auto", 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("name", "options"), VARIANTS, ids=IDS)
def test_outputs_and_gradients_of_inputs_and_states_have_the_same_bits(
    name: str, options: dict[str, Any], dtype: torch.dtype, every: int | str
) -> None:
    """In pieces shorter than a window too, which reaches back over several."""
    torch.manual_seed(0)
    plain, ours = pair(CELLS[name](S, S, **options), dtype, every)
    for one, two in zip(plain[:2], ours[:2], strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    assert_close(plain[1] + plain[2], ours[1] + ours[2], dtype)


@pytest.mark.slow
@pytest.mark.skipif("native" not in kernels.available(), reason="bit for bit is the native kernels' promise")
@settings(max_examples=60, deadline=None)
@given(
    variant=st.sampled_from(
        [variant for variant in VARIANTS if variant[0] in ("elman", "indrnn", "rate", "mgu", "gru", "lstm")]
    ),
    sizes=st.tuples(st.integers(1, 20), st.integers(2, 70), st.integers(1, 9), st.integers(1, 60)),
    every=st.integers(1, 70),
    threads=st.integers(1, 3),
)
def test_wherever_rows_or_units_are_divided(
    variant: tuple[str, dict[str, Any]], sizes: tuple[int, int, int, int], every: int, threads: int
) -> None:
    name, options = variant
    D, H, B, T = sizes
    assume(options.get("projection", 0) < H)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        plain, ours = pair(CELLS[name](D, H, **options), torch.float64, every, batch_size=B, time=T)
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(plain[0] + plain[1], ours[0] + ours[1], strict=True))
    assert_close(plain[2], ours[2], torch.float64)


@pytest.mark.skipif("native" not in kernels.available(), reason="there is one thread in the reference kernels' loop")
@pytest.mark.parametrize("batch_size", [3, 9], ids=["units divided", "rows divided"])
@pytest.mark.parametrize(("name", "options"), [("lstm", {}), ("gru", {}), ("gru", {"reset_after": False}), ("mgu", {})])
def test_threads_do_not_meet_in_the_room_of_a_piece(name: str, options: dict[str, Any], batch_size: int) -> None:
    torch.manual_seed(0)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        plain, ours = pair(CELLS[name](8, 128, **options), torch.float32, 2, batch_size=batch_size, time=150)
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(plain[0] + plain[1], ours[0] + ours[1], strict=True))


WORDS: dict[str, Callable[[], Core]] = {
    "learned state": lambda: Learned(S),
    "stack": lambda: stack("lstm", S, S, layers=2, residual=True, norm="layer", dropout=0.5),
    "of itself": lambda: Recompute(Stack(Recompute(cell("gru", S, S), 2), cell("lru", S, S))),
    "branches": lambda: Residual(Parallel(cell("elman", S, 2), Zoneout(cell("lstm", S, 4), 0.3))),
    "pointwise": lambda: Stack(Norm(S), Dense(S, S, activation="silu")),
    "weight drop": lambda: WeightDrop(cell("lstm", S, S), 0.5),
}


@pytest.mark.parametrize("every", [1, 4, 23, 100, "auto"])
@pytest.mark.parametrize("kernel", kernels.available())
@pytest.mark.parametrize("name", WORDS)
def test_words_have_the_same_gradients(name: str, kernel: str, every: int | str) -> None:
    torch.manual_seed(0)
    with kernels.use(kernel):
        plain, ours = pair(WORDS[name](), torch.float64, every)
    for one, two in zip(plain, ours, strict=True):
        assert_close(one, two, torch.float64)


def test_a_scan_that_a_subclass_overrides_is_the_one_that_runs() -> None:
    class Louder(CELLS["gru"]):  # type: ignore[misc, name-defined]
        def _scan(self, x: Tensor, state: Any, lengths: Tensor, reset: Tensor) -> tuple[Tensor, Any]:
            return super()._scan(2 * x, state, lengths, reset)

    torch.manual_seed(0)
    plain, ours = pair(Louder(S, S), torch.float64)
    for one, two in zip(plain, ours, strict=True):
        assert_close(one, two, torch.float64)


def test_one_core_in_two_places_gets_both_gradients() -> None:
    torch.manual_seed(0)
    shared = cell("gru", S, S)
    plain, ours = pair(Stack(shared, shared), torch.float64)
    assert_close(plain[2], ours[2], torch.float64)


@pytest.mark.parametrize("sizes", [{"time": 0}, {"batch_size": 0}, {"time": 1}])
def test_nothing_to_recompute(sizes: dict[str, int]) -> None:
    plain, ours = pair(cell("gru", S, S), torch.float64, **sizes)
    for one, two in zip(plain, ours, strict=True):
        torch.testing.assert_close(one, two)


def test_gradients_that_are_not_asked_for() -> None:
    core = Recompute(cell("lstm", S, S))
    core.core.W.requires_grad_(False)
    x = torch.randn(2, 9, S)
    y, state = core.scan(x)
    state.c.sum().backward()  # none arrives at y or h
    plain = cell("lstm", S, S)
    plain.load_state_dict(core.core.state_dict())
    plain.scan(x)[1].c.sum().backward()
    assert core.core.W.grad is None and core.core.U.grad is not None and plain.U.grad is not None
    torch.testing.assert_close(core.core.U.grad, plain.U.grad)
    with torch.no_grad():
        assert not core.scan(x)[0].requires_grad


# What is drawn at random


RANDOM: dict[str, Callable[[], Core]] = {
    "dropout": lambda: Recompute(Stack(Dropout(cell("gru", 3, 3), 0.4), cell("elman", 3, 2))),
    "dropout by row": lambda: Recompute(Stack(Dropout(cell("gru", 3, 3), 0.4, per="row"), cell("elman", 3, 2)), 3),
    "zoneout": lambda: Recompute(Zoneout(cell("lstm", 3, 2), 0.4), 3),
    "weight drop inside": lambda: Recompute(WeightDrop(cell("gru", 3, 2), 0.4), 3),
    "weight drop outside": lambda: WeightDrop(Recompute(cell("gru", 3, 2), 3), 0.4, names=("core.W",)),
    "all of them": lambda: Recompute(
        WeightDrop(Dropout(Zoneout(cell("gru", 3, 2), 0.2), 0.4, per="row"), 0.4, names=("core.core.W",)), 2
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RANDOM)
def test_the_masks_of_the_backward_pass_are_those_of_the_forward_pass(name: str) -> None:
    """By finite differences: had a mask changed, the gradient would be that of another function."""
    torch.manual_seed(0)
    core = RANDOM[name]().double().train()
    names = [name for name, _ in core.named_parameters()]
    x = torch.randn(2, 8, 3, dtype=torch.float64, requires_grad=True)

    def scan(x: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        torch.manual_seed(7)
        lent = dict(zip(names, weights, strict=True))
        y, last = torch.func.functional_call(core, lent, (x,), {"lengths": torch.tensor([5, 8])})
        torch.rand(3)  # the backward pass begins elsewhere in the stream of numbers
        return y, *states.leaves(last)

    weights = [p.detach().clone().requires_grad_() for p in core.parameters()]
    assert torch.autograd.gradcheck(scan, (x, *weights))


def test_what_is_drawn_once_for_a_scan_holds_through_its_pieces() -> None:
    x = torch.ones(3, 10, 40)
    for core in (Dropout(Dense(40, 50), 0.5, per="row"), WeightDrop(Dense(40, 50), 0.5, names=("U",))):
        for wrapped in (Recompute(core, 3), Recompute(Stack(Recompute(core, 2)), 3)):
            y = wrapped.scan(x)[0]
            torch.testing.assert_close(y, y[:, :1].expand_as(y))
            assert not torch.equal(wrapped.scan(x)[0], y)
    fresh = Recompute(Dropout(Dense(40, 50), 0.5), 5).scan(x)[0]
    assert not torch.equal(fresh[:, :5], fresh[:, 5:])  # element by element, each piece draws its own


def test_the_generator_goes_on_as_if_nothing_had_been_recomputed() -> None:
    core = Recompute(Zoneout(cell("gru", S, S), 0.5), 2)
    torch.manual_seed(0)
    y, _ = core.scan(torch.randn(2, 9, S))
    plain = Recompute(cell("gru", S, S))
    before = torch.get_rng_state()
    y.sum().backward()
    assert torch.equal(torch.get_rng_state(), before)
    plain.scan(torch.ones(2, 9, S))  # and where nothing is random, nothing is drawn
    assert torch.equal(torch.get_rng_state(), before)


def test_what_changed_since_the_forward_pass_does_not_matter() -> None:
    torch.manual_seed(0)
    core = Recompute(Zoneout(cell("gru", S, S), 0.5), 4).double().train()
    sample = laws.draw(core, torch.float64, seed=0, batch_size=3, time=9)
    torch.manual_seed(1)
    wanted = outcome(core, sample)
    torch.manual_seed(1)
    changed = outcome(core, sample, read=core.eval)
    assert not core.training
    assert all(torch.equal(a, b) for a, b in zip(wanted[1], changed[1], strict=True))


class Cast(Core):
    """h = tanh(W h' + x) by a product that autocast makes in bfloat16."""

    def __init__(self, size: int) -> None:
        super().__init__(size, size)
        self.W = nn.Parameter(torch.randn(size, size) / size)

    def init_state(self, batch_size: int) -> Tensor:
        return self.zeros(batch_size, self.output_size)

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(nn.functional.linear(state, self.W) + x)
        return h, h


def test_autocast_is_that_of_the_forward_pass() -> None:
    """The backward pass of mixed precision runs outside of it."""
    torch.manual_seed(0)
    core, x, found = Cast(S), torch.randn(2, 9, S, requires_grad=True), []
    for scanned in (core, Recompute(core, 3)):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y, _ = scanned.scan(x)
        found.append((y, *torch.autograd.grad(y.square().sum(), [x, core.W])))
    with torch.no_grad():
        assert not torch.equal(core.scan(x)[0], found[0][0])  # or it would not matter
    assert torch.equal(found[1][0], found[0][0]) and torch.equal(found[1][1], found[0][1])
    torch.testing.assert_close(found[1][2], found[0][2], rtol=0, atol=0.02 * float(found[0][2].abs().max()))


def test_a_weight_changed_in_place_is_an_error_and_no_wrong_gradient() -> None:
    core = Recompute(cell("gru", S, S))
    y, _ = core.scan(torch.randn(2, 9, S))
    with torch.no_grad():
        core.core.W.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


# What is remembered


def saved_bytes(core: Core, x: Tensor) -> int:
    """What autograd keeps from a scan of x, each storage once, but x, y and the parameters."""
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y, _ = core.scan(x)
    free = {t.untyped_storage().data_ptr() for t in (x, y, *core.parameters())}
    return sum(size for pointer, size in kept.items() if pointer not in free)


@pytest.mark.parametrize("kernel", kernels.available())
@pytest.mark.parametrize("name", ["gru", "lstm", "mingru", "rate"])
def test_little_is_remembered(name: str, kernel: str) -> None:
    core = cell(name, 8, 16)
    x = torch.randn(2, 400, 8, requires_grad=True)
    with kernels.use(kernel):
        plain, ours = saved_bytes(core, x), saved_bytes(Recompute(core), x)
    leaves = len(states.leaves(core.init_state(1)))
    assert ours <= 21 * leaves * 2 * 16 * 4 + 2 * 400 + 2 * 8 + 4  # states, resets, lengths, the leak of rates
    assert plain > 8 * ours


def test_a_backward_pass_holds_one_piece_at_a_time() -> None:
    """Weights shared with a probe: the longest sequence that the core inside ever sees is one piece."""
    core, seen = cell("lru", S, S), []
    scan = core._scan
    core._scan = lambda x, *rest: seen.append(x.shape[1]) or scan(x, *rest)  # type: ignore[method-assign]
    Recompute(core, 4).scan(torch.randn(2, 10, S))[0].sum().backward()
    assert seen == [4, 4, 2, 2, 4, 4]


# Bad input


@pytest.mark.parametrize("every", [0, -1, 2.0, "sqrt", True, None])
def test_every_is_checked(every: Any) -> None:
    with pytest.raises(InputError, match=r"every is .*; it must be a whole number of at least 1, or 'auto'"):
        Recompute(cell("gru", S, S), every)


def test_what_reads_the_future_cannot_be_cut() -> None:
    with pytest.raises(InputError, match=r"Reverse\(Recompute\(core\)\)"):
        Recompute(Reverse(cell("gru", S, S)))
    x = torch.randn(2, 9, S)
    core = cell("gru", S, S)
    assert torch.equal(Reverse(Recompute(core)).scan(x)[0], Reverse(core).scan(x)[0])


def test_second_derivatives_are_the_finite_differences() -> None:
    torch.manual_seed(0)
    core = Recompute(Zoneout(cell("gru", 2, 2), 0.3), 2).double()
    x, h = (torch.randn(*shape, 2, dtype=torch.float64, requires_grad=True) for shape in ((2, 5), (2,)))

    def scan(x: Tensor, h: Tensor) -> Tensor:
        torch.manual_seed(7)
        return core.scan(x, type(core.init_state(0))(h), lengths=torch.tensor([5, 3]))[0]

    with kernels.use("reference"):
        assert torch.autograd.gradgradcheck(scan, (x, h))
        (g,) = torch.autograd.grad(scan(x, h).sum(), x, create_graph=True)  # where no graph leads to what arrives
        assert g.requires_grad
