"""What EM expects, by one native call (csrc/hmm_expected.cpp): the reference's numbers, and the same bits anyhow."""

import pytest
import torch
from torch import Tensor

from elman import kernels

pytestmark = pytest.mark.skipif("native" not in kernels.available(), reason="the native kernels are not built")
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
FEW = pytest.mark.parametrize("K", [1, 2, 3, 4, 5, 8, 9, 20])
LENGTHS = (300, 129, 0, 1, 64, 127, 128, 257, 8)  # around chunks of 64, and around their middle


def draw(K: int, lengths: tuple[int, ...] = LENGTHS, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    """x, start, transition, with some zeros; lengths; resets, at both sides of a middle among them."""
    g = torch.Generator().manual_seed(K)
    T = max(lengths)
    x = torch.randn(len(lengths), T, K, generator=g, dtype=dtype) * 2
    start, transition = (torch.rand(*s, generator=g, dtype=dtype) + 0.05 for s in ((K,), (K, K)))
    if K > 2:
        start[1], transition[0, 2] = 0, 0
    reset = torch.zeros(len(lengths), T, dtype=torch.bool)
    reset[0, [0, 64, 128, 129, 299]] = True
    reset[-2:, 9::11] = True
    return x, start / start.sum(), transition / transition.sum(1, keepdim=True), torch.tensor(lengths), reset


@DTYPES
@FEW
def test_it_is_the_reference(K: int, dtype: torch.dtype) -> None:
    x, start, transition, lengths, reset = draw(K, dtype=dtype)
    with kernels.use("reference"):
        truth = kernels.hmm_expected(x.double(), start.double(), transition.double(), lengths, reset)
    found = kernels.hmm_expected(x, start, transition, lengths, reset)
    everywhere = torch.tensor(True)
    possible = (everywhere, everywhere, start > 0, transition > 0)
    for a, b, where in zip(found, truth, possible, strict=True):
        assert a.dtype == dtype and a.shape == b.shape
        b = torch.where(where, b, 0.0)  # what cannot be has no gradient
        tolerance = (1e-11 if dtype == torch.float64 else 1e-4) * (1 + float(b.abs().max()))
        torch.testing.assert_close(a.double(), b, rtol=0, atol=tolerance)


@DTYPES
@FEW
def test_a_row_has_the_bits_that_it_has_alone_and_without_counts(K: int, dtype: torch.dtype) -> None:
    x, start, transition, lengths, reset = draw(K, dtype=dtype)
    total, gx, _, _ = kernels.hmm_expected(x, start, transition, lengths, reset)
    found = kernels.hmm_posterior(x, start, transition, lengths, reset)
    assert torch.equal(found[0], total) and torch.equal(found[1], gx)
    for b, n in enumerate(lengths.tolist()):
        alone = kernels.hmm_posterior(x[b : b + 1, :n], start, transition, lengths[b : b + 1], reset[b : b + 1, :n])
        assert torch.equal(alone[1][0], gx[b, :n]) and not gx[b, n:].any()


@pytest.mark.parametrize("B", [1, 5])
@FEW
def test_threads_change_no_bit(K: int, B: int) -> None:
    arguments = draw(K, (5000,) * B)
    threads, found = torch.get_num_threads(), []
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            found.append(kernels.hmm_expected(*arguments))
    finally:
        torch.set_num_threads(threads)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(other, found[0], strict=True))


@pytest.mark.parametrize("at", [3, 250])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_no_number_is_left_to_the_filter_and_to_its_row(at: int, value: float) -> None:
    """Before and after the middle of a row, where the two passes meet."""
    x, start, transition, lengths, reset = draw(4, (300, 300))
    good = kernels.hmm_posterior(x, start, transition, lengths, reset)[1]
    x[0, at] = value
    state = start.expand(2, -1)
    want = kernels.hmm_log_prob(x, start, transition, state, lengths, reset).sum()
    total, gx = kernels.hmm_posterior(x, start, transition, lengths, reset)
    torch.testing.assert_close(total, want, equal_nan=True, rtol=0, atol=0)
    assert torch.equal(gx[1], good[1]) and not total.isfinite()


def test_a_middle_that_is_lost_in_small_numbers_is_done_by_the_filter() -> None:
    """Two chains that never meet, each as improbable as exp(-1200) at some time, and as probable at the end."""
    x = torch.zeros(1, 800, 2, dtype=torch.float64)
    x[0, :400, 1], x[0, 400:, 0] = -3.0, -2.999
    half, lengths, reset = torch.full((2,), 0.5).double(), torch.tensor([800]), torch.zeros(1, 800, dtype=torch.bool)
    posterior = kernels.hmm_posterior(x, half, torch.eye(2).double(), lengths, reset)[1]
    share = torch.sigmoid(torch.tensor(-0.4, dtype=torch.float64))  # of the second: 400 * (2.999 - 3)
    torch.testing.assert_close(posterior[0, :, 1], share.expand(800), rtol=1e-9, atol=0)


def test_the_operation_keeps_its_promises() -> None:
    for counts in (True, False):
        torch.library.opcheck(
            torch.ops.elman.hmm_expected.default, (*draw(5), counts), test_utils=("test_schema", "test_faketensor")
        )


def test_wrong_shapes_are_refused() -> None:
    x, start, transition, lengths, reset = draw(3)
    with pytest.raises(kernels.KernelError, match="`transition`"):
        kernels.hmm_expected(x, start, transition[:2], lengths, reset)
    with pytest.raises(ValueError, match="lengths"):
        kernels.hmm_posterior(x, start, transition, lengths + 300, reset)
