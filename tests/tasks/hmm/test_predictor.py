"""What a model with parameters answers, what it refuses, and what a fit says before it starts."""

import warnings
from typing import Any

import numpy as np
import pytest

from elman.errors import FitError, InputError
from elman.hmm import GMMHMM, BernoulliHMM, CategoricalHMM, FitWarning, GaussianHMM, PoissonHMM

X = np.random.default_rng(0).normal(4.0 * ((np.arange(200) // 20) % 2)[:, None], 1.0, (200, 2))


def quietly(fit: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fit()


def weather() -> CategoricalHMM:
    """https://en.wikipedia.org/wiki/Viterbi_algorithm, with a state that nothing leads to."""
    model = CategoricalHMM(2, init_params="")
    model.startprob_, model.transmat_ = [0.6, 0.4], [[0.7, 0.3], [0.4, 0.6]]
    model.emissionprob_ = [[0.1, 0.4, 0.5, 0.0], [0.6, 0.3, 0.1, 0.0]]
    return model


# Names of hmmlearn


def test_both_implementations_give_the_same_numbers() -> None:
    log, scaling = (
        quietly(lambda name=name: GaussianHMM(2, random_state=0, implementation=name, n_iter=5).fit(X))
        for name in ("log", "scaling")
    )
    np.testing.assert_array_equal(log.means_, scaling.means_)
    with pytest.raises(InputError, match="one of 'log', 'scaling'"):
        GaussianHMM(2, implementation="fast").fit(X)


def test_a_sample_goes_on_from_a_state() -> None:
    model = weather()
    for state in (0, 1, np.int64(1)):
        assert all(model.sample(3, random_state=seed, currstate=state)[1][0] == state for seed in range(20))
    assert (
        model.sample(50, random_state=3, currstate=1)[1] == model.sample(60, random_state=3, currstate=1)[1][:50]
    ).all()
    for wrong in (2, -1, 0.5):
        with pytest.raises(InputError, match="currstate"):
            model.sample(3, currstate=wrong)


def test_symbols_bits_and_counts_are_drawn_as_whole_numbers() -> None:
    drawn = [weather().sample(5, random_state=0)[0]]
    for model, data in (
        (PoissonHMM(2, random_state=0), [[1], [9]] * 9),
        (BernoulliHMM(2, random_state=0), [[1], [0]] * 9),
    ):
        drawn.append(quietly(lambda model=model, data=data: model.fit(data)).sample(5)[0])
    assert all(part.dtype == np.int64 and part.shape == (5, 1) for part in drawn)


def test_no_random_state_is_numpys_own() -> None:
    model = weather()
    np.random.seed(3)
    once = model.sample(20)[0]
    np.random.seed(3)
    np.testing.assert_array_equal(model.sample(20)[0], once)


def test_the_stationary_distribution() -> None:
    model = weather()
    np.testing.assert_allclose(model.get_stationary_distribution(), [4 / 7, 3 / 7], rtol=1e-9)  # 0.3 a = 0.4 b
    chain = GaussianHMM(3)
    chain.transmat_ = np.array([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.5, 0.0, 0.5]])
    np.testing.assert_allclose(chain.get_stationary_distribution(), [0.5, 0.5, 0.0], atol=1e-9)


def test_the_number_of_features_is_set_by_a_fit_and_not_an_option() -> None:
    model = quietly(lambda: CategoricalHMM(2, random_state=0, n_iter=3).fit([[0], [2], [1], [0]]))
    assert model.n_features == 3 and model.get_params()["n_features"] is None
    assert quietly(lambda: model.fit([[0], [4], [1], [0]])).n_features == 5
    wide = quietly(lambda: CategoricalHMM(2, n_features=7, random_state=0, n_iter=3).fit([[0], [2], [1]]))
    assert wide.n_features == 7 and wide.emissionprob_.shape == (2, 7)
    assert quietly(lambda: GaussianHMM(2, random_state=0, n_iter=1).fit(X)).n_features == 2


# What a fit says before it starts


def said(fit: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        fit()
    return [str(w.message) for w in found if issubclass(w.category, FitWarning)]


def test_what_was_set_by_hand_is_not_overwritten_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    model = GaussianHMM(2, random_state=0)
    model.means_ = np.array([[0.0, 0.0], [4.0, 4.0]])
    (message,) = said(lambda: model.fit(X))
    assert "means_ were set by hand and will be overwritten" in message and "init_params='stc'" in message
    assert [record.getMessage() for record in caplog.records] == [message] and caplog.records[0].name == "elman.hmm"
    assert not said(lambda: model.fit(X))  # what a fit left is its own
    model.means_ = model.means_ + 1
    assert len(said(lambda: model.fit(X))) == 1
    model.means_ = model.means_ + 1
    assert not said(lambda: model.set_params(init_params="stc").fit(X))


def test_more_parameters_than_data_are_said_once() -> None:
    # 2 + 6 of the chain, 3 * 2 means, 3 * 2 variances: 20 in all
    assert not said(lambda: GaussianHMM(3, random_state=0, n_iter=0).fit(X[:10]))
    (message,) = said(lambda: GaussianHMM(3, random_state=0, n_iter=0, n_init=3).fit(X[:9]))
    assert "20 free parameters to 18 observed values will give a degenerate solution" in message
    assert not said(lambda: GaussianHMM(3, random_state=0, n_iter=0, params="m").fit(X[:9]))


# Data of probability zero


@pytest.mark.parametrize("data", [[[0], [3], [1]], [[3]]])
def test_impossible_data_have_no_answer_but_a_score(data: Any) -> None:
    model = weather()
    assert model.score(data) == -np.inf
    for ask in (
        model.predict, model.predict_proba, model.score_samples, model.filter,
        lambda data: model.decode(data, algorithm="map"), lambda data: model.decode(data, algorithm="viterbi"),
    ):  # fmt: skip
        with pytest.raises(FitError, match=rf"probability zero \(no state emits observation {data.index([3])}\)"):
            ask(data)


def test_a_step_that_no_chain_makes_is_impossible_too() -> None:
    model = weather()
    model.startprob_, model.transmat_ = [1.0, 0.0], [[1.0, 0.0], [0.0, 1.0]]
    model.emissionprob_ = [[1.0, 0.0], [0.0, 1.0]]
    assert model.score([[0], [1]]) == -np.inf
    for ask in (model.predict, model.predict_proba, model.filter):
        with pytest.raises(FitError, match="no chain of states can emit them"):
            ask([[0], [1]])
    _, state = model.filter_step([0])
    with pytest.raises(FitError):
        model.filter_step([1], state)
    assert np.isfinite(model.filter_step([0], state)[0]).all()  # the state that was given is as it was
    assert model.filter(np.zeros((0, 1)), state)[0].shape == (0, 2)


# What is refused


def test_an_unseen_symbol_is_refused() -> None:
    model = quietly(lambda: CategoricalHMM(2, random_state=0, n_iter=3).fit([[0], [2], [1], [0]]))
    for ask in (model.predict, model.score, model.filter, model.predict_proba):
        with pytest.raises(InputError, match="this model knows the whole numbers 0 to 2"):
            ask([[0], [3]])


def test_a_stray_symbol_does_not_fill_the_memory() -> None:
    with pytest.raises(InputError, match=r"go up to 1000000000, in 2 observations.*np\.unique"):
        CategoricalHMM(2).fit([[0], [10**9]])


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (GaussianHMM(2, startprob_prior=0.5), "startprob_prior holds 0.5; its numbers must be finite and at least 1"),
        (GaussianHMM(2, transmat_prior=np.ones((3, 3))), r"transmat_prior has the shape \(3, 3\); expected .*\(2, 2\)"),
        (GaussianHMM(2, startprob_prior=np.nan), "startprob_prior holds"),
        (GaussianHMM(2, startprob_prior="x"), "startprob_prior is not an array of numbers"),
        (GaussianHMM(2, means_prior=np.ones(3)), r"means_prior has the shape \(3,\)"),
        (GaussianHMM(2, "full", covars_prior=np.ones((3, 3))), r"covars_prior has the shape \(3, 3\)"),
        (GaussianHMM(2, covars_prior=-1.0), "covars_prior holds -1"),
        (GaussianHMM(2, means_weight=-1.0), "means_weight"),
        (GMMHMM(2, 2, weights_prior=0.5), "weights_prior"),
        (GMMHMM(2, 2.5), "n_mix"),
    ],
)
def test_priors_that_do_not_fit_are_refused(model: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        model.fit(X)


def test_dirichlet_priors_of_symbols_and_bits_are_checked() -> None:
    for model in (CategoricalHMM(2, emissionprob_prior=0.5), BernoulliHMM(2, emissionprob_prior=0.5)):
        with pytest.raises(InputError, match="emissionprob_prior"):
            model.fit([[0], [1], [0], [1]])
    with pytest.raises(InputError, match=r"emissionprob_prior has the shape \(3,\); expected .*\(2, 2\)"):
        CategoricalHMM(2, emissionprob_prior=np.ones(3)).fit([[0], [1], [0]])


@pytest.mark.parametrize("kind", [np.int64, np.int32])
def test_numbers_of_numpy_are_numbers(kind: Any) -> None:
    model = quietly(lambda: GMMHMM(kind(2), kind(2), random_state=kind(0), n_iter=kind(3), n_init=kind(1)).fit(X))
    assert model.means_.shape == (2, 2, 2) and model.sample(kind(4))[0].shape == (4, 2)


def test_parameters_may_be_lists_and_wrong_ones_are_refused() -> None:
    model = weather()
    assert np.exp(model.decode([[0], [1], [2]])[0]) == pytest.approx(0.01344)  # as Wikipedia has it
    for name, wrong in (
        ("startprob_", "x"), ("transmat_", [[1.0], [0.5, 0.5]]), ("emissionprob_", 3.0), ("emissionprob_", []),
        ("startprob_", [1.0]),
    ):  # fmt: skip
        model = weather()
        setattr(model, name, wrong)
        with pytest.raises(InputError, match=name):
            model.score([[0]])


def test_counts_of_any_size_can_be_fitted() -> None:
    state = (np.arange(200) // 20) % 2
    counts = np.random.default_rng(0).poisson(1e15 * (1 + 0.5 * state))[:, None]
    model = PoissonHMM(2, random_state=0).fit(counts)
    np.testing.assert_allclose(np.sort(model.lambdas_[:, 0]), [1e15, 1.5e15], rtol=1e-7)
    assert abs((model.predict(counts) == state).mean() - 0.5) == 0.5
