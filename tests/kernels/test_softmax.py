"""log P(symbol) of the native kernel against Torch's cross-entropy, and against itself: other rows, other threads."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from elman import kernels
from elman.errors import KernelError
from tests.kernels.operations import threads

native = pytest.importorskip("elman.kernels.native")

# (rows, symbols, width): one chunk of 240 symbols, several on one thread, several on many; rows past those that are
# computed together; widths around whole vectors.
SHAPES = [(1, 1, 1), (5, 3, 2), (33, 67, 17), (70, 245, 33), (300, 1921, 40), (600, 2500, 13), (4, 5000, 130)]
each_shape = pytest.mark.parametrize("shape", SHAPES)
each_bias = pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])


def problem(shape: tuple[int, int, int], bias: bool, dtype: torch.dtype) -> tuple[list[Tensor | None], Tensor, Tensor]:
    """h, weight and bias; symbols; what each row counts, some of them nothing."""
    (M, V, D), g = shape, torch.Generator().manual_seed(sum(shape))
    h, weight, b = (torch.randn(size, generator=g, dtype=torch.float64) for size in ((M, D), (V, D), (V,)))
    counts = torch.randn(M, generator=g, dtype=torch.float64)
    counts[: M // 3] = 0
    parts = [part.to(dtype).requires_grad_() for part in (h, weight, b)]
    return [*parts[:2], parts[2] if bias else None], torch.randint(V, (M,), generator=g), counts.to(dtype)


def theirs(h: Tensor, weight: Tensor, bias: Tensor | None, symbols: Tensor) -> Tensor:
    return -F.cross_entropy(F.linear(h, weight, bias), symbols, reduction="none")


def gradients(y: Tensor, parts: list[Tensor | None], counts: Tensor | None = None) -> tuple[Tensor, ...]:
    return torch.autograd.grad(y if counts is None else (counts * y).sum(), [p for p in parts if p is not None])


@each_shape
@each_bias
@pytest.mark.parametrize("n", [1, 3])
def test_torch_is_the_oracle(shape: tuple[int, int, int], bias: bool, n: int) -> None:
    parts, symbols, counts = problem(shape, bias, torch.float64)
    with threads(n):
        before = native.calls["softmax_log_prob"], native.calls["softmax_log_prob_back"]
        found = kernels.softmax_log_prob(*parts, symbols)
        each = gradients(found, parts, counts)
        summed = kernels.softmax_log_prob_sum(*parts, symbols)
        of_sum = gradients(-2 * summed, parts)
        after = native.calls["softmax_log_prob"], native.calls["softmax_log_prob_back"]
    assert after == (before[0] + 1, before[1] + 2)  # the gradients of a sum are made beside it
    wanted = theirs(*parts, symbols)
    torch.testing.assert_close(found, wanted, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(summed, wanted.sum(), rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(each, gradients(theirs(*parts, symbols), parts, counts), rtol=1e-10, atol=1e-11)
    torch.testing.assert_close(of_sum, gradients(-2 * wanted.sum(), parts), rtol=1e-10, atol=1e-11)


@each_shape
def test_single_precision_is_as_near_as_torchs(shape: tuple[int, int, int]) -> None:
    parts, symbols, counts = problem(shape, True, torch.float32)
    exact, _, _ = problem(shape, True, torch.float64)
    exact = [None if part is None else part.detach().double().requires_grad_() for part in parts]
    right = theirs(*exact, symbols)
    wanted = [right, *gradients(right, exact, counts.double())]
    results = []
    for function in (kernels.softmax_log_prob, theirs):
        y = function(*parts, symbols)
        results.append([y, *gradients(y, parts, counts)])
    for ours, torchs, want in zip(*results, wanted, strict=True):
        allowed = 3 * (torchs - want).abs().max() + 4 * torch.finfo(torch.float32).eps * want.abs().max()
        assert (ours - want).abs().max() <= allowed


@each_bias
def test_gradcheck(bias: bool) -> None:
    parts, symbols, _ = problem((3, 5, 4), bias, torch.float64)
    there = [part for part in parts if part is not None]

    def each(*given: Tensor) -> Tensor:
        return kernels.softmax_log_prob(given[0], given[1], given[2] if bias else None, symbols)

    def total(*given: Tensor) -> Tensor:
        return kernels.softmax_log_prob_sum(given[0], given[1], given[2] if bias else None, symbols)

    for function in (each, total):
        assert torch.autograd.gradcheck(function, there)
        assert torch.autograd.gradgradcheck(function, there)


@pytest.mark.parametrize("V", [67, 2500])
def test_bits_depend_on_the_row_alone(V: int) -> None:
    """Log-probabilities and the gradients of h, in any company and on any number of threads; sums on any number."""
    parts, symbols, counts = problem((600, V, 40), True, torch.float32)
    h, weight, bias = parts
    assert h is not None and weight is not None
    y = kernels.softmax_log_prob(h, weight, bias, symbols)
    wanted = gradients(y, parts, counts)
    for n in (1, 2, 3):
        with threads(n):
            again = kernels.softmax_log_prob(h, weight, bias, symbols)
            assert torch.equal(again, y)
            assert all(map(torch.equal, gradients(again, parts, counts), wanted))
            for first, end in ((0, 1), (300, 333), (599, 600)):
                row = h[first:end].detach().requires_grad_()
                part = kernels.softmax_log_prob(row, weight, bias, symbols[first:end])
                assert torch.equal(part, y[first:end])
                (gh,) = torch.autograd.grad((counts[first:end] * part).sum(), row)
                assert torch.equal(gh, wanted[0][first:end])


def test_a_sum_gives_its_gradients_away() -> None:
    """They are as large as the weights: a copy of them would be too much. A second backward pass makes them again."""
    parts, symbols, _ = problem((40, 300, 8), True, torch.float32)
    total = kernels.softmax_log_prob_sum(*parts, symbols)
    made = total.grad_fn.gradients[1].data_ptr()  # type: ignore[union-attr]
    total.backward(retain_graph=True)
    assert parts[1] is not None and parts[1].grad is not None and parts[1].grad.data_ptr() == made
    once = parts[1].grad.clone()
    total.backward()
    assert torch.equal(parts[1].grad, 2 * once)


@pytest.mark.parametrize("V", [67, 2500])
@pytest.mark.parametrize("bad", [torch.inf, torch.nan, 1e30])
def test_one_row_that_is_not_ordinary(V: int, bad: float) -> None:
    """It comes out as from Torch, and the others do not notice. Where it does not count, nothing does."""
    (h, weight, bias), symbols, counts = problem((9, V, 5), True, torch.float32)
    assert h is not None and weight is not None
    clean = kernels.softmax_log_prob(h, weight, bias, symbols)
    odd = h.detach().clone()
    odd[4, 2] = bad
    y = kernels.softmax_log_prob(odd, weight, bias, symbols)
    others = torch.tensor([0, 1, 2, 3, 5, 6, 7, 8])
    assert torch.equal(y[others], clean[others])
    assert torch.equal(y[4].isfinite(), theirs(odd, weight, bias, symbols)[4].isfinite())
    counts[4] = 0
    wanted = gradients(clean, [h, weight, bias], counts)
    odd.requires_grad_()
    found = gradients(kernels.softmax_log_prob(odd, weight, bias, symbols), [odd, weight, bias], counts)
    assert all(map(torch.equal, found, wanted))


def test_impossible_symbols() -> None:
    """A logit of minus infinity, in whole chunks of symbols too, and a row in which nothing is possible."""
    weight, bias = torch.zeros(2500, 3), torch.full((2500,), -torch.inf)
    bias[1000:1002] = torch.tensor([0.0, 1.0])
    h, symbols = torch.zeros(2, 3), torch.tensor([1000, 7])
    found, wanted = kernels.softmax_log_prob(h, weight, bias, symbols), theirs(h, weight, bias, symbols)
    torch.testing.assert_close(found, wanted)
    assert found[1] == -torch.inf
    assert kernels.softmax_log_prob(h, weight, torch.full((2500,), -torch.inf), symbols).isnan().all()


def test_no_rows() -> None:
    parts, symbols, _ = problem((0, 9, 4), True, torch.float32)
    assert kernels.softmax_log_prob(*parts, symbols).shape == (0,)
    assert all(not g.any() for g in gradients(kernels.softmax_log_prob_sum(*parts, symbols), parts))


@pytest.mark.parametrize("symbol", [-1, 67, -100])
def test_a_symbol_that_is_not_there_is_refused(symbol: int) -> None:
    parts, symbols, _ = problem((3, 67, 4), True, torch.float32)
    symbols[1] = symbol
    with pytest.raises(ValueError, match=rf"symbols\[1\] is {symbol}, but must be in \[0, 67\)"):
        kernels.softmax_log_prob(*parts, symbols)
    with kernels.use("reference"), pytest.raises((IndexError, RuntimeError), match="out of bounds"):
        kernels.softmax_log_prob(*parts, symbols)


def test_the_operations_check_and_compile() -> None:
    (h, weight, bias), symbols, counts = problem((5, 9, 4), True, torch.float64)
    assert h is not None and weight is not None and bias is not None
    given = (h.detach(), weight.detach(), bias.detach(), symbols)
    torch.library.opcheck(torch.ops.elman.softmax_log_prob.default, given)
    torch.library.opcheck(torch.ops.elman.softmax_log_prob_back.default, (*given, counts))
    with pytest.raises(KernelError, match=r"`symbols` is torch\.int32"):
        torch.ops.elman.softmax_log_prob(*given[:3], symbols.int())


def test_narrow_activations_keep_their_type() -> None:
    h, weight = torch.randn(4, 5, dtype=torch.bfloat16, requires_grad=True), torch.randn(7, 5)
    y = kernels.softmax_log_prob(h, weight, None, torch.zeros(4, dtype=torch.int64))
    y.sum().backward()
    assert y.dtype == torch.float32 and h.grad is not None and h.grad.dtype == torch.bfloat16


@pytest.mark.parametrize("V", [67, 2500])
def test_a_row_that_does_not_count_has_no_say(V: int) -> None:
    """Some of its logits are infinite, and a gradient of zero times what comes of them would be NaN for all weights."""
    parts, symbols, counts = problem((9, V, 5), True, torch.float32)
    h, weight, bias = parts
    assert h is not None and weight is not None
    counts[4] = 0
    wanted = gradients(kernels.softmax_log_prob(h, weight, bias, symbols), parts, counts)
    odd = h.detach().clone()
    odd[4] = 3e38
    given = [odd.requires_grad_(), weight, bias]
    assert not (odd[4] @ weight.T).isfinite().all()
    found = gradients(kernels.softmax_log_prob(*given, symbols), given, counts)
    assert all(map(torch.equal, found, wanted))
