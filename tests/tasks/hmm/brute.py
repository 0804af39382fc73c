"""A hidden Markov model by enumeration of all paths: slow, and obviously right."""

import itertools
from typing import NamedTuple

import numpy as np


class Truth(NamedTuple):
    log_likelihood: float
    posterior: np.ndarray  # (T, K)
    transitions: np.ndarray  # (K, K) expected
    path: np.ndarray  # (T,)
    path_score: float


def enumerate_paths(x: np.ndarray, start: np.ndarray, transition: np.ndarray) -> Truth:
    """x (T, K) log-likelihoods."""
    T, K = x.shape
    likelihood = np.exp(x)
    posterior, transitions = np.zeros((T, K)), np.zeros((K, K))
    total, best, best_path = 0.0, -1.0, ()
    for path in itertools.product(range(K), repeat=T):
        p = start[path[0]] * likelihood[0, path[0]]
        for t in range(1, T):
            p *= transition[path[t - 1], path[t]] * likelihood[t, path[t]]
        total += p
        if p > best:
            best, best_path = p, path
        for t, k in enumerate(path):
            posterior[t, k] += p
        for i, j in itertools.pairwise(path):
            transitions[i, j] += p
    return Truth(np.log(total), posterior / total, transitions / total, np.array(best_path), float(np.log(best)))
