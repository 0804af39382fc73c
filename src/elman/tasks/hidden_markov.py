"""Hidden Markov models from a config, and what there is to say about a fitted one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from elman.errors import InputError, UnknownNameError
from elman.hmm.continuous import GMMHMM, GaussianHMM
from elman.hmm.discrete import BernoulliHMM, CategoricalHMM, PoissonHMM
from elman.hmm.estimator import METHODS, HiddenMarkovEstimator
from elman.hmm.files import MODELS
from elman.hmm.structure import banded, left_to_right

STRUCTURES = ("full", "left-to-right", "banded")
SHOWN = 12  # columns of a table that still can be read


@dataclass(frozen=True)
class HMMConfig:
    """What the model is, and how it is fitted.

    Args:
        emission: categorical, gaussian, mixture (of Gaussians), poisson or bernoulli
        n_components: hidden states
        structure: of the transitions, full, left-to-right (stay or go on, from the first) or banded (to neighbours)
        method: em, or adam or sgd for gradient steps in batches of sequences
        n_iter: steps of EM, or passes of gradient steps
        tol: a step or pass that gains less ends the fit
        n_init: starts, the best of which is kept
        learning_rate: of gradient steps
        batch_size: sequences in a gradient step
        options: further options of the estimator, as {covariance_type: full} or {n_mix: 3}
    """

    emission: str = "gaussian"
    n_components: int = 2
    structure: str = "full"
    method: str = "em"
    n_iter: int = 200
    tol: float = 0.01
    n_init: int = 3
    learning_rate: float = 0.05
    batch_size: int = 32
    options: dict[str, Any] = field(default_factory=dict)


def build(config: HMMConfig, seed: int) -> HiddenMarkovEstimator:
    """The estimator of a config, not fitted yet.

    >>> build(HMMConfig(emission="poisson", n_components=3), seed=1)
    PoissonHMM(n_components=3, random_state=1, n_init=3, n_iter=200, tol=0.01)
    """
    for kind, given, known in (
        ("emission", config.emission, MODELS),
        ("structure", config.structure, STRUCTURES),
        ("method", config.method, METHODS),
    ):
        if given not in known:
            raise UnknownNameError(kind, given, known)
    if config.n_components < 1:
        raise InputError(f"model.n_components is {config.n_components}; it must be a positive whole number")
    names = ("n_components", "method", "n_iter", "tol", "n_init", "learning_rate", "batch_size")
    model = MODELS[config.emission]().set_params(
        **{name: getattr(config, name) for name in names}, random_state=seed, **_structure(config)
    )
    return model.set_params(**config.options)


def _structure(config: HMMConfig) -> dict[str, Any]:
    K = config.n_components
    if config.structure == "left-to-right":
        return {"transmat_mask": left_to_right(K), "startprob_mask": np.arange(K) == 0}
    return {"transmat_mask": banded(K)} if config.structure == "banded" else {}


class Table(NamedTuple):
    title: str
    header: list[str]
    rows: list[list[str]]


def tables(model: HiddenMarkovEstimator) -> list[Table]:
    """What a fitted model says: where its states begin and go, and what they emit."""
    states = [f"state {k}" for k in range(model.n_components)]
    rows = [
        [state, _n(p), *map(_n, row)] for state, p, row in zip(states, model.startprob_, model.transmat_, strict=True)
    ]
    chain = Table("from (row) to (column)", ["", "start", *states], rows)
    return [chain, *_emissions(model, states)]


def _emissions(model: HiddenMarkovEstimator, states: list[str]) -> list[Table]:
    names: Sequence[str] = model.reader_.names
    if isinstance(model, CategoricalHMM):
        return [_symbols(model, states, [repr(name) for name in names])]
    if isinstance(model, GaussianHMM):
        return [_by_state("means", model.means_, states, names), _by_state("covariances", _flat(model), states, ())]
    if isinstance(model, GMMHMM):
        return [_by_state("weights of the mixture", model.weights_, states, ())]
    if isinstance(model, PoissonHMM):
        return [_by_state("rates", model.lambdas_, states, names)]
    assert isinstance(model, BernoulliHMM)
    return [_by_state("probability of a 1", model.emissionprob_, states, names)]


def _symbols(model: CategoricalHMM, states: list[str], names: Sequence[str]) -> Table:
    """One symbol a line, those together that come from the same state, the most probable first."""
    p = model.emissionprob_
    # In the long run, which state a symbol comes from: Bayes' rule with the stationary distribution.
    source = (stationary(model.startprob_, model.transmat_)[:, None] * p).argmax(0)
    order = sorted(range(p.shape[1]), key=lambda v: (source[v], -p[source[v], v]))
    labels = names or [str(v) for v in range(p.shape[1])]
    rows = [[labels[v], states[source[v]], *(_n(value) for value in p[:, v])] for v in order]
    return Table("emissions: p(symbol | state)", ["symbol", "mostly from", *states], rows)


def stationary(start: np.ndarray[Any, Any], transition: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """How often a chain is in each state in the long run; half of the steps stay, so that a cycle settles too.

    >>> stationary(np.array([1.0, 0.0]), np.array([[0.0, 1.0], [1.0, 0.0]])).tolist()
    [0.5, 0.5]
    """
    lazy = (transition + np.eye(len(transition))) / 2
    return np.asarray(start @ np.linalg.matrix_power(lazy, 1 << 20))


def _by_state(title: str, values: np.ndarray[Any, Any], states: list[str], names: Sequence[str]) -> Table:
    table = values.reshape(len(values), -1)
    labels = list(names) if len(names) == table.shape[1] else [str(d + 1) for d in range(table.shape[1])]
    if table.shape[1] > SHOWN:
        table, labels, title = table[:, :SHOWN], labels[:SHOWN], f"{title}, the first {SHOWN} of {table.shape[1]}"
    whose = states if len(table) == len(states) else ["all"]
    rows = [[who, *map(_n, row)] for who, row in zip(whose, table, strict=True)]
    return Table(title, ["", *labels], rows)


def _flat(model: GaussianHMM) -> np.ndarray[Any, Any]:
    return model.covars_[None] if model.covariance_type == "tied" else model.covars_


def _n(value: float) -> str:
    return f"{value:.4g}"
