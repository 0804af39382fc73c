"""The arrays that every library is given: from a seed, in numpy, so that no library has to be there to make them."""

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
GATES = {"tanh": 1, "gru": 3, "lstm": 4, "lstm_norm": 4}

NORM_GAIN = (
    0.1  # of W h' in the layer-norm LSTM: with 1 the random network is chaotic, and no two float32 results agree
)


def gated(cell: str, B: int, T: int, D: int, K: int, directions: int = 1) -> dict[str, Array]:
    """x (T, B, D), the weights of one layer in PyTorch's order and scale, and the gradient g (T, B, K) that arrives."""
    rng, G = np.random.default_rng(0), GATES[cell]

    def uniform(*shape: int) -> Array:
        return rng.uniform(-(K**-0.5), K**-0.5, shape).astype(np.float32)

    arrays = {
        "x": rng.standard_normal((T, B, D), np.float32),
        "g": rng.standard_normal((T, B, directions * K), np.float32),
    }
    for suffix in ("", "_reverse")[:directions]:
        arrays |= {f"U{suffix}": uniform(G * K, D), f"W{suffix}": uniform(G * K, K)}
        arrays |= {f"b{suffix}": uniform(G * K), f"c{suffix}": uniform(G * K)}
    return arrays


def lengths(B: int, T: int) -> Array:
    """Uniform in [T/4, T]: about 62 % of the steps are valid. One row is whole."""
    n = np.random.default_rng(1).integers(T // 4, T + 1, B)
    n[0] = T
    return n


def scan(B: int, T: int, C: int, number: str) -> dict[str, Array]:
    """a, b and the arriving gradient, (B, T, C). Real: positive, for the log-space form. Complex: `a` (C,)."""
    rng = np.random.default_rng(0)
    if number == "real":
        a = rng.uniform(0.5, 0.999, (B, T, C)).astype(np.float32)
        b = rng.uniform(0.1, 1.0, (B, T, C)).astype(np.float32)
        return {"a": a, "b": b, "g": rng.standard_normal((B, T, C), np.float32)}
    radius, angle = rng.uniform(0.9, 0.999, C), rng.uniform(0, 6.28, C)
    b, g = (rng.standard_normal((B, T, C)) + 1j * rng.standard_normal((B, T, C)) for _ in range(2))
    return {
        "a": (radius * np.exp(1j * angle)).astype(np.complex64),
        "b": b.astype(np.complex64),
        "g": g.astype(np.complex64),
    }


def mamba(B: int, T: int, D: int) -> dict[str, Array]:
    """x and the arriving gradient g (B, T, D), and the parameters of a block of width D, named as in elman.cells.mamba,
    with the usual sizes: 2 D inner channels, 16 states each, 4 taps."""
    rng = np.random.default_rng(0)
    inner, N, K, R = 2 * D, 16, 4, -(-D // 16)

    def uniform(*shape: int) -> Array:
        return rng.uniform(-(shape[-1] ** -0.5), shape[-1] ** -0.5, shape).astype(np.float32)

    dt = np.exp(rng.uniform(np.log(0.001), np.log(0.1), inner))
    return {
        "x": rng.standard_normal((B, T, D), np.float32),
        "g": rng.standard_normal((B, T, D), np.float32),
        "U": uniform(2 * inner, D),
        "w": uniform(inner, K).T.copy(),
        "c": uniform(1, inner)[0],
        "S": uniform(R + 2 * N, inner),
        "W": uniform(inner, R),
        "b": np.log(np.expm1(dt)).astype(np.float32),
        "A_log": np.log(np.tile(np.arange(1, N + 1), (inner, 1))).astype(np.float32),
        "D": np.ones(inner, np.float32),
        "V": uniform(D, inner),
    }


def matrix(rule: str, B: int, T: int, H: int, K: int) -> dict[str, Array]:
    """q, k, v (B, T, H, K), the logarithm of the decay, one a head, or one a key for kda, how much of the delta is
    written b (B, T, H), and the arriving gradient g (B, T, H, K). Of ssd, b is the step dt: e^-dt decays, and dt v is
    written."""
    rng = np.random.default_rng(0)
    q, v, g = (rng.standard_normal((B, T, H, K), np.float32) for _ in range(3))
    k = rng.standard_normal((B, T, H, K), np.float32) * K**-0.5
    b = rng.uniform(0.01, 0.3 if rule == "ssd" else 1.0, (B, T, H)).astype(np.float32)
    decay = -rng.uniform(0.001, 0.3, (B, T, H, K) if rule == "kda" else (B, T, H)).astype(np.float32)
    return {"q": q, "k": k.astype(np.float32), "v": v, "decay": -b if rule == "ssd" else decay, "b": b, "g": g}


def prepared(rule: str, arrays: dict[str, Array]) -> dict[str, Array]:
    """The same, q multiplied by its factor, or v of ssd by its step."""
    if rule == "ssd":
        return {**arrays, "v": arrays["v"] * arrays["b"][..., None]}
    return {**arrays, "q": arrays["q"] * np.float32(arrays["q"].shape[-1] ** -0.5)}


def product(M: int, K: int, N: int) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    return {"x": rng.standard_normal((M, K), np.float32), "w": rng.standard_normal((N, K), np.float32)}


def hmm(B: int, T: int, K: int, dtype: str) -> dict[str, Array]:
    """Log-likelihoods x (B, T, K), and a chain that likes to stay where it is."""
    rng = np.random.default_rng(0)
    transition = rng.uniform(0.1, 1.0, (K, K)) + K * np.eye(K)
    arrays = {
        "x": rng.standard_normal((B, T, K)),
        "start": np.full(K, 1 / K),
        "transition": transition / transition.sum(1, keepdims=True),
    }
    return {name: array.astype(dtype) for name, array in arrays.items()}


def path_score(arrays: dict[str, Any], path: Array) -> Array:
    """log p of paths (B, T) jointly with x, (B,), in float64: where two are as good, libraries may choose either."""
    x, start, transition = (np.asarray(arrays[name], dtype=np.float64) for name in ("x", "start", "transition"))
    emitted = np.take_along_axis(x, path[..., None].astype(np.int64), 2)[..., 0].sum(1)
    return emitted + np.log(start[path[:, 0]]) + np.log(transition[path[:, :-1], path[:, 1:]]).sum(1)
