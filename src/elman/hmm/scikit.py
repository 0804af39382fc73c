"""scikit-learn, where it is installed: what the estimators derive from. No other file here imports it.

It takes a second to import. So `elman.hmm` is imported where an HMM is wanted, and not with the other tasks.
"""

from __future__ import annotations

from typing import Any

from elman.errors import InputError

try:
    from sklearn.base import BaseEstimator
    from sklearn.exceptions import NotFittedError
except ImportError:

    class BaseEstimator:  # type: ignore[no-redef]
        """Stands for scikit-learn's, from which nothing is needed without it."""

    class NotFittedError(ValueError, AttributeError):  # type: ignore[no-redef]
        """As scikit-learn has it."""


class NotFitted(InputError, NotFittedError):  # type: ignore[misc]
    """A model was asked something before it had parameters."""


class Estimator(BaseEstimator):  # type: ignore[misc]
    """What scikit-learn wants to know of every model here."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True  # padded sequences
        tags.input_tags.allow_nan = True
        return tags
