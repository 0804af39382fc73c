"""save_bfloat16: the same outputs to the bit, and the gradients of a backward pass that finds rounded numbers."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from elman import kernels, laws
from elman import state as states
from elman.cells import CELLS, cell
from elman.cells.gated import Gated
from elman.compose import Bidirectional, Recompute, Reverse, Stack, Zoneout, save_bfloat16, stack
from elman.core import Core
from elman.errors import InputError

pytestmark = pytest.mark.skipif("native" not in kernels.available(), reason="it is about the native loops")

LOOPS: dict[str, Callable[[int, int], Core]] = {
    "-".join([name, *(f"{k}={v}" for k, v in options.items())]): lambda D, H, name=name, options=options: cell(
        name, D, H, **options
    )
    for name, kind in CELLS.items()
    for options in kind.variants
    if isinstance(core := cell(name, 4, 4, **options), Gated) and core.has_loop()
}
TOGETHER: dict[str, Callable[[int, int], Core]] = {
    "reverse": lambda D, H: Reverse(cell("lstm", D, H)),
    "pair": lambda D, H: Bidirectional(cell("lstm", D, H, peephole=True), cell("gru", D, H)),
    "normed pair": lambda D, H: Bidirectional(cell("gru", D, H, layer_norm=True), cell("mgu", D, H)),
    "stack": lambda D, H: stack("lstm", D, H, layers=2, bidirectional=True),
}


@contextmanager
def on_threads(threads: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def outcome(core: Core, sample: laws.Sample) -> tuple[list[Tensor], list[Tensor]]:
    """Outputs and the last state; all gradients, some of which arrive at that state."""
    x = sample.x.clone().requires_grad_()
    state = states.map(lambda leaf: leaf.detach().clone().requires_grad_(), sample.state)
    y, last = core.scan(x, state, lengths=sample.lengths, reset=sample.reset)
    results, generator = [y, *states.leaves(last)], torch.Generator().manual_seed(0)
    total = sum((torch.randn(r.shape, generator=generator, dtype=r.dtype) * r).sum() for r in results)
    wanted = [x, *states.leaves(state), *core.parameters()]
    return results, list(torch.autograd.grad(total, wanted, allow_unused=True, materialize_grads=True))  # type: ignore[arg-type]


def equal(one: list[Tensor], two: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def round_what_is_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oracle: the plain loops, with what they saved rounded by Torch on the way to the backward pass."""
    for name, results in (("gated", 3), ("gated_pair", 5)):
        module = importlib.import_module(f"elman.kernels.native.{name}")

        def rounded(*args: Any, plain: Any = module._forward, results: int = results) -> tuple[Tensor, ...]:
            found = plain(*args)
            return *found[:results], *(saved.bfloat16().to(saved.dtype) for saved in found[results:])

        monkeypatch.setattr(module, "_forward", rounded)


SIZES = {
    "small": ((4, 6, 5, 8), 1),
    "rows divided": ((8, 40, 9, 70), 2),
    "units divided": ((8, 128, 3, 40), 2),
    "three threads": ((5, 100, 4, 40), 3),
}


@pytest.mark.parametrize("sizes", SIZES.values(), ids=list(SIZES))
@pytest.mark.parametrize("build", [*LOOPS.values(), *TOGETHER.values()], ids=[*LOOPS, *TOGETHER])
def test_outputs_keep_their_bits_and_gradients_are_those_of_rounded_numbers(
    build: Callable[[int, int], Core], sizes: tuple[tuple[int, int, int, int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    (D, H, B, T), threads = sizes
    core = build(D, H)
    sample = laws.draw(core, torch.float32, seed=0, batch_size=B, time=T)
    with on_threads(threads):
        plain = outcome(core, sample)
        ours = outcome(save_bfloat16(copy.deepcopy(core)), sample)
        round_what_is_saved(monkeypatch)
        rounded = outcome(core, sample)
    assert equal(plain[0], ours[0])
    assert equal(rounded[1], ours[1])
    for exact, found in zip(plain[1], ours[1], strict=True):
        assert (found - exact).norm() <= 0.03 * exact.norm()


@pytest.mark.parametrize("name", ["rate", "mgu", "gru", "lstm"])
def test_half_is_stored(name: str) -> None:
    core, x = cell(name, 8, 16), torch.randn(2, 50, 8)
    kept: dict[torch.dtype, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.dtype] = kept.get(tensor.dtype, 0) + tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        core.scan(x)
        whole = kept.pop(torch.float32)
        save_bfloat16(core).scan(x)
    halves = kept[torch.bfloat16]
    assert kept[torch.float32] + halves == whole
    assert halves == 2 * 50 * 16 * {"rate": 1, "mgu": 2, "gru": 4, "lstm": 5}[name]


@pytest.mark.parametrize("build", [*LOOPS.values(), *TOGETHER.values()], ids=[*LOOPS, *TOGETHER])
def test_the_laws(build: Callable[[int, int], Core]) -> None:
    """In float64 all of them; in float32 the gradients of law 7 are those of the loop to three digits."""
    torch.manual_seed(0)
    core = save_bfloat16(build(4, 4))
    assert laws.check(core.double()), str(laws.check(core))
    verdicts = laws.check(core.float()).verdicts
    assert all(verdict.ok for verdict in verdicts if verdict.law != 7)
    assert all(verdict.worst_error < 0.02 for verdict in verdicts if verdict.law == 7)


UNCHANGED: dict[str, tuple[Callable[[], Core], torch.dtype, str]] = {
    "float64": (lambda: cell("lstm", 4, 6), torch.float64, "native"),
    "reference kernels": (lambda: cell("gru", 4, 6), torch.float32, "reference"),
    "recomputed": (lambda: Recompute(cell("gru", 4, 6), 3), torch.float32, "native"),
    "stepped through": (lambda: Zoneout(cell("gru", 4, 6), 0.3).eval(), torch.float32, "native"),
    "saves nothing": (lambda: cell("elman", 4, 6), torch.float32, "native"),
}


@pytest.mark.parametrize(("build", "dtype", "kernel"), UNCHANGED.values(), ids=list(UNCHANGED))
def test_what_stays_as_it_is(build: Callable[[], Core], dtype: torch.dtype, kernel: str) -> None:
    torch.manual_seed(0)
    core = build().to(dtype)
    sample = laws.draw(core, dtype, seed=0, batch_size=4, time=11)
    with kernels.use(kernel):
        plain, ours = outcome(core, sample), outcome(save_bfloat16(copy.deepcopy(core)), sample)
    assert equal(plain[0] + plain[1], ours[0] + ours[1])


def test_a_core_that_would_not_change_is_refused() -> None:
    with pytest.raises(InputError, match="without a gated cell"):
        save_bfloat16(Stack(cell("mingru", 4, 4), cell("lru", 4, 4)))


def test_the_operation_is_what_its_schema_says() -> None:
    core = cell("gru", 2, 4)
    U, b, W, c = (core.get_parameter(name).detach() for name in ("U", "b", "W", "c"))
    given = ("gru", torch.randn(2, 3, 2), U, b, W, c, torch.randn(2, 4), None)
    rows = torch.tensor([3, 2]), torch.zeros(2, 3, dtype=torch.bool)
    torch.library.opcheck(
        torch.ops.elman.gated.default,
        (*given, *rows, *[None] * 6, True, None, False, True),
        test_utils=("test_schema", "test_faketensor"),
    )
