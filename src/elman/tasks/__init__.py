"""What models are for. A task is which embed, which read-out, which targets."""

from elman.hmm.estimator import HiddenMarkovEstimator
from elman.tasks.hidden_markov import HMMConfig
from elman.tasks.language_model import LanguageModel, ModelConfig, Score

TASKS: dict[str, type] = {"lm": LanguageModel, "hmm": HiddenMarkovEstimator}

__all__ = ["TASKS", "HMMConfig", "HiddenMarkovEstimator", "LanguageModel", "ModelConfig", "Score"]
