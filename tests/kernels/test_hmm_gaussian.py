"""A step of EM in one call (csrc/hmm_gaussian.cpp) against densities, the reference's expected counts and sums."""

import math

import pytest
import torch
from torch import Tensor

from elman import kernels
from elman.kernels import GaussianParameters, GaussianPriors
from elman.kernels import reference as plain
from elman.kernels.native.hmm import HmmGaussian

pytestmark = pytest.mark.skipif("native" not in kernels.available(), reason="the native module is not built")

F = torch.float64
KINDS = ("spherical", "diag", "full", "tied")


def model(kind: str, K: int, D: int, seed: int = 0) -> tuple[GaussianParameters, GaussianPriors]:
    g = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=F)

    if kind in ("full", "tied"):
        a = normal(K if kind == "full" else 1, D, D)
        spread = torch.linalg.cholesky(a @ a.mT + torch.eye(D, dtype=F))
    else:
        spread = torch.rand(K, D if kind == "diag" else 1, generator=g, dtype=F).add(0.5).expand(K, D)
    chain = torch.softmax(normal(K), 0), torch.softmax(normal(K, K), 1)
    priors = GaussianPriors(
        torch.full((K,), 1.5, dtype=F), torch.full((K, K), 1.2, dtype=F), normal(K, D),
        torch.full((K, D), 0.1, dtype=F), torch.zeros(D, dtype=F), mean_weight=0.3, variance_weight=2.0, dead=1e-3,
        learns_start=True, learns_transition=True, learns_mean=True, learns_variance=True,
    )  # fmt: skip
    return GaussianParameters(*chain, 2 * normal(K, D), spread), priors


def data(B: int, T: int, D: int, seed: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    o = 2 * torch.randn(B, T, D, generator=g, dtype=F)
    lengths = torch.randint(0, T + 1, (B,), generator=g)
    lengths[0] = T
    reset = torch.rand(B, T, generator=g) < 0.05
    reset[:, 0] = True
    return o, lengths, reset


def densities(o: Tensor, p: GaussianParameters) -> Tensor:
    K, D = p.mean.shape
    factors = p.spread if p.spread.dim() == 3 else torch.diag_embed(p.spread.sqrt())
    z = torch.linalg.solve_triangular(factors.expand(K, D, D), (o[..., None, :] - p.mean)[..., None], upper=False)
    log_det = factors.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    return -0.5 * z.square().sum((-1, -2)) - log_det - 0.5 * D * math.log(2 * math.pi)


class Oracle:
    """The same step, from the reference's expected counts."""

    def __init__(self, o: Tensor, lengths: Tensor, reset: Tensor, p: GaussianParameters, q: GaussianPriors) -> None:
        total, weight, gs, gt = plain.hmm_expected(densities(o, p), p.start, p.transition, lengths, reset)
        self.log_likelihood = float(total)
        n = weight.sum((0, 1))
        first = torch.einsum("btk,btd->kd", weight, o)
        self.weight = n
        start, transition = p.start * gs + q.start - 1, p.transition * gt + q.transition - 1
        self.start, self.transition = start / start.sum(), transition / transition.sum(-1, keepdim=True)
        self.mean = (first + q.mean_weight * q.mean) / (n + q.mean_weight)[:, None]
        off = o[..., None, :] - self.mean
        self.scatter = torch.einsum("btk,btkd,btke->kde", weight, off, off)
        numerator = self.scatter.diagonal(dim1=-2, dim2=-1) + q.variance + q.mean_weight * (self.mean - q.mean).square()
        self.variance = numerator / (n + q.variance_weight - 1)[:, None]
        self.spherical = numerator.mean(-1, keepdim=True).expand_as(numerator) / (n + q.variance_weight - 1)[:, None]


def run(
    o: Tensor, lengths: Tensor, reset: Tensor, p: GaussianParameters, q: GaussianPriors, kind: str = "diag"
) -> tuple[HmmGaussian, tuple[float, float, int]]:
    steps = kernels.hmm_gaussian(o, lengths, reset, p, q, kind == "spherical")
    assert steps is not None
    return steps, steps.run()


def close(a: Tensor, b: Tensor, rtol: float = 1e-10) -> None:
    torch.testing.assert_close(a, b, rtol=rtol, atol=1e-11)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "B, T, K, D", [(1, 200, 2, 2), (3, 70, 3, 1), (20, 9, 5, 3), (2, 65, 8, 2), (4, 30, 19, 4), (5, 70, 2, 200)]
)
def test_a_step_is_that_of_the_reference(kind: str, B: int, T: int, K: int, D: int) -> None:
    (o, lengths, reset), (p, q) = data(B, T, D), model(kind, K, D)
    steps, (log_likelihood, _, collapsed) = run(o, lengths, reset, p, q, kind)
    want = Oracle(o, lengths, reset, p, q)
    assert log_likelihood == pytest.approx(want.log_likelihood, rel=1e-12) and collapsed == 0
    close(steps.weight, want.weight)
    close(steps.proposed.start, want.start)
    close(steps.proposed.transition, want.transition)
    close(steps.proposed.mean, want.mean)
    spread = {"diag": want.variance, "spherical": want.spherical}.get(kind, want.scatter)
    close(steps.scatter, spread, 1e-9)


def test_the_log_prior_is_that_of_the_parameters_that_came_in() -> None:
    (o, lengths, reset), (p, q) = data(1, 20, 2), model("diag", 3, 2)
    _, (_, log_prior, _) = run(o, lengths, reset, p, q)
    chain = 0.5 * p.start.log().sum() + 0.2 * p.transition.log().sum()
    ratio = (q.variance + q.mean_weight * (p.mean - q.mean).square()) / p.spread
    assert log_prior == pytest.approx(float(chain - 0.5 * (ratio.sum() + p.spread.log().sum())), rel=1e-12)


def test_what_is_not_to_be_learned_stays() -> None:
    (o, lengths, reset), (p, q) = data(2, 40, 2), model("diag", 3, 2)
    kept = q._replace(learns_start=False, learns_transition=False, learns_mean=False)
    steps, _ = run(o, lengths, reset, p, kept)
    assert all(torch.equal(a, b) for a, b in zip(steps.proposed[:3], p[:3], strict=True))
    n = steps.weight[:, None]
    weight = plain.hmm_expected(densities(o, p), p.start, p.transition, lengths, reset)[1]
    scatter = torch.einsum("btk,btkd->kd", weight, (o[..., None, :] - p.mean).square())  # about the mean that stays
    numerator = scatter + q.variance + q.mean_weight * (p.mean - q.mean).square()
    close(steps.proposed.spread, numerator / (n + q.variance_weight - 1))
    steps, _ = run(o, lengths, reset, p, q._replace(learns_variance=False))
    assert torch.equal(steps.proposed.spread, p.spread)


def test_a_dead_state_stays() -> None:
    (o, lengths, reset), (p, q) = data(1, 50, 1), model("diag", 2, 1)
    p = p._replace(mean=torch.tensor([[0.0], [1e6]], dtype=F))
    steps, _ = run(o, lengths, reset, p, q)
    assert float(steps.weight[1]) < 1e-3
    assert float(steps.proposed.mean[1]) == 1e6 and torch.equal(steps.proposed.spread[1], p.spread[1])
    steps, _ = run(o, lengths, reset, p, q._replace(dead=51.0))  # more than there are observations
    assert torch.equal(steps.proposed.mean, p.mean) and torch.equal(steps.proposed.spread, p.spread)


def test_means_that_move_far_lose_no_digits() -> None:
    o, lengths, reset = data(1, 300, 1)
    far = 1e6
    p, q = model("diag", 1, 1)
    p, q = p._replace(mean=torch.full((1, 1), -far, dtype=F)), q._replace(mean_weight=0.0)
    steps, _ = run(o + far, lengths, reset, p, q)
    exact = (o + far).double().reshape(-1)
    want = (float((exact - exact.mean()).square().sum()) + 0.1) / (300 + 1)
    assert float(steps.proposed.spread) == pytest.approx(want, rel=1e-8)


@pytest.mark.parametrize("gap", [30.0, 300.0, 3000.0])
def test_what_underflows_is_left_to_the_filter_in_logarithms(gap: float) -> None:
    """A left-to-right chain whose observations fit the last state first, and the first state last: a number that is
    too small to be one decides."""
    K, T = 3, 12
    p, q = model("diag", K, 1)
    transition = torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.0, 0.0, 1.0]], dtype=F)
    p = p._replace(
        start=torch.tensor([1.0, 0.0, 0.0], dtype=F), transition=transition,
        mean=gap * torch.arange(K, dtype=F)[:, None], spread=torch.ones(K, 1, dtype=F),
    )  # fmt: skip
    o = gap * torch.linspace(K - 1, 0, T, dtype=F)[None, :, None]
    reset = torch.zeros(1, T, dtype=torch.bool)
    steps, (log_likelihood, _, _) = run(o, torch.tensor([T]), reset, p, q)
    want = Oracle(o, torch.tensor([T]), reset, p, q)
    assert log_likelihood == pytest.approx(want.log_likelihood, rel=1e-10)
    close(steps.weight, want.weight, 1e-8)


def test_an_impossible_or_broken_row_says_so() -> None:
    (o, lengths, reset), (p, q) = data(1, 20, 1), model("diag", 2, 1)
    o[0, 3] = math.nan
    assert math.isnan(run(o, lengths, reset, p, q)[1][0])


@pytest.mark.parametrize("kind, T, K, D", [("diag", 400, 4, 2), ("full", 30, 2, 200)])
def test_threads_change_no_bit(kind: str, T: int, K: int, D: int) -> None:
    (o, lengths, reset), (p, q) = data(40, T, D), model(kind, K, D)
    threads, found = torch.get_num_threads(), []
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            steps, totals = run(o, lengths, reset, p, q, kind)
            found.append((totals, (*steps.proposed[:3], steps.scatter)))
    finally:
        torch.set_num_threads(threads)
    for totals, proposed in found[1:]:
        assert totals == found[0][0]
        assert all(torch.equal(a, b) for a, b in zip(proposed, found[0][1], strict=True))


def test_a_collapse_is_counted() -> None:
    (o, lengths, reset), (p, q) = data(1, 50, 2), model("diag", 2, 2)
    still = o.clone()
    still[..., 1] = 3.0
    none = q._replace(mean_weight=0.0, variance=torch.zeros(2, 2, dtype=F), least=torch.tensor([1e-14, 1e-14], dtype=F))
    assert run(still, lengths, reset, p, none)[1][2] == 2
    assert run(o, lengths, reset, p, none)[1][2] == 0


def test_wrong_shapes_are_refused() -> None:
    (o, lengths, reset), (p, q) = data(1, 20, 2), model("diag", 3, 2)
    with pytest.raises(kernels.KernelError, match="`mean`"):
        run(o, lengths, reset, p._replace(mean=p.mean[:, :1]), q)
