"""What the options of cells accept, checked once, when the cell is built."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from numbers import Real

import torch
from torch import Tensor

from elman import kernels
from elman.errors import InputError

Activation = Callable[[Tensor], Tensor]

PHI: dict[str, Activation] = {"tanh": kernels.tanh, "relu": torch.relu}


def choice(name: str, given: object, accepted: Iterable[str]) -> str:
    """`given`, if it is one of the words that the option `name` accepts.

    >>> choice("phi", "tanh", PHI)
    'tanh'
    """
    words = tuple(accepted)
    if not isinstance(given, str) or given not in words:
        raise InputError(f"{name} is {given!r}; it must be one of {', '.join(map(repr, words))}")
    return given


def flag(name: str, given: object) -> bool:
    """`given`, if it is True or False: a word such as 'no' would count as true."""
    if not isinstance(given, bool):
        raise InputError(f"{name} is {given!r}; it must be True or False")
    return given


def whole(name: str, given: object, least: int = 1) -> int:
    """`given`, if it is a whole number of at least `least`.

    >>> whole("depth", 2)
    2
    """
    if not isinstance(given, int) or isinstance(given, bool) or given < least:
        raise InputError(f"{name} is {given!r}; it must be a whole number of at least {least}")
    return given


def number(name: str, given: object, low: float, high: float) -> float:
    """`given`, if it is a number in [low, high].

    >>> number("dale", 0.8, 0, 1)
    0.8
    """
    if not isinstance(given, Real) or isinstance(given, bool) or not low <= float(given) <= high:
        raise InputError(f"{name} is {given!r}; it must be a number from {low:g} to {high:g}")
    return float(given)
