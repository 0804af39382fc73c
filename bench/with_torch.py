"""PyTorch at its best: torch.nn, time first; and the three ways to write a linear scan."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench import inputs
from bench.worker import Outputs, Run

MODULES = {"tanh": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}


def prepare(case: dict[str, Any], threads: int) -> tuple[Run, Outputs]:
    torch.set_num_threads(threads)
    families = {"gated": _gated, "ragged": _ragged, "scan": _scan, "product": _product, "stream": _stream}
    return families[case["family"]](case)


def module(case: dict[str, Any], arrays: dict[str, inputs.Array], bidirectional: bool = False) -> nn.RNNBase:
    """The layer with the weights of `arrays`."""
    layer = MODULES[case.get("cell", "lstm")](case["D"], case["K"], bidirectional=bidirectional)
    for suffix in ("", "_reverse")[: 1 + bidirectional]:
        for ours, theirs in (("U", "weight_ih"), ("W", "weight_hh"), ("b", "bias_ih"), ("c", "bias_hh")):
            getattr(layer, f"{theirs}_l0{suffix}").data.copy_(torch.from_numpy(arrays[ours + suffix]))
    return layer


def trained(forward: Callable[[Tensor], Tensor], x: Tensor, leaves: list[Tensor], g: Tensor) -> Run:
    """A training step without its optimizer: the outputs, and the gradients of parameters and input."""
    x.requires_grad_()

    def run() -> tuple[Tensor, ...]:
        y = forward(x)
        return y, *torch.autograd.grad(y, (x, *leaves), g)

    return run


def inferred(forward: Callable[[Tensor], Tensor], x: Tensor) -> Run:
    def run() -> tuple[Tensor, ...]:
        with torch.inference_mode():
            return (forward(x),)

    return run


def named(names: list[str], time_first: bool = False) -> Outputs:
    """Results by name; sequences batch first."""

    def outputs(results: tuple[Tensor, ...]) -> dict[str, Any]:
        arrays = {k: v.detach().resolve_conj().numpy() for k, v in zip(names, results, strict=False)}
        return {k: v.swapaxes(0, 1) if time_first and k in ("y", "gx") else v for k, v in arrays.items()}

    return outputs


def _gated(case: dict[str, Any]) -> tuple[Run, Outputs]:
    arrays = inputs.gated(case["cell"], case["B"], case["T"], case["D"], case["K"])
    if case["cell"] == "lstm_norm":
        return _normed(arrays, case["K"])
    layer, x, g = module(case, arrays), torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["g"])
    if case["mode"] == "forward":
        return inferred(lambda x: layer(x)[0], x), named(["y"], True)
    leaves = [layer.weight_ih_l0, layer.weight_hh_l0, layer.bias_ih_l0, layer.bias_hh_l0]
    return trained(lambda x: layer(x)[0], x, leaves, g), named(["y", "gx", "gU", "gW", "gb"], True)


def _normed(arrays: dict[str, inputs.Array], K: int) -> tuple[Run, Outputs]:
    """A loop over the layer-norm LSTM's cell, which torch.nn does not have, with the input's part outside of it."""
    x, g, U, W, b = (torch.from_numpy(arrays[k]) for k in ("x", "g", "U", "W", "b"))
    gains = [torch.ones(4 * K), torch.full((4 * K,), inputs.NORM_GAIN), torch.ones(K), torch.zeros(K)]
    leaves = [p.requires_grad_() for p in (U, W, b, *gains)]

    def forward(x: Tensor) -> Tensor:
        gain_U, gain_W, gain_c, b_c = gains
        u = F.layer_norm(F.linear(x, U), (4 * K,), gain_U, b)
        h, c, hs = x.new_zeros(x.shape[1], K), x.new_zeros(x.shape[1], K), []
        for ut in u.unbind(0):
            i, f, n, o = (ut + F.layer_norm(F.linear(h, W), (4 * K,), gain_W)).chunk(4, -1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(n)
            h = torch.sigmoid(o) * torch.tanh(F.layer_norm(c, (K,), gain_c, b_c))
            hs.append(h)
        return torch.stack(hs)

    return trained(forward, x, leaves, g), named(["y", "gx", "gU", "gW", "gb"], True)


def _ragged(case: dict[str, Any]) -> tuple[Run, Outputs]:
    B, T = case["B"], case["T"]
    arrays, lengths = inputs.gated("lstm", B, T, case["D"], case["K"], 2), torch.from_numpy(inputs.lengths(B, T))
    layer, x, g = module(case, arrays, True), torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["g"])

    def forward(x: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
        return nn.utils.rnn.pad_packed_sequence(layer(packed)[0], total_length=T)[0]

    names = ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"]
    leaves = [getattr(layer, n + s) for s in ("", "_reverse") for n in names]
    return trained(forward, x, leaves, g), named(["y", "gx", "gU", "gW", "gb"], True)


def _product(case: dict[str, Any]) -> tuple[Run, Outputs]:
    arrays = inputs.product(case["M"], case["K"], case["N"])
    x, w = torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["w"])
    return inferred(lambda x: F.linear(x, w), x), named(["y"])


def _stream(case: dict[str, Any]) -> tuple[Run, Outputs]:
    """One step from a state of zeros, as Stream's first one."""
    arrays = inputs.gated(case["cell"], case["B"], 1, case["D"], case["K"])
    layer, x = module(case, arrays), torch.from_numpy(arrays["x"])
    return inferred(lambda x: layer(x)[0], x), lambda results: {"y": results[0][0].numpy()}


def _scan(case: dict[str, Any]) -> tuple[Run, Outputs]:
    arrays = inputs.scan(case["B"], case["T"], case["C"], case["number"])
    a, b, g = (torch.from_numpy(arrays[k]) for k in ("a", "b", "g"))
    how = {"loop": _loop, "doubling": _doubling, "log-space": _log_space}[case["how"]]
    if case["mode"] == "forward":
        return inferred(lambda b: how(a, b), b), named(["y"])
    a.requires_grad_()
    return trained(lambda b: how(a, b), b, [a], g), named(["y", "gb", "ga"])


def _loop(a: Tensor, b: Tensor) -> Tensor:
    h, hs = torch.zeros_like(b[:, 0]), []
    for at, bt in zip(a.unbind(1) if a.ndim == 3 else [a] * b.shape[1], b.unbind(1), strict=True):
        h = torch.addcmul(bt, at, h)
        hs.append(h)
    return torch.stack(hs, 1)


def _doubling(a: Tensor, b: Tensor) -> Tensor:
    distance, a = 1, a.expand_as(b)
    while distance < b.shape[1]:
        b = torch.cat([b[:, :distance], a[:, distance:] * b[:, :-distance] + b[:, distance:]], 1)
        a = torch.cat([a[:, :distance], a[:, distance:] * a[:, :-distance]], 1)
        distance *= 2
    return b


def _log_space(a: Tensor, b: Tensor) -> Tensor:
    """Heinsen's form: h = exp(a* + logcumsumexp(log b - a*)), a* the sum of log a so far."""
    total = a.log().cumsum(1)
    return (total + (b.log() - total).logcumsumexp(1)).exp()
