"""Rows of numbers as JSON, on csrc/json.cpp."""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from elman import _native
from elman.errors import KernelError


def json_rows(y: NDArray[np.float32]) -> list[bytes]:
    """Each row of y (n, H) as a JSON array; what is not finite is null."""
    if y.ndim != 2 or y.dtype != np.float32:
        raise KernelError(f"native kernel: `y` is {y.dtype} {y.shape}, but must be float32 (n, H)")
    n, H = y.shape
    y = np.ascontiguousarray(y)
    text, ends = np.empty(n * (H * _native.JSON_NUMBER + 2), np.uint8), np.empty(n, np.int64)
    _native.json_rows(n, H, y.ctypes.data, text.ctypes.data, ends.ctypes.data)
    at = [0, *ends.tolist()]
    whole = text[: at[-1]].tobytes()
    return [whole[begin:end] for begin, end in pairwise(at)]
