"""Emissions of one's own, by hmmlearn's extension point: equal to the family that computes the same."""

from __future__ import annotations

import numpy as np
import pytest

from elman.errors import InputError
from elman.hmm import BaseHMM, CategoricalHMM

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
