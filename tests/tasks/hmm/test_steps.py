"""The steps of EM by one kernel, and by densities, expected counts and sums."""

import warnings

import numpy as np
import pytest

from elman import kernels
from elman.hmm import GaussianHMM

pytestmark = pytest.mark.skipif("native" not in kernels.available(), reason="the native module is not built")


def fitted(X: np.ndarray, params: str, **options: object) -> GaussianHMM:
    model = GaussianHMM(3, random_state=0, n_iter=5, tol=-np.inf, params=params, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit(X, lengths=[50, 0, 70, 30])


def data() -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.normal(2.0 * ((np.arange(150) // 10) % 3)[:, None], 1.0, (150, 2))


@pytest.mark.parametrize("params", ["stmc", "stc", "tm", "mc"])
@pytest.mark.parametrize("covariance_type", ["spherical", "diag", "full", "tied"])
def test_both_arrive_at_the_same(covariance_type: str, params: str) -> None:
    options = {"covariance_type": covariance_type, "means_prior": 1.0, "means_weight": 0.5, "covars_weight": 3.0,
               "transmat_prior": 1.5}  # fmt: skip
    before = kernels.calls().get("hmm_gaussian", 0)
    ours = fitted(data(), params, **options)
    assert kernels.calls().get("hmm_gaussian", 0) == before + 6
    with kernels.use("reference"):
        plain = fitted(data(), params, **options)
    assert kernels.calls().get("hmm_gaussian", 0) == before + 6
    np.testing.assert_allclose(ours.history_, plain.history_, rtol=1e-10)
    for name in ("startprob_", "transmat_", "means_", "covars_"):
        np.testing.assert_allclose(getattr(ours, name), getattr(plain, name), rtol=1e-7, atol=1e-9, err_msg=name)


def test_a_missing_value_is_left_to_the_emission() -> None:
    X, before = data(), kernels.calls().get("hmm_gaussian", 0)
    X[3, 1] = np.nan
    assert np.isfinite(fitted(X, "stmc").history_).all() and kernels.calls().get("hmm_gaussian", 0) == before


@pytest.mark.parametrize("covariance_type", ["spherical", "diag"])
def test_variances_that_are_kept_cannot_collapse(covariance_type: str) -> None:
    """However small they are beside the data's."""

    def fit() -> GaussianHMM:
        model = GaussianHMM(2, covariance_type=covariance_type, params="st", init_params="st", n_iter=3, tol=-np.inf)
        model.means_, model.covars_ = np.array([[-1e8], [1e8]]), np.ones((2, 1) if covariance_type == "diag" else 2)
        return model.fit(1e8 * np.random.default_rng(0).normal(size=(60, 1)))

    ours = fit()
    with kernels.use("reference"):
        plain = fit()
    np.testing.assert_allclose(ours.history_, plain.history_, rtol=1e-10)
    np.testing.assert_array_equal(ours.covars_, plain.covars_)


def test_a_path_that_is_improbable_at_both_ends_alone_is_not_lost() -> None:
    X = np.full((400, 1), 5.0)
    X[0] = X[-1] = -500.0  # 1,000 nats for state 0 at each end, 10 for state 1 at each step between
    model = GaussianHMM(2, params="", init_params="", n_iter=1)
    model.startprob_, model.transmat_, model.means_, model.covars_ = (
        [0.5, 0.5],
        np.eye(2),
        [[-1.0], [1.0]],
        np.ones((2, 1)),
    )
    want = model.score(X)
    assert model.fit(X).log_likelihoods_[0] == pytest.approx(want, rel=1e-9)


@pytest.mark.parametrize("covariance_type", ["full", "tied"])
def test_each_state_has_its_own_prior_of_the_mean_where_a_value_is_missing(covariance_type: str) -> None:
    X, prior = data()[:60], np.array([[1.0, 0.0], [0.0, -3.0]])
    means = []
    for Y in (X, np.vstack([X, np.full((1, 2), np.nan)])):  # a row of which nothing is known tells nothing
        model = GaussianHMM(
            2, covariance_type, params="m", init_params="", n_iter=1, tol=-np.inf, means_prior=prior, means_weight=1e9
        )
        model.startprob_, model.transmat_, model.means_ = [0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]], [[0.0, 0.0], [4.0, 4.0]]
        model.covars_ = np.eye(2) if covariance_type == "tied" else np.stack([np.eye(2)] * 2)
        means.append(model.fit(Y).means_)
    np.testing.assert_allclose(means, [prior, prior], atol=1e-5)
