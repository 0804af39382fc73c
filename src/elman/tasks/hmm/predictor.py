"""A hidden Markov model with parameters, whatever it emits: what it answers. Names and meanings are hmmlearn's;
estimator.py has its fit.

Parameters are numpy arrays on the model (startprob_, transmat_ and those of the emission), which may be set by hand;
`module()` makes of them the embed and the core that run.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from elman import kernels
from elman import state as states
from elman.cells.hmm import HMMState
from elman.errors import FitError, FrozenError, InputError
from elman.files import artifact
from elman.files.config import Json
from elman.options import choice, whole
from elman.random import uniform
from elman.scikit import Configured, NotFitted, RandomState, seed
from elman.tables import Table
from elman.tasks.hmm import parameters, sequences
from elman.tasks.hmm.data import Reader
from elman.tasks.hmm.emissions import Emission
from elman.tasks.hmm.fit import posterior
from elman.tasks.hmm.model import HiddenMarkov
from elman.tasks.hmm.parameters import Arguments, Array, check_mask, distribution
from elman.tasks.hmm.sequences import Given, Sequences
from elman.tasks.predictor import Predictor

Hidden = NDArray[np.int64]  # a state per step
PARAMETERS = {
    "s": "startprob_", "t": "transmat_", "e": "emissionprob_", "m": "means_", "c": "covars_", "w": "weights_",
    "l": "lambdas_",
}  # fmt: skip


class HiddenMarkovPredictor(Arguments, Configured, Predictor[HiddenMarkov]):
    """score, predict, sample and the rest. A subclass says what its emission is, and what it is called.

    It is fitted in place, as scikit-learn has it; one that was loaded is frozen, and a copy of it (`copy.deepcopy`) may
    be fitted again.
    """

    task = "hmm"

    emission: ClassVar[str]  # what it is called in configs and files
    letters: ClassVar[dict[str, str]]  # what it has parameters for, and what `freeze` calls that

    startprob_: Array
    transmat_: Array
    n_features_in_: int
    feature_names_in_: NDArray[np.object_]
    reader_: Reader = Reader()  # how `elman evaluate` and `elman predict` read files for this model

    def __setattr__(self, name: str, value: object) -> None:  # type: ignore[override]
        if "_frozen" in vars(self):
            raise FrozenError(self, name)
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:  # type: ignore[override]
        if "_frozen" in vars(self):
            raise FrozenError(self, name)
        object.__delattr__(self, name)

    def __getstate__(self) -> dict[str, Any]:
        """What a copy has: all but that it is frozen."""
        state: dict[str, Any] = super().__getstate__()
        return {name: value for name, value in state.items() if name != "_frozen"}

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return torch.device("cpu")

    # What a subclass defines

    def _emission(self) -> Emission:
        """The emission with the parameters of this estimator."""
        raise NotImplementedError

    def _check_observations(self, o: Tensor, fitting: bool) -> None:
        """Raise an InputError for what this emission cannot emit."""
        raise NotImplementedError

    def _n_emission_parameters(self) -> dict[str, int]:
        """How many numbers of the emission a fit is free to choose, by letter."""
        raise NotImplementedError

    def _emission_tables(self) -> list[Table]:
        """What the states emit, to be read."""
        raise NotImplementedError

    def _numbers(self, given: Given, fitting: bool) -> Array:
        """Observations as numbers."""
        if given.is_text:
            raise InputError(
                f"X holds text; for a {type(self).__name__} it must hold numbers, NaN where one is missing. Leave out "
                "columns that are dates or names; a CategoricalHMM reads labels"
            )
        return given.values.astype(np.float64, copy=False)

    # Using

    def score(
        self,
        X: ArrayLike,
        y: ArrayLike | None = None,
        *,
        lengths: ArrayLike | None = None,
        mask: ArrayLike | None = None,
    ) -> float:
        """The log-likelihood of X, all sequences together; -inf where it excludes them. Arguments as for `fit`."""
        data, model = self._prepared(X, lengths, mask, y)
        return model.score(data.o, sequences.rows(data.lengths))

    def score_samples(
        self, X: ArrayLike, lengths: ArrayLike | None = None, mask: ArrayLike | None = None
    ) -> tuple[float, Array]:
        """The log-likelihood and the posterior p(z[t] | all of the sequence) of every state at every step."""
        data, model = self._prepared(X, lengths, mask)
        total, probabilities = _posterior(data, model)
        return total, data.unflatten(probabilities, math.nan)

    def predict_proba(self, X: ArrayLike, lengths: ArrayLike | None = None, mask: ArrayLike | None = None) -> Array:
        """The posterior p(z[t] | all of the sequence): (N, K), or (B, T, K) for a padded X."""
        return self.score_samples(X, lengths, mask)[1]

    def decode(
        self,
        X: ArrayLike,
        lengths: ArrayLike | None = None,
        algorithm: str | None = None,
        mask: ArrayLike | None = None,
    ) -> tuple[float, Hidden]:
        """The most probable states and their log probability, jointly with the data ("viterbi"); or state by state
        ("map")."""
        return self._decode(*self._prepared(X, lengths, mask), algorithm or self.algorithm)

    def _decode(self, data: Sequences, model: HiddenMarkov, algorithm: str) -> tuple[float, Hidden]:
        if choice("algorithm", algorithm, ("viterbi", "map")) == "map":
            top = _posterior(data, model)[1].max(-1)
            return float(top.values.sum()), data.unflatten(top.indices, -1)
        where = sequences.rows(data.lengths)
        with torch.no_grad():
            x = model.emission(data.o)
            path, scores = kernels.viterbi(where.pack(x), model.start, model.transition, where.lengths, where.reset)
        total = float(scores.sum())
        _refuse_impossible(total, x)
        return total, data.unflatten(where.unpack(path), -1)

    def predict(self, X: ArrayLike, lengths: ArrayLike | None = None, mask: ArrayLike | None = None) -> Hidden:
        """The most probable states, jointly: (N,), or (B, T) with -1 in the padding."""
        return self.decode(X, lengths, mask=mask)[1]

    def filter(self, X: ArrayLike, state: HMMState | None = None) -> tuple[Array, HMMState]:
        """p(z[t] | what was seen so far) for a piece of a sequence, X (T, D) -> (T, K); and the state to continue from.

        The same numbers come out however the sequence is cut, so this is what streams.
        """
        data, model = self._prepared(X, None, None, empty=True)
        with torch.no_grad():
            emitted = model.emission(data.o)
            before = model.core.init_state(1) if state is None else state
            y, after = model.core.scan(emitted[None], before)
            log_u = kernels.log(torch.cat([before.p, y[0]])[: len(emitted)]) + emitted
        if len(emitted):
            _refuse_impossible(float(log_u.amax(-1).min()), emitted)
        return torch.softmax(log_u, -1).numpy(), after

    def filter_step(self, x: ArrayLike, state: HMMState | None = None) -> tuple[Array, HMMState]:
        """The same for one observation, x (D,) -> (K,)."""
        filtered, after = self.filter(np.asarray(x)[None], state)
        return filtered[0], after

    def sample(
        self, n_samples: int = 1, random_state: RandomState = None, currstate: int | None = None
    ) -> tuple[NDArray[np.generic], Hidden]:
        """A sequence X (n_samples, D) and its states (n_samples,), the first of them `currstate` if that is given.

        With the same random_state a longer sequence begins with the shorter one: draw 2t is that of state t, draw
        2t + 1 that of observation t.
        """
        model = self.module()
        whole("n_samples", n_samples, 0)
        key = seed(self.random_state if random_state is None else random_state)
        draws = torch.stack([torch.full((2 * n_samples,), key), torch.arange(2 * n_samples)], 1)
        chances, transition = np.cumsum(self.startprob_), np.cumsum(self.transmat_, axis=1)
        if currstate is not None:
            first = whole("currstate", currstate, 0, int(self.n_components) - 1)
            chances = (np.arange(self.n_components) >= first).astype(np.float64)
        path = np.empty(n_samples, dtype=np.int64)
        for t, u in enumerate(uniform(draws[::2], 1)[:, 0].numpy()):
            path[t] = np.searchsorted(chances, u * chances[-1], side="left")  # as random.place, without its arrays
            chances = transition[path[t]]
        return self._drawn(model.emission.sample(torch.from_numpy(path), draws[1::2]).detach().numpy()), path

    def _drawn(self, X: Array) -> NDArray[np.generic]:
        """Observations as users give them."""
        return X

    def aic(self, X: ArrayLike, lengths: ArrayLike | None = None) -> float:
        """Akaike's criterion: the lower, the better."""
        return -2 * self.score(X, lengths) + 2 * self.n_parameters()

    def bic(self, X: ArrayLike, lengths: ArrayLike | None = None) -> float:
        """Schwarz's criterion: the lower, the better."""
        data = self._read(X, lengths, None)
        return -2 * self.score(X, lengths) + self.n_parameters() * math.log(len(data.o))

    def n_parameters(self) -> int:
        """How many numbers a fit is free to choose; steps that the masks exclude are not among them."""
        return sum(self._n_free().values())

    def _n_free(self) -> dict[str, int]:
        K = int(self.n_components)
        start, transition = K - 1, K * K - K
        if self.startprob_mask is not None:
            start = int(check_mask("startprob_mask", self.startprob_mask, (K,)).sum()) - 1
        if self.transmat_mask is not None:
            transition = int(check_mask("transmat_mask", self.transmat_mask, (K, K)).sum()) - K
        return {"s": start, "t": transition, **self._n_emission_parameters()}

    def get_stationary_distribution(self) -> Array:
        """How often the chain is in each state in the long run (K,)."""
        K = int(self.n_components)
        start = getattr(self, "startprob_", np.full(K, 1 / K))
        return parameters.stationary(start, distribution("transmat_", self._set("transmat_"), (K, K)).numpy())

    def module(self) -> HiddenMarkov:
        """The model as a Torch module: emission and core, with the parameters that stand here."""
        return HiddenMarkov(*self._checked_parameters())

    def _checked_parameters(self) -> tuple[Emission, Tensor, Tensor]:
        """The emission, the start (K,) and the transition (K, K) that stand here."""
        K = int(self.n_components)
        for letter in self.letters:
            self._set(PARAMETERS[letter])
        start = distribution("startprob_", self.startprob_, (K,))
        emission = self._emission()
        if any(np.isnan(p.detach().numpy()).any() for p in emission.parameters()):
            raise InputError("a parameter of the emission is NaN; fit the model again, or set it to a number")
        return emission, start, distribution("transmat_", self.transmat_, (K, K))

    def _set(self, name: str) -> ArrayLike:
        """A parameter that must be there."""
        value: ArrayLike | None = getattr(self, name, None)
        if value is None:
            has = "has no parameters yet" if not self._parameters() else f"has no {name} yet"
            wanted = ", ".join(PARAMETERS[letter] for letter in self.letters)
            raise NotFitted(f"this {type(self).__name__} {has}; call fit, or set {wanted}")
        return value

    def _check(self) -> None:
        """hmmlearn's name for checking the parameters."""
        self.module()

    def describe(self) -> list[Table]:
        """Where the states begin and go, and what they emit."""
        return [parameters.chain(self.startprob_, self.transmat_), *self._emission_tables()]

    @property
    def fingerprint(self) -> str:
        return states.fingerprint(self.module())

    @property
    def parameter_count(self) -> int:
        return self.n_parameters()

    def write_to(self, folder: Path) -> None:
        """Write the files of a fitted model, with its options and how it reads, into a folder that is there."""
        self.module()  # what has no parameters, or wrong ones, is not written
        copies = {name: torch.from_numpy(value.copy()) for name, value in self._arrays().items()}
        artifact.write_tensors(folder / "model.safetensors", copies)
        artifact.write_model_json(folder, self.task, self.content())

    def content(self) -> dict[str, Json]:
        """Its options, what a fit noted beside arrays, and how it reads."""
        options, arrays = self.get_params(), self._arrays()
        plain: dict[str, Any] = {
            n: _plain(value) for n, value in self._held().items() if n not in arrays and n != "reader_"
        }
        return {
            "emission": self.emission,
            "options": {name: value for name, value in plain.items() if name in options},
            "fitted": {name: value for name, value in plain.items() if name not in options},
            "reader": asdict(self.reader_),
        }

    def _held(self) -> dict[str, Any]:
        return {**self.get_params(), **{name: value for name, value in self.__dict__.items() if name.endswith("_")}}

    def _arrays(self) -> dict[str, Array]:
        return {n: v for n, v in self._held().items() if isinstance(v, np.ndarray) and v.dtype.kind != "O"}

    # What was given

    @property
    def n_features(self) -> int | None:
        """The width of X, or the number of symbols of a CategoricalHMM: as set, or as the parameters have it."""
        given: int | None = self.__dict__.get("n_features")
        return self._width() if given is None else int(given)

    @n_features.setter
    def n_features(self, given: int | None) -> None:
        self.__dict__["n_features"] = given

    def _width(self) -> int | None:
        return getattr(self, "n_features_in_", None)

    def _prepared(
        self,
        X: ArrayLike,
        lengths: ArrayLike | None,
        mask: ArrayLike | None,
        y: ArrayLike | None = None,
        *,
        empty: bool = False,
    ) -> tuple[Sequences, HiddenMarkov]:
        """X, which may be `empty` where it is a piece of a sequence, and the module for it."""
        model = self.module()
        data = self._read(X, lengths, mask, y=y)
        if not empty and not len(data.o):
            raise InputError(f"X is empty, {data.shape}; give at least one observation")
        if model.emission.width not in (None, data.o.shape[1]):
            raise InputError(f"X has {data.o.shape[1]} features; the parameters are for {model.emission.width}")
        return data, model

    def _read(
        self,
        X: ArrayLike,
        lengths: ArrayLike | None,
        mask: ArrayLike | None,
        *,
        y: ArrayLike | None = None,
        fitting: bool = False,
    ) -> Sequences:
        given = sequences.read_values(X)
        values = self._numbers(given, fitting)
        data = sequences.read(values, sequences.lengths_of(values.shape, y, lengths), mask)
        if fitting:
            self._keep_names(given.names)
            self.n_features_in_ = data.o.shape[1]
        else:
            self._check_names(given.names)
        wanted = getattr(self, "n_features_in_", data.o.shape[1])
        if data.o.shape[1] != wanted:
            raise InputError(
                f"X has {data.o.shape[1]} features, but {type(self).__name__} is expecting {wanted} features as input: "
                f"it was fitted to {wanted}"
            )
        self._check_observations(data.o, fitting)
        return data

    def _keep_names(self, names: tuple[str, ...] | None) -> None:
        """The columns of a frame, for what is read later: from a frame, or by name from a file."""
        if names is not None:
            self.feature_names_in_ = np.array(names, dtype=object)
            self.reader_ = replace(self.reader_, names=names)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
            self.reader_ = Reader()

    def _check_names(self, names: tuple[str, ...] | None) -> None:
        known = tuple(getattr(self, "feature_names_in_", ()))
        if known and names is None:
            warnings.warn(
                f"X does not have valid feature names, but {type(self).__name__} was fitted with feature names; its "
                f"columns are taken to be {', '.join(known)}",
                UserWarning,
                stacklevel=4,
            )
        if known and names is not None and names != known:
            raise InputError(
                "The feature names should match those that were passed during fit: "
                f"X has {', '.join(names)}; the model was fitted to {', '.join(known)}, in this order. "
                "Choose them with X[list(model.feature_names_in_)]"
            )


def _posterior(data: Sequences, model: HiddenMarkov) -> tuple[float, Tensor]:
    with torch.no_grad():
        x = model.emission(data.o)
    total, probabilities = posterior(x, model.start, model.transition, sequences.rows(data.lengths))
    _refuse_impossible(total, x)
    return total, probabilities


def _refuse_impossible(total: float, x: Tensor) -> None:
    """Raise a FitError where the total is -inf: no state is more probable than another. x (N, K) says where."""
    if total > -math.inf:
        return
    excluded = (x == -math.inf).all(-1).nonzero()
    where = f"no state emits observation {int(excluded[0])}" if len(excluded) else "no chain of states can emit them"
    raise FitError(
        f"the model gives these data probability zero ({where}), so no state is more probable than another. `score` "
        "says -inf of such data; a prior above 1, or missing values (NaN), keep possible what was never seen"
    )


def _plain(value: object) -> object:
    """What JSON knows: numbers of numpy as Python's own, names as lists. A generator of numpy, which no file keeps, is
    None."""
    if isinstance(value, np.random.RandomState | np.random.Generator):
        return None
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else value
