"""The filter, its gradients and the most probable path, against enumeration of all paths, on every kind of kernel."""

import numpy as np
import pytest
import torch
from brute import enumerate_paths
from torch import Tensor

from elman import kernels
from elman.tasks.hmm.sequences import rows
from elman.tasks.hmm.steps import expected

KERNELS = pytest.mark.parametrize("kernel", kernels.available())
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


def chain(K: int, seed: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    start = torch.rand(K, generator=g, dtype=dtype)
    transition = torch.rand(K, K, generator=g, dtype=dtype)
    return start / start.sum(), transition / transition.sum(1, keepdim=True)


def noise(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype) * 2


@KERNELS
@pytest.mark.parametrize(("K", "T"), [(1, 4), (2, 1), (2, 7), (3, 6), (5, 4)])
def test_against_enumeration(kernel: str, K: int, T: int) -> None:
    start, transition = chain(K, K)
    x = noise(T, K, seed=T)
    truth = enumerate_paths(x.numpy(), start.numpy(), transition.numpy())
    with kernels.use(kernel):
        stats = expected(x, start, transition, rows((T,)))
        path, score = kernels.viterbi(
            x[None], start, transition, torch.tensor([T]), torch.zeros(1, T, dtype=torch.bool)
        )
    assert stats.log_likelihood == pytest.approx(truth.log_likelihood, abs=1e-12)
    np.testing.assert_allclose(stats.posterior, truth.posterior, atol=1e-13)
    np.testing.assert_allclose(stats.transition, truth.transitions, atol=1e-13)
    np.testing.assert_allclose(stats.start, truth.posterior[0], atol=1e-13)
    np.testing.assert_array_equal(path[0], truth.path)
    assert float(score) == pytest.approx(truth.path_score, abs=1e-12)


@KERNELS
def test_zeros_in_the_chain_against_enumeration(kernel: str) -> None:
    start = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    transition = torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.7, 0.3], [0.0, 0.0, 1.0]], dtype=torch.float64)
    x = noise(7, 3, seed=1)
    truth = enumerate_paths(x.numpy(), start.numpy(), transition.numpy())
    with kernels.use(kernel):
        stats = expected(x, start, transition, rows((7,)))
        path, score = kernels.viterbi(
            x[None], start, transition, torch.tensor([7]), torch.zeros(1, 7, dtype=torch.bool)
        )
    assert stats.log_likelihood == pytest.approx(truth.log_likelihood, abs=1e-12)
    np.testing.assert_allclose(stats.posterior, truth.posterior, atol=1e-13)
    np.testing.assert_allclose(stats.transition, truth.transitions, atol=1e-13)
    np.testing.assert_array_equal(path[0], truth.path)
    assert float(score) == pytest.approx(truth.path_score, abs=1e-12)


@KERNELS
def test_sequences_in_one_row_are_separate(kernel: str) -> None:
    start, transition = chain(3, 0)
    lengths = (5, 0, 2, 2, 1)
    x = noise(10, 3, seed=3)
    pieces = [piece.numpy() for piece in x.split([n for n in lengths if n])]
    truths = [enumerate_paths(piece, start.numpy(), transition.numpy()) for piece in pieces]
    where = rows(lengths)
    assert where.reset.shape == (2, 5)  # 5 | 2 + 2 + 1
    with kernels.use(kernel):
        stats = expected(x, start, transition, where)
        path, score = kernels.viterbi(where.pack(x), start, transition, where.lengths, where.reset)
    assert stats.log_likelihood == pytest.approx(sum(t.log_likelihood for t in truths), abs=1e-12)
    np.testing.assert_allclose(stats.posterior, np.concatenate([t.posterior for t in truths]), atol=1e-13)
    np.testing.assert_allclose(stats.transition, sum(t.transitions for t in truths), atol=1e-13)
    np.testing.assert_array_equal(where.unpack(path), np.concatenate([t.path for t in truths]))
    assert float(score.sum()) == pytest.approx(sum(t.path_score for t in truths), abs=1e-12)


@KERNELS
@DTYPES
def test_a_million_steps_do_not_underflow(kernel: str, dtype: torch.dtype) -> None:
    if kernel == "reference":
        pytest.skip("a Torch loop over a million steps takes minutes; the time-parallel form is tested instead")
    start, transition = chain(2, 0, dtype)
    # Identical emissions say nothing of the state: the log-likelihood is known.
    x = torch.full((1, 1_000_000, 2), -700.0 if dtype == torch.float64 else -80.0, dtype=dtype)
    log_c, _, last = kernels.hmm_filter(
        x, start, transition, start[None], torch.tensor([1_000_000]), torch.zeros(1, 1_000_000, dtype=torch.bool)
    )
    assert float(log_c.double().sum()) == pytest.approx(float(x[0, 0, 0]) * 1e6, rel=1e-6)
    assert float(last.sum()) == pytest.approx(1.0, abs=1e-5)


@KERNELS
def test_impossible_observations_leave_nothing_and_a_reset_mends_it(kernel: str) -> None:
    start, transition = chain(2, 0)
    x = torch.zeros(1, 4, 2, dtype=torch.float64)
    x[0, 1] = -torch.inf
    reset = torch.tensor([[False, False, False, True]])
    with kernels.use(kernel):
        x.requires_grad_()
        log_c, p, last = kernels.hmm_filter(x, start, transition, start[None], torch.tensor([4]), reset)
        (gx,) = torch.autograd.grad(log_c[:, ::3].sum(), x)
    assert log_c[0].tolist()[1:3] == [-torch.inf, -torch.inf]
    assert p[0, 1].tolist() == [0.0, 0.0]
    assert float(log_c[0, 3].detach()) == pytest.approx(0.0, abs=1e-12)
    assert bool(gx.isfinite().all()) and bool(last.isfinite().all())
    np.testing.assert_allclose(gx[0, 3].sum(), 1.0)


@KERNELS
def test_the_mass_may_lie_where_the_observation_is_least_likely(kernel: str) -> None:
    """exp(-1000) underflows; scaling by the best state that can be reached does not."""
    start = torch.tensor([1.0, 0.0], dtype=torch.float64)
    transition = torch.eye(2, dtype=torch.float64)
    x = torch.tensor([[[-1000.0, 0.0], [-1000.0, 0.0]]], dtype=torch.float64)
    with kernels.use(kernel):
        log_c, _, _ = kernels.hmm_filter(
            x, start, transition, start[None], torch.tensor([2]), torch.zeros(1, 2, dtype=torch.bool)
        )
    assert log_c[0].tolist() == [-1000.0, -1000.0]


@KERNELS
@pytest.mark.parametrize("arriving", [(0,), (2,), (0, 2)], ids=["log_c", "last", "both"])
@pytest.mark.parametrize("K", [2, 4, 8, 16, 40])
def test_gradients_of_some_outputs_do_not_cross_a_reset(kernel: str, K: int, arriving: tuple[int, ...]) -> None:
    """Without gradients of the predictions, and with none of log_c at the steps around a reset, which the chain may
    not wait for; against the reference."""
    B, T = 3, 40
    reset = torch.zeros(B, T, dtype=torch.bool)
    reset[0, [5, 22]] = reset[1, 37] = True
    counted = noise(B, T, seed=6)
    counted[0, 2:30] = counted[1, 30:39] = 0
    weights = {0: counted, 2: noise(B, K, seed=8)}

    def run() -> tuple[Tensor, ...]:
        state = chain(K, 2)[1][:1].expand(B, K)
        inputs = [v.clone().requires_grad_() for v in (noise(B, T, K, seed=9), *chain(K, 1), state)]
        out = kernels.hmm_filter(*inputs, torch.tensor([T, T, 31]), reset)
        return torch.autograd.grad(sum((weights[i] * out[i]).sum() for i in arriving), inputs)

    with kernels.use("reference"):
        truth = run()
    with kernels.use(kernel):
        given = run()
    for a, b in zip(given, truth, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


@KERNELS
@DTYPES
@pytest.mark.parametrize("K", [1, 3, 4, 8, 9, 12, 13, 16, 20, 24, 40, 64, 100])
def test_every_gradient_against_the_definition(kernel: str, K: int, dtype: torch.dtype) -> None:
    """With gradient arriving at all three outputs, ragged rows, and resets; numbers by double precision on the
    reference."""
    B, T = 3, 9
    lengths, reset = torch.tensor([T, 4, 0]), torch.rand(B, T, generator=torch.Generator().manual_seed(5)) < 0.3
    out_weights = (noise(B, T, seed=6), noise(B, T, K, seed=7), noise(B, K, seed=8))

    def run(dtype: torch.dtype) -> list[Tensor]:
        start, transition = (v.to(dtype) for v in chain(K, 1))
        state = chain(K, 2)[1][:1].to(dtype).expand(B, K)
        inputs = [v.clone().requires_grad_() for v in (noise(B, T, K, seed=9).to(dtype), start, transition, state)]
        out = kernels.hmm_filter(*inputs, lengths, reset)
        total = sum((w.to(dtype) * o).sum() for w, o in zip(out_weights, out, strict=True))
        return [*out, *torch.autograd.grad(total, inputs)]

    with kernels.use("reference"):
        truth = run(torch.float64)
    with kernels.use(kernel):
        given = run(dtype)
    tolerance = 1e-11 if dtype == torch.float64 else 2e-4
    for a, b in zip(given, truth, strict=True):
        assert a.dtype == dtype
        np.testing.assert_allclose(
            a.detach().double(), b.detach(), atol=tolerance * (1 + float(b.detach().abs().max()))
        )


@DTYPES
@pytest.mark.parametrize("arriving", [(0,), (0, 1, 2)], ids=["log_c", "all"])
def test_threads_that_divide_the_states_of_one_row_change_no_bit(arriving: tuple[int, ...], dtype: torch.dtype) -> None:
    """Enough states for it, not in whole vectors, over chunks and resets; at two steps the mass has no likelihood."""
    K, T = 270, 150
    start, transition = chain(K, 1, dtype)
    x = noise(1, T, K, seed=2, dtype=dtype)
    x[0, [20, 100]] = -1000 * torch.arange(K).remainder(7).to(dtype)
    start[torch.arange(K) % 7 < 3], reset = 0, torch.zeros(1, T, dtype=torch.bool)
    reset[0, [20, 63, 64, 100]] = True
    inputs = (x, start / start.sum(), transition, chain(K, 3, dtype)[0][None])
    threads, found = torch.get_num_threads(), []
    try:
        for number in (2, 3, 1):  # one last: what threads leave out is not in memory from before
            torch.set_num_threads(number)
            given = [v.clone().requires_grad_() for v in inputs]
            out = kernels.hmm_filter(*given, torch.tensor([T]), reset)
            weights = [torch.linspace(0.5, 1.5, out[i].numel(), dtype=dtype).reshape(out[i].shape) for i in arriving]
            total = torch.stack([(w * out[i]).sum() for w, i in zip(weights, arriving, strict=True)]).sum()
            found.append([*out, *torch.autograd.grad(total, given)])
    finally:
        torch.set_num_threads(threads)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(other, found[0], strict=True))


@KERNELS
@DTYPES
@pytest.mark.parametrize("K", [1, 5, 8, 33])
def test_viterbi_on_ragged_batches_is_row_by_row(kernel: str, K: int, dtype: torch.dtype) -> None:
    B, T = 4, 150
    start, transition = chain(K, 4, dtype)
    x = noise(B, T, K, seed=2).to(dtype)
    lengths = torch.tensor([T, 70, 1, 0])
    reset = torch.rand(B, T, generator=torch.Generator().manual_seed(5)) < 0.05
    x[1, 70:] = torch.nan
    with kernels.use(kernel):
        path, score = kernels.viterbi(x, start, transition, lengths, reset)
    for b in range(B):
        n = int(lengths[b])
        assert bool((path[b, n:] == -1).all())
        want = 0.0
        for t in range(n):
            k = int(path[b, t])
            fresh = t == 0 or bool(reset[b, t])
            want += float(x[b, t, k]) + float((start[k] if fresh else transition[int(path[b, t - 1]), k]).log())
        assert float(score[b]) == pytest.approx(want, rel=1e-4 if dtype == torch.float32 else 1e-11, abs=1e-6)
    with kernels.use("reference"):
        truth, _ = kernels.viterbi(x.double(), start.double(), transition.double(), lengths, reset)
    assert torch.equal(path, truth)
