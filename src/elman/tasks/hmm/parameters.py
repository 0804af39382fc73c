"""The parameters of hidden Markov models: the arguments of their constructors, which transitions are allowed, arrays
that users set, checked and made tensors, and the tables in which a person reads them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from elman.errors import InputError
from elman.scikit import RandomState
from elman.tables import Table

Array = NDArray[np.float64]
COLUMNS = 12  # of a table that still can be read


@dataclass(kw_only=True, eq=False, repr=False)
class Arguments:
    """What the constructors of all models take; those of an emission's own stand beside it. Names are hmmlearn's.

    Args:
        n_components: hidden states
        startprob_prior: of a Dirichlet distribution, for all states or for each; 1 is flat
        transmat_prior: likewise, of the transitions
        startprob_mask: True for the states that a sequence may begin in; None for all
        transmat_mask: True for the transitions that are allowed; None for all
        algorithm: of `decode`: viterbi, or map
        random_state: of starts, of the order of gradient steps, and of `sample`
        n_init: starts, the best of which is kept
        n_iter: steps of EM, or passes of gradient steps, at most
        tol: a step or pass that gains less ends the fit
        verbose: say on standard error how a fit goes
        params: what a fit changes, by letter
        init_params: what a fit sets to a start of its own, by letter
        implementation: log or scaling, as in hmmlearn; both are one here
        method: em, or adam or sgd for gradient steps in batches of sequences
        learning_rate: of gradient steps
        batch_size: sequences in a gradient step
    """

    n_components: int = field(default=1, kw_only=False)
    startprob_prior: ArrayLike = 1.0
    transmat_prior: ArrayLike = 1.0
    startprob_mask: ArrayLike | None = None
    transmat_mask: ArrayLike | None = None
    algorithm: str = "viterbi"
    random_state: RandomState = None
    n_init: int = 1
    n_iter: int = 100
    tol: float = 1e-4
    verbose: bool = False
    params: str = "st"
    init_params: str = "st"
    implementation: str = "log"
    method: str = "em"
    learning_rate: float = 0.05
    batch_size: int = 32


# Which transitions are allowed: masks (K, K), True where a step is. A zero stays zero in every fit.


def left_to_right(n_components: int, *, skip: int = 0) -> NDArray[np.bool_]:
    """Stay, continue to the next state, or skip at most `skip` states; never back.

    >>> left_to_right(3).astype(int).tolist()
    [[1, 1, 0], [0, 1, 1], [0, 0, 1]]
    """
    step = np.arange(n_components) - np.arange(n_components)[:, None]
    return (step >= 0) & (step <= 1 + skip)


def banded(n_components: int, width: int = 1) -> NDArray[np.bool_]:
    """Move by at most `width` states, in both directions.

    >>> banded(3).astype(int).tolist()
    [[1, 1, 0], [1, 1, 1], [0, 1, 1]]
    """
    step = np.arange(n_components) - np.arange(n_components)[:, None]
    return np.abs(step) <= width


def check_mask(name: str, mask: ArrayLike | None, shape: tuple[int, ...]) -> Tensor:
    """A mask as a tensor; None allows everything. Every state must have somewhere to go."""
    if mask is None:
        return torch.ones(shape, dtype=torch.bool)
    array = np.asarray(mask)
    if array.shape != shape or array.dtype.kind not in "b":
        raise InputError(f"{name} is {array.dtype} {array.shape}; expected bool {shape}, True where a step is allowed")
    if not array.any(-1).all():
        raise InputError(f"{name} leaves nothing allowed in a row; every row needs at least one True")
    return torch.as_tensor(array)


# What users set


def tensor(name: str, value: ArrayLike) -> Tensor:
    """An array as a float64 tensor of its own."""
    try:
        return torch.from_numpy(np.array(value, dtype=np.float64, order="C"))
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} is not an array of numbers ({error}); set it to one") from None


def distribution(name: str, value: ArrayLike, shape: tuple[int, ...]) -> Tensor:
    """Rows of probabilities, checked."""
    p = tensor(name, value)
    if tuple(p.shape) != shape:
        raise InputError(f"{name} has the shape {tuple(p.shape)}; expected {shape}")
    array = p.numpy()  # whose checks take a tenth of the time of a tensor's: a fit of a short sequence feels it
    sums = array.sum(-1)
    # A NaN is in its sum, and two infinities would make one.
    if not (np.abs(sums - 1) <= 1.1e-5).all() or not (array >= 0).all():
        raise InputError(f"the rows of {name} must be probabilities that sum to 1; they sum to {sums.tolist()}")
    return torch.from_numpy(array / sums[..., None])  # what users set is rounded


def prior(value: ArrayLike) -> float | Tensor:
    """A prior: a number as it is, anything else as a float64 tensor."""
    return float(value) if isinstance(value, int | float) else tensor("a prior", value)


def check_prior(name: str, value: ArrayLike, shape: tuple[int, ...], least: float) -> None:
    """Raise an InputError unless a prior has numbers of at least `least`, one for all or one for each of `shape`."""
    if isinstance(value, int | float) and math.isfinite(value) and value >= least:
        return
    given = tensor(name, value)
    try:
        fits = np.broadcast_shapes(tuple(given.shape), shape) == shape
    except ValueError:
        fits = False
    if not fits:
        raise InputError(f"{name} has the shape {tuple(given.shape)}; expected one number, or an array {shape}")
    if not bool(given.isfinite().all()) or bool((given < least).any()):
        why = (
            ": below 1 the density of a Dirichlet prior is infinite at a probability of zero, so there is no maximum"
            if least == 1
            else ""
        )
        low = float(given.nan_to_num(nan=-torch.inf).min())
        raise InputError(f"{name} holds {low:g}; its numbers must be finite and at least {least:g}{why}")


# What a person reads


def chain(start: Array, transition: Array) -> Table:
    """Where the states begin, and where they go."""
    names = _states(len(start))
    rows = [[name, _n(p), *map(_n, row)] for name, p, row in zip(names, start, transition, strict=True)]
    return Table("from (row) to (column)", ["", "start", *names], rows)


def symbols(p: Array, start: Array, transition: Array, names: Sequence[str]) -> Table:
    """p (K, V), one symbol a line: those together that come from the same state, the most probable first."""
    # In the long run, which state a symbol comes from: Bayes' rule with the stationary distribution.
    source = (stationary(start, transition)[:, None] * p).argmax(0)
    order = sorted(range(p.shape[1]), key=lambda v: (source[v], -p[source[v], v]))
    labels = [repr(name) for name in names] or [str(v) for v in range(p.shape[1])]
    states = _states(len(p))
    rows = [[labels[v], states[source[v]], *(_n(value) for value in p[:, v])] for v in order]
    return Table("emissions: p(symbol | state)", ["symbol", "mostly from", *states], rows)


def covariances(values: Array, tied: bool, names: Sequence[str]) -> Table:
    """Covariances (K,), (K, D) or (K, D, D); or (D, D) if all states share one. A full one has a column for a pair."""
    table = values[None] if tied else values
    columns = names if table.ndim < 3 else [f"{a} {b}" for a in names for b in names]
    found = by_state("covariances", table, columns)
    return found._replace(rows=[["all states", *found.rows[0][1:]]]) if tied else found


def by_state(title: str, values: Array, names: Sequence[str] = ()) -> Table:
    """values (K, ...), a state a line."""
    table = values.reshape(len(values), -1)
    labels = list(names) if len(names) == table.shape[1] else [str(d + 1) for d in range(table.shape[1])]
    if table.shape[1] > COLUMNS:
        table, labels, title = table[:, :COLUMNS], labels[:COLUMNS], f"{title}, the first {COLUMNS} of {table.shape[1]}"
    rows = [[who, *map(_n, row)] for who, row in zip(_states(len(table)), table, strict=True)]
    return Table(title, ["", *labels], rows)


def stationary(start: Array, transition: Array) -> Array:
    """How often a chain is in each state in the long run; half of the steps stay, so that a cycle settles too.

    >>> stationary(np.array([1.0, 0.0]), np.array([[0.0, 1.0], [1.0, 0.0]])).tolist()
    [0.5, 0.5]
    """
    lazy = (transition + np.eye(len(transition))) / 2
    often = start @ np.linalg.matrix_power(lazy, 1 << 20)
    return np.asarray(often / often.sum())  # so many products lose a few digits of the sum


def _states(K: int) -> list[str]:
    return [f"state {k}" for k in range(K)]


def _n(value: float) -> str:
    return f"{value:.4g}"
