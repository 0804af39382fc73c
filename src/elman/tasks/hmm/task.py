"""Hidden Markov models from a config, fitted in one go: by EM, or by gradient steps.

`elman.hmm` imports scikit-learn, which takes a second. It is imported when a model is built or loaded, so that the
other tasks do not wait for it.
"""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from elman.core import Options
from elman.data import padded
from elman.errors import InputError, UnknownNameError
from elman.files.config import Json, one_of
from elman.lens import Sample
from elman.options import whole
from elman.tasks.hmm.data import HMMDataConfig, Observations, Reader, open_observations
from elman.tasks.request import Request, Rows, TextRequest, data_option, opened, option
from elman.tasks.serving import Served
from elman.tasks.serving_numbers import ServedNumbers, rows_of_numbers
from elman.tasks.task import Data, Evaluation, Inspection, InspectRequest, Response, Settings, Task
from elman.training.record import Preview
from elman.training.scores import Scores

if TYPE_CHECKING:
    from elman.tasks.hmm.estimator import HiddenMarkovEstimator
    from elman.tasks.hmm.model import Emitted

STRUCTURES = ("full", "left-to-right", "banded")


def _emissions() -> Iterable[str]:
    from elman.tasks.hmm.files import MODELS  # here, for it imports scikit-learn

    return MODELS


def _methods() -> Iterable[str]:
    from elman.tasks.hmm.estimator import METHODS

    return METHODS


@dataclass(frozen=True)
class HMMModelConfig:
    """What the model is, and how it is fitted.

    Args:
        emission: categorical, gaussian, mixture (of Gaussians), poisson or bernoulli
        n_components: hidden states
        structure: of the transitions, full, left-to-right (stay or continue, from the first) or banded (to neighbours)
        method: em, or adam or sgd for gradient steps in batches of sequences
        n_iter: steps of EM, or passes of gradient steps
        tol: a step or pass that gains less ends the fit
        n_init: starts, the best of which is kept
        learning_rate: of gradient steps
        batch_size: sequences in a gradient step
        options: further options of the estimator, as {covariance_type: full} or {n_mix: 3}
    """

    emission: str = one_of("gaussian", _emissions)
    n_components: int = 2
    structure: str = one_of("full", STRUCTURES)
    method: str = one_of("em", _methods)
    n_iter: int = 200
    tol: float = 0.01
    n_init: int = 3
    learning_rate: float = 0.05
    batch_size: int = 32
    options: Options = field(default_factory=dict)


def build(config: HMMModelConfig, seed: int) -> HiddenMarkovEstimator:
    """The estimator of a config, not fitted yet.

    >>> build(HMMModelConfig(emission="poisson", n_components=3), seed=1)
    PoissonHMM(n_components=3, random_state=1, n_init=3, n_iter=200, tol=0.01)
    """
    from elman.tasks.hmm.files import MODELS

    for kind, given, known in (
        ("emission", config.emission, _emissions()),
        ("structure", config.structure, STRUCTURES),
        ("method", config.method, _methods()),
    ):
        if given not in known:
            raise UnknownNameError(kind, given, known)
    whole("model.n_components", config.n_components)
    names = ("n_components", "method", "n_iter", "tol", "n_init", "learning_rate", "batch_size")
    model = MODELS[config.emission]().set_params(
        **{name: getattr(config, name) for name in names}, random_state=seed, **_structure(config)
    )
    return model.set_params(**config.options)


def _structure(config: HMMModelConfig) -> Options:
    from elman.tasks.hmm.parameters import banded, left_to_right

    K = config.n_components
    if config.structure == "left-to-right":
        return {"transmat_mask": left_to_right(K), "startprob_mask": np.arange(K) == 0}
    return {"transmat_mask": banded(K)} if config.structure == "banded" else {}


@dataclass(frozen=True)
class HMMConfig(Settings["HiddenMarkovEstimator"]):
    """A run from observations to a hidden Markov model.

    >>> HMMConfig(model=HMMModelConfig(emission="poisson")).data.read
    'columns'

    Args:
        task: what is fitted; hmm is a hidden Markov model
        data: the observations
        model: the model, and how it is fitted
    """

    task: str = "hmm"
    data: HMMDataConfig = field(default_factory=HMMDataConfig)
    model: HMMModelConfig = field(default_factory=HMMModelConfig)


class HMMData(Data):
    """Observations, and how a model reads more of them."""

    unit = "observations"

    def __init__(self, reader: Reader, train: Observations, valid: Observations | None) -> None:
        self.reader, self.train, self.valid = reader, train, valid
        parts = {"data.train": train, **({"data.valid": valid} if valid else {})}
        self.fingerprint = {name: _fingerprint(part) for name, part in parts.items()}

    def summary(self) -> list[str]:
        (N, D), sequences = self.train.X.shape, len(self.train.lengths)
        names = f": {', '.join(self.reader.names[:8])}" if self.reader.read == "columns" and self.reader.names else ""
        read = f"{D} columns{names}" if self.reader.read == "columns" else f"{len(self.reader.names)} symbols"
        return [f"data: {N:,} observations in {sequences:,} sequences, of {read}"]


def _fingerprint(part: Observations) -> str:
    return hashlib.sha256(part.X.tobytes() + repr(part.lengths).encode()).hexdigest()


class HMMTask(Task[HMMConfig, HMMData, "HiddenMarkovEstimator"]):
    Config = HMMConfig
    title = "a hidden Markov model"
    fitted = True
    reads_columns = True

    @property
    def requests(self) -> dict[str, tuple[type[Request], Response]]:
        return {
            "predict": (Predict, predict),
            "evaluate": (Evaluate, evaluate),
            "generate": (Generate, generate),
            "inspect": (InspectRequest, self.inspector(_read)),
        }

    def open(self, config: HMMConfig, saved: HiddenMarkovEstimator | None) -> HMMData:
        return HMMData(*open_observations(config.data))

    def open_in_memory(
        self, config: HMMConfig, saved: HiddenMarkovEstimator | None, parts: dict[str, object]
    ) -> HMMData:
        return HMMData(*open_observations(config.data, parts))

    def build(self, config: HMMConfig, data: HMMData) -> HiddenMarkovEstimator:
        model = build(config.model, config.seed)
        if data.reader.read != "columns":
            if config.model.emission != "categorical":
                raise InputError(
                    f"data.read is {data.reader.read}, which gives symbols; a {config.model.emission} emission needs "
                    "numbers. Use --model.emission categorical, or --data.read columns."
                )
            model.set_params(n_features=len(data.reader.names))
        model.reader_ = data.reader
        return model

    def load(self, folder: Path) -> HiddenMarkovEstimator:
        from elman.tasks.hmm import files

        return files.load(folder)

    def fit(self, predictor: HiddenMarkovEstimator, config: HMMConfig, data: HMMData) -> list[dict[str, float]]:
        predictor.set_params(verbose=True).fit(data.train.X, data.train.lengths).set_params(verbose=False)
        return [{"log_likelihood": total, "train": -total / len(data.train.X)} for total in predictor.log_likelihoods_]

    def evaluate(self, predictor: HiddenMarkovEstimator, part: Observations) -> Evaluation:
        total, n = predictor.score(part.X, part.lengths), len(part.X)
        free = predictor.n_parameters()
        numbers = {
            "log_likelihood": total,
            "nats_per_observation": -total / n,
            "observations": n,
            "sequences": len(part.lengths),
            "unknown": part.unknown,
            "aic": -2 * total + 2 * free,
            "bic": -2 * total + free * float(np.log(n)),
        }
        return Evaluation(Scores(numbers, "nats_per_observation"))

    def inspect_inputs(self, predictor: HiddenMarkovEstimator, part: Observations, rows: int, steps: int) -> Inspection:
        """Sequences, long ones cut after `steps`; what is predicted is the next observation."""
        ends = np.cumsum(part.lengths)
        pieces = [part.X[end - n : end][: steps + 1] for n, end in zip(part.lengths, ends, strict=True) if n > 1][:rows]
        if not pieces:
            raise InputError("there is no sequence of two observations to inspect")
        o = [torch.as_tensor(np.asarray(piece, dtype=np.float64)) for piece in pieces]
        x, lengths = padded([piece[:-1] for piece in o])
        y, _ = padded([piece[1:] for piece in o])
        names = [
            [predictor.reader_.text(row[None]).strip().splitlines()[-1] + " " for row in piece[:-1]] for piece in pieces
        ]
        return Inspection(
            predictor.module(), Sample(x, y, lengths, names=names, panels=(_ribbon(predictor, pieces[0]),))
        )

    def serve(self, predictor: HiddenMarkovEstimator) -> Served:
        """Observations in; out the filter's prediction of the next state, and the most probable observation."""
        module, dtype = predictor.module(), np.dtype(np.float64)
        D = len(predictor.reader_.names) if predictor.reader_.read == "columns" else 1
        about: dict[str, Json] = {"reads": "numbers", "input": f"{D} numbers", "writes": False}

        def encode(given: object) -> NDArray[np.generic]:
            x = rows_of_numbers(given, D, dtype)
            module.emission(torch.from_numpy(x))  # refuses what it cannot emit, before anything is done
            return x

        def outputs(predicted: Emitted) -> list[Json]:
            each = zip(predicted.p.tolist(), predicted.mode.tolist(), strict=True)
            return [{"next_state": p, "next_observation": mode} for p, mode in each]

        def possible(rows: NDArray[np.uint8]) -> NDArray[np.bool_]:
            """What no state can have emitted leaves nothing to continue from: no state is possible after it."""
            return rows.view(dtype).sum(axis=1) > 0

        return ServedNumbers(module, about, predictor.fingerprint, D, dtype, encode, outputs, possible)

    def preview(
        self, predictor: HiddenMarkovEstimator, config: HMMConfig, step: int, evaluation: Evaluation | None
    ) -> Preview:
        return Preview(predictor.reader_.text(predictor.sample(200, random_state=config.seed)[0]))


def _ribbon(predictor: HiddenMarkovEstimator, X: NDArray[np.generic]) -> dict[str, object]:
    """The posterior of each state and the most probable path of one sequence, and how long states last: on the path,
    and as the transitions have it, 1 / (1 - P_ii)."""
    path, posterior = predictor.predict(X), predictor.predict_proba(X)
    K = range(int(predictor.n_components))
    changes = np.flatnonzero(np.diff(path)) + 1
    stays = [(int(run[0]), len(run)) for run in np.split(path, changes)]
    mean = [np.mean([n for state, n in stays if state == k] or [0]) for k in K]
    expected = [1 / max(1e-12, 1 - float(predictor.transmat_[k, k])) for k in K]
    rows = [[f"state {k}", f"{mean[k]:.3g}", f"{expected[k]:.3g}"] for k in K]
    return {
        "title": "Posterior and Viterbi path", "rows": [f"state {k}" for k in K], "values": posterior.T.tolist(),
        "path": [f"state {k}" for k in path.tolist()],
        "table": {"header": ["", "mean stay on the path", "expected stay"], "rows": rows},
    }  # fmt: skip


# Requests and responses


@dataclass(frozen=True)
class Evaluate(TextRequest):
    """How probable observations are."""

    data: Rows = data_option("files, folders, .gz, - or embedded", rows=list[list[float | None]])


@dataclass(frozen=True)
class Predict(Evaluate):
    """The hidden states of observations; a row is the numbers of one, null where it is missing."""

    posteriors: bool = option(False, "the probabilities of the states too")


@dataclass(frozen=True)
class Generate(Request):
    """Observations drawn from a model."""

    observations: int = option(200, "how many to draw", least=1)
    seed: int = option(0, "of the random numbers", least=0)


def _read(model: HiddenMarkovEstimator, request: Evaluate | InspectRequest, others: bool = False) -> Observations:
    names = opened(request.data)
    if names is not None:
        return model.reader_(names, errors=request.errors, others=others)
    if isinstance(request.data, Observations):
        return request.data
    return model.reader_.in_memory(request.data)


def evaluate(model: HiddenMarkovEstimator, request: Evaluate) -> Scores:
    return HMMTask().evaluate(model, _read(model, request)).scores


def predict(model: HiddenMarkovEstimator, request: Predict) -> Iterator[str]:
    """The most probable path of hidden states, one observation a line, as CSV; after it the columns of the file that
    the model does not read, such as a date."""
    found = _read(model, request, others=True)
    states = model.predict(found.X, found.lengths)
    probabilities = model.predict_proba(found.X, found.lengths) if request.posteriors else [()] * len(states)
    names = ["sequence", "step", "state", *(f"p{k}" for k in range(model.n_components) if request.posteriors)]
    others = list(dict.fromkeys(name for row in found.others for name in row))
    yield _csv([*names, *(f"{name} of the file" if name in names else name for name in others)])
    places = ((number, step) for number, n in enumerate(found.lengths) for step in range(n))
    rows = found.others or [{}] * len(states)
    for (number, step), state, row, other in zip(places, states, probabilities, rows, strict=True):
        read = (other.get(name, "") for name in others)
        yield _csv([str(number), str(step), str(state), *(f"{p:.6g}" for p in row), *read])


def _csv(cells: list[str]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(cells)
    return line.getvalue()


@dataclass(frozen=True)
class GeneratedObservations:
    """A sequence drawn from a model, its states, and how it would stand in a file."""

    X: NDArray[np.generic]
    states: NDArray[np.int64]
    text: str

    def pieces(self) -> Iterable[str]:
        return [self.text, "\n"]

    def to_json(self) -> dict[str, Json]:
        return {"observations": self.X.tolist(), "states": self.states.tolist(), "text": self.text}


def generate(model: HiddenMarkovEstimator, request: Generate) -> GeneratedObservations:
    X, states = model.sample(request.observations, random_state=request.seed)
    return GeneratedObservations(X, states, model.reader_.text(X))
