"""Hidden Markov models on the disk: parameters in safetensors, everything else in JSON."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from elman import artifact
from elman.data.observations import Reader
from elman.errors import ElmanError, FileError
from elman.hmm.continuous import GMMHMM, GaussianHMM
from elman.hmm.discrete import BernoulliHMM, CategoricalHMM, PoissonHMM
from elman.hmm.estimator import HiddenMarkovEstimator

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
    model.module()  # what has no parameters, or wrong ones, is not written
    artifact.write(Path(path), model.fill)


def load(path: str | Path) -> HiddenMarkovEstimator:
    """Read what `save` wrote."""
    folder = Path(path)
    content = artifact.read_model_json(folder)
    tensors = artifact.read_tensors(folder / "model.safetensors")
    try:
        model = MODELS[content["emission"]]().set_params(**content["options"])
        reader = Reader(**{**content["reader"], "names": tuple(content["reader"]["names"])})
        model.__dict__.update(content["fitted"], reader_=reader)
        for name, tensor in tensors.items():
            setattr(model, name, tensor.numpy())
        if hasattr(model, "feature_names_in_"):
            model.feature_names_in_ = np.array(model.feature_names_in_, dtype=object)
        model._fitted = model._parameters()
        model.module()
    except (AttributeError, KeyError, TypeError, ElmanError) as error:
        raise FileError(f"{folder} is not a hidden Markov model that this version knows: {error}") from error
    return model
