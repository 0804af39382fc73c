"""scikit-learn's conventions, held by its own checks."""

import inspect
import subprocess
import sys
import warnings
from typing import Any

import numpy as np
import pytest

from elman.errors import InputError
from elman.hmm import GMMHMM, BaseHMM, BernoulliHMM, CategoricalHMM, GaussianHMM, PoissonHMM

sklearn = pytest.importorskip("sklearn")
from sklearn.base import BaseEstimator, clone  # noqa: E402
from sklearn.exceptions import NotFittedError  # noqa: E402
from sklearn.model_selection import GridSearchCV  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import StandardScaler  # noqa: E402
from sklearn.utils import get_tags  # noqa: E402
from sklearn.utils.estimator_checks import check_estimator  # noqa: E402
from sklearn.utils.validation import check_is_fitted  # noqa: E402

STATE = (np.arange(200) // 20) % 2
X = np.random.default_rng(0).normal(4.0 * STATE[:, None], 1.0, (200, 2))
LENGTHS = [50, 100, 50]

# What a model of sequences cannot keep: its rows are steps of a sequence, in an order that matters.
SEQUENCES = {
    "check_methods_sample_order_invariance": "rows in another order are another sequence",
    "check_methods_subset_invariance": "a state depends on the rows before and after it",
}


@pytest.mark.slow
@pytest.mark.parametrize("model", [GaussianHMM(2, random_state=0), GMMHMM(2, random_state=0)])
def test_the_checks_of_scikit_learn(model: Any) -> None:
    """The other families are left out: the checks feed numbers with a fraction, which are not symbols or counts."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = check_estimator(model, expected_failed_checks=SEQUENCES, on_skip=None)
    outcomes = {check["check_name"]: check["status"] for check in found}
    assert {name for name, status in outcomes.items() if status == "xfail"} == set(SEQUENCES)
    assert sum(status == "passed" for status in outcomes.values()) > 30


def test_every_model_is_an_estimator() -> None:
    assert isinstance(GaussianHMM(), BaseEstimator)
    assert get_tags(GaussianHMM()).input_tags.three_d_array and get_tags(GaussianHMM()).input_tags.allow_nan
    assert get_tags(PoissonHMM()).input_tags.positive_only and get_tags(CategoricalHMM()).input_tags.string


SHARED = {
    "n_components", "startprob_prior", "transmat_prior", "startprob_mask", "transmat_mask", "algorithm", "random_state",
    "n_init", "n_iter", "tol", "verbose", "params", "init_params", "implementation", "method", "learning_rate",
    "batch_size",
}  # fmt: skip
GAUSSIAN = {"covariance_type", "min_covar", "means_prior", "means_weight", "covars_prior", "covars_weight"}


@pytest.mark.parametrize(
    ("model", "letters", "positional", "own"),
    [
        (BaseHMM, "st", ["n_components"], set()),
        (CategoricalHMM, "ste", ["n_components"], {"n_features", "emissionprob_prior"}),
        (BernoulliHMM, "ste", ["n_components"], {"emissionprob_prior"}),
        (PoissonHMM, "stl", ["n_components"], {"lambdas_prior", "lambdas_weight"}),
        (GaussianHMM, "stmc", ["n_components", "covariance_type"], GAUSSIAN),
        (GMMHMM, "stmcw", ["n_components", "n_mix", "covariance_type"], GAUSSIAN | {"n_mix", "weights_prior"}),
    ],
)
def test_the_constructor_says_what_it_takes(model: Any, letters: str, positional: list[str], own: set[str]) -> None:
    parameters = inspect.signature(model).parameters
    assert set(parameters) == SHARED | own and set(model._get_param_names()) == SHARED | own
    assert [name for name, one in parameters.items() if one.kind is one.POSITIONAL_OR_KEYWORD] == positional
    assert {name: one.default for name, one in parameters.items()} == model().get_params()
    assert model().params == model().init_params == letters
    with pytest.raises(TypeError, match="unexpected keyword argument 'n_component'"):
        model(n_component=2)
    changed = model(3).set_params(**{name: f"another {name}" for name in own}, n_iter=7)
    assert clone(changed).get_params() == changed.get_params() != model(3).get_params()


def test_what_is_not_fitted_says_so() -> None:
    model = GaussianHMM(2)
    with pytest.raises(NotFittedError):
        check_is_fitted(model)
    for ask in (model.predict, model.score, model.predict_proba, model.decode, model.filter):
        with pytest.raises(NotFittedError, match="has no parameters yet"):
            ask(X)
    assert issubclass(NotFittedError, ValueError)
    model.startprob_ = np.array([0.5, 0.5])
    with pytest.raises(NotFittedError, match="has no transmat_ yet"):
        model.sample(3)
    check_is_fitted(GaussianHMM(2, random_state=0).fit(X))


def test_targets_are_left_aside_and_lengths_are_not() -> None:
    want = GaussianHMM(2, random_state=0).fit(X).means_
    for y in (STATE, STATE.astype(float), np.where(STATE, "a", "b"), np.zeros((200, 3))):
        np.testing.assert_array_equal(GaussianHMM(2, random_state=0).fit(X, y).means_, want)
    model = GaussianHMM(2, random_state=0).fit(X, LENGTHS)
    np.testing.assert_array_equal(model.transmat_, GaussianHMM(2, random_state=0).fit(X, lengths=LENGTHS).transmat_)
    np.testing.assert_array_equal(
        model.transmat_, GaussianHMM(2, random_state=0).fit(X, STATE, lengths=LENGTHS).transmat_
    )
    assert model.score(X, LENGTHS) == model.score(X, lengths=LENGTHS) != model.score(X)
    with pytest.raises(InputError, match="lengths sum to 150"):
        model.fit(X, [50, 100])


def test_fit_predict() -> None:
    path = GaussianHMM(2, random_state=0).fit_predict(X, lengths=LENGTHS)
    np.testing.assert_array_equal(path, GaussianHMM(2, random_state=0).fit(X, LENGTHS).predict(X, LENGTHS))
    np.testing.assert_array_equal(path, GaussianHMM(2, random_state=0).fit_predict(X, LENGTHS))


def test_lengths_pass_through_a_pipeline_and_a_search() -> None:
    with sklearn.config_context(enable_metadata_routing=True):
        model = GaussianHMM(2, random_state=0).set_fit_request(lengths=True).set_predict_request(lengths=True)
        model.set_score_request(lengths=True)
        pipeline = make_pipeline(StandardScaler(), model).fit(X, lengths=LENGTHS)
        alone = GaussianHMM(2, random_state=0).fit(StandardScaler().fit_transform(X), LENGTHS)
        np.testing.assert_array_equal(pipeline[-1].transmat_, alone.transmat_)
        scaled = StandardScaler().fit_transform(X)
        np.testing.assert_array_equal(pipeline.predict(X, lengths=LENGTHS), alone.predict(scaled, LENGTHS))

        padded, ends = X.reshape(10, 20, 2), np.array([20, 15, 20, 9, 20] * 2)
        search = GridSearchCV(clone(model), {"n_components": [1, 2]}, cv=2).fit(padded, lengths=ends)
        first = clone(model).fit(padded[5:], lengths=ends[5:]).score(padded[:5], lengths=ends[:5])
        assert search.cv_results_["split0_test_score"][1] == pytest.approx(first)
        with pytest.raises(ValueError, match="padded"):
            GridSearchCV(clone(model), {"n_components": [1]}, cv=2, error_score="raise").fit(X, lengths=LENGTHS)


@pytest.mark.slow
def test_without_scikit_learn_the_models_are_the_same_and_the_other_tasks_never_import_it() -> None:
    script = """
import sys
import elman, elman.run, elman.tasks, elman.cli
assert "sklearn" not in sys.modules and "elman.hmm" not in sys.modules
sys.modules["sklearn"] = None
import numpy as np
from elman.hmm import GaussianHMM
try:
    GaussianHMM().predict([[0.0]])
except ValueError as error:
    print(error)
X = np.random.default_rng(0).normal(4.0 * ((np.arange(200) // 20) % 2)[:, None], 1.0, (200, 2))
print(float(GaussianHMM(2, random_state=0).fit(X).score(X)))
"""
    ran = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    said, score = ran.stdout.splitlines()
    assert "has no parameters yet" in said and float(score) == GaussianHMM(2, random_state=0).fit(X).score(X)
