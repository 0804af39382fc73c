"""Hidden Markov models on the disk: parameters in safetensors, everything else in JSON."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from elman import artifact
from elman.data.observations import Reader
from elman.errors import ElmanError, FileError
from elman.hmm.continuous import GMMHMM, GaussianHMM
from elman.hmm.discrete import BernoulliHMM, CategoricalHMM, PoissonHMM
from elman.hmm.estimator import HiddenMarkovEstimator

KIND, VERSION = "elman-model", 1
MODELS: dict[str, type[HiddenMarkovEstimator]] = {
    "categorical": CategoricalHMM,
    "gaussian": GaussianHMM,
    "mixture": GMMHMM,
    "poisson": PoissonHMM,
    "bernoulli": BernoulliHMM,
}


def save(model: HiddenMarkovEstimator, path: str | Path) -> None:
    """Write a fitted model, with its options and how it reads, to a folder.

    >>> import tempfile
    >>> model = PoissonHMM(2, random_state=0).fit(np.array([[1], [0], [9], [11]] * 5))
    >>> folder = tempfile.mkdtemp() + "/model"
    >>> save(model, folder)
    >>> bool((load(folder).lambdas_ == model.lambdas_).all())
    True
    """
    model.module()  # what has no parameters, or wrong ones, is not written
    artifact.write(Path(path), lambda folder: _fill(model, folder))


def load(path: str | Path) -> HiddenMarkovEstimator:
    """Read what `save` wrote."""
    folder = Path(path)
    content = artifact.read_json(folder / "model.json", KIND, VERSION)
    tensors = artifact.read_tensors(folder / "model.safetensors")
    try:
        model = MODELS[content["emission"]]().set_params(**content["options"])
        reader = Reader(**{**content["reader"], "names": tuple(content["reader"]["names"])})
        vars(model).update(content["fitted"], reader_=reader)
        for name, tensor in tensors.items():
            setattr(model, name, tensor.numpy())
        model.module()
    except (AttributeError, KeyError, TypeError, ElmanError) as error:
        raise FileError(f"{folder} is no hidden Markov model that this version knows: {error}") from error
    return model


def _fill(model: HiddenMarkovEstimator, folder: Path) -> None:
    held = {**model.get_params(), **{name: value for name, value in vars(model).items() if name.endswith("_")}}
    tensors = {name: value for name, value in held.items() if isinstance(value, np.ndarray)}
    plain = {name: _plain(value) for name, value in held.items() if name not in tensors and name != "reader_"}
    options = model.get_params().keys()
    content = {
        "task": "hmm",
        "emission": next(name for name, kind in MODELS.items() if isinstance(model, kind)),
        "options": {name: value for name, value in plain.items() if name in options},
        "fitted": {name: value for name, value in plain.items() if name not in options},
        "reader": asdict(model.reader_),
    }
    artifact.write_tensors(folder / "model.safetensors", {name: _tensor(value) for name, value in tensors.items()})
    artifact.write_json(folder / "model.json", KIND, VERSION, content)


def _tensor(value: np.ndarray[Any, Any]) -> Tensor:
    return torch.from_numpy(value.copy())


def _plain(value: Any) -> Any:
    """A number of numpy as Python's own, which JSON knows."""
    return value.item() if isinstance(value, np.generic) else value
