"""The models, one class per emission, with hmmlearn's names. What they have in common is in estimator.py.

`params` and `init_params` say, by letter, what a fit changes and what it sets to a start of its own: s
startprob, t transmat,
and e emissionprob, m means, c covars, w weights, l lambdas as the class has them.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from elman.errors import InputError
from elman.hmm import initial
from elman.hmm.emissions import Bernoulli, Categorical, Emission, Poisson, check_symbols
from elman.hmm.estimator import Array, HiddenMarkovEstimator, distribution, tensor
from elman.hmm.gaussian import Gaussian, Mixture, check_covariance_type


class CategoricalHMM(HiddenMarkovEstimator):
    """One symbol per step, a whole number from 0.

    >>> X = np.array([[0], [0], [1], [1], [0], [0], [1], [1]])
    >>> model = CategoricalHMM(n_components=2, random_state=0, n_iter=500).fit(X)
    >>> model.predict(X).shape, model.converged_
    ((8,), True)
    """

    letters: ClassVar[dict[str, str]] = {"s": "start", "t": "transition", "e": "emission"}
    emissionprob_: Array

    def __init__(
        self,
        n_components: int = 1,
        *,
        n_features: int | None = None,
        startprob_prior: Any = 1.0,
        transmat_prior: Any = 1.0,
        emissionprob_prior: Any = 1.0,
        startprob_mask: Any = None,
        transmat_mask: Any = None,
        algorithm: str = "viterbi",
        random_state: int | None = None,
        n_init: int = 1,
        n_iter: int = 100,
        tol: float = 1e-4,
        params: str = "ste",
        init_params: str = "ste",
        method: str = "em",
        learning_rate: float = 0.05,
        batch_size: int = 32,
    ) -> None:
        self.n_components = n_components
        self.n_features = n_features
        self.startprob_prior = startprob_prior
        self.transmat_prior = transmat_prior
        self.emissionprob_prior = emissionprob_prior
        self.startprob_mask = startprob_mask
        self.transmat_mask = transmat_mask
        self.algorithm = algorithm
        self.random_state = random_state
        self.n_init = n_init
        self.n_iter = n_iter
        self.tol = tol
        self.params = params
        self.init_params = init_params
        self.method = method
        self.learning_rate = learning_rate
        self.batch_size = batch_size

    def _emission(self) -> Emission:
        p = distribution("emissionprob_", self.emissionprob_, (self.n_components, np.shape(self.emissionprob_)[-1]))
        return Categorical(p, prior=tensor(self.emissionprob_prior))

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

    def _n_emission_parameters(self) -> int:
        K, V = self.emissionprob_.shape
        return int(K * (V - 1))


class BernoulliHMM(HiddenMarkovEstimator):
    """D independent bits per step: emissionprob_[k, d] = p(o_d = 1 | z = k).

    >>> X = np.array([[0, 1], [0, 1], [1, 0], [1, 0]] * 5)
    >>> BernoulliHMM(n_components=2, random_state=0, emissionprob_prior=2.0).fit(X).emissionprob_.shape
    (2, 2)
    """

    letters: ClassVar[dict[str, str]] = {"s": "start", "t": "transition", "e": "emission"}
    emissionprob_: Array

    def __init__(
        self,
        n_components: int = 1,
        *,
        startprob_prior: Any = 1.0,
        transmat_prior: Any = 1.0,
        emissionprob_prior: float = 1.0,
        startprob_mask: Any = None,
        transmat_mask: Any = None,
        algorithm: str = "viterbi",
        random_state: int | None = None,
        n_init: int = 1,
        n_iter: int = 100,
        tol: float = 1e-4,
        params: str = "ste",
        init_params: str = "ste",
        method: str = "em",
        learning_rate: float = 0.05,
        batch_size: int = 32,
    ) -> None:
        self.n_components = n_components
        self.startprob_prior = startprob_prior
        self.transmat_prior = transmat_prior
        self.emissionprob_prior = emissionprob_prior
        self.startprob_mask = startprob_mask
        self.transmat_mask = transmat_mask
        self.algorithm = algorithm
        self.random_state = random_state
        self.n_init = n_init
        self.n_iter = n_iter
        self.tol = tol
        self.params = params
        self.init_params = init_params
        self.method = method
        self.learning_rate = learning_rate
        self.batch_size = batch_size

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

    def _n_emission_parameters(self) -> int:
        return int(self.emissionprob_.size)


class PoissonHMM(HiddenMarkovEstimator):
    """D independent counts per step with the rates lambdas_ (K, D); a Gamma prior adds lambdas_prior to sums
    and lambdas_weight to numbers.

    >>> X = np.array([[1], [0], [9], [11]] * 5)
    >>> sorted(PoissonHMM(n_components=2, random_state=0).fit(X).lambdas_[:, 0].round(1).tolist())
    [0.5, 10.0]
    """

    letters: ClassVar[dict[str, str]] = {"s": "start", "t": "transition", "l": "emission"}
    lambdas_: Array

    def __init__(
        self,
        n_components: int = 1,
        *,
        startprob_prior: Any = 1.0,
        transmat_prior: Any = 1.0,
        lambdas_prior: float = 0.0,
        lambdas_weight: float = 0.0,
        startprob_mask: Any = None,
        transmat_mask: Any = None,
        algorithm: str = "viterbi",
        random_state: int | None = None,
        n_init: int = 1,
        n_iter: int = 100,
        tol: float = 1e-4,
        params: str = "stl",
        init_params: str = "stl",
        method: str = "em",
        learning_rate: float = 0.05,
        batch_size: int = 32,
    ) -> None:
        self.n_components = n_components
        self.startprob_prior = startprob_prior
        self.transmat_prior = transmat_prior
        self.lambdas_prior = lambdas_prior
        self.lambdas_weight = lambdas_weight
        self.startprob_mask = startprob_mask
        self.transmat_mask = transmat_mask
        self.algorithm = algorithm
        self.random_state = random_state
        self.n_init = n_init
        self.n_iter = n_iter
        self.tol = tol
        self.params = params
        self.init_params = init_params
        self.method = method
        self.learning_rate = learning_rate
        self.batch_size = batch_size

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
                "X holds values that are no counts; a PoissonHMM reads whole numbers of at least 0 (NaN where "
                "one is missing)"
            )

    def _n_emission_parameters(self) -> int:
        return int(self.lambdas_.size)


class GaussianHMM(HiddenMarkovEstimator):
    """Gaussian observations. covars_ is (K,) spherical, (K, D) diag, (K, D, D) full or (D, D) tied.

    The priors are hmmlearn's: covars_prior is added to every scatter, 0.01 by default, so no covariance can collapse.

    >>> X = np.concatenate([np.random.default_rng(0).normal(m, 1, (50, 1)) for m in (0, 9)])
    >>> GaussianHMM(n_components=2, random_state=0).fit(X).predict(X)[[0, -1]].tolist() in ([0, 1], [1, 0])
    True
    """

    letters: ClassVar[dict[str, str]] = {"s": "start", "t": "transition", "m": "mean", "c": "covariance"}
    means_: Array
    covars_: Array

    def __init__(
        self,
        n_components: int = 1,
        covariance_type: str = "diag",
        *,
        min_covar: float = 1e-3,
        startprob_prior: Any = 1.0,
        transmat_prior: Any = 1.0,
        means_prior: Any = 0.0,
        means_weight: float = 0.0,
        covars_prior: Any = 1e-2,
        covars_weight: float = 1.0,
        startprob_mask: Any = None,
        transmat_mask: Any = None,
        algorithm: str = "viterbi",
        random_state: int | None = None,
        n_init: int = 1,
        n_iter: int = 100,
        tol: float = 1e-4,
        params: str = "stmc",
        init_params: str = "stmc",
        method: str = "em",
        learning_rate: float = 0.05,
        batch_size: int = 32,
    ) -> None:
        self.n_components = n_components
        self.covariance_type = covariance_type
        self.min_covar = min_covar
        self.startprob_prior = startprob_prior
        self.transmat_prior = transmat_prior
        self.means_prior = means_prior
        self.means_weight = means_weight
        self.covars_prior = covars_prior
        self.covars_weight = covars_weight
        self.startprob_mask = startprob_mask
        self.transmat_mask = transmat_mask
        self.algorithm = algorithm
        self.random_state = random_state
        self.n_init = n_init
        self.n_iter = n_iter
        self.tol = tol
        self.params = params
        self.init_params = init_params
        self.method = method
        self.learning_rate = learning_rate
        self.batch_size = batch_size

    def _emission(self) -> Emission:
        check_covariance_type(self.covariance_type)
        mean = tensor(self.means_)
        if mean.dim() != 2 or len(mean) != self.n_components:
            raise InputError(f"means_ has the shape {tuple(mean.shape)}; expected ({self.n_components}, D)")
        return Gaussian(
            mean, _covariances(self.covars_, self.covariance_type, mean.shape, 1), self.covariance_type,
            means_prior=tensor(self.means_prior), means_weight=self.means_weight,
            covars_prior=tensor(self.covars_prior), covars_weight=self.covars_weight,
        )  # fmt: skip

    def _keep(self, emission: Emission) -> None:
        assert isinstance(emission, Gaussian)
        self.means_ = emission.mean.detach().numpy()
        covariance = emission.covariance.detach().numpy()
        self.covars_ = covariance[0] if self.covariance_type == "tied" else covariance

    def _start_emission(self, o: Tensor, generator: torch.Generator) -> None:
        if self._starts("m", "means_"):
            self.means_ = initial.kmeans(o, self.n_components, generator).numpy()
        if self._starts("c", "covars_"):
            self.covars_ = initial.covariances(o, self.covariance_type, self.n_components, self.min_covar).numpy()

    def _check_observations(self, o: Tensor) -> None:
        check_covariance_type(self.covariance_type)

    def _n_emission_parameters(self) -> int:
        K, D = self.means_.shape
        return int(
            K * D
            + {"spherical": K, "diag": K * D, "full": K * D * (D + 1) // 2, "tied": D * (D + 1) // 2}[
                self.covariance_type
            ]
        )


class GMMHMM(HiddenMarkovEstimator):
    """A mixture of n_mix Gaussians in each state: weights_ (K, M), means_ (K, M, D), covars_ (K, M), (K, M,
    D), (K, M, D, D), or (K, D, D) tied.

    >>> X = np.random.default_rng(0).normal(size=(60, 1))
    >>> GMMHMM(n_components=2, n_mix=2, random_state=0, tol=0.1).fit(X).means_.shape
    (2, 2, 1)
    """

    letters: ClassVar[dict[str, str]] = {
        "s": "start",
        "t": "transition",
        "m": "mean",
        "c": "covariance",
        "w": "weights",
    }
    weights_: Array
    means_: Array
    covars_: Array

    def __init__(
        self,
        n_components: int = 1,
        n_mix: int = 1,
        covariance_type: str = "diag",
        *,
        min_covar: float = 1e-3,
        startprob_prior: Any = 1.0,
        transmat_prior: Any = 1.0,
        weights_prior: Any = 1.0,
        means_prior: Any = 0.0,
        means_weight: float = 0.0,
        covars_prior: Any = 1e-2,
        covars_weight: float = 1.0,
        startprob_mask: Any = None,
        transmat_mask: Any = None,
        algorithm: str = "viterbi",
        random_state: int | None = None,
        n_init: int = 1,
        n_iter: int = 100,
        tol: float = 1e-4,
        params: str = "stmcw",
        init_params: str = "stmcw",
        method: str = "em",
        learning_rate: float = 0.05,
        batch_size: int = 32,
    ) -> None:
        self.n_components = n_components
        self.n_mix = n_mix
        self.covariance_type = covariance_type
        self.min_covar = min_covar
        self.startprob_prior = startprob_prior
        self.transmat_prior = transmat_prior
        self.weights_prior = weights_prior
        self.means_prior = means_prior
        self.means_weight = means_weight
        self.covars_prior = covars_prior
        self.covars_weight = covars_weight
        self.startprob_mask = startprob_mask
        self.transmat_mask = transmat_mask
        self.algorithm = algorithm
        self.random_state = random_state
        self.n_init = n_init
        self.n_iter = n_iter
        self.tol = tol
        self.params = params
        self.init_params = init_params
        self.method = method
        self.learning_rate = learning_rate
        self.batch_size = batch_size

    def _emission(self) -> Emission:
        check_covariance_type(self.covariance_type)
        K, M = self.n_components, self.n_mix
        mean = tensor(self.means_)
        if mean.dim() != 3 or mean.shape[:2] != (K, M):
            raise InputError(f"means_ has the shape {tuple(mean.shape)}; expected ({K}, {M}, D)")
        components = Gaussian(
            mean.flatten(0, 1), _covariances(self.covars_, self.covariance_type, (K * M, mean.shape[2]), K),
            self.covariance_type,
            means_prior=tensor(self.means_prior), means_weight=self.means_weight,
            covars_prior=tensor(self.covars_prior), covars_weight=self.covars_weight,
        )  # fmt: skip
        return Mixture(distribution("weights_", self.weights_, (K, M)), components, prior=tensor(self.weights_prior))

    def _keep(self, emission: Emission) -> None:
        assert isinstance(emission, Mixture)
        K, M = self.n_components, self.n_mix
        self.weights_ = emission.weights.detach().numpy()
        self.means_ = emission.components.mean.detach().unflatten(0, (K, M)).numpy()
        covariance = emission.components.covariance.detach()
        self.covars_ = (covariance if self.covariance_type == "tied" else covariance.unflatten(0, (K, M))).numpy()

    def _start_emission(self, o: Tensor, generator: torch.Generator) -> None:
        K, M = self.n_components, self.n_mix
        if self._starts("w", "weights_"):
            self.weights_ = np.full((K, M), 1 / M)
        if self._starts("m", "means_"):
            self.means_ = initial.nested_kmeans(o, K, M, generator).numpy()
        if self._starts("c", "covars_"):
            if self.covariance_type == "tied":
                self.covars_ = initial.covariances(o, "full", K, self.min_covar).numpy()
            else:
                self.covars_ = (
                    initial.covariances(o, self.covariance_type, K * M, self.min_covar).unflatten(0, (K, M)).numpy()
                )

    def _check_observations(self, o: Tensor) -> None:
        check_covariance_type(self.covariance_type)
        if not isinstance(self.n_mix, int) or self.n_mix < 1:
            raise InputError(f"n_mix is {self.n_mix!r}; it must be a whole number of at least 1")

    def _n_emission_parameters(self) -> int:
        K, M, D = self.means_.shape
        square = D * (D + 1) // 2
        covariances = {"spherical": K * M, "diag": K * M * D, "full": K * M * square, "tied": K * square}[
            self.covariance_type
        ]
        return int(K * (M - 1) + K * M * D + covariances)


def _covariances(covars: Any, covariance_type: str, mean_shape: tuple[int, ...], groups: int) -> Tensor:
    """covars_ with one entry per component (per group where tied), checked."""
    K, D = mean_shape
    rows = groups if covariance_type == "tied" else K
    wanted = {"spherical": (K,), "diag": (K, D)}.get(covariance_type, (rows, D, D))
    given = tensor(covars)
    if given.numel() != int(np.prod(wanted)):
        raise InputError(
            f"covars_ has the shape {tuple(given.shape)}; {covariance_type} covariances have "
            f"{int(np.prod(wanted))} numbers, {wanted}"
        )
    covariance = given.reshape(wanted)
    if covariance.dim() == 3 and not torch.allclose(covariance, covariance.mT):
        raise InputError("covars_ holds a matrix that is not symmetric")
    return covariance
