"""Models that emit symbols, bits and counts, with hmmlearn's names. What all have in common is in estimator.py."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from elman.errors import InputError
from elman.hmm import describe, initial
from elman.hmm.emissions import Bernoulli, Categorical, Emission, Poisson, check_symbols
from elman.hmm.estimator import Array, HiddenMarkovEstimator, RandomState, distribution, prior, tensor
from elman.tables import Table


class CategoricalHMM(HiddenMarkovEstimator):
    """One symbol per step, a whole number from 0.

    >>> X = np.array([[0], [0], [1], [1], [0], [0], [1], [1]])
    >>> model = CategoricalHMM(n_components=2, random_state=0, n_iter=500).fit(X)
    >>> model.predict(X).shape, model.converged_
    ((8,), True)
    """

    emission: ClassVar[str] = "categorical"
    letters: ClassVar[dict[str, str]] = {"s": "start", "t": "transition", "e": "emission"}
    n_features: int | None
    emissionprob_prior: ArrayLike
    emissionprob_: Array

    def __init__(
        self,
        n_components: int = 1,
        *,
        n_features: int | None = None,
        startprob_prior: ArrayLike = 1.0,
        transmat_prior: ArrayLike = 1.0,
        emissionprob_prior: ArrayLike = 1.0,
        startprob_mask: ArrayLike | None = None,
        transmat_mask: ArrayLike | None = None,
        algorithm: str = "viterbi",
        random_state: RandomState = None,
        n_init: int = 1,
        n_iter: int = 100,
        tol: float = 1e-4,
        verbose: bool = False,
        params: str = "ste",
        init_params: str = "ste",
        method: str = "em",
        learning_rate: float = 0.05,
        batch_size: int = 32,
    ) -> None:
        self._store(locals())

    def _emission(self) -> Emission:
        p = distribution("emissionprob_", self.emissionprob_, (self.n_components, np.shape(self.emissionprob_)[-1]))
        return Categorical(p, prior=prior(self.emissionprob_prior))

    def _keep(self, emission: Emission) -> None:
        assert isinstance(emission, Categorical)
        self.emissionprob_ = emission.p.detach().numpy()

    def _start_emission(self, o: Tensor, generator: torch.Generator) -> None:
        if self._starts("e", "emissionprob_"):
            shape = (self.n_components, self._alphabet(o))
            self.emissionprob_ = initial.dirichlet(shape, torch.ones(shape), generator).numpy()

    def _alphabet(self, o: Tensor) -> int:
        if self.n_features is not None:
            return int(self.n_features)
        seen = o[~o.isnan()]
        return int(seen.max()) + 1 if len(seen) else 1

    def _check_observations(self, o: Tensor) -> None:
        if o.shape[1] != 1:
            raise InputError(f"X has {o.shape[1]} columns; a CategoricalHMM reads one symbol per step, X (N, 1)")
        known = hasattr(self, "emissionprob_") and "e" not in self.init_params
        check_symbols(o, self.n_features or (self.emissionprob_.shape[1] if known else self._alphabet(o)))

    def _emission_tables(self) -> list[Table]:
        return [describe.symbols(self.emissionprob_, self.startprob_, self.transmat_, self.reader_.names)]

    def _n_emission_parameters(self) -> int:
        K, V = self.emissionprob_.shape
        return int(K * (V - 1))


class BernoulliHMM(HiddenMarkovEstimator):
    """D independent bits per step: emissionprob_[k, d] = p(o_d = 1 | z = k).

    >>> X = np.array([[0, 1], [0, 1], [1, 0], [1, 0]] * 5)
    >>> BernoulliHMM(n_components=2, random_state=0, emissionprob_prior=2.0).fit(X).emissionprob_.shape
    (2, 2)
    """

    emission: ClassVar[str] = "bernoulli"
    letters: ClassVar[dict[str, str]] = {"s": "start", "t": "transition", "e": "emission"}
    emissionprob_prior: float
    emissionprob_: Array

    def __init__(
        self,
        n_components: int = 1,
        *,
        startprob_prior: ArrayLike = 1.0,
        transmat_prior: ArrayLike = 1.0,
        emissionprob_prior: float = 1.0,
        startprob_mask: ArrayLike | None = None,
        transmat_mask: ArrayLike | None = None,
        algorithm: str = "viterbi",
        random_state: RandomState = None,
        n_init: int = 1,
        n_iter: int = 100,
        tol: float = 1e-4,
        verbose: bool = False,
        params: str = "ste",
        init_params: str = "ste",
        method: str = "em",
        learning_rate: float = 0.05,
        batch_size: int = 32,
    ) -> None:
        self._store(locals())

    def _emission(self) -> Emission:
        p = tensor(self.emissionprob_)
        if p.dim() != 2 or len(p) != self.n_components or bool(((p < 0) | (p > 1)).any()):
            raise InputError(
                f"emissionprob_ must hold probabilities, ({self.n_components}, D); it has the shape {tuple(p.shape)}"
            )
        return Bernoulli(p, prior=self.emissionprob_prior)

    def _keep(self, emission: Emission) -> None:
        assert isinstance(emission, Bernoulli)
        self.emissionprob_ = emission.p.detach().numpy()

    def _start_emission(self, o: Tensor, generator: torch.Generator) -> None:
        if self._starts("e", "emissionprob_"):
            self.emissionprob_ = initial.spread(o, self.n_components, generator).clamp(0.05, 0.95).numpy()

    def _check_observations(self, o: Tensor) -> None:
        if bool(((o != 0) & (o != 1) & ~o.isnan()).any()):
            raise InputError("X holds values other than 0 and 1; a BernoulliHMM reads bits (NaN where one is missing)")

    def _emission_tables(self) -> list[Table]:
        return [describe.by_state("probability of a 1", self.emissionprob_, self.reader_.names)]

    def _n_emission_parameters(self) -> int:
        return int(self.emissionprob_.size)


class PoissonHMM(HiddenMarkovEstimator):
    """D independent counts per step with the rates lambdas_ (K, D); a Gamma prior adds lambdas_prior to sums
    and lambdas_weight to numbers.

    >>> X = np.array([[1], [0], [9], [11]] * 5)
    >>> sorted(PoissonHMM(n_components=2, random_state=0).fit(X).lambdas_[:, 0].round(1).tolist())
    [0.5, 10.0]
    """

    emission: ClassVar[str] = "poisson"
    letters: ClassVar[dict[str, str]] = {"s": "start", "t": "transition", "l": "emission"}
    lambdas_prior: float
    lambdas_weight: float
    lambdas_: Array

    def __init__(
        self,
        n_components: int = 1,
        *,
        startprob_prior: ArrayLike = 1.0,
        transmat_prior: ArrayLike = 1.0,
        lambdas_prior: float = 0.0,
        lambdas_weight: float = 0.0,
        startprob_mask: ArrayLike | None = None,
        transmat_mask: ArrayLike | None = None,
        algorithm: str = "viterbi",
        random_state: RandomState = None,
        n_init: int = 1,
        n_iter: int = 100,
        tol: float = 1e-4,
        verbose: bool = False,
        params: str = "stl",
        init_params: str = "stl",
        method: str = "em",
        learning_rate: float = 0.05,
        batch_size: int = 32,
    ) -> None:
        self._store(locals())

    def _emission(self) -> Emission:
        rate = tensor(self.lambdas_)
        if rate.dim() != 2 or len(rate) != self.n_components or not bool((rate >= 0).all()):
            raise InputError(
                f"lambdas_ must hold rates of at least 0, ({self.n_components}, D); it has the shape "
                f"{tuple(rate.shape)}"
            )
        return Poisson(rate, prior=self.lambdas_prior, prior_weight=self.lambdas_weight)

    def _keep(self, emission: Emission) -> None:
        assert isinstance(emission, Poisson)
        self.lambdas_ = emission.rate.detach().numpy()

    def _start_emission(self, o: Tensor, generator: torch.Generator) -> None:
        if self._starts("l", "lambdas_"):
            floor = 0.1 * o.nanmean(0).nan_to_num(1.0) + 1e-3  # a rate of zero would never leave it
            self.lambdas_ = torch.maximum(initial.spread(o, self.n_components, generator), floor).numpy()

    def _check_observations(self, o: Tensor) -> None:
        seen = o[~o.isnan()]
        if bool(((seen < 0) | (seen != seen.round())).any()):
            raise InputError(
                "X holds values that are not counts; a PoissonHMM reads whole numbers of at least 0 (NaN where "
                "one is missing)"
            )

    def _emission_tables(self) -> list[Table]:
        return [describe.by_state("rates", self.lambdas_, self.reader_.names)]

    def _n_emission_parameters(self) -> int:
        return int(self.lambdas_.size)
