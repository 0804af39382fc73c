"""Two gated loops in one call, one of which reads rows backwards: the bits of two calls, what the reference says."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import elman
from elman import kernels
from elman import state as states
from elman.cells import CELLS, cell
from elman.cells.gated import Gated
from elman.compose import Bidirectional, Parallel, Reverse, Stack
from elman.core import Core

native = pytest.importorskip("elman.kernels.native")

B, T, D = 5, 9, 3
LENGTHS = torch.tensor([T, 0, 4, 1, 7])
LOOPS = [
    (name, options)
    for name, kind in CELLS.items()
    if issubclass(kind, Gated)
    for options in kind.variants
    if kind(D, 4, **options).has_loop()
]


def outcome(core: Core, x: Tensor, state: states.State, reset: Tensor) -> list[Tensor]:
    """Outputs, last state, and all gradients, of which some arrive at the last state."""
    x = x.clone().requires_grad_()
    state = states.map(lambda leaf: leaf.clone().requires_grad_(), state)
    y, last = core.scan(x, state, lengths=LENGTHS, reset=reset)
    results = [y, *states.leaves(last)]
    total = torch.stack([(result * (i + 1)).sin().sum() for i, result in enumerate(results)]).sum()
    return [*results, *torch.autograd.grad(total, [x, *states.leaves(state), *core.parameters()])]


def draw(core: Core, dtype: torch.dtype) -> tuple[Tensor, states.State, Tensor]:
    torch.manual_seed(1)
    x, reset = torch.randn(B, T, D, dtype=dtype), torch.rand(B, T) < 0.3
    reset[0, 0] = reset[0, -1] = reset[4, 6] = True
    return x, states.map(torch.randn_like, core.init_state(B)), reset


@pytest.mark.parametrize(("name", "options"), LOOPS, ids=str)
def test_both_directions_are_what_the_reference_says(name: str, options: dict[str, object]) -> None:
    """With a cell of another kind and width beside it, so that nothing fits by chance."""
    torch.manual_seed(0)
    core = Bidirectional(cell(name, D, 4, **options), cell("gru", D, 6)).double()
    sample = draw(core, torch.float64)
    before = native.calls["gated_pair"], native.calls["gated_pair_back"], native.calls["reverse"]
    got = outcome(core, *sample)
    forth = core.cores[0].output_is_state  # a cell that reads its h otherwise has a loop of its own
    after = native.calls["gated_pair"], native.calls["gated_pair_back"], native.calls["reverse"]
    assert after == (before[0] + forth, before[1] + forth, before[2])
    with kernels.use("reference"):
        wanted = outcome(core, *sample)
    torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-11)


class Doubled(CELLS["gru"]):  # type: ignore[misc,name-defined]
    """A cell with a loop, whose output is not its state."""

    output_is_state = False

    def read(self, h: Tensor) -> Tensor:
        return 2 * h


@pytest.mark.parametrize("sides", [(Doubled, CELLS["gru"]), (CELLS["gru"], Doubled)], ids=["left", "right"])
def test_an_output_that_is_not_the_state_is_read_on_either_side(sides: tuple[type[Core], type[Core]]) -> None:
    torch.manual_seed(0)
    left, right = (side(D, 4) for side in sides)
    core = Bidirectional(left, right).double()
    sample = draw(core, torch.float64)
    torch.testing.assert_close(outcome(core, *sample), outcome(Parallel(left, Reverse(right)), *sample))


@pytest.mark.parametrize(("name", "options"), LOOPS, ids=str)
def test_a_reversed_loop_is_what_the_reference_says(name: str, options: dict[str, object]) -> None:
    torch.manual_seed(0)
    core = Reverse(cell(name, D, 4, **options)).double()
    sample = draw(core, torch.float64)
    got = outcome(core, *sample)
    with kernels.use("reference"):
        wanted = outcome(core, *sample)
    torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_same_bits_as_two_loops_over_reversed_copies(threads: int) -> None:
    """On two threads each loop has one; the sizes are worth it."""
    torch.manual_seed(0)
    left, right = cell("lstm", 64, 72), cell("lstm", 64, 72)
    x, lengths, reset = torch.randn(6, 40, 64), torch.tensor([40, 31, 0, 7, 40, 1]), torch.rand(6, 40) < 0.1
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        y, state = Bidirectional(left, right).scan(x, lengths=lengths, reset=reset)
    finally:
        torch.set_num_threads(before)
    forth, end = left.scan(x, lengths=lengths, reset=reset)
    flipped = kernels.reverse(elman.lengths.last_of_episodes(reset, lengths), lengths)
    back, begin = right.scan(kernels.reverse(x, lengths), lengths=lengths, reset=flipped)
    assert torch.equal(y, torch.cat([forth, kernels.reverse(back, lengths)], -1))
    for ours, theirs in zip(states.leaves(state), states.leaves((end, begin)), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("frozen", ["x", "0.W", "1.core.U", "0.b"])
def test_gradients_that_nobody_wants(frozen: str) -> None:
    torch.manual_seed(0)
    core = Bidirectional(cell("lstm", D, 4), cell("gru", D, 6)).double()
    x, state, reset = draw(core, torch.float64)
    tensors = {"x": x.requires_grad_(), **{name.removeprefix("cores."): p for name, p in core.named_parameters()}}

    def gradients() -> dict[str, Tensor]:
        y, _ = core.scan(x, state, lengths=LENGTHS, reset=reset)
        wanted = {name: t for name, t in tensors.items() if t.requires_grad}
        return dict(zip(wanted, torch.autograd.grad(y.square().sum(), list(wanted.values())), strict=True))

    everything = gradients()
    tensors[frozen].requires_grad_(False)
    some = gradients()
    assert set(some) == set(everything) - {frozen}
    torch.testing.assert_close(some, {name: everything[name] for name in some}, rtol=0, atol=0)


def test_a_gradient_at_one_last_state_alone() -> None:
    core = Bidirectional(cell("lstm", D, 4), cell("lstm", D, 6)).double()
    x, state, reset = draw(core, torch.float64)
    parameters = list(core.parameters())

    def gradients() -> tuple[Tensor, ...]:
        _, (_, last) = core.scan(x, state, lengths=LENGTHS, reset=reset)
        return torch.autograd.grad(last.c.square().sum(), parameters, allow_unused=True, materialize_grads=True)

    got = gradients()
    with kernels.use("reference"):
        torch.testing.assert_close(got, gradients(), rtol=1e-10, atol=1e-11)


def test_whoever_listens_to_a_core_hears_it() -> None:
    core = Bidirectional(cell("gru", D, 4), cell("gru", D, 4))
    x, state, reset = draw(core, torch.float32)
    wanted = core.scan(x, state, lengths=LENGTHS, reset=reset)[0]
    for part in (core.cores[0], core.cores[1], core.cores[1].core):
        heard: list[object] = []
        handle = part.register_forward_hook(lambda *call, heard=heard: heard.append(call))
        assert torch.equal(core.scan(x, state, lengths=LENGTHS, reset=reset)[0], wanted)
        handle.remove()
        assert len(heard) == 1


@pytest.mark.parametrize("build", [Parallel, lambda *cores: Bidirectional(*cores)])
def test_what_is_in_the_padding_is_not_even_read(build: type[Core]) -> None:
    core = build(cell("lstm", D, 4), cell("gru", D, 6))
    x, state, reset = draw(core, torch.float32)
    past = ~elman.lengths.valid(LENGTHS, T)
    results = []
    for filling in (0.0, torch.nan, torch.inf):
        filled = torch.where(past[..., None], filling, x)
        assert core.skips_padding(filled)
        results.append(outcome(core, filled, state, reset))
    for one, other in itertools.pairwise(results):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    with kernels.use("reference"):  # which multiplies it by weights, and has to be given zeros
        assert not core.skips_padding(filled)
        assert all(torch.isfinite(result).all() for result in outcome(core, filled, state, reset))


@pytest.mark.parametrize(
    "build",
    [Stack, Parallel, Reverse, lambda inner: Bidirectional(inner, cell("gru", D, 4)),
     lambda inner: Bidirectional(cell("gru", D, 4), inner), lambda inner: Stack(Parallel(inner))],
)  # fmt: skip
def test_a_hook_on_an_inner_core_sees_zeros_in_the_padding(build: Callable[[Core], Core]) -> None:
    inner = cell("gru", D, 4)
    core, heard = build(inner), list[Tensor]()
    x, _, reset = draw(core, torch.float32)
    past = ~elman.lengths.valid(LENGTHS, T)
    filled = torch.where(past[..., None], torch.nan, x)
    inner.register_forward_pre_hook(lambda _, given: heard.append(given[0]))
    core.scan(filled, lengths=LENGTHS, reset=reset)
    assert len(heard) == 1 and heard[0][past].eq(0).all()


def test_a_saved_tensor_of_another_shape_is_refused() -> None:
    """What goes to native code is checked there too, in the backward pass of a pair."""
    core = Bidirectional(cell("lstm", D, 4), cell("gru", D, 6))
    x, state, reset = draw(core, torch.float32)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t[:-1] if t.dim() == 1 else t):
        y, _ = core.scan(x.requires_grad_(), state, lengths=LENGTHS, reset=reset)
    with pytest.raises(elman.ElmanError):
        y.sum().backward()
