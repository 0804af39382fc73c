"""scikit-learn, where it is installed: what estimators derive from, how their options are kept, what a random_state is.

No other file imports it for that. It takes a second to import: so `elman.hmm` and `elman.run.estimators` are imported
where they are wanted, and not with the tasks.
"""

from __future__ import annotations

import inspect
from typing import Any, Self

import numpy as np

from elman.errors import InputError
from elman.options import whole

try:
    from sklearn.base import BaseEstimator
    from sklearn.exceptions import NotFittedError
except ImportError:

    class BaseEstimator:  # type: ignore[no-redef]
        """Stands for scikit-learn's, from which nothing is needed without it."""

    class NotFittedError(ValueError, AttributeError):  # type: ignore[no-redef]
        """As scikit-learn has it."""


RandomState = int | np.random.RandomState | np.random.Generator | None


class NotFitted(InputError, NotFittedError):  # type: ignore[misc]
    """A model was used before it had parameters."""


class Configured(BaseEstimator):  # type: ignore[misc]
    """An estimator with its options: each argument of its constructor, under its own name."""

    def _store(self, arguments: dict[str, object]) -> None:
        """Keep what a constructor was given."""
        self.__dict__.update({name: value for name, value in arguments.items() if name != "self"})

    def get_params(self, deep: bool = True) -> dict[str, object]:
        """The constructor's arguments."""
        return {name: self.__dict__[name] for name in inspect.signature(type(self)).parameters}

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
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True  # padded sequences
        tags.input_tags.allow_nan = True
        return tags


def seed(random_state: RandomState) -> int:
    """The seed that a random_state stands for. A generator of numpy advances by one draw; None is numpy's global
    generator, as in scikit-learn, so `np.random.seed` holds here too.

    >>> seed(7), seed(np.random.default_rng(0)) == seed(np.random.default_rng(0)), seed(None) == seed(None)
    (7, True, False)
    """
    if random_state is None:
        return int(np.random.randint(2**63 - 1, dtype=np.int64))
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(2**63 - 1, dtype=np.int64))
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(2**63 - 1))
    try:
        return whole("random_state", random_state, 0, 2**63 - 1)
    except InputError as error:
        raise InputError(f"{error}, a RandomState or a Generator of numpy, or None") from None


def _same(a: object, b: object) -> bool:
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return bool(np.array_equal(np.asarray(a), np.asarray(b)))
    return bool(a == b)
