"""How laws are tried on a core, what they said of it, and how far two results are from each other."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from elman import kernels
from elman import state as states
from elman.errors import InputError
from elman.state import State

C = TypeVar("C", bound=nn.Module)
S = TypeVar("S")

REMEDY = (
    "Torch's own products and nonlinearities round differently with the number of rows. To be exact, take them in the\n"
    "step from elman.kernels: kernels.linear(x, W, b) for nn.Linear, and kernels.tanh, sigmoid, softplus and silu."
)

# One tolerance per dtype, none per cell: the largest error that is still rounding, relative to 1 + the largest value.
TOLERANCES = {torch.float32: 2e-5, torch.float64: 1e-10}


@dataclass(frozen=True)
class Verdict:
    """What one law said. One that is `bitwise` is a promise of the native kernels, and tried on them alone."""

    law: int
    ok: bool
    worst_error: float
    title: str
    bitwise: bool = False


@dataclass(frozen=True)
class Report:
    """What all laws said of one core. Prints as a table; true if the core is correct."""

    core: str
    kernels: str
    dtype: torch.dtype
    verdicts: tuple[Verdict, ...]

    @property
    def ok(self) -> bool:
        """The core is correct: all laws hold but the one of bits."""
        return all(verdict.ok for verdict in self.verdicts if not verdict.bitwise)

    @property
    def exact(self) -> bool:
        """The law of bits holds too; False where it is not tried."""
        return any(verdict.ok for verdict in self.verdicts if verdict.bitwise)

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        title = f"{self.core}, {str(self.dtype).removeprefix('torch.')}, {self.kernels} kernels"
        lines = [title, "law  holds  worst error"]
        for v in self.verdicts:
            lines.append(f"{v.law:>3}  {'yes' if v.ok else 'NO':<5}  {v.worst_error:<11.1e}  {v.title}")
        lines.append(f"{'correct' if self.ok else 'NOT correct'}, {'exact' if self.exact else 'not exact'}")
        if self.ok and any(verdict.bitwise for verdict in self.verdicts) and not self.exact:
            lines.append(REMEDY)
        return "\n".join(lines)


def dtype_of(core: nn.Module) -> torch.dtype:
    """The dtype of a core's parameters, in which laws are tried; an InputError if there is no tolerance for it."""
    dtype = next((p.dtype for p in core.parameters() if p.is_floating_point()), torch.get_default_dtype())
    if dtype not in TOLERANCES:
        raise InputError(
            f"the parameters are {dtype}; laws are checked in float32 or float64: core.float() or core.double()"
        )
    return dtype


def try_laws(
    core: C, sample: S, laws: Mapping[int, Callable[[C, S], float]], titles: Mapping[int, str], bitwise: int
) -> Report:
    """Try laws on a core and a sample, each a function that gives the worst error; law number `bitwise` must give 0."""
    dtype, verdicts = dtype_of(core), []
    for law, error_of in laws.items():
        if law == bitwise and kernels.active() != "native":
            continue  # Torch's own kernels make no such promise
        worst = error_of(core, sample)
        ok = worst <= (0.0 if law == bitwise else TOLERANCES[dtype])
        verdicts.append(Verdict(law, ok, worst, titles[law], law == bitwise))
    return Report(type(core).__name__, kernels.active(), dtype, tuple(verdicts))


def distance(result: State, wanted: State) -> float:
    """The largest error over all leaves of two states (or tuples of results)."""
    pairs = zip(states.leaves(result), states.leaves(wanted), strict=True)
    return max((error(a, b) for a, b in pairs), default=0.0)


def error(result: Tensor, wanted: Tensor) -> float:
    """The largest difference, relative to 1 + the largest value wanted; infinities may be equal, a NaN never is."""
    if result.shape != wanted.shape:
        return math.inf
    result, wanted = result.detach(), wanted.detach()
    if result.numel() == 0 or torch.equal(result, wanted):
        return 0.0
    finite = wanted[wanted.isfinite()]
    scale = 1 + float(finite.abs().max()) if finite.numel() else 1.0
    difference = torch.where(result == wanted, torch.zeros_like(result), result - wanted).abs()
    return float(difference.nan_to_num(nan=math.inf, posinf=math.inf).max()) / scale
