"""hmmlearn as the oracle: same parameters, same data; and the same fit from the same start with the same priors."""

import warnings
from typing import Any

import numpy as np
import pytest

from elman.hmm import from_hmmlearn

theirs = pytest.importorskip("hmmlearn.hmm")

LENGTHS = [40, 1, 79, 30]
N = sum(LENGTHS)


def data(family: str) -> np.ndarray:
    rng = np.random.default_rng(0)
    state = rng.integers(0, 3, N // 5).repeat(5)
    if family == "CategoricalHMM":
        return ((state * 2 + rng.integers(0, 4, N)) % 6)[:, None]
    if family == "PoissonHMM":
        return rng.poisson(1 + 4 * state[:, None], (N, 2))
    return rng.normal(3 * state[:, None], 1 + 0.3 * state[:, None], (N, 2)) @ np.array([[1.0, 0.4], [0.0, 1.0]])


CASES: list[tuple[str, dict[str, Any]]] = [
    ("CategoricalHMM", {}),
    ("CategoricalHMM", {"emissionprob_prior": 1.5, "transmat_prior": 1.3, "startprob_prior": 1.2}),
    ("PoissonHMM", {}),
    *[("GaussianHMM", {"covariance_type": c}) for c in ("spherical", "diag", "full", "tied")],
    (
        "GaussianHMM",
        {"covariance_type": "diag", "means_prior": 0.5, "means_weight": 2.0, "covars_prior": 0.5, "covars_weight": 3.0},
    ),
    (
        "GaussianHMM",
        {"covariance_type": "full", "means_prior": 0.5, "means_weight": 2.0, "covars_prior": 0.5, "covars_weight": 4.0},
    ),
    *[("GMMHMM", {"n_mix": 2, "covariance_type": c}) for c in ("diag", "full")],
]
IDS = [f"{name}-{'-'.join(map(str, options.values()))}" for name, options in CASES]


def started(name: str, options: dict[str, Any], n_iter: int) -> Any:
    """A model of hmmlearn with parameters, and nothing left to initialise."""
    model = getattr(theirs, name)(3, random_state=0, n_iter=1, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(data(name), LENGTHS)
    model.init_params, model.n_iter, model.tol = "", n_iter, -np.inf
    model.monitor_.n_iter, model.monitor_.tol = n_iter, model.tol
    return model


@pytest.mark.parametrize(("name", "options"), CASES, ids=IDS)
def test_same_parameters_give_the_same_numbers(name: str, options: dict[str, Any]) -> None:
    model, X = started(name, options, 1), data(name)
    ours = from_hmmlearn(model)
    assert ours.score(X, LENGTHS) == pytest.approx(model.score(X, LENGTHS), abs=1e-8)
    np.testing.assert_allclose(ours.predict_proba(X, LENGTHS), model.predict_proba(X, LENGTHS), atol=1e-8)
    ours_score, ours_path = ours.decode(X, LENGTHS)
    score, path = model.decode(X, LENGTHS)
    np.testing.assert_array_equal(ours_path, path)
    assert ours_score == pytest.approx(score, abs=1e-8)
    if name == "GMMHMM":  # hmmlearn counts the weights of one state only
        return
    assert ours.bic(X, LENGTHS) == pytest.approx(model.bic(X, LENGTHS), abs=1e-6)
    assert ours.aic(X, LENGTHS) == pytest.approx(model.aic(X, LENGTHS), abs=1e-6)


@pytest.mark.parametrize(("name", "options"), CASES, ids=IDS)
def test_a_fit_from_the_same_start_arrives_at_the_same_parameters(name: str, options: dict[str, Any]) -> None:
    # hmmlearn takes a mixture's covariances around the old means: from the second step on the ways part.
    n_iter = 1 if name == "GMMHMM" else 15
    model, X = started(name, options, n_iter), data(name)
    ours = from_hmmlearn(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X, LENGTHS)
        ours.fit(X, LENGTHS)
    for attribute in ("startprob_", "transmat_", "emissionprob_", "lambdas_", "means_", "weights_"):
        if hasattr(model, attribute):
            np.testing.assert_allclose(
                getattr(ours, attribute), getattr(model, attribute), atol=1e-5, err_msg=attribute
            )
    if hasattr(model, "covars_") and name != "GMMHMM":
        want = from_hmmlearn(model).covars_
        np.testing.assert_allclose(ours.covars_, want, atol=1e-5)
