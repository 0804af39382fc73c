"""Chains that cannot come back: a state that is less probable than the smallest number may still be the right one."""

import numpy as np
import pytest
import torch

from elman import kernels
from elman.hmm import GaussianHMM, left_to_right
from elman.tasks.hmm.sequences import rows
from elman.tasks.hmm.steps import expected

KERNELS = pytest.mark.parametrize("kernel", kernels.available())
NATIVE = pytest.mark.skipif("native" not in kernels.available(), reason="the reference is in logarithms throughout")


def in_logs(x: np.ndarray, start: np.ndarray, transition: np.ndarray) -> tuple[float, np.ndarray]:
    """Forward and backward as the textbook has them, in logarithms: log-likelihood and posterior (T, K)."""
    with np.errstate(divide="ignore"):
        log_start, log_transition = np.log(start), np.log(transition)
    forward, backward = np.empty_like(x), np.zeros_like(x)
    forward[0] = log_start + x[0]
    for t in range(1, len(x)):
        forward[t] = np.logaddexp.reduce(forward[t - 1][:, None] + log_transition, 0) + x[t]
    for t in range(len(x) - 2, -1, -1):
        backward[t] = np.logaddexp.reduce(log_transition + x[t + 1] + backward[t + 1], 1)
    total = np.logaddexp.reduce(forward[-1])
    return float(total), np.exp(forward + backward - total)


CHAINS = {
    "two that never meet": np.eye(2),
    "one way": np.array([[1.0, 0.0], [1e-5, 1 - 1e-5]]),
    "almost never": np.array([[1.0, 0.0], [0.0, 1.0]]) * (1 - 1e-200) + 1e-200,
}


@KERNELS
@pytest.mark.parametrize("name", CHAINS)
def test_a_state_that_was_given_up_comes_back(kernel: str, name: str) -> None:
    """400 steps for state 0, which make state 1 as improbable as exp(-1200), and then 400 that make it certain."""
    start, transition = np.array([0.5, 0.5]), CHAINS[name]
    x = np.zeros((800, 2))
    x[:400, 1], x[400:, 0] = -3.0, -8.0
    want, posterior = in_logs(x, start, transition)
    with kernels.use(kernel):
        stats = expected(torch.tensor(x), torch.tensor(start), torch.tensor(transition), rows((800,)))
    assert stats.log_likelihood == pytest.approx(want, rel=1e-9)
    np.testing.assert_allclose(stats.posterior, posterior, atol=1e-9)
    assert float(stats.transition.sum()) == pytest.approx(799, rel=1e-9)


@KERNELS
def test_a_state_that_was_given_up_counts_for_its_share(kernel: str) -> None:
    """Both chains end about equally probable, so neither the best path nor the total would tell that one was lost."""
    start, transition = np.array([0.5, 0.5]), np.eye(2)
    x = np.zeros((800, 2))
    x[:400, 1], x[400:, 0] = -3.0, -2.999
    want, posterior = in_logs(x, start, transition)
    assert 0.3 < posterior[0, 1] < 0.45
    with kernels.use(kernel):
        stats = expected(torch.tensor(x), torch.tensor(start), torch.tensor(transition), rows((800,)))
    assert stats.log_likelihood == pytest.approx(want, rel=1e-12)
    np.testing.assert_allclose(stats.posterior, posterior, atol=1e-9)


def draw(K: int, T: int, seed: int) -> tuple[torch.Tensor, ...]:
    """Left to right with a loop back that is never worth it, and evidence that changes its mind: x (B, T, K), start,
    transition, state, lengths, reset."""
    rng = np.random.default_rng(seed)
    transition = np.triu(rng.random((K, K))) + 0.01 * np.eye(K)
    transition /= transition.sum(1, keepdims=True)
    x = rng.normal(size=(4, T, K)) - 15.0 * (np.arange(K) != (np.arange(T)[:, None] // 90) % 2 * (K - 1))
    start, state = rng.dirichlet(np.ones(K)), rng.dirichlet(np.ones(K), 4)
    lengths, reset = torch.tensor([T, T, T // 2, 0]), torch.zeros(4, T, dtype=torch.bool)
    reset[1, [0, T // 3, T - 1]] = True
    return (*(torch.tensor(v) for v in (x, start, transition, state)), lengths, reset)


@pytest.mark.slow
@NATIVE
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("K", [2, 5, 9, 20, 70])
def test_rows_in_logarithms_have_every_gradient_of_the_reference(K: int, dtype: torch.dtype) -> None:
    *inputs, lengths, reset = draw(K, 700, K)
    inputs = [v.to(dtype) for v in inputs]
    lost = torch.ops.elman.hmm_filter(*inputs, lengths, reset, False, True)[-1]
    assert lost.tolist()[:2] == [True, True]
    weight = torch.linspace(0.5, 1.5, 4 * 700).reshape(4, 700)

    def run(kernel: str, dtype: torch.dtype) -> list[torch.Tensor]:
        given = [v.to(dtype).requires_grad_() for v in (v.detach().clone() for v in inputs)]
        with kernels.use(kernel):
            y = kernels.hmm_log_prob(*given, lengths, reset)
            return [y, *torch.autograd.grad((y * weight.to(dtype)).sum(), given)]

    tolerance = 1e-9 if dtype == torch.float64 else 2e-3
    for a, b in zip(run("native", dtype), run("reference", torch.float64), strict=True):
        torch.testing.assert_close(a.double(), b, rtol=tolerance, atol=tolerance * (1 + float(b.detach().abs().max())))


@NATIVE
def test_only_rows_where_something_can_have_been_lost_are_done_again() -> None:
    """A chain that comes back from everywhere loses nothing, nor does a short sequence; a reset ends the count."""
    *inputs, lengths, reset = draw(5, 700, 0)
    flag = torch.ops.elman.hmm_filter
    assert flag(*inputs, lengths, reset, False, True)[-1].tolist() == [True, True, True, False]
    dense = torch.full((5, 5), 0.2, dtype=torch.float64)
    x, start, transition, state = inputs
    assert not flag(x, start, dense, state, lengths, reset, False, True)[-1].any()
    assert not flag(x, start, transition, state, lengths.clamp(max=60), reset, False, True)[-1].any()
    often = torch.arange(700).remainder(70).eq(0).expand(4, 700)
    assert not flag(x, start, transition, state, lengths, often, False, True)[-1].any()


def test_a_left_to_right_model_on_improbable_data_gives_numbers() -> None:
    K = 4
    model = GaussianHMM(K, transmat_mask=left_to_right(K))
    model.startprob_ = np.array([1.0, 0, 0, 0])
    model.transmat_ = np.diag([0.9, 0.9, 0.9, 1.0]) + np.diag([0.1, 0.1, 0.1], 1)
    model.means_, model.covars_ = np.arange(K, dtype=float)[:, None] * 10, np.full((K, 1), 1e-2)
    X = np.concatenate([np.full(50, 30.0), np.full(50, 0.0), np.full(50, 60.0)])[:, None]
    x = model.module().emission(torch.tensor(X)).detach().numpy()
    want, posterior = in_logs(x, model.startprob_, model.transmat_)
    assert model.score(X) == pytest.approx(want, rel=1e-9)
    np.testing.assert_allclose(model.predict_proba(X), posterior, atol=1e-7)  # the sums are of the order of 1e7
    path = model.predict(X)
    assert (np.diff(path) >= 0).all() and path[0] == 0
    filtered, _ = model.filter(X)
    assert np.isfinite(filtered).all()


def test_what_cannot_be_is_not_mistaken_for_underflow() -> None:
    x = torch.tensor([[0.0, -torch.inf], [-torch.inf, 0.0]], dtype=torch.float64)
    half, identity = torch.full((2,), 0.5, dtype=torch.float64), torch.eye(2, dtype=torch.float64)
    assert expected(x, half, identity, rows((2,))).log_likelihood == -np.inf


@KERNELS
def test_what_lies_before_an_impossible_step_has_the_gradient_it_has_alone(kernel: str) -> None:
    """With respect to x that is the posterior of the steps before; nothing flows back from a step that cannot be."""
    T, cut, K = 40, 20, 5
    rng = np.random.default_rng(0)
    start, transition, x = rng.dirichlet(np.ones(K)), rng.dirichlet(np.ones(K), K), rng.normal(size=(T, K))
    _, posterior = in_logs(x[:cut], start, transition)
    x[cut] = -np.inf
    given = torch.tensor(x)[None].requires_grad_()
    first, matrix = torch.tensor(start), torch.tensor(transition)
    with kernels.use(kernel):
        y = kernels.hmm_log_prob(
            given, first, matrix, first[None], torch.tensor([T]), torch.zeros(1, T, dtype=torch.bool)
        )
        y.backward(torch.ones_like(y))
    assert given.grad is not None
    np.testing.assert_allclose(given.grad[0, :cut], posterior, atol=1e-12)
    assert not given.grad[0, cut:].any()
