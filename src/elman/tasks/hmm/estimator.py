"""The fit of a hidden Markov model, whatever it emits: hmmlearn's names, scikit-learn's conventions.

`params` and `init_params` say, by letter, what a fit changes and what it sets to a start of its own: s startprob,
t transmat, and e emissionprob, m means, c covars, w weights, l lambdas as the class has them.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from elman import progress
from elman.errors import FileError, FitError, InputError
from elman.options import choice, whole
from elman.scikit import RandomState, seed
from elman.tables import Table
from elman.tasks.hmm import initial
from elman.tasks.hmm.emissions import Emission
from elman.tasks.hmm.fit import ConvergenceMonitor, Fit, FitWarning, em, gradient
from elman.tasks.hmm.model import HiddenMarkov, Priors
from elman.tasks.hmm.parameters import Array, check_mask, check_prior, prior
from elman.tasks.hmm.predictor import PARAMETERS, Hidden, HiddenMarkovPredictor
from elman.tasks.hmm.sequences import Sequences

METHODS = ("em", "adam", "sgd")
IMPLEMENTATIONS = ("log", "scaling")  # hmmlearn has two; here there is one, and both name it

Computed = Callable[[Array], ArrayLike]  # observations (N, D) -> log p(o | z = k) (N, K)

_log = logging.getLogger("elman.hmm")
_log.addHandler(logging.NullHandler())  # what is logged is a warning too: once is enough on standard error


class HiddenMarkovEstimator(HiddenMarkovPredictor):
    """A model that can be fitted. A subclass says where its emission starts, too."""

    history_: list[float]  # of what the fit maximised: log-likelihood + log prior
    log_likelihoods_: list[float]
    converged_: bool
    _fitted: dict[str, object]  # the parameters that a fit left

    # What a subclass defines

    def _keep(self, emission: Emission) -> None:
        """Take the parameters of a fitted emission over."""
        raise NotImplementedError

    def _start_emission(self, o: Tensor, generator: torch.Generator) -> None:
        """Set the emission's parameters, those that init_params names, to where a fit should start."""
        raise NotImplementedError

    def _check_priors(self, o: Tensor) -> None:
        """Raise an InputError for a prior of the emission that does not fit it, or what it is to emit."""
        raise NotImplementedError

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what `save` wrote, frozen: a copy of it (`copy.deepcopy`) may be changed."""
        from elman.tasks.hmm.files import load  # which knows all models

        model = load(path)
        if not isinstance(model, cls):
            raise FileError(f"{path} holds a {type(model).__name__}, not a {cls.__name__}")
        return model

    # Fitting

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike | None = None,
        *,
        lengths: ArrayLike | None = None,
        mask: ArrayLike | None = None,
    ) -> Self:
        """Fit to X (N, D) with `lengths`, or to a padded (B, T, D); NaN, or False in `mask`, is a value that was not
        observed. A fit succeeds whole, or leaves everything as it was.

        The second argument may be lengths, as in hmmlearn, or scikit-learn's y, of which no use is made.
        """
        before = dict(self.__dict__)
        try:
            self._fit(self._read(X, lengths, mask, y=y, fitting=True))
        except BaseException:  # an interrupt too
            self.__dict__.clear()
            self.__dict__.update(before)
            raise
        return self

    def fit_predict(
        self,
        X: ArrayLike,
        y: ArrayLike | None = None,
        *,
        lengths: ArrayLike | None = None,
        mask: ArrayLike | None = None,
    ) -> Hidden:
        """Fit, and the most probable states of what was fitted. Arguments as for `fit`."""
        self.fit(X, y, lengths=lengths, mask=mask)
        return self._decode(*self._prepared(X, lengths, mask, y), self.algorithm)[1]

    def _fit(self, data: Sequences) -> None:
        self._check_options(data.o)
        if not len(data.o):
            raise InputError(f"X is empty, {data.shape}; give at least one observation")
        if len(data.o) < self.n_components:
            raise InputError(f"X has {len(data.o)} observations, too few for n_components = {self.n_components}")
        self._say_overwritten()
        generator = torch.Generator().manual_seed(seed(self.random_state))
        given = dict(self.__dict__)
        best: tuple[Fit, dict[str, object]] | None = None
        failure: FitError | None = None
        for number in range(self.n_init):
            self.__dict__.clear()
            self.__dict__.update(given)
            if self.verbose and self.n_init > 1:
                progress.say(f"start {number + 1} of {self.n_init}")
            try:
                self._start(data.o, generator)
                if number == 0:
                    self._say_degenerate(data.o)
                fit = self._climb(data, generator)
            except FitError as error:
                failure = error
                continue
            if best is None or fit.objective > best[0].objective:
                best = fit, dict(self.__dict__)
        if best is None:
            assert failure is not None
            raise failure
        if failure is not None:
            warnings.warn(f"one or more of the {self.n_init} starts failed: {failure}", FitWarning, stacklevel=3)
        self.__dict__.update(best[1])
        self.history_, self.converged_ = best[0].history, best[0].converged
        self.log_likelihoods_ = best[0].log_likelihoods
        self._fitted = self._parameters()

    def _climb(self, data: Sequences, generator: torch.Generator) -> Fit:
        frozen = frozenset(name for letter, name in self.letters.items() if letter not in self.params)
        priors = Priors(prior(self.startprob_prior), prior(self.transmat_prior))
        emission, start, transition = self._checked_parameters()
        self.monitor_ = self._fresh_monitor()
        if self.method == "em":
            emission.freeze(frozen)
            fit, start, transition = em(
                emission, start, transition, data, priors, n_iter=self.n_iter, tol=self.tol, frozen=frozen,
                report=self._report,
            )  # fmt: skip
        else:
            model = HiddenMarkov(emission, start, transition)
            model.freeze(frozen)
            fit = gradient(
                model, data, priors, method=self.method, n_iter=self.n_iter, tol=self.tol, report=self._report,
                learning_rate=self.learning_rate, batch_size=self.batch_size, generator=generator,
            )  # fmt: skip
            start, transition = model.start.detach(), model.transition.detach()
        self.startprob_, self.transmat_ = start.numpy(), transition.numpy()
        self._keep(emission)
        return fit

    def _start(self, o: Tensor, generator: torch.Generator) -> None:
        """Set what init_params names, and what is not there, to where a fit should start."""
        K = int(self.n_components)
        if self._starts("s"):
            allowed = check_mask("startprob_mask", self.startprob_mask, (K,))
            self.startprob_ = initial.dirichlet((K,), allowed, generator).numpy()
        if self._starts("t"):
            allowed = check_mask("transmat_mask", self.transmat_mask, (K, K))
            self.transmat_ = initial.dirichlet((K, K), allowed, generator).numpy()
        self._start_emission(o, generator)

    def _starts(self, letter: str) -> bool:
        return letter in self.init_params or not hasattr(self, PARAMETERS[letter])

    def _init(self, X: ArrayLike, lengths: ArrayLike | None = None) -> None:
        """hmmlearn's name for setting the parameters to where a fit of X starts; lengths make no difference to that."""
        data = self._read(X, None, None, fitting=True)
        self._start(data.o, torch.Generator().manual_seed(seed(self.random_state)))
        self._say_degenerate(data.o)

    # How a fit goes

    @property
    def monitor_(self) -> ConvergenceMonitor:
        """What the last fit reported; a monitor of your own, set here, is told of the next one and may end it."""
        return self._monitor if hasattr(self, "_monitor") else self._fresh_monitor()

    @monitor_.setter
    def monitor_(self, monitor: ConvergenceMonitor) -> None:
        self._monitor = monitor

    def _fresh_monitor(self) -> ConvergenceMonitor:
        own = getattr(self, "_monitor", None)
        if own is None or type(own) is ConvergenceMonitor:
            return ConvergenceMonitor(self.tol, self.n_iter, self.verbose)
        own._reset()
        return own

    def _report(self, step: int, objective: float) -> bool:
        """Tell the monitor of a step that is about to be made; whether it shall be the last."""
        if step < self.n_iter:  # after the last step there is none to report
            self.monitor_.report(objective)
        own = type(self.monitor_) is not ConvergenceMonitor  # which knows no rule that a fit does not
        return own and self.monitor_.converged and step + 1 < self.n_iter

    def _parameters(self) -> dict[str, object]:
        names = {PARAMETERS[letter] for letter in self.letters}
        return {name: value for name, value in self.__dict__.items() if name in names}

    def _say_overwritten(self) -> None:
        """Parameters that a fit left are a start's to overwrite; those that were set by hand were meant."""
        fitted = getattr(self, "_fitted", {})
        by_hand = {name for name, value in self._parameters().items() if value is not fitted.get(name)}
        lost = [letter for letter in self.letters if letter in self.init_params and PARAMETERS[letter] in by_hand]
        if lost:
            rest = "".join(letter for letter in self.init_params if letter not in lost)
            _warn(
                f"{', '.join(PARAMETERS[letter] for letter in lost)} were set by hand and will be overwritten, because "
                f"init_params is {self.init_params!r}; to start from them, pass init_params={rest!r}"
            )

    def _say_degenerate(self, o: Tensor) -> None:
        free = sum(n for letter, n in self._n_free().items() if letter in self.params)
        seen = int((~np.isnan(o.numpy())).sum())
        if seen < free:
            _warn(
                f"a fit of {free} free parameters to {seen} observed values will give a degenerate solution; use fewer "
                "components, a simpler covariance_type, stronger priors, or more data"
            )

    def _check_options(self, o: Tensor) -> None:
        for name, least in (("n_components", 1), ("n_init", 1), ("n_iter", 0), ("batch_size", 1)):
            whole(name, getattr(self, name), least)
        choice("method", self.method, METHODS)
        choice("implementation", self.implementation, IMPLEMENTATIONS)
        for name in ("params", "init_params"):
            unknown = set(getattr(self, name)) - set(self.letters)
            if unknown:
                raise InputError(f"{name} is {getattr(self, name)!r}; its letters may be {', '.join(self.letters)}")
        K = int(self.n_components)
        check_prior("startprob_prior", self.startprob_prior, (K,), 1)
        check_prior("transmat_prior", self.transmat_prior, (K, K), 1)
        self._check_priors(o)


class BaseHMM(HiddenMarkovEstimator):
    """An emission of one's own, as hmmlearn has it: override `_compute_log_likelihood(X)`, (N, D) -> log p(o | z = k)
    (N, K). A fit changes the chain alone.

    >>> class Coin(BaseHMM):
    ...     def _compute_log_likelihood(self, X):
    ...         return np.log(np.where(X == 1, [0.5, 0.9], [0.5, 0.1]))
    >>> coin = Coin(2)
    >>> coin.startprob_, coin.transmat_ = [0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]]
    >>> coin.predict([[0], [0], [1], [1], [1], [1], [1], [1]]).tolist()
    [0, 0, 1, 1, 1, 1, 1, 1]
    """

    emission: ClassVar[str] = "own"
    letters: ClassVar[dict[str, str]] = {"s": "start", "t": "transition"}

    def _compute_log_likelihood(self, X: Array) -> ArrayLike:
        raise NotImplementedError(f"{type(self).__name__} has no _compute_log_likelihood(X), (N, D) -> (N, K)")

    def _generate_sample_from_state(self, state: int, random_state: np.random.RandomState) -> ArrayLike:
        """An observation (D,) of a state; without numbers unless a subclass draws some."""
        return ()

    def sample(
        self, n_samples: int = 1, random_state: RandomState = None, currstate: int | None = None
    ) -> tuple[NDArray[np.generic], Hidden]:
        """As for every model; observations by `_generate_sample_from_state`."""
        _, states = super().sample(n_samples, random_state, currstate)
        given = self.random_state if random_state is None else random_state
        random = given if isinstance(given, np.random.RandomState) else np.random.RandomState(_small(given))
        drawn = [np.asarray(self._generate_sample_from_state(int(z), random)).reshape(-1) for z in states]
        return np.array(drawn).reshape(n_samples, -1 if drawn and drawn[0].size else 0), states

    def write_to(self, folder: Path) -> None:
        raise InputError(
            f"a {type(self).__name__} computes its emissions by code of its own, which no file holds; keep startprob_ "
            "and transmat_, and set them on a new one"
        )

    def _emission(self) -> Emission:
        return _Own(self._compute_log_likelihood, int(self.n_components))

    def _keep(self, emission: Emission) -> None:
        """There is nothing to keep."""

    def _start_emission(self, o: Tensor, generator: torch.Generator) -> None:
        """There is nothing to start."""

    def _check_observations(self, o: Tensor, fitting: bool) -> None:
        """The subclass knows what it takes."""

    def _check_priors(self, o: Tensor) -> None:
        """There are none of the emission."""

    def _n_emission_parameters(self) -> dict[str, int]:
        return {}

    def _emission_tables(self) -> list[Table]:
        return []


class _Own(Emission):
    """log p(o | z) by a function of arrays, without parameters."""

    parts: ClassVar[dict[str, str]] = {}

    def __init__(self, compute: Computed, K: int) -> None:
        super().__init__()
        self.compute, self.K = compute, K

    @property
    def width(self) -> None:
        """Whatever the function takes."""

    def forward(self, o: Tensor) -> Tensor:
        found = np.asarray(self.compute(o.detach().reshape(-1, o.shape[-1]).numpy()), dtype=np.float64)
        wanted = (o[..., 0].numel(), self.K)
        if found.shape != wanted:
            raise InputError(f"_compute_log_likelihood gave an array of shape {found.shape}; it must be {wanted}")
        if np.isnan(found).any() or (found == np.inf).any():
            raise InputError("_compute_log_likelihood gave values that are NaN or infinite; they must be logarithms")
        return torch.from_numpy(found).reshape(*o.shape[:-1], self.K)

    def maximise(self, o: Tensor, weight: Tensor) -> None:
        """There is nothing to maximise."""

    def log_prior(self) -> Tensor:
        return torch.zeros((), dtype=torch.float64)

    def sample(self, z: Tensor, draws: Tensor, first: int = 0) -> Tensor:
        return torch.zeros(len(z), 0, dtype=torch.float64)


def _small(random_state: int | np.random.Generator | None) -> int | None:
    """A seed for numpy's RandomState, which takes 32 bits."""
    if random_state is None:
        return None
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(2**32))
    return int(random_state) % 2**32


def _warn(message: str) -> None:
    """To whoever watches warnings, and to the log, where hmmlearn says such things."""
    _log.warning(message)
    warnings.warn(message, FitWarning, stacklevel=5)
