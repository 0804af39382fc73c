"""The estimators: fitting, missing data, structure, streaming, and failing loudly."""

import os
import signal
import warnings
from typing import Any

import numpy as np
import pytest
import torch

from elman.errors import FitError, InputError
from elman.hmm import (
    GMMHMM,
    BaseHMM,
    BernoulliHMM,
    CategoricalHMM,
    ConvergenceMonitor,
    FitWarning,
    GaussianHMM,
    PoissonHMM,
    banded,
    left_to_right,
)
from elman.tasks.hmm.fit import Priors
from elman.tasks.hmm.sequences import rows


def two_regimes(n: int = 200, D: int = 2, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    state = (np.arange(n) // 20) % 2
    return rng.normal(4.0 * state[:, None], 1.0, (n, D)), state


X2, Z2 = two_regimes()
FAMILIES: list[tuple[Any, np.ndarray]] = [
    (CategoricalHMM(2, random_state=0), np.random.default_rng(1).integers(0, 4, (60, 1))),
    (BernoulliHMM(2, random_state=0), np.random.default_rng(1).integers(0, 2, (60, 3))),
    (PoissonHMM(2, random_state=0), np.random.default_rng(1).poisson(3, (60, 2))),
    *[(GaussianHMM(2, c, random_state=0), X2) for c in ("spherical", "diag", "full", "tied")],
    *[(GMMHMM(2, 2, c, random_state=0), X2) for c in ("spherical", "diag", "full", "tied")],
]
EVERY = pytest.mark.parametrize(("model", "X"), FAMILIES, ids=[repr(m) for m, _ in FAMILIES])


def quietly(fit: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        return fit()


@EVERY
def test_em_climbs_and_does_not_fall(model: Any, X: np.ndarray) -> None:
    model = quietly(lambda: model.set_params(n_iter=30, tol=1e-9).fit(X, [len(X) // 2, len(X) - len(X) // 2]))
    history = np.array(model.history_)
    assert history[-1] > history[0]
    assert np.isfinite(history).all()
    assert model.score(X, [len(X) // 2, len(X) - len(X) // 2]) == pytest.approx(model.log_likelihoods_[-1])
    np.testing.assert_allclose(model.transmat_.sum(1), 1)


@EVERY
@pytest.mark.parametrize("method", ["adam", "sgd"])
def test_gradient_steps_climb_the_same_hill(model: Any, X: np.ndarray, method: str) -> None:
    lengths = [len(X) // 4] * 4
    by_em = quietly(lambda: model.set_params(method="em", n_iter=2, tol=1e-6).fit(X, lengths))
    start = by_em.history_[0]
    by_sgd = quietly(
        lambda: model.set_params(method=method, n_iter=20, batch_size=2, learning_rate=0.05).fit(X, lengths)
    )
    model.set_params(method="em")
    assert by_sgd.history_[0] == pytest.approx(start)  # the same seed starts at the same place
    assert by_sgd.history_[-1] > start
    np.testing.assert_allclose(by_sgd.transmat_.sum(1), 1)


@pytest.mark.parametrize("method", ["em", "adam", "sgd"])
@EVERY
def test_what_params_does_not_name_stays_as_it_was(model: Any, X: np.ndarray, method: str) -> None:
    """To the bit for numbers, to rounding for probabilities, which become logits and come back."""
    quietly(lambda: model.set_params(method="em", n_iter=2).fit(X))
    names = {"s": "startprob_", "t": "transmat_", "e": "emissionprob_", "l": "lambdas_", "m": "means_", "c": "covars_"}
    names["w"] = "weights_"
    letters = model.params
    before = {letter: getattr(model, names[letter]) for letter in letters}
    try:
        for letter in letters:
            for other in letters:
                setattr(model, names[other], before[other])
            options = {"params": letter, "init_params": "", "method": method, "n_iter": 2, "tol": 0.0}
            quietly(lambda options=options: model.set_params(**options).fit(X, [len(X) // 2, len(X) - len(X) // 2]))
            for other in letters:
                after = getattr(model, names[other])
                if other != letter:
                    np.testing.assert_allclose(after, before[other], rtol=1e-12, atol=1e-300)
                else:
                    assert not np.allclose(after, before[other], rtol=1e-9), letter
    finally:
        model.set_params(params=letters, init_params=letters, method="em")


def test_a_gradient_fit_needs_something_to_change() -> None:
    with pytest.raises(InputError, match="nothing that a gradient step could change"):
        GaussianHMM(2, random_state=0, method="adam", params="").fit(X2)


def test_gradient_steps_to_nowhere_are_an_error() -> None:
    with pytest.raises(FitError, match="learning_rate"):
        GaussianHMM(2, random_state=0, method="sgd", learning_rate=1e6, n_iter=50).fit(X2, [100, 100])


def test_a_batch_of_all_sequences_is_one_step_of_plain_adam() -> None:
    """The loop that every task has, against torch.optim.Adam on the same objective."""
    lengths = [60, 0, 90, 50]
    model = quietly(lambda: GaussianHMM(2, "full", random_state=0, n_iter=1).fit(X2, lengths))
    module, data = model.module(), torch.tensor(X2)
    where = rows(tuple(lengths))
    optimiser = torch.optim.Adam(module.parameters(), lr=0.1)
    for _ in range(5):
        optimiser.zero_grad()
        (-(module.log_prob(where.pack(data), where).sum() + module.log_prior(Priors())) / len(data)).backward()
        optimiser.step()
    quietly(
        lambda: model.set_params(method="adam", init_params="", n_iter=5, learning_rate=0.1, tol=0.0).fit(X2, lengths)
    )
    np.testing.assert_allclose(model.means_, module.emission.mean.detach(), rtol=1e-9)
    np.testing.assert_allclose(model.transmat_, module.transition.detach(), rtol=1e-9)


def test_a_key_press_ends_a_fit() -> None:
    model = GaussianHMM(2, random_state=0, method="adam", n_iter=10**6, tol=0.0)

    class Impatient(ConvergenceMonitor):
        def report(self, log_prob: float) -> None:
            super().report(log_prob)
            if self.iter == 4:
                os.kill(os.getpid(), signal.SIGINT)

    model.monitor_ = monitor = Impatient(0.0, 10**6, False)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X2, [100, 100])
    assert monitor.iter < 7


def test_regimes_are_found() -> None:
    model = GaussianHMM(2, random_state=0).fit(X2)
    path = model.predict(X2)
    assert (path == Z2).mean() in (pytest.approx(1.0, abs=0.03), pytest.approx(0.0, abs=0.03))
    assert model.converged_
    assert (model.predict_proba(X2).argmax(1) == path).mean() > 0.98
    assert (model.decode(X2, algorithm="map")[1] == model.predict_proba(X2).argmax(1)).all()


def test_restarts_keep_the_best() -> None:
    X = np.random.default_rng(3).integers(0, 5, (80, 1))
    singles = [quietly(lambda s=s: CategoricalHMM(3, random_state=s, n_iter=20).fit(X)).history_[-1] for s in range(3)]
    many = quietly(lambda: CategoricalHMM(3, random_state=0, n_init=6, n_iter=20).fit(X)).history_[-1]
    assert len(set(singles)) == 3
    assert many >= singles[0]  # the first start is the same


@EVERY
def test_sampling_and_refitting_round_trip(model: Any, X: np.ndarray) -> None:
    quietly(lambda: model.set_params(n_iter=5).fit(X))
    S, Z = model.sample(500, random_state=1)
    assert S.shape == (500, X.shape[1]) and Z.shape == (500,)
    assert np.isfinite(model.score(S))
    again, _ = model.sample(500, random_state=1)
    np.testing.assert_array_equal(S, again)
    assert not np.array_equal(S, model.sample(500, random_state=2)[0])


@EVERY
def test_a_longer_sample_begins_with_the_shorter_one(model: Any, X: np.ndarray) -> None:
    quietly(lambda: model.set_params(n_iter=5).fit(X))
    long, states = model.sample(70, random_state=3)
    for n in (0, 1, 2, 17, 69):
        short, first = model.sample(n, random_state=3)
        np.testing.assert_array_equal(short, long[:n])
        np.testing.assert_array_equal(first, states[:n])


def test_sampling_leaves_the_generator_of_torch_alone() -> None:
    model = GaussianHMM(1)
    model.startprob_, model.transmat_ = np.ones(1), np.ones((1, 1))
    model.means_, model.covars_ = np.zeros((1, 1)), np.ones((1, 1))
    before = torch.get_rng_state()
    assert not np.array_equal(model.sample(3)[0], model.sample(3)[0])  # random_state is None: a seed for each call
    assert torch.equal(torch.get_rng_state(), before)


def test_samples_follow_the_parameters() -> None:
    model = GaussianHMM(2, "full")
    model.startprob_, model.transmat_ = np.array([0.0, 1.0]), np.array([[0.9, 0.1], [0.3, 0.7]])
    model.means_, model.covars_ = (
        np.array([[0.0, 0.0], [5.0, 5.0]]),
        np.array([[[1.0, 0.5], [0.5, 1.0]], [[2.0, 0], [0, 1.0]]]),
    )
    X, Z = model.sample(20000, random_state=0)
    assert Z[0] == 1
    stay = (Z[1:][Z[:-1] == 0] == 0).mean()
    assert stay == pytest.approx(0.9, abs=0.01)
    np.testing.assert_allclose(np.cov(X[Z == 0].T), model.covars_[0], atol=0.05)
    np.testing.assert_allclose(X[Z == 1].mean(0), model.means_[1], atol=0.05)


# Missing data


@pytest.mark.parametrize("covariance_type", ["spherical", "diag", "full", "tied"])
def test_missing_values_are_integrated_out(covariance_type: str) -> None:
    """The log-density of what was seen is that of the marginal Gaussian, by numerical integration over the rest."""
    model = quietly(lambda: GaussianHMM(2, covariance_type, random_state=0, n_iter=3).fit(X2))
    X = np.array([[0.3, np.nan], [np.nan, np.nan], [4.0, 3.0]])
    grid = np.linspace(-30, 30, 20001)
    emission = model.module().emission
    points = torch.tensor(np.stack([np.full_like(grid, 0.3), grid], 1))
    with torch.no_grad():
        whole = emission(points).exp().numpy()
        seen = emission(torch.tensor(X)).numpy()
    np.testing.assert_allclose(np.exp(seen[0]), whole.sum(0) * (grid[1] - grid[0]), rtol=1e-6)
    np.testing.assert_allclose(seen[1], 0.0)
    assert np.isfinite(model.score(X))


@pytest.mark.parametrize("model", [m for m, _ in FAMILIES], ids=[repr(m) for m, _ in FAMILIES])
def test_a_mask_is_a_nan(model: Any) -> None:
    X = dict((repr(m), x) for m, x in FAMILIES)[repr(model)].astype(float)
    mask = np.random.default_rng(0).random(len(X)) > 0.3
    holes = X.copy()
    holes[~mask] = np.nan
    quietly(lambda: model.set_params(n_iter=5, tol=1e-9).fit(X, mask=mask))
    masked = model.score(X, mask=mask)
    history = model.history_
    quietly(lambda: model.fit(holes))
    assert history == model.history_  # what stands under the mask is not looked at
    assert model.score(holes) == masked


@pytest.mark.parametrize("covariance_type", ["diag", "full", "tied"])
def test_em_with_missing_values_climbs_to_the_truth(covariance_type: str) -> None:
    X, Z = two_regimes(2000)
    holes = X.copy()
    holes[np.random.default_rng(1).random(X.shape) < 0.3] = np.nan
    model = quietly(lambda: GaussianHMM(2, covariance_type, random_state=0, covars_prior=0.0).fit(holes))
    order = model.means_[:, 0].argsort()
    np.testing.assert_allclose(model.means_[order], [[0, 0], [4, 4]], atol=0.15)
    flipped = order[model.predict(holes)] if order[0] else model.predict(holes)
    assert (flipped == Z).mean() > 0.97


def test_a_padded_array_is_its_sequences() -> None:
    lengths = [50, 0, 120, 30]
    padded = np.full((4, 120, 2), np.nan)
    first = 0
    for b, n in enumerate(lengths):
        padded[b, :n] = X2[first : first + n]
        first += n
    flat = quietly(lambda: GaussianHMM(2, random_state=0, n_iter=5).fit(X2, lengths))
    also = quietly(lambda: GaussianHMM(2, random_state=0, n_iter=5).fit(padded))
    assert also.history_ == flat.history_
    path = also.predict(padded)
    assert path.shape == (4, 120)
    assert (path[1] == -1).all() and (path[0, 50:] == -1).all()
    np.testing.assert_array_equal(path[path >= 0], flat.predict(X2, lengths))
    assert also.predict_proba(padded).shape == (4, 120, 2)
    zeros = np.nan_to_num(padded)
    assert also.score(zeros, lengths) == pytest.approx(flat.score(X2, lengths))


# Structure


def test_zeros_stay_zero() -> None:
    mask = left_to_right(3)
    for method in ("em", "adam", "sgd"):
        model = quietly(
            lambda method=method: GaussianHMM(
                3,
                random_state=0,
                transmat_mask=mask,
                startprob_mask=np.array([True, False, False]),
                method=method,
                n_iter=10,
            ).fit(X2, [100, 100])
        )
        assert (model.transmat_[~mask] == 0).all()
        assert model.startprob_.tolist() == [1.0, 0.0, 0.0]
        assert (model.predict(X2, [100, 100])[[0, 100]] == 0).all()
        assert (np.diff(model.predict(X2, [200])) >= 0).all()
    assert banded(4, 1)[0].tolist() == [True, True, False, False]
    assert model.n_parameters() == 0 + (5 - 3) + 3 * 2 * 2


# Streaming


@pytest.mark.slow
@EVERY
def test_filtering_one_at_a_time_is_filtering_the_whole(model: Any, X: np.ndarray) -> None:
    quietly(lambda: model.set_params(n_iter=3).fit(X))
    whole, last = model.filter(X)
    state, pieces = None, []
    for x in X:
        p, state = model.filter_step(x, state)
        pieces.append(p)
    np.testing.assert_allclose(np.stack(pieces), whole, atol=1e-14)
    np.testing.assert_allclose(state.p, last.p, atol=1e-14)
    np.testing.assert_allclose(whole[-1], model.predict_proba(X)[-1], atol=1e-12)  # at the end, filtered is smoothed


# Failing loudly


def test_no_convergence_is_said() -> None:
    with pytest.warns(FitWarning, match="has not converged"):
        model = GaussianHMM(2, random_state=0, n_iter=1, tol=1e-9).fit(X2)
    assert not model.converged_


def test_a_dead_state_is_said() -> None:
    model = GaussianHMM(3, init_params="c", n_iter=5, tol=10.0)
    model.startprob_, model.transmat_ = np.full(3, 1 / 3), np.full((3, 3), 1 / 3)
    model.means_ = np.array([[0.0, 0.0], [4.0, 4.0], [1e6, 1e6]])
    with pytest.warns(FitWarning, match=r"states \[2\] explain no observation"):
        model.fit(X2)
    assert np.isfinite(model.means_).all() and np.isfinite(model.covars_).all()


@pytest.mark.parametrize("covariance_type", ["spherical", "diag", "full"])
def test_a_collapsed_covariance_is_an_error(covariance_type: str) -> None:
    X = np.concatenate([np.zeros((20, 2)), X2 + 100])
    with pytest.raises(FitError, match="covars_prior"):
        GaussianHMM(2, covariance_type, random_state=0, covars_prior=0.0).fit(X)
    assert GaussianHMM(2, covariance_type, random_state=0).fit(X).converged_


def test_impossible_data_are_an_error() -> None:
    model = CategoricalHMM(1, init_params="", n_features=2)
    model.startprob_, model.transmat_, model.emissionprob_ = np.array([1.0]), np.array([[1.0]]), np.array([[1.0, 0.0]])
    assert model.score([[1]]) == -np.inf
    with pytest.raises(FitError, match="probability zero"):
        model.fit([[0], [1]])
    with pytest.raises(FitError, match="probability zero"):
        model.predict_proba([[1]])


@pytest.mark.parametrize(
    ("model", "X", "lengths", "says"),
    [
        (GaussianHMM(2), [1.0, 2.0, 3.0], None, "reshape"),
        (GaussianHMM(2), [["a"], ["b"]], None, "must hold numbers"),
        (GaussianHMM(2), [[1.0], [np.inf]], None, "infinities"),
        (GaussianHMM(2), np.zeros((5, 1)), [2, 2], "lengths sum to 4"),
        (GaussianHMM(2), np.zeros((5, 1)), [6, -1], "at least 0"),
        (GaussianHMM(2), np.zeros((5, 1)), [2.5, 2.5], "whole numbers"),
        (GaussianHMM(2), np.zeros((1, 1)), None, "too few"),
        (GaussianHMM(2), np.zeros((5, 1)), None, "distinct"),
        (GaussianHMM(2, "round"), np.zeros((5, 1)), None, "covariance_type"),
        (GaussianHMM(0), np.zeros((5, 1)), None, "n_components"),
        (GaussianHMM(2, method="magic"), np.zeros((5, 1)), None, "one of 'em', 'adam', 'sgd'"),
        (GaussianHMM(2, params="sx"), np.zeros((5, 1)), None, "letters"),
        (CategoricalHMM(2), [[0.5], [1.0]], None, "whole numbers"),
        (CategoricalHMM(2), [[-1], [1]], None, "whole numbers"),
        (CategoricalHMM(2, n_features=2), [[0], [2]], None, "0 to 1"),
        (CategoricalHMM(2), [[0, 1], [1, 0]], None, "one symbol"),
        (PoissonHMM(2), [[-1], [3]], None, "not counts"),
        (BernoulliHMM(2), [[2], [0]], None, "bits"),
        (GMMHMM(2, 0), np.zeros((5, 1)), None, "n_mix"),
        (GaussianHMM(2, transmat_mask=np.ones((3, 3), bool)), X2, None, "transmat_mask"),
        (GaussianHMM(2, random_state="x"), X2, None, "random_state"),
    ],
)
def test_bad_input_is_refused(model: Any, X: Any, lengths: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        model.fit(X, lengths)


def test_an_unfitted_model_and_bad_parameters_are_refused() -> None:
    with pytest.raises(InputError, match="no parameters yet"):
        GaussianHMM(2).predict(X2)
    model = GaussianHMM(2, random_state=0).fit(X2)
    with pytest.raises(InputError, match="fitted to 2"):
        model.predict(X2[:, :1])
    model.transmat_ = np.ones((2, 2))
    with pytest.raises(InputError, match="sum to 1"):
        model.score(X2)
    model.transmat_ = np.full((2, 2), 0.5)
    model.means_ = np.full((2, 2), np.nan)
    with pytest.raises(InputError, match="NaN"):
        model.score(X2)


# scikit-learn


def test_clone_and_grid_search() -> None:
    base = pytest.importorskip("sklearn.base")
    selection = pytest.importorskip("sklearn.model_selection")
    model = GaussianHMM(3, "full", random_state=1)
    copy = base.clone(model)
    assert copy.get_params() == model.get_params() and copy is not model
    padded = X2.reshape(10, 20, 2)
    search = selection.GridSearchCV(GaussianHMM(random_state=0), {"n_components": [1, 2]}, cv=2)
    quietly(lambda: search.fit(padded))
    assert search.best_params_ == {"n_components": 2}


# random_state


@pytest.mark.parametrize(
    "make", [lambda: 7, lambda: np.int64(7), lambda: np.random.RandomState(7), lambda: np.random.default_rng(7)]
)
def test_a_random_state_of_every_kind_gives_the_same_fit_again(make: Any) -> None:
    one, two = (quietly(lambda: GaussianHMM(2, random_state=make(), n_iter=3).fit(X2)) for _ in range(2))
    np.testing.assert_array_equal(one.means_, two.means_)
    for a, b in zip(one.sample(9, random_state=make()), two.sample(9, random_state=make()), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_generator_of_numpy_moves_on() -> None:
    model = quietly(lambda: GaussianHMM(2, random_state=0, n_iter=1).fit(X2))
    for generator in (np.random.RandomState(0), np.random.default_rng(0)):
        assert (model.sample(9, generator)[0] != model.sample(9, generator)[0]).any()


def test_no_random_state_is_another_each_time_and_leaves_torch_alone() -> None:
    model = quietly(lambda: GaussianHMM(2, random_state=0, n_iter=1).fit(X2)).set_params(random_state=None)
    torch.manual_seed(3)
    seed, state = torch.initial_seed(), torch.get_rng_state()
    assert (model.sample(9)[0] != model.sample(9)[0]).any()
    quietly(lambda: model.fit(X2))
    assert torch.initial_seed() == seed and torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("given", [1.5, "x", -1, True, 2**63, torch.Generator()])
def test_what_is_not_a_random_state_is_refused(given: Any) -> None:
    with pytest.raises(InputError, match=r"random_state is .* RandomState or a Generator of numpy, or None"):
        GaussianHMM(2, random_state=given).fit(X2)


# A fit succeeds whole, or leaves everything as it was


def broken(model: Any) -> None:
    """What no Gaussian can be fitted to without a prior: two states, each of one value."""
    with pytest.raises(FitError):
        quietly(lambda: model.set_params(covars_prior=0.0).fit(np.repeat([[0.0], [1.0]], 20, axis=0)))


def test_a_refit_that_fails_leaves_the_model_that_was_there() -> None:
    X = X2[:, :1]
    model = quietly(lambda: GaussianHMM(2, random_state=0, n_iter=20).fit(X))
    model.set_params(covars_prior=0.0)
    before, answer = dict(vars(model)), model.predict(X)
    broken(model)
    assert vars(model).keys() == before.keys() and all(vars(model)[name] is before[name] for name in before)
    np.testing.assert_array_equal(model.predict(X), answer)


def test_a_first_fit_that_fails_leaves_nothing_to_predict_with() -> None:
    model = GaussianHMM(2, random_state=0)
    broken(model)
    assert vars(model).keys() == GaussianHMM(2).get_params().keys()
    with pytest.raises(InputError, match="has no parameters yet"):
        model.predict(X2[:, :1])


def test_an_interrupted_fit_leaves_everything_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    model = GaussianHMM(2, random_state=0)
    before = dict(vars(model))

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("elman.tasks.hmm.estimator.em", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X2)
    assert vars(model) == before


# Emissions of one's own, by hmmlearn's extension point: equal to the family that computes the same

P = np.array([[0.8, 0.1, 0.1], [0.1, 0.2, 0.7]])


class Own(BaseHMM):
    def _compute_log_likelihood(self, X):
        return np.log(P[:, X[:, 0].astype(int)].T)

    def _generate_sample_from_state(self, state, random_state):
        return [random_state.choice(3, p=P[state])]


def test_it_fits_the_chain_and_answers_as_the_family_does():
    X = np.random.default_rng(0).integers(0, 3, (80, 1))
    own, family = Own(2, init_params=""), CategoricalHMM(2, init_params="", params="st")
    for model in (own, family):
        model.startprob_, model.transmat_ = np.array([0.6, 0.4]), np.array([[0.7, 0.3], [0.2, 0.8]])
    family.emissionprob_ = P
    assert own.score(X) == pytest.approx(family.score(X), abs=1e-9)
    own.fit(X, [50, 30]), family.fit(X, [50, 30])
    np.testing.assert_allclose(own.transmat_, family.transmat_, atol=1e-9)
    np.testing.assert_allclose(own.predict_proba(X), family.predict_proba(X), atol=1e-9)
    assert own.predict(X).tolist() == family.predict(X).tolist()


def test_samples_come_from_the_subclass():
    own = Own(2)
    own.startprob_, own.transmat_ = [1.0, 0.0], [[1.0, 0.0], [0.0, 1.0]]
    X, states = own.sample(4000, random_state=3)
    assert X.shape == (4000, 1) and not states.any()
    assert np.abs(np.bincount(X[:, 0], minlength=3) / 4000 - P[0]).max() < 5 * (0.25 / 4000) ** 0.5
    assert np.array_equal(own.sample(5, random_state=3)[0], X[:5])
    assert own.sample(0)[0].shape == (0, 0)


def test_what_cannot_be_is_said(tmp_path):
    own = Own(2)
    own.startprob_, own.transmat_ = [0.5, 0.5], [[0.5, 0.5], [0.5, 0.5]]
    with pytest.raises(InputError, match="code of its own, which no file holds"):
        own.save(tmp_path)
    own._compute_log_likelihood = lambda X: np.zeros((len(X), 3))
    with pytest.raises(InputError, match=r"shape \(1, 3\); it must be \(1, 2\)"):
        own.score([[0]])
    own._compute_log_likelihood = lambda X: np.full((len(X), 2), np.nan)
    with pytest.raises(InputError, match="NaN or infinite"):
        own.score([[0]])
