"""Emissions of one's own, as hmmlearn has them: a subclass that says how probable observations are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from elman.errors import InputError
from elman.scikit import RandomState
from elman.tables import Table
from elman.tasks.hmm.emissions import Emission
from elman.tasks.hmm.estimator import HiddenMarkovEstimator
from elman.tasks.hmm.predictor import Array, Hidden

Computed = Callable[[Array], ArrayLike]  # observations (N, D) -> log p(o | z = k) (N, K)


class BaseHMM(HiddenMarkovEstimator):
    """Override `_compute_log_likelihood(X)`, (N, D) -> log p(o | z = k) (N, K). A fit changes the chain alone.

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

    def __init__(
        self,
        n_components: int = 1,
        *,
        startprob_prior: ArrayLike = 1.0,
        transmat_prior: ArrayLike = 1.0,
        startprob_mask: ArrayLike | None = None,
        transmat_mask: ArrayLike | None = None,
        algorithm: str = "viterbi",
        random_state: RandomState = None,
        n_init: int = 1,
        n_iter: int = 100,
        tol: float = 1e-4,
        verbose: bool = False,
        params: str = "st",
        init_params: str = "st",
        implementation: str = "log",
        method: str = "em",
        learning_rate: float = 0.05,
        batch_size: int = 32,
    ) -> None:
        self._store(locals())

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

    def fill(self, folder: Path) -> None:
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
