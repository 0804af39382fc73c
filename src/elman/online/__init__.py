"""Learning while streaming: gradients without a backward pass through time. In the order in which to read it:

influence    the traces of real-time recurrent learning, and where they are zero
network      a model as a function of weights, state and input
rules        rtrl, spatial, snap1, rflo, uoro, tbptt
optim        sgd and adam of values
learner      Learner: a model, a rule and an optimiser; all that moves is its LearnerState
angles       the angle between an online gradient and the true one, per layer, as the past grows
scaling      Standardise: running means and variances, as a Core
faces        Regressor and Classifier: dicts in, values out; series: Forecaster, and Bytes of a text
session      what `elman stream` runs
"""

from elman.online.angles import Angle, angles
from elman.online.faces import Classifier, FaceState, Regressor
from elman.online.learner import Learner, LearnerState
from elman.online.optim import Optim
from elman.online.rules import RULES
from elman.online.scaling import Standardise, StandardiseState
from elman.online.series import Forecaster

__all__ = [
    "RULES", "Angle", "Classifier", "FaceState", "Forecaster", "Learner", "LearnerState", "Optim", "Regressor",
    "Standardise", "StandardiseState", "angles",
]  # fmt: skip
