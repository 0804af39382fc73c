"""Models that emit numbers, Gaussian and mixed, with hmmlearn's names. What all have in common is in estimator.py."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from elman.errors import InputError
from elman.options import number, whole
from elman.tables import Table
from elman.tasks.hmm import initial, parameters
from elman.tasks.hmm.emissions import Emission
from elman.tasks.hmm.estimator import HiddenMarkovEstimator
from elman.tasks.hmm.gaussian import Gaussian, check_covariance_type
from elman.tasks.hmm.mixture import Mixture
from elman.tasks.hmm.parameters import Arguments, Array, check_prior, distribution, prior, tensor


@dataclass(kw_only=True, eq=False, repr=False)
class CovarianceArguments(Arguments):
    """Priors of Gaussians, as gaussian.py has them."""

    min_covar: float = 1e-3  # added to the variances of the data where a fit starts
    means_prior: ArrayLike = 0.0
    means_weight: float = 0.0
    covars_prior: ArrayLike | None = 1e-2
    covars_weight: float = 1.0


@dataclass(kw_only=True, eq=False, repr=False)
class GaussianArguments(CovarianceArguments):
    covariance_type: str = field(default="diag", kw_only=False)
    params: str = "stmc"
    init_params: str = "stmc"


class GaussianHMM(HiddenMarkovEstimator, GaussianArguments):
    """Gaussian observations. covars_ is (K,) spherical, (K, D) diag, (K, D, D) full or (D, D) tied.

    The priors are hmmlearn's: covars_prior is added to every scatter, 0.01 by default, so no covariance can collapse.

    >>> X = np.concatenate([np.random.default_rng(0).normal(m, 1, (50, 1)) for m in (0, 9)])
    >>> GaussianHMM(n_components=2, random_state=0).fit(X).predict(X)[[0, -1]].tolist() in ([0, 1], [1, 0])
    True
    """

    emission: ClassVar[str] = "gaussian"
    letters: ClassVar[dict[str, str]] = {"s": "start", "t": "transition", "m": "mean", "c": "covariance"}
    means_: Array
    covars_: Array

    def _emission(self) -> Emission:
        mean = tensor("means_", self.means_)
        if mean.dim() != 2 or len(mean) != self.n_components:
            raise InputError(f"means_ has the shape {tuple(mean.shape)}; expected ({self.n_components}, D)")
        return _gaussian(self, mean, 1)

    def _keep(self, emission: Emission) -> None:
        assert isinstance(emission, Gaussian)
        self.means_ = emission.mean.detach().numpy()
        covariance = emission.covariance.detach().numpy()
        self.covars_ = covariance[0] if self.covariance_type == "tied" else covariance

    def _start_emission(self, o: Tensor, generator: torch.Generator) -> None:
        if self._starts("m"):
            self.means_ = initial.kmeans(o, self.n_components, generator).numpy()
        if self._starts("c"):
            self.covars_ = initial.covariances(o, self.covariance_type, self.n_components, self.min_covar).numpy()

    def _check_observations(self, o: Tensor, fitting: bool) -> None:
        check_covariance_type(self.covariance_type)

    def _emission_tables(self) -> list[Table]:
        return [
            parameters.by_state("means", self.means_, self.reader_.names),
            parameters.covariances(self.covars_, self.covariance_type == "tied", self.reader_.names),
        ]

    def _check_priors(self, o: Tensor) -> None:
        _check_gaussian_priors(self, (int(self.n_components), o.shape[1]))

    @property
    def _covars_(self) -> Array:
        """hmmlearn's name for covariances in the form that covars_ has here."""
        return np.asarray(self.covars_)

    def _n_emission_parameters(self) -> dict[str, int]:
        K, D = np.shape(self.means_)
        return {"m": K * D, "c": _n_covariances(self.covariance_type, K, D, 1)}


@dataclass(kw_only=True, eq=False, repr=False)
class MixtureArguments(CovarianceArguments):
    n_mix: int = field(default=1, kw_only=False)  # Gaussians in each state
    covariance_type: str = field(default="diag", kw_only=False)
    weights_prior: ArrayLike = 1.0
    covars_prior: ArrayLike | None = None
    params: str = "stmcw"
    init_params: str = "stmcw"


class GMMHMM(HiddenMarkovEstimator, MixtureArguments):
    """A mixture of n_mix Gaussians in each state: weights_ (K, M), means_ (K, M, D), covars_ (K, M), (K, M, D),
    (K, M, D, D), or (K, D, D) tied.

    covars_prior None is a millionth of the variance of each feature.

    >>> X = np.random.default_rng(0).normal(size=(60, 1))
    >>> GMMHMM(n_components=2, n_mix=2, random_state=0, tol=0.1).fit(X).means_.shape
    (2, 2, 1)
    """

    emission: ClassVar[str] = "mixture"
    letters: ClassVar[dict[str, str]] = {**GaussianHMM.letters, "w": "weights"}
    weights_: Array
    means_: Array
    covars_: Array

    def _emission(self) -> Emission:
        K, M = int(self.n_components), int(self.n_mix)
        mean = tensor("means_", self.means_)
        if mean.dim() != 3 or mean.shape[:2] != (K, M):
            raise InputError(f"means_ has the shape {tuple(mean.shape)}; expected ({K}, {M}, D)")
        components = _gaussian(self, mean.flatten(0, 1), K)
        return Mixture(distribution("weights_", self.weights_, (K, M)), components, prior=prior(self.weights_prior))

    def _keep(self, emission: Emission) -> None:
        assert isinstance(emission, Mixture)
        K, M = int(self.n_components), int(self.n_mix)
        self.weights_ = emission.weights.detach().numpy()
        self.means_ = emission.components.mean.detach().unflatten(0, (K, M)).numpy()
        covariance = emission.components.covariance.detach()
        self.covars_ = (covariance if self.covariance_type == "tied" else covariance.unflatten(0, (K, M))).numpy()

    def _start_emission(self, o: Tensor, generator: torch.Generator) -> None:
        K, M = int(self.n_components), int(self.n_mix)
        if self._starts("w"):
            self.weights_ = np.full((K, M), 1 / M)
        if self._starts("m"):
            self.means_ = initial.nested_kmeans(o, K, M, generator).numpy()
        if self._starts("c"):
            if self.covariance_type == "tied":
                self.covars_ = initial.covariances(o, "full", K, self.min_covar).numpy()
            else:
                self.covars_ = (
                    initial.covariances(o, self.covariance_type, K * M, self.min_covar).unflatten(0, (K, M)).numpy()
                )

    def _check_observations(self, o: Tensor, fitting: bool) -> None:
        check_covariance_type(self.covariance_type)
        whole("n_mix", self.n_mix)

    def _emission_tables(self) -> list[Table]:
        return [parameters.by_state("weights of the mixture", self.weights_)]

    def _check_priors(self, o: Tensor) -> None:
        K, M = int(self.n_components), whole("n_mix", self.n_mix)
        check_prior("weights_prior", self.weights_prior, (K, M), 1)
        _check_gaussian_priors(self, (K * M, o.shape[1]))

    def _n_emission_parameters(self) -> dict[str, int]:
        K, M, D = np.shape(self.means_)
        return {"w": K * (M - 1), "m": K * M * D, "c": _n_covariances(self.covariance_type, K * M, D, K)}


def _gaussian(model: GaussianHMM | GMMHMM, mean: Tensor, groups: int) -> Gaussian:
    """The Gaussians of a model, with means (K, D)."""
    check_covariance_type(model.covariance_type)
    return Gaussian(
        mean, _covariances(model.covars_, model.covariance_type, mean.shape, groups), model.covariance_type,
        means_prior=prior(model.means_prior), means_weight=model.means_weight,
        covars_prior=None if model.covars_prior is None else prior(model.covars_prior),
        covars_weight=model.covars_weight,
    )  # fmt: skip


def _check_gaussian_priors(model: GaussianHMM | GMMHMM, shape: tuple[int, int]) -> None:
    """shape (K, D) of the means."""
    D = shape[1]
    check_prior("means_prior", model.means_prior, shape, -np.inf)
    dense = model.covariance_type in ("full", "tied")
    if model.covars_prior is not None:
        check_prior("covars_prior", model.covars_prior, (D, D) if dense else shape, -np.inf if dense else 0.0)
    for name in ("min_covar", "means_weight", "covars_weight"):
        number(name, getattr(model, name), 0)


def _n_covariances(covariance_type: str, K: int, D: int, groups: int) -> int:
    square = D * (D + 1) // 2
    return {"spherical": K, "diag": K * D, "full": K * square, "tied": groups * square}[covariance_type]


def _covariances(covars: ArrayLike, covariance_type: str, mean_shape: tuple[int, ...], groups: int) -> Tensor:
    """covars_ with one entry per component (per group where tied), checked."""
    K, D = mean_shape
    rows = groups if covariance_type == "tied" else K
    wanted = {"spherical": (K,), "diag": (K, D)}.get(covariance_type, (rows, D, D))
    given = tensor("covars_", covars)
    if given.numel() != math.prod(wanted):
        raise InputError(
            f"covars_ has the shape {tuple(given.shape)}; {covariance_type} covariances have "
            f"{math.prod(wanted)} numbers, {wanted}"
        )
    covariance = given.reshape(wanted)
    if covariance.dim() == 3 and not torch.allclose(covariance, covariance.mT):
        raise InputError("covars_ holds a matrix that is not symmetric")
    return covariance
