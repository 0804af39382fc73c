"""Hidden Markov models on the same protocol as every other recurrence, with scikit-learn's conventions and
hmmlearn's names."""

from elman.tasks.hmm.continuous import GMMHMM, GaussianHMM
from elman.tasks.hmm.discrete import BernoulliHMM, CategoricalHMM, PoissonHMM
from elman.tasks.hmm.estimator import BaseHMM
from elman.tasks.hmm.files import from_hmmlearn, load, save
from elman.tasks.hmm.fit import ConvergenceMonitor, FitWarning
from elman.tasks.hmm.model import HiddenMarkov
from elman.tasks.hmm.parameters import banded, left_to_right

__all__ = [
    "GMMHMM", "BaseHMM", "BernoulliHMM", "CategoricalHMM", "ConvergenceMonitor", "FitWarning", "GaussianHMM",
    "HiddenMarkov", "PoissonHMM", "banded", "from_hmmlearn", "left_to_right", "load", "save",
]  # fmt: skip
