"""What a forecast is: paths, and what they say, as the rows of a table."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elman.errors import FileError, InputError


class Forecast(NamedTuple):
    """B series, H steps, C targets: means (B, H, C), quantiles (B, H, C, Q) and paths (B, S, H, C)."""

    names: Sequence[str]
    times: Sequence[Sequence[str]]
    targets: Sequence[str]
    mean: NDArray[np.float64]
    levels: tuple[float, ...]
    quantiles: NDArray[np.float64]
    paths: NDArray[np.float64]

    def lines(self, id: str = "unique_id", time: str = "ds") -> Iterator[str]:
        """As CSV: a row for each series and time. With several targets, their names stand before what is said."""
        said = ["mean", *(f"q{level:g}" for level in self.levels)]
        prefixes = [""] if len(self.targets) == 1 else [f"{target}." for target in self.targets]
        yield ",".join([id, time, *(prefix + word for prefix in prefixes for word in said)]) + "\n"
        for name, times, means, quantiles in zip(self.names, self.times, self.mean, self.quantiles, strict=True):
            for when, m, q in zip(times, means, quantiles, strict=True):
                numbers = (f"{v:.10g}" for c in range(len(m)) for v in (m[c], *q[c]))
                yield ",".join([_cell(name), when, *numbers]) + "\n"

    def save_paths(self, path: Path) -> None:
        """Write the paths to a new .npz file: `paths` (B, S, H, C), `names` (B,) and `times` (B, H)."""
        if path.exists():
            raise InputError(f"{path} exists; it is not overwritten. Choose another name.")
        try:
            with path.open("wb") as file:
                np.savez_compressed(
                    file, paths=self.paths, names=np.array(self.names), times=np.array([*map(list, self.times)])
                )
        except OSError as error:
            raise FileError(f"cannot write {path}: {error}") from error


def seeds(names: Sequence[str], samples: int, seed: int) -> Tensor:
    """The draws (B * samples, 2) of paths: each has a seed of its own, made of the seed, its series and its number.

    >>> bool((seeds(["a", "b"], 3, 0)[3:] == seeds(["b"], 3, 0)).all())
    True
    """
    first = [int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:7], "big") for name in names]
    rows = torch.tensor(first, dtype=torch.int64)[:, None] + torch.arange(samples)
    return torch.stack([rows.flatten(), torch.zeros(rows.numel(), dtype=torch.int64)], 1)


def sample_quantiles(paths: NDArray[np.float64], levels: Sequence[float]) -> NDArray[np.float64]:
    """Quantiles (B, H, C, Q) of paths (B, S, H, C), by lines between the sorted samples.

    >>> sample_quantiles(np.arange(3.0).reshape(1, 3, 1, 1), [0.25]).tolist()
    [[[[0.5]]]]
    """
    return np.moveaxis(np.quantile(paths, levels, axis=1), 0, -1)


def _cell(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if any(mark in text for mark in ',"\n') else text
