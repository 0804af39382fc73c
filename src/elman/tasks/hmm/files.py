"""Hidden Markov models from elsewhere: from the disk, parameters in safetensors and everything else in JSON; and from
hmmlearn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from elman.errors import InputError
from elman.files import artifact
from elman.tasks.hmm.continuous import GMMHMM, GaussianHMM
from elman.tasks.hmm.data import Reader
from elman.tasks.hmm.discrete import BernoulliHMM, CategoricalHMM, PoissonHMM
from elman.tasks.hmm.estimator import HiddenMarkovEstimator
from elman.tasks.predictor import known

MODELS: dict[str, type[HiddenMarkovEstimator]] = {
    model.emission: model for model in (CategoricalHMM, GaussianHMM, GMMHMM, PoissonHMM, BernoulliHMM)
}

HMMLEARN = {model.__name__: model for model in (CategoricalHMM, GaussianHMM, GMMHMM, PoissonHMM)}
FITTED = ("startprob_", "transmat_", "emissionprob_", "lambdas_", "means_", "weights_")


def save(model: HiddenMarkovEstimator, path: str | Path) -> None:
    """Write a fitted model, with its options and how it reads, to a folder.

    >>> import tempfile
    >>> import numpy as np
    >>> model = PoissonHMM(2, random_state=0).fit(np.array([[1], [0], [9], [11]] * 5))
    >>> folder = tempfile.mkdtemp() + "/model"
    >>> save(model, folder)
    >>> bool((load(folder).lambdas_ == model.lambdas_).all())
    True
    """
    model.save(path)


def load(path: str | Path) -> HiddenMarkovEstimator:
    """Read what `save` wrote. It is frozen, its arrays too; a copy of it (`copy.deepcopy`) may be changed."""
    folder = Path(path)
    content = artifact.read_model_json(folder)
    tensors = artifact.read_tensors(folder / "model.safetensors")
    with known(folder):
        model = MODELS[content["emission"]]().set_params(**content["options"])
        reader = Reader(**{**content["reader"], "names": tuple(content["reader"]["names"])})
        model.__dict__.update(content["fitted"], reader_=reader)
        for name, tensor in tensors.items():
            setattr(model, name, tensor.numpy())
        if hasattr(model, "feature_names_in_"):
            model.feature_names_in_ = np.array(model.feature_names_in_, dtype=object)
        model._fitted = model._parameters()
        model.module()
    for value in vars(model).values():
        if isinstance(value, np.ndarray):
            value.setflags(write=False)
    model.__dict__["_frozen"] = True
    return model


def from_hmmlearn(model: Any) -> HiddenMarkovEstimator:
    """The model here that is what `model` is in hmmlearn: same parameters, and the same options where both have them.

    Two of its habits are not taken over: a scalar covars_prior of full or tied covariances, which hmmlearn adds to
    every entry of the matrix, is converted to the matrix that it means there; and the priors of a GMMHMM's covariances,
    written otherwise there, stay flat.
    """
    name = type(model).__name__
    if name not in HMMLEARN:
        raise InputError(f"a {name} has no counterpart here; there is one for {', '.join(HMMLEARN)}")
    ours = HMMLEARN[name]()
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
        added = np.array(model.covars_prior, dtype=np.float64)
        if ours.covariance_type in ("full", "tied") and added.ndim == 0:
            D = ours.means_.shape[1]
            ours.covars_prior = np.full((D, D), added)
    return ours
