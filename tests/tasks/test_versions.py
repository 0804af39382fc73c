"""Models that the version before wrote still load, and say what they said then."""

from pathlib import Path

import numpy as np
import pytest

import elman
from elman.tasks.text.lm import LanguageModel
from elman.tasks.text.markov import MarkovModel

OLD = Path(__file__).parent / "version-1"


def test_a_language_model():
    lm = elman.load(OLD / "lm")
    assert isinstance(lm, LanguageModel) and lm.config.tied
    assert lm.score("the cat")[0].nats == pytest.approx(19.218930959701538, rel=1e-6)


def test_a_markov_model_was_a_language_model_with_a_cell_of_that_name():
    lm = elman.load(OLD / "markov")
    assert isinstance(lm, MarkovModel) and lm.config.order == 2
    assert lm.score("the cat")[0].nats == pytest.approx(3.5368750155207334, rel=1e-9)


def test_a_hidden_markov_model():
    X = np.random.default_rng(0).normal(size=(60, 2)) + np.repeat([[0, 0], [5, 5]], 30, 0)
    assert elman.load(OLD / "hmm").score(X) == pytest.approx(-166.48949279978393, rel=1e-9)
