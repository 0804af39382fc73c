"""Parameters and priors as users set them: arrays of numbers, checked and made tensors."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from elman.errors import InputError


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
    sums = p.sum(-1)
    if (
        not bool(p.isfinite().all())
        or bool((p < 0).any())
        or not torch.allclose(sums, torch.ones_like(sums), atol=1e-6)
    ):
        raise InputError(f"the rows of {name} must be probabilities that sum to 1; they sum to {sums.tolist()}")
    return p


def prior(value: ArrayLike) -> float | Tensor:
    """A prior: a number as it is, anything else as a float64 tensor."""
    return float(value) if isinstance(value, int | float) else tensor("a prior", value)


def check_prior(name: str, value: ArrayLike, shape: tuple[int, ...], least: float) -> None:
    """Raise an InputError unless a prior has numbers of at least `least`, one for all or one for each of `shape`."""
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
