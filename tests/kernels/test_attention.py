"""Attention, and the gated loop with attention inside, on csrc: against the reference, in odd widths, bit by bit."""

import pytest
import torch
from torch import Tensor

from elman import kernels
from elman import state as states
from elman.cells import cell
from elman.compose.attention import Additive, Decoder, Luong

native = pytest.importorskip("elman.kernels.native")

SIZES = torch.tensor([5, 1, 0, 3])


def results(decoder: Decoder, dtype: torch.dtype) -> list[Tensor]:
    """Outputs, last state, and every gradient, with ragged rows, ragged memories and resets."""
    draw = torch.Generator().manual_seed(1)
    decoder = decoder.to(dtype)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64).to(dtype).requires_grad_()

    x, memory = random(4, 6, decoder.input_size), random(4, 5, decoder.memory_size)
    state = states.map(lambda leaf: random(*leaf.shape), decoder.init_state(4))
    reset = torch.zeros(4, 6, dtype=torch.bool)
    reset[0, [0, 3]] = reset[1, 5] = reset[3, 2] = True
    y, last = decoder.given(memory, SIZES).scan(x, state, lengths=torch.tensor([6, 6, 3, 0]), reset=reset)
    found = [y, *states.leaves(last)]
    total = sum((leaf * torch.linspace(-1, 1, leaf.numel(), dtype=dtype).view_as(leaf)).sum() for leaf in found)
    wanted = [x, memory, *states.leaves(state), *decoder.parameters()]
    gradients = torch.autograd.grad(total, wanted, allow_unused=True)
    return [*found, *(torch.zeros_like(w) if g is None else g for w, g in zip(wanted, gradients, strict=True))]


def decoders(D: int, M: int, H: int) -> dict[str, Decoder]:
    torch.manual_seed(0)
    return {
        f"{name} {kind}": made
        for kind in ("elman", "gru", "lstm")
        for name, made in (
            ("additive", Additive(cell(kind, D + M, H), M, size=3, attention_size=H + 2)),
            ("fed", Luong(cell(kind, D + 5, H), M, feeding=True, size=5)),
        )
    }


@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 5, 9), (8, 16, 16), (2, 33, 17)])
def test_it_is_the_reference(sizes: tuple[int, int, int]) -> None:
    for name, decoder in decoders(*sizes).items():
        before = kernels.calls()
        found = results(decoder, torch.float64)
        counts = kernels.calls()
        assert counts["attended"] > before.get("attended", 0) and counts["attended_back"] > before.get(
            "attended_back", 0
        )
        with kernels.use("reference"):
            wanted = results(decoder, torch.float64)
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9, msg=lambda text, name=name: f"{name}: {text}")


def test_single_precision() -> None:
    for decoder in decoders(3, 20, 19).values():
        found = results(decoder, torch.float32)
        with kernels.use("reference"):
            wanted = results(decoder, torch.float64)
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a.double(), b, rtol=2e-4, atol=2e-4)


def test_what_is_past_a_memory_s_length_changes_no_bit() -> None:
    draw = torch.Generator().manual_seed(0)
    query, keys, values, v = (torch.randn(*n, generator=draw) for n in ((4, 2, 7), (4, 5, 7), (4, 5, 9), (7,)))
    for weight in (None, v):
        whole = kernels.attend(query, keys, values, SIZES, weight)
        past = torch.arange(5)[:, None] >= SIZES[:, None, None]
        dirty = (torch.where(past, torch.nan, part) for part in (keys, values))
        assert all(map(torch.equal, whole, kernels.attend(query, *dirty, SIZES, weight)))
        for b, n in enumerate(SIZES.tolist()):
            alone = kernels.attend(query[b, None], keys[b, None, :n], values[b, None, :n], SIZES[b, None], weight)
            assert torch.equal(alone[0][0], whole[0][b]) and torch.equal(alone[1][0], whole[1][b, :, :n])


def test_gradients_of_the_weights_that_are_given_out() -> None:
    draw = torch.Generator().manual_seed(0)
    shapes = ((4, 2, 3), (4, 5, 3), (4, 5, 2), (3,))
    given = [torch.randn(*n, generator=draw, dtype=torch.float64, requires_grad=True) for n in shapes]
    for count in (3, 4):
        assert torch.autograd.gradcheck(
            lambda *a: kernels.attend(*a[:3], SIZES, a[3] if len(a) > 3 else None), given[:count]
        )


def test_a_cell_without_such_a_loop_steps_through_it() -> None:
    core = Additive(cell("gru", 3 + 5, 4, layer_norm=True), 5).given(torch.randn(2, 3, 5))
    before = kernels.calls().get("attended", 0)
    assert core.scan(torch.randn(2, 4, 3))[0].shape == (2, 4, 4) and kernels.calls().get("attended", 0) == before
