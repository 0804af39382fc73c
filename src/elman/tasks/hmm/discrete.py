"""Models that emit symbols, bits and counts, with hmmlearn's names. What all have in common is in estimator.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from elman.errors import InputError
from elman.options import number, whole
from elman.tables import Table
from elman.tasks.hmm import initial, parameters
from elman.tasks.hmm.emissions import Bernoulli, Categorical, Emission, Poisson, check_symbols
from elman.tasks.hmm.estimator import HiddenMarkovEstimator
from elman.tasks.hmm.parameters import Arguments, Array, check_prior, distribution, prior, tensor
from elman.tasks.hmm.sequences import Given

LARGEST_ALPHABET = 1_000_000  # that is taken from the largest symbol alone: a stray number must not fill the memory


@dataclass(kw_only=True, eq=False, repr=False)
class CategoricalArguments(Arguments):
    n_features: int | None = None  # symbols; None for one more than the largest that is seen
    emissionprob_prior: ArrayLike = 1.0
    params: str = "ste"
    init_params: str = "ste"


class CategoricalHMM(HiddenMarkovEstimator, CategoricalArguments):
    """One symbol per step: a whole number from 0, or a text label.

    >>> X = np.array([[0], [0], [1], [1], [0], [0], [1], [1]])
    >>> model = CategoricalHMM(n_components=2, random_state=0, n_iter=500).fit(X)
    >>> model.predict(X).shape, model.converged_
    ((8,), True)
    """

    emission: ClassVar[str] = "categorical"
    letters: ClassVar[dict[str, str]] = {"s": "start", "t": "transition", "e": "emission"}
    emissionprob_: Array
    symbols_: list[str]  # where X held text: the labels, in the order of their numbers

    def _emission(self) -> Emission:
        p = tensor("emissionprob_", self.emissionprob_)
        distribution("emissionprob_", self.emissionprob_, (int(self.n_components), p.shape[-1] if p.dim() else 0))
        return Categorical(p, prior=prior(self.emissionprob_prior))

    def _keep(self, emission: Emission) -> None:
        assert isinstance(emission, Categorical)
        self.emissionprob_ = emission.p.detach().numpy()

    def _start_emission(self, o: Tensor, generator: torch.Generator) -> None:
        if self._starts("e"):
            shape = (self.n_components, self._alphabet(o))
            self.emissionprob_ = initial.dirichlet(shape, torch.ones(shape), generator).numpy()

    def _alphabet(self, o: Tensor) -> int:
        given = self.__dict__["n_features"]
        if given is not None:
            return whole("n_features", given)
        seen = o[~o.isnan()]
        V = int(seen.max()) + 1 if len(seen) else 1
        if max(LARGEST_ALPHABET, len(o)) < V:
            raise InputError(
                f"the symbols go up to {V - 1}, in {len(o)} observations; a model has a probability for every symbol "
                "from 0. Number them without gaps (np.unique(X, return_inverse=True)), or set n_features if you mean it"
            )
        return V

    def _width(self) -> int | None:
        return np.shape(self.emissionprob_)[-1] if hasattr(self, "emissionprob_") else None

    def _numbers(self, given: Given, fitting: bool) -> Array:
        cells: list[object] = list(given.values.flat) if given.is_text else []
        symbols = {cell for cell in cells if isinstance(cell, str)}
        if fitting and self._starts("e"):
            self.__dict__.pop("symbols_", None)
            if symbols:
                self.symbols_ = sorted(symbols)
        known = getattr(self, "symbols_", [])
        if not symbols or not known:
            return super()._numbers(given, fitting)
        if not symbols <= set(known):
            raise InputError(
                f"X holds {min(symbols - set(known))!r}, which this model was not fitted to; it knows "
                f"{', '.join(map(repr, known))}. NaN stands for what is not known"
            )
        places: dict[object, float] = {symbol: float(v) for v, symbol in enumerate(known)}
        return np.array([places.get(cell, np.nan) for cell in cells]).reshape(given.values.shape)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.categorical = tags.input_tags.string = True
        return tags

    def _drawn(self, X: Array) -> NDArray[np.generic]:
        symbols = X.astype(np.int64)
        return np.array(self.symbols_, dtype=object)[symbols] if hasattr(self, "symbols_") else symbols

    def _check_observations(self, o: Tensor, fitting: bool) -> None:
        if o.shape[1] != 1:
            raise InputError(f"X has {o.shape[1]} columns; a CategoricalHMM reads one symbol per step, X (N, 1)")
        fresh = fitting and self._starts("e")
        check_symbols(o, self._alphabet(o) if fresh else np.shape(self.emissionprob_)[-1])

    def _check_priors(self, o: Tensor) -> None:
        V = self._alphabet(o) if self._starts("e") else np.shape(self.emissionprob_)[-1]
        check_prior("emissionprob_prior", self.emissionprob_prior, (int(self.n_components), V), 1)

    def _emission_tables(self) -> list[Table]:
        names = self.reader_.names if self.reader_.read != "columns" else getattr(self, "symbols_", ())
        return [parameters.symbols(self.emissionprob_, self.startprob_, self.transmat_, names)]

    def _n_emission_parameters(self) -> dict[str, int]:
        K, V = np.shape(self.emissionprob_)
        return {"e": K * (V - 1)}


@dataclass(kw_only=True, eq=False, repr=False)
class BernoulliArguments(Arguments):
    emissionprob_prior: float = 1.0
    params: str = "ste"
    init_params: str = "ste"


class BernoulliHMM(HiddenMarkovEstimator, BernoulliArguments):
    """D independent bits per step: emissionprob_[k, d] = p(o_d = 1 | z = k).

    >>> X = np.array([[0, 1], [0, 1], [1, 0], [1, 0]] * 5)
    >>> BernoulliHMM(n_components=2, random_state=0, emissionprob_prior=2.0).fit(X).emissionprob_.shape
    (2, 2)
    """

    emission: ClassVar[str] = "bernoulli"
    letters: ClassVar[dict[str, str]] = {"s": "start", "t": "transition", "e": "emission"}
    emissionprob_: Array

    def _emission(self) -> Emission:
        p = tensor("emissionprob_", self.emissionprob_)
        if p.dim() != 2 or len(p) != self.n_components or bool(((p < 0) | (p > 1)).any()):
            raise InputError(
                f"emissionprob_ must hold probabilities, ({self.n_components}, D); it has the shape {tuple(p.shape)}"
            )
        return Bernoulli(p, prior=self.emissionprob_prior)

    def _keep(self, emission: Emission) -> None:
        assert isinstance(emission, Bernoulli)
        self.emissionprob_ = emission.p.detach().numpy()

    def _start_emission(self, o: Tensor, generator: torch.Generator) -> None:
        if self._starts("e"):
            self.emissionprob_ = initial.spread(o, self.n_components, generator).clamp(0.05, 0.95).numpy()

    def _check_observations(self, o: Tensor, fitting: bool) -> None:
        if bool(((o != 0) & (o != 1) & ~o.isnan()).any()):
            raise InputError("X holds values other than 0 and 1; a BernoulliHMM reads bits (NaN where one is missing)")

    def _emission_tables(self) -> list[Table]:
        return [parameters.by_state("probability of a 1", self.emissionprob_, self.reader_.names)]

    def _check_priors(self, o: Tensor) -> None:
        number("emissionprob_prior", self.emissionprob_prior, 1)

    def _drawn(self, X: Array) -> NDArray[np.generic]:
        return X.astype(np.int64)

    def _n_emission_parameters(self) -> dict[str, int]:
        return {"e": int(np.size(self.emissionprob_))}


@dataclass(kw_only=True, eq=False, repr=False)
class PoissonArguments(Arguments):
    lambdas_prior: float = 0.0
    lambdas_weight: float = 0.0
    params: str = "stl"
    init_params: str = "stl"


class PoissonHMM(HiddenMarkovEstimator, PoissonArguments):
    """D independent counts per step with the rates lambdas_ (K, D); a Gamma prior adds lambdas_prior to sums and
    lambdas_weight to numbers.

    >>> X = np.array([[1], [0], [9], [11]] * 5)
    >>> sorted(PoissonHMM(n_components=2, random_state=0).fit(X).lambdas_[:, 0].round(1).tolist())
    [0.5, 10.0]
    """

    emission: ClassVar[str] = "poisson"
    letters: ClassVar[dict[str, str]] = {"s": "start", "t": "transition", "l": "emission"}
    lambdas_: Array

    def _emission(self) -> Emission:
        rate = tensor("lambdas_", self.lambdas_)
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
        if self._starts("l"):
            floor = 0.1 * o.nanmean(0).nan_to_num(1.0) + 1e-3  # a rate of zero would never leave it
            self.lambdas_ = torch.maximum(initial.spread(o, self.n_components, generator), floor).numpy()

    def _check_observations(self, o: Tensor, fitting: bool) -> None:
        seen = o[~o.isnan()]
        if bool(((seen < 0) | (seen != seen.round())).any()):
            raise InputError(
                "X holds values that are not counts; a PoissonHMM reads whole numbers of at least 0 (NaN where "
                "one is missing)"
            )

    def _emission_tables(self) -> list[Table]:
        return [parameters.by_state("rates", self.lambdas_, self.reader_.names)]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.positive_only = True
        return tags

    def _check_priors(self, o: Tensor) -> None:
        number("lambdas_prior", self.lambdas_prior, 0)
        number("lambdas_weight", self.lambdas_weight, 0)

    def _drawn(self, X: Array) -> NDArray[np.generic]:
        return X.astype(np.int64)

    def _n_emission_parameters(self) -> dict[str, int]:
        return {"l": int(np.size(self.lambdas_))}
