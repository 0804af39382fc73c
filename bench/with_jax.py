"""JAX at its best: jitted, time first, the input projection hoisted out of the scan."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from bench import inputs
from bench.worker import Outputs, Run


def prepare(case: dict[str, Any], threads: int) -> tuple[Run, Outputs]:
    return {"gated": _gated, "scan": _scan, "product": _product}[case["family"]](case)


def _product(case: dict[str, Any]) -> tuple[Run, Outputs]:
    arrays = inputs.product(case["M"], case["K"], case["N"])
    x, w = jnp.asarray(arrays["x"]), jnp.asarray(arrays["w"])
    call = jax.jit(lambda x, w: x @ w.T)
    return lambda: jax.block_until_ready(call(x, w)), lambda y: {"y": np.asarray(y)}


def _gated(case: dict[str, Any]) -> tuple[Run, Outputs]:
    arrays = inputs.gated(case["cell"], case["B"], case["T"], case["D"], case["K"])
    x, g = jnp.asarray(arrays["x"]), jnp.asarray(arrays["g"])
    parameters = {k: jnp.asarray(arrays[k]) for k in ("U", "W", "b", "c")}
    layer = {"tanh": _tanh, "gru": _gru}[case["cell"]]

    def loss(x: Array, p: dict[str, Array]) -> tuple[Array, Array]:
        y = layer(x, p)
        return (y * g).sum(), y

    step = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))

    def run() -> Any:
        return jax.block_until_ready(step(x, parameters))

    def outputs(result: Any) -> dict[str, Any]:
        (_, y), (gx, gp) = result
        named = {"y": y.swapaxes(0, 1), "gx": gx.swapaxes(0, 1), "gU": gp["U"], "gW": gp["W"], "gb": gp["b"]}
        return {k: np.asarray(v) for k, v in named.items()}

    return run, outputs


def _tanh(x: Array, p: dict[str, Array]) -> Array:
    u = x @ p["U"].T + p["b"] + p["c"]

    def step(h: Array, ut: Array) -> tuple[Array, Array]:
        h = jnp.tanh(ut + h @ p["W"].T)
        return h, h

    return lax.scan(step, jnp.zeros_like(u[0]), u)[1]


def _gru(x: Array, p: dict[str, Array]) -> Array:
    u = x @ p["U"].T + p["b"]
    K = p["W"].shape[1]

    def step(h: Array, ut: Array) -> tuple[Array, Array]:
        v = h @ p["W"].T + p["c"]
        gates = jax.nn.sigmoid(ut[:, : 2 * K] + v[:, : 2 * K])
        r, z = gates[:, :K], gates[:, K:]
        h = (1 - z) * jnp.tanh(ut[:, 2 * K :] + r * v[:, 2 * K :]) + z * h
        return h, h

    return lax.scan(step, jnp.zeros_like(u[0, :, :K]), u)[1]


def _scan(case: dict[str, Any]) -> tuple[Run, Outputs]:
    arrays = inputs.scan(case["B"], case["T"], case["C"], case["number"])
    first = {k: jnp.asarray(v.swapaxes(0, 1) if v.ndim == 3 else v) for k, v in arrays.items()}
    a, b, g = first["a"], first["b"], first["g"]
    hows = {"scan": _sequential, "scan of 4": partial(_sequential, unroll=4), "associative": _associative}
    forward = hows[case["how"]]

    def loss(a: Array, b: Array) -> tuple[Array, Array]:
        h = forward(a, b)
        return jnp.real(h * g.conj()).sum(), h

    call = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True) if case["mode"] == "train" else forward)

    def run() -> Any:
        return jax.block_until_ready(call(a, b))

    def batch_first(x: Array) -> Any:
        return np.asarray(x.swapaxes(0, 1) if x.ndim == 3 else x)

    def outputs(result: Any) -> dict[str, Any]:
        if case["mode"] == "forward":
            return {"y": batch_first(result)}
        (_, h), (ga, gb) = result
        # JAX's gradient of a real function of a complex variable is the conjugate of Torch's.
        return {"y": batch_first(h), "ga": batch_first(ga.conj()), "gb": batch_first(gb.conj())}

    return run, outputs


def _sequential(a: Array, b: Array, unroll: int = 1) -> Array:
    def step(h: Array, ab: Any) -> tuple[Array, Array]:
        h = (a if a.ndim == 1 else ab[0]) * h + ab[-1]
        return h, h

    return lax.scan(step, jnp.zeros_like(b[0]), (b,) if a.ndim == 1 else (a, b), unroll=unroll)[1]


def _associative(a: Array, b: Array) -> Array:
    def join(left: tuple[Array, Array], right: tuple[Array, Array]) -> tuple[Array, Array]:
        return left[0] * right[0], right[0] * left[1] + right[1]

    return lax.associative_scan(join, (jnp.broadcast_to(a, b.shape), b))[1]
