"""Hidden Markov models on the same protocol as every other recurrence, with scikit-learn's conventions and
hmmlearn's names."""

from elman.hmm.continuous import GMMHMM, GaussianHMM
from elman.hmm.convert import from_hmmlearn
from elman.hmm.discrete import BernoulliHMM, CategoricalHMM, PoissonHMM
from elman.hmm.em import FitWarning
from elman.hmm.files import load, save
from elman.hmm.model import HiddenMarkov
from elman.hmm.monitor import ConvergenceMonitor
from elman.hmm.own import BaseHMM
from elman.hmm.structure import banded, left_to_right

__all__ = [
    "GMMHMM", "BaseHMM", "BernoulliHMM", "CategoricalHMM", "ConvergenceMonitor", "FitWarning", "GaussianHMM",
    "HiddenMarkov", "PoissonHMM", "banded", "from_hmmlearn", "left_to_right", "load", "save",
]  # fmt: skip
