"""Hidden Markov models on the same protocol as every other recurrence, with scikit-learn's conventions and
hmmlearn's names."""

from elman.hmm.convert import from_hmmlearn
from elman.hmm.em import FitWarning, HiddenMarkov
from elman.hmm.models import GMMHMM, BernoulliHMM, CategoricalHMM, GaussianHMM, PoissonHMM
from elman.hmm.structure import banded, left_to_right

__all__ = [
    "GMMHMM", "BernoulliHMM", "CategoricalHMM", "FitWarning", "GaussianHMM", "HiddenMarkov", "PoissonHMM",
    "banded", "from_hmmlearn", "left_to_right",
]  # fmt: skip
