"""The scikit-learn face: what every hidden Markov model here can do, whatever it emits. Names and meanings are
hmmlearn's.

Parameters are numpy arrays on the estimator (startprob_, transmat_ and those of the emission), which may be
set by hand;
`module()` makes of them the embed and the core that run.

`params` and `init_params` say, by letter, what a fit changes and what it sets to a start of its own: s startprob,
t transmat, and e emissionprob, m means, c covars, w weights, l lambdas as the class has them.
"""

from __future__ import annotations

import inspect
import math
import secrets
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from elman import artifact, kernels, progress
from elman.cells.hmm import HMMState
from elman.data.observations import Reader
from elman.draws import uniform
from elman.errors import FitError, InputError
from elman.hmm import describe, em, initial, sequences
from elman.hmm.em import Fit, FitWarning
from elman.hmm.emissions import Emission
from elman.hmm.gradient import gradient
from elman.hmm.model import HiddenMarkov, Priors
from elman.hmm.sequences import Sequences
from elman.hmm.structure import checked_mask
from elman.options import choice, whole
from elman.tables import Table

Array = NDArray[np.float64]
Hidden = NDArray[np.int64]  # a state per step
RandomState = int | np.random.RandomState | np.random.Generator | None
METHODS = ("em", "adam", "sgd")


class HiddenMarkovEstimator:
    """fit, predict, score and the rest. A subclass says what its emission is, where it starts, and what it is
    called."""

    emission: ClassVar[str]  # what it is called in configs and files
    letters: ClassVar[dict[str, str]] = {"s": "start", "t": "transition"}  # what `params` and `init_params` may name

    n_components: int
    startprob_prior: ArrayLike
    transmat_prior: ArrayLike
    startprob_mask: ArrayLike | None
    transmat_mask: ArrayLike | None
    algorithm: str
    random_state: RandomState
    n_init: int
    n_iter: int
    tol: float
    verbose: bool
    params: str
    init_params: str
    method: str
    learning_rate: float
    batch_size: int

    startprob_: Array
    transmat_: Array
    history_: list[float]  # of what the fit maximised: log-likelihood + log prior
    log_likelihoods_: list[float]
    converged_: bool
    n_features_in_: int
    reader_: Reader = Reader()  # how `elman evaluate` and `elman predict` read files for this model

    def _store(self, arguments: dict[str, object]) -> None:
        """Keep what a constructor was given, each argument under its own name, as scikit-learn has it."""
        vars(self).update({name: value for name, value in arguments.items() if name != "self"})

    # What a subclass defines

    def _emission(self) -> Emission:
        """The emission with the parameters of this estimator."""
        raise NotImplementedError

    def _keep(self, emission: Emission) -> None:
        """Take the parameters of a fitted emission over."""
        raise NotImplementedError

    def _start_emission(self, o: Tensor, generator: torch.Generator) -> None:
        """Set the emission's parameters, those that init_params names, to where a fit should start."""
        raise NotImplementedError

    def _check_observations(self, o: Tensor) -> None:
        """Raise an InputError for what this emission cannot emit."""
        raise NotImplementedError

    def _n_emission_parameters(self) -> int:
        raise NotImplementedError

    def _emission_tables(self) -> list[Table]:
        """What the states emit, to be read."""
        raise NotImplementedError

    # Fitting

    def fit(self, X: ArrayLike, lengths: ArrayLike | None = None, mask: ArrayLike | None = None) -> Self:
        """Fit to X (N, D) with `lengths`, or to a padded (B, T, D); NaN, or False in `mask`, is a value that
        was not observed. A fit succeeds whole, or leaves everything as it was."""
        before = dict(vars(self))
        try:
            self._fit(X, lengths, mask)
        except BaseException:  # an interrupt too
            vars(self).clear()
            vars(self).update(before)
            raise
        return self

    def _fit(self, X: ArrayLike, lengths: ArrayLike | None, mask: ArrayLike | None) -> None:
        self._check_options()
        data = self._read(X, lengths, mask, fitting=True)
        if len(data.o) < self.n_components:
            raise InputError(f"X has {len(data.o)} observations, too few for n_components = {self.n_components}")
        generator = torch.Generator().manual_seed(seed(self.random_state))
        given = dict(vars(self))
        best: tuple[Fit, dict[str, object]] | None = None
        failure: FitError | None = None
        for number in range(1, self.n_init + 1):
            vars(self).clear()
            vars(self).update(given)
            if self.verbose and self.n_init > 1:
                progress.say(f"start {number} of {self.n_init}")
            try:
                fit = self._fit_once(data, generator)
            except FitError as error:
                failure = error
                continue
            if best is None or fit.objective > best[0].objective:
                best = fit, dict(vars(self))
        if best is None:
            assert failure is not None
            raise failure
        if failure is not None:
            warnings.warn(f"one or more of the {self.n_init} starts failed: {failure}", FitWarning, stacklevel=2)
        vars(self).update(best[1])
        self.history_, self.converged_ = best[0].history, best[0].converged
        self.log_likelihoods_ = best[0].log_likelihoods

    def _fit_once(self, data: Sequences, generator: torch.Generator) -> Fit:
        self._start_chain(generator)
        self._start_emission(data.o, generator)
        model = self.module()
        frozen = frozenset(name for letter, name in self.letters.items() if letter not in self.params)
        model.freeze(frozen)
        priors = Priors(prior(self.startprob_prior), prior(self.transmat_prior))
        report = _say if self.verbose else _say_nothing
        if self.method == "em":
            fit = em.em(model, data, priors, n_iter=self.n_iter, tol=self.tol, frozen=frozen, report=report)
        else:
            fit = gradient(
                model, data, priors, method=self.method, n_iter=self.n_iter, tol=self.tol, report=report,
                learning_rate=self.learning_rate, batch_size=self.batch_size, generator=generator,
            )  # fmt: skip
        self.startprob_ = model.start.detach().numpy()
        self.transmat_ = model.transition.detach().numpy()
        self._keep(model.emission)
        return fit

    def _start_chain(self, generator: torch.Generator) -> None:
        K = self.n_components
        if self._starts("s", "startprob_"):
            self.startprob_ = initial.dirichlet(
                (K,), checked_mask("startprob_mask", self.startprob_mask, (K,)), generator
            ).numpy()
        if self._starts("t", "transmat_"):
            allowed = checked_mask("transmat_mask", self.transmat_mask, (K, K))
            self.transmat_ = initial.dirichlet((K, K), allowed, generator).numpy()

    def _starts(self, letter: str, attribute: str) -> bool:
        return letter in self.init_params or not hasattr(self, attribute)

    # Using

    def score(self, X: ArrayLike, lengths: ArrayLike | None = None, mask: ArrayLike | None = None) -> float:
        """The log-likelihood of X, all sequences together."""
        data, model = self._prepared(X, lengths, mask)
        return model.score(data.o, sequences.rows(data.lengths))

    def score_samples(
        self, X: ArrayLike, lengths: ArrayLike | None = None, mask: ArrayLike | None = None
    ) -> tuple[float, Array]:
        """The log-likelihood and the posterior p(z[t] | all of the sequence) of every state at every step."""
        data, model = self._prepared(X, lengths, mask)
        with torch.no_grad():
            x = model.emission(data.o)
        total, posterior = em.posterior(x, model.start, model.transition, sequences.rows(data.lengths))
        if total == -math.inf:
            raise FitError("the model gives these data probability zero, so there is no posterior; see `score`")
        return total, data.unflatten(posterior, math.nan)

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
        """The most probable states and their log probability, jointly with the data ("viterbi"); or state by
        state ("map")."""
        algorithm = choice("algorithm", algorithm or self.algorithm, ("viterbi", "map"))
        data, model = self._prepared(X, lengths, mask)
        if algorithm == "map":
            where = sequences.rows(data.lengths)
            with torch.no_grad():
                x = model.emission(data.o)
            top = em.posterior(x, model.start, model.transition, where)[1].max(-1)
            return float(top.values.sum()), data.unflatten(top.indices, -1)
        where = sequences.rows(data.lengths)
        with torch.no_grad():
            x = where.pack(model.emission(data.o))
            path, score = kernels.viterbi(x, model.start, model.transition, where.lengths, where.reset)
        return float(score.sum()), data.unflatten(where.unpack(path), -1)

    def predict(self, X: ArrayLike, lengths: ArrayLike | None = None, mask: ArrayLike | None = None) -> Hidden:
        """The most probable states, jointly: (N,), or (B, T) with -1 in the padding."""
        return self.decode(X, lengths, mask=mask)[1]

    def filter(self, x: ArrayLike, state: HMMState | None = None) -> tuple[Array, HMMState]:
        """p(z[t] | what was seen so far), observation by observation: x (D,) -> (K,), or a piece (T, D) -> (T,
        K); and the state to go on from.

        The same numbers come out however the sequence is cut, so this is what streams.
        """
        array = np.asarray(x)
        data = self._read(array[None] if array.ndim == 1 else array, None, None)
        model = self._module_for(data)
        with torch.no_grad():
            log_p = model.emission(data.o)
            before = model.core.init_state(1) if state is None else state
            y, after = model.core.scan(log_p[None], before)
            filtered = torch.softmax(kernels.log(torch.cat([before.p, y[0, :-1]])) + log_p, -1).numpy()
        return (filtered[0] if array.ndim == 1 else filtered), after

    def sample(self, n_samples: int = 1, random_state: RandomState = None) -> tuple[Array, Hidden]:
        """A sequence X (n_samples, D) and its states (n_samples,).

        With the same random_state a longer sequence begins with the shorter one: draw 2t is that of state t, draw
        2t + 1 that of observation t.
        """
        model = self.module()
        key = seed(self.random_state if random_state is None else random_state)
        draws = torch.stack([torch.full((2 * n_samples,), key), torch.arange(2 * n_samples)], 1)
        start, transition = np.cumsum(self.startprob_), np.cumsum(self.transmat_, axis=1)
        states = np.empty(n_samples, dtype=np.int64)
        chances = start
        for t, u in enumerate(uniform(draws[::2], 1)[:, 0].numpy()):
            states[t] = np.searchsorted(chances, u * chances[-1], side="left")  # as draws.place, without its arrays
            chances = transition[states[t]]
        return model.emission.sample(torch.from_numpy(states), draws[1::2]).detach().numpy(), states

    def aic(self, X: ArrayLike, lengths: ArrayLike | None = None) -> float:
        """Akaike's criterion: the lower, the better."""
        return -2 * self.score(X, lengths) + 2 * self.n_parameters()

    def bic(self, X: ArrayLike, lengths: ArrayLike | None = None) -> float:
        """Schwarz's criterion: the lower, the better."""
        data = self._read(X, lengths, None)
        return -2 * self.score(X, lengths) + self.n_parameters() * math.log(len(data.o))

    def n_parameters(self) -> int:
        """How many numbers a fit is free to choose; steps that the masks exclude are not among them."""
        K = self.n_components
        start = int(checked_mask("startprob_mask", self.startprob_mask, (K,)).sum()) - 1
        transition = int(checked_mask("transmat_mask", self.transmat_mask, (K, K)).sum()) - K
        return start + transition + self._n_emission_parameters()

    def module(self) -> HiddenMarkov:
        """The model as a Torch module: emission and core, with the parameters that stand here."""
        if not hasattr(self, "startprob_"):
            raise InputError(
                f"this {type(self).__name__} has no parameters yet; call fit, or set startprob_, transmat_ and "
                f"the emission's"
            )
        K = self.n_components
        start = distribution("startprob_", self.startprob_, (K,))
        emission = self._emission()
        if any(bool(p.isnan().any()) for p in emission.parameters()):
            raise InputError("a parameter of the emission is NaN; fit the model again, or set it to a number")
        return HiddenMarkov(emission, start, distribution("transmat_", self.transmat_, (K, K)))

    def describe(self) -> list[Table]:
        """Where the states begin and go, and what they emit."""
        return [describe.chain(self.startprob_, self.transmat_), *self._emission_tables()]

    def fill(self, folder: Path) -> None:
        """Write the files of a fitted model, with its options and how it reads, into a folder that is there."""
        options = self.get_params()
        held = {**options, **{name: value for name, value in vars(self).items() if name.endswith("_")}}
        tensors = {name: value for name, value in held.items() if isinstance(value, np.ndarray)}
        plain = {name: _plain(value) for name, value in held.items() if name not in tensors and name != "reader_"}
        content = {
            "emission": self.emission,
            "options": {name: value for name, value in plain.items() if name in options},
            "fitted": {name: value for name, value in plain.items() if name not in options},
            "reader": asdict(self.reader_),
        }
        copies = {name: torch.from_numpy(value.copy()) for name, value in tensors.items()}
        artifact.write_tensors(folder / "model.safetensors", copies)
        artifact.write_model_json(folder, "hmm", content)

    # scikit-learn

    def get_params(self, deep: bool = True) -> dict[str, object]:
        """The constructor's arguments."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def set_params(self, **params: object) -> Self:
        """Set arguments of the constructor by name."""
        known = self.get_params()
        for name, value in params.items():
            if name not in known:
                raise InputError(f"{type(self).__name__} has no parameter {name!r}; it has {', '.join(known)}")
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        defaults = inspect.signature(type(self)).parameters
        changed = [f"{k}={v!r}" for k, v in self.get_params().items() if not _same(v, defaults[k].default)]
        return f"{type(self).__name__}({', '.join(changed)})"

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import InputTags, Tags, TargetTags

        return Tags(
            estimator_type=None,
            target_tags=TargetTags(required=False),
            input_tags=InputTags(three_d_array=True, allow_nan=True),
        )

    # Checks

    def _read(
        self, X: ArrayLike, lengths: ArrayLike | None, mask: ArrayLike | None, *, fitting: bool = False
    ) -> Sequences:
        data = sequences.read(X, lengths, mask)
        width = None if fitting else getattr(self, "n_features_in_", None)
        if width is not None and data.o.shape[1] != width:
            raise InputError(f"X has {data.o.shape[1]} features; this model was fitted to {width}")
        if fitting:
            self.n_features_in_ = data.o.shape[1]
        self._check_observations(data.o)
        return data

    def _prepared(
        self, X: ArrayLike, lengths: ArrayLike | None, mask: ArrayLike | None
    ) -> tuple[Sequences, HiddenMarkov]:
        data = self._read(X, lengths, mask)
        return data, self._module_for(data)

    def _module_for(self, data: Sequences) -> HiddenMarkov:
        model = self.module()
        if model.emission.width != data.o.shape[1]:
            raise InputError(f"X has {data.o.shape[1]} features; the parameters are for {model.emission.width}")
        return model

    def _check_options(self) -> None:
        for name, least in (("n_components", 1), ("n_init", 1), ("n_iter", 0), ("batch_size", 1)):
            whole(name, getattr(self, name), least)
        choice("method", self.method, METHODS)
        for name in ("params", "init_params"):
            unknown = set(getattr(self, name)) - set(self.letters)
            if unknown:
                raise InputError(f"{name} is {getattr(self, name)!r}; its letters may be {', '.join(self.letters)}")


def seed(random_state: RandomState) -> int:
    """The seed that a random_state stands for: a generator of numpy moves on by one draw, None is never the same.

    >>> seed(7), seed(np.random.default_rng(0)) == seed(np.random.default_rng(0)), seed(None) == seed(None)
    (7, True, False)
    """
    if random_state is None:
        return secrets.randbits(63)
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(2**63 - 1, dtype=np.int64))
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(2**63 - 1))
    try:
        return whole("random_state", random_state, 0, 2**63 - 1)
    except InputError as error:
        raise InputError(f"{error}, a RandomState or a Generator of numpy, or None") from None


def _plain(value: object) -> object:
    """A number of numpy as Python's own, which JSON knows; a generator of numpy, which no file keeps, as None."""
    if isinstance(value, np.random.RandomState | np.random.Generator):
        return None
    return value.item() if isinstance(value, np.generic) else value


def _say(step: int, log_likelihood: float) -> None:
    progress.say(f"step {step}  log-likelihood {log_likelihood:.6f}")


def _say_nothing(step: int, log_likelihood: float) -> None:
    pass


def tensor(value: ArrayLike) -> Tensor:
    """An array as a float64 tensor of its own."""
    return torch.tensor(np.asarray(value), dtype=torch.float64)


def prior(value: ArrayLike) -> float | Tensor:
    """A prior: a float as it is, anything else as a float64 tensor."""
    return value if isinstance(value, int | float) else tensor(value)


def distribution(name: str, value: ArrayLike, shape: tuple[int, ...]) -> Tensor:
    """Rows of probabilities, checked."""
    p = torch.as_tensor(np.asarray(value), dtype=torch.float64)
    if tuple(p.shape) != shape:
        raise InputError(f"{name} has the shape {tuple(p.shape)}; expected {shape}")
    if (
        not bool(p.isfinite().all())
        or bool((p < 0).any())
        or not torch.allclose(p.sum(-1), torch.ones(shape[:-1], dtype=p.dtype), atol=1e-6)
    ):
        raise InputError(f"the rows of {name} must be probabilities that sum to 1; they sum to {p.sum(-1).tolist()}")
    return p


def _same(a: object, b: object) -> bool:
    return (
        bool(np.array_equal(np.asarray(a), np.asarray(b)))
        if isinstance(a, np.ndarray) or isinstance(b, np.ndarray)
        else bool(a == b)
    )
