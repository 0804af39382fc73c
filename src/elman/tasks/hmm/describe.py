"""What a fitted hidden Markov model says, as tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from elman.tables import Table

Array = np.ndarray[Any, Any]
SHOWN = 12  # columns of a table that still can be read


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
    if table.shape[1] > SHOWN:
        table, labels, title = table[:, :SHOWN], labels[:SHOWN], f"{title}, the first {SHOWN} of {table.shape[1]}"
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
