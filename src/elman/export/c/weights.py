"""The numbers of a C file: arrays of floats, of whole numbers, and of weights in fewer bits, each of them there once.

The weights of products are packed as csrc/narrow.h and runtime.c read them: panels of PANEL columns, [k][column], the
last one as narrow as it is. Weights of 8 bits have a scale for every GROUP of a column.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

PANEL, GROUP = 32, 64
TYPES = {"weights": "float", "halves": "uint16_t", "bytes": "int8_t", "numbers": "int32_t"}  # of each array

Floats = NDArray[np.float32]


class Place(NamedTuple):
    """Where some numbers begin in one of the arrays."""

    array: str
    at: int

    def __str__(self) -> str:
        return f"{self.array} + {self.at}"


@dataclass
class Weights:
    """The arrays of a model, filled one piece after the other."""

    stored: str | None = None  # how the weights of products are: None, "bfloat16" or "int8"
    pieces: dict[str, list[NDArray[np.generic]]] = field(default_factory=lambda: {name: [] for name in TYPES})
    places: dict[tuple[str, bytes], Place] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(TYPES, 0))

    def put(self, array: str, piece: NDArray[np.generic]) -> Place:
        key = array, piece.tobytes()
        if key not in self.places:
            self.places[key] = Place(array, self.sizes[array])
            self.pieces[array].append(piece.ravel())
            self.sizes[array] += piece.size
        return self.places[key]

    def floats(self, piece: NDArray[np.generic]) -> Place:
        return self.put("weights", np.ascontiguousarray(piece, np.float32))

    def numbers(self, piece: list[int]) -> Place:
        return self.put("numbers", np.array(piece, np.int32))

    def product(self, w: Floats) -> tuple[str, list[Place]]:
        """The function of runtime.c that multiplies by w (N, K), and where it finds the packed weights."""
        if self.stored == "bfloat16":
            return "product_of_halves", [self.put("halves", _panels(_halves(w)))]
        if self.stored == "int8":
            narrow, scales = _bytes(w)
            return "product_of_bytes", [self.put("bytes", _panels(narrow)), self.floats(_panels(scales))]
        return "product", [self.floats(_panels(w))]

    def arrays(self) -> Iterator[tuple[str, NDArray[np.generic]]]:
        """Every array that is not empty, by its name."""
        for name, pieces in self.pieces.items():
            if pieces:
                yield name, np.concatenate(pieces)


def _panels(w: NDArray[np.generic]) -> NDArray[np.generic]:
    """w (N, K) as runtime.c reads it."""
    if not len(w):
        return w.ravel()
    return np.concatenate([w[n : n + PANEL].T.ravel() for n in range(0, len(w), PANEL)])


def _halves(w: Floats) -> NDArray[np.uint16]:
    """The nearest bfloat16, of two the one whose last bit is zero, as their bits."""
    bits = np.ascontiguousarray(w).view(np.uint32).astype(np.uint64)
    nearest = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(w), bits >> 16 | 1, nearest).astype(np.uint16)


def _bytes(w: Floats) -> tuple[NDArray[np.int8], Floats]:
    """w (N, K) in 8 bits, and the scales (N, groups): the largest number of a group becomes 127."""
    N, K = w.shape
    starts = range(0, K, GROUP)
    narrow, scales = np.zeros((N, K), np.int8), np.zeros((N, len(starts)), np.float32)
    for group, k in enumerate(starts):
        part = w[:, k : k + GROUP]
        scale = np.abs(part).max(1).astype(np.float32) / np.float32(127)
        scale[~np.isfinite(part).all(1)] = np.nan  # which the sums shall show
        inside = scale > 0
        nearest = np.rint(part[inside] / scale[inside, None])
        narrow[inside, k : k + GROUP] = np.clip(nearest, -127, 127).astype(np.int8)
        scales[:, group] = scale
    return narrow, scales
