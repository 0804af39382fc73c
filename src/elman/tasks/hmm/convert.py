"""Models of hmmlearn, taken over with their parameters, priors and options."""

from __future__ import annotations

from typing import Any

import numpy as np

from elman.errors import InputError
from elman.tasks.hmm.continuous import GMMHMM, GaussianHMM
from elman.tasks.hmm.discrete import CategoricalHMM, PoissonHMM
from elman.tasks.hmm.estimator import HiddenMarkovEstimator

CLASSES: dict[str, type[HiddenMarkovEstimator]] = {
    "CategoricalHMM": CategoricalHMM,
    "GaussianHMM": GaussianHMM,
    "GMMHMM": GMMHMM,
    "PoissonHMM": PoissonHMM,
}
FITTED = ("startprob_", "transmat_", "emissionprob_", "lambdas_", "means_", "weights_")


def from_hmmlearn(model: Any) -> HiddenMarkovEstimator:
    """The model here that is what `model` is in hmmlearn: same parameters, and the same options where both have them.

    Two of its habits are not taken over: a scalar covars_prior of full or tied covariances, which hmmlearn
    adds to every entry of the
    matrix, is converted to the matrix that it means there; and the priors of a GMMHMM's covariances, written
    otherwise there, stay flat.
    """
    name = type(model).__name__
    if name not in CLASSES:
        raise InputError(f"a {name} has no counterpart here; there is one for {', '.join(CLASSES)}")
    kind = CLASSES[name]
    ours = kind()
    for option in ours.get_params():
        if hasattr(model, option) and option != "algorithm":
            setattr(ours, option, getattr(model, option))
    for attribute in FITTED:
        if hasattr(model, attribute):
            setattr(ours, attribute, np.array(getattr(model, attribute), dtype=np.float64))
    if isinstance(ours, GMMHMM):
        ours.covars_prior, ours.covars_weight = 0.0, 1.0
        ours.means_prior = np.reshape(
            np.broadcast_to(model.means_prior, model.means_.shape), (-1, model.means_.shape[-1])
        )
        ours.means_weight = float(np.mean(model.means_weight))
        ours.covars_ = np.array(model.covars_)
    if isinstance(ours, GaussianHMM) and hasattr(model, "_covars_"):
        covars = np.array(model._covars_)
        ours.covars_ = covars[:, 0] if ours.covariance_type == "spherical" and covars.ndim == 2 else covars
        if ours.covariance_type in ("full", "tied") and np.ndim(ours.covars_prior) == 0:
            D = ours.means_.shape[1]
            ours.covars_prior = np.full((D, D), ours.covars_prior, dtype=np.float64)
    return ours
