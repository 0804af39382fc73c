"""The sum that a recurrence with decaying keys stands for, written without the recurrence."""

from __future__ import annotations

import numpy as np


def read_out(q: np.ndarray, k: np.ndarray, v: np.ndarray, a: np.ndarray) -> np.ndarray:
    """s_t = sum over j <= t of (q_t . (prod over j < i <= t of a_i) * k_j) v_j, of a head: q, k, a (T, K), v (T, V)."""
    kept = np.cumsum(np.log(a), 0)  # a product of decays is a difference of sums of logarithms
    weights = np.einsum("tk,tjk,jk->tj", q, np.exp(kept[:, None] - kept[None]), k)
    return np.tril(weights) @ v


def sigmoid(v: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-v))


def rms(v: np.ndarray) -> np.ndarray:
    """v divided by its root mean square over the last axis."""
    return v / np.sqrt((v**2).mean(-1, keepdims=True) + 1e-5)
