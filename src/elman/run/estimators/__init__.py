"""Tasks as scikit-learn estimators: fit, predict and score; clone, grids, pipelines and cross validation work.

A fit is a run of `elman.train` without a run directory, so it gives the numbers of such a run; `model_` is its model.
Options have the names of the settings of the task's config. Hidden Markov models are estimators too, in `elman.hmm`.
"""

from elman.run.estimators.classify import SequenceClassifier, SequenceRegressor
from elman.run.estimators.forecast import SeriesForecaster
from elman.run.estimators.tag import SequenceTagger

__all__ = ["SequenceClassifier", "SequenceRegressor", "SequenceTagger", "SeriesForecaster"]
