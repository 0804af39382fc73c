"""States that die, covariances that collapse, features of very different sizes, and what a fit maximises."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch

from elman.errors import FitError
from elman.hmm import GMMHMM, FitWarning, GaussianHMM
from elman.tasks.hmm.gaussian import Gaussian


def quietly(fit: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        return fit()


def test_small_numbers_with_too_many_states_are_fitted() -> None:
    """A dying state took the covariance prior / 1e-308, beside which every healthy one was nothing."""
    X = np.random.default_rng(0).normal(0, 0.01, (500, 1))
    model = quietly(lambda: GaussianHMM(4, random_state=0).fit(X))
    assert np.isfinite(model.covars_).all() and model.covars_.max() < 1e3
    assert model.score(X) > quietly(lambda: GaussianHMM(1, random_state=0).fit(X)).score(X) - 1e-6


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("covariance_type", ["diag", "full"])
def test_daily_returns_with_four_states_are_fitted(seed: int, covariance_type: str) -> None:
    rng = np.random.default_rng(seed)
    calm = (np.arange(600) // 60) % 2 == 0
    X = (rng.standard_t(4, 600) * np.where(calm, 0.005, 0.02))[:, None]
    model = quietly(lambda: GaussianHMM(4, covariance_type, random_state=seed, tol=0.01).fit(X))
    history = np.array(model.history_)
    assert (np.diff(history) >= -1e-8 * np.abs(history[1:])).all()


def test_a_state_without_weight_keeps_its_parameters_and_that_is_said() -> None:
    X = np.random.default_rng(0).normal(size=(200, 1))
    model = GaussianHMM(2, init_params="", n_iter=3, tol=-np.inf)
    model.startprob_, model.transmat_ = np.array([1.0, 0.0]), np.full((2, 2), 0.5)
    model.means_, model.covars_ = np.array([[0.0], [1e3]]), np.ones((2, 1))
    with pytest.warns(FitWarning, match=r"states \[1\] explain no observation.*kept the parameters"):
        model.fit(X)
    assert model.means_[1] == 1e3 and model.covars_[1] == 1.0
    np.testing.assert_allclose(model.means_[0], X.mean(0))


@pytest.mark.parametrize("kind", ["spherical", "diag", "full", "tied"])
def test_a_component_with_almost_no_weight_keeps_its_covariance(kind: str) -> None:
    o = torch.tensor(np.random.default_rng(0).normal(size=(100, 2)))
    weight = torch.full((100, 2), 1e-40, dtype=torch.float64)
    weight[:, 0] = 1.0
    covariance = {"spherical": torch.ones(2), "diag": torch.ones(2, 2)}.get(kind, torch.eye(2).repeat(2, 1, 1))
    given = covariance[:1] if kind == "tied" else covariance
    emission = Gaussian(torch.zeros(2, 2).double(), given.double(), kind, covars_prior=0.01)
    emission.begin(o)
    emission.maximise(o, weight)
    assert float(emission.covariance.max()) < 2.0
    assert emission.mean[1].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("covariance_type", ["spherical", "diag", "full"])
def test_the_advice_of_a_collapse_helps(covariance_type: str) -> None:
    X = np.concatenate([np.zeros((20, 2)), np.random.default_rng(0).normal(10, 1, (80, 2))])
    with pytest.raises(FitError, match=r"state \d collapsed.*Set covars_prior") as failure:
        GaussianHMM(2, covariance_type, random_state=0, covars_prior=0.0).fit(X)
    advised = float(str(failure.value).split("added to every scatter, to ")[1].split(",")[0])
    assert GaussianHMM(2, covariance_type, random_state=0, covars_prior=advised).fit(X).converged_


@pytest.mark.parametrize("covariance_type", ["diag", "full", "tied"])
@pytest.mark.parametrize("size", [1e8, 1e-8])
def test_one_feature_of_another_size_changes_only_its_own_numbers(covariance_type: str, size: float) -> None:
    rng = np.random.default_rng(0)
    hidden = (np.arange(300) // 25) % 2
    X = rng.normal(6.0 * hidden[:, None], 1.0, (300, 2))
    unit = np.array([1.0, size])

    def fit(X: np.ndarray, unit: np.ndarray) -> GaussianHMM:
        prior = np.diag(0.01 * unit**2) if covariance_type != "diag" else 0.01 * unit**2
        model = GaussianHMM(2, covariance_type, init_params="", covars_prior=prior)
        model.startprob_, model.transmat_ = np.full(2, 0.5), np.full((2, 2), 0.5)
        model.means_ = np.array([[0.0, 0.0], [5.0, 5.0]]) * unit
        square = np.diag(unit**2)
        start = {"diag": np.tile(unit**2, (2, 1)), "tied": square, "full": np.stack([square, square])}
        model.covars_ = start[covariance_type]
        return model.fit(X)

    plain, scaled = fit(X, np.ones(2)), fit(X * unit, unit)
    np.testing.assert_allclose(scaled.means_ / unit, plain.means_, rtol=1e-6)
    np.testing.assert_array_equal(scaled.predict(X * unit), plain.predict(X))
    assert quietly(lambda: GaussianHMM(2, covariance_type, random_state=0).fit(X * unit)).converged_


@pytest.mark.parametrize("covariance_type", ["spherical", "diag", "full", "tied"])
def test_history_is_of_what_is_maximised_and_never_falls(covariance_type: str) -> None:
    X = np.random.default_rng(1).normal(size=(150, 2)) * 0.05
    for model in (
        GaussianHMM(2, covariance_type, covars_prior=1.0, random_state=0, tol=0.01),
        GMMHMM(2, 2, covariance_type, random_state=0, tol=0.01),
    ):
        fitted = quietly(lambda model=model: model.fit(X))
        history = np.array(fitted.history_)
        assert (np.diff(history) >= -1e-8 * (1 + np.abs(history[1:]))).all()
        assert fitted.log_likelihoods_[-1] == pytest.approx(fitted.score(X))


@pytest.mark.slow
def test_the_default_prior_of_a_mixture_costs_no_likelihood() -> None:
    """The data of hmmlearn's issue 410, which its own tests keep; both libraries from the same start."""
    data = pytest.importorskip("hmmlearn.tests.test_gmm_hmm_multisequence").EXAMPLE_SEQUENCES_ISSUE_410_PRUNED
    peer = pytest.importorskip("hmmlearn.hmm")
    X, lengths = np.concatenate(list(data)), [len(part) for part in data]
    for seed in (0, 1):
        ours = quietly(lambda seed=seed: GMMHMM(2, 2, random_state=seed).fit(X, lengths))
        theirs = peer.GMMHMM(2, 2, init_params="", n_iter=100, random_state=seed)
        start = GMMHMM(2, 2, random_state=seed, n_iter=0).fit(X, lengths)
        for name in ("startprob_", "transmat_", "weights_", "means_", "covars_"):
            setattr(theirs, name, getattr(start, name))
        assert ours.score(X, lengths) > theirs.fit(X, lengths).score(X, lengths) - 5
        assert (np.diff(ours.log_likelihoods_) > -0.01).all()


@pytest.mark.parametrize("covariance_type", ["spherical", "diag", "full", "tied"])
def test_a_gaussian_model_takes_the_prior_that_the_advice_names(covariance_type: str) -> None:
    """covars_prior None is a millionth of the variance of the data: a state on a single point keeps a variance."""
    X = np.concatenate([np.zeros((50, 2)), np.random.default_rng(0).normal(9.0, 1.0, (50, 2))])
    model = quietly(lambda: GaussianHMM(2, covariance_type, random_state=0, covars_prior=None).fit(X))
    assert np.isfinite(model.covars_).all() and np.min(np.abs(model.means_).max(1)) < 1e-9
    if covariance_type == "diag":  # the prior, over the 50 observations of the state
        np.testing.assert_allclose(model.covars_.min(0), 1e-6 * X.var(0) / 50)
