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
