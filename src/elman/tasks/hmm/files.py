"""Hidden Markov models on the disk: parameters in safetensors, everything else in JSON."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from elman.files import artifact
from elman.tasks.hmm.continuous import GMMHMM, GaussianHMM
from elman.tasks.hmm.data import Reader
from elman.tasks.hmm.discrete import BernoulliHMM, CategoricalHMM, PoissonHMM
from elman.tasks.hmm.estimator import HiddenMarkovEstimator
from elman.tasks.predictor import known

MODELS: dict[str, type[HiddenMarkovEstimator]] = {
    model.emission: model for model in (CategoricalHMM, GaussianHMM, GMMHMM, PoissonHMM, BernoulliHMM)
}


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
    """Read what `save` wrote, frozen."""
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
    model.__dict__["_frozen"] = True
    return model
