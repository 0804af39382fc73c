"""PyTorch at its best: torch.nn, time first; and the three ways to write a linear scan."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench import inputs
from bench.memory import peak
from bench.worker import Outputs, Run

MODULES = {"tanh": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}


def prepare(case: dict[str, Any], threads: int) -> tuple[Run, Outputs]:
    torch.set_num_threads(threads)
    families = {"gated": _gated, "ragged": _ragged, "scan": _scan, "product": _product, "stream": _stream, "lm": _lm}
    return families[case["family"]](case)


def _lm(case: dict[str, Any]) -> tuple[Run, Outputs]:
    from bench import lm_torch  # it reads our weights, and imports Elman for them

    return lm_torch.prepare(case)


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


def functional(
    case: dict[str, Any], forward: Callable[..., Tensor], arrays: dict[str, Tensor], g: Tensor
) -> tuple[Run, Outputs]:
    """A function of several tensors, forward, trained or how much memory that takes; what it does not use has no
    gradient."""
    if case["mode"] == "forward":
        return inferred(lambda _: forward(**arrays), g), named(["y"])
    for array in arrays.values():
        array.requires_grad_()

    def run() -> tuple[Tensor, ...]:
        y = forward(**arrays)
        return y, *torch.autograd.grad(y, tuple(arrays.values()), g, materialize_grads=True, allow_unused=True)

    if case["mode"] == "peak":
        return lambda: peak(run), lambda megabytes: {}
    return run, named(["y", *(f"g{name}" for name in arrays)])


def named(names: list[str], time_first: bool = False) -> Outputs:
    """Results by name; sequences batch first."""

    def outputs(results: tuple[Tensor, ...]) -> dict[str, Any]:
        arrays = {k: v.detach().resolve_conj().numpy() for k, v in zip(names, results, strict=False)}
        return {k: v.swapaxes(0, 1) if time_first and k in ("y", "gx") else v for k, v in arrays.items()}

    return outputs


def _gated(case: dict[str, Any]) -> tuple[Run, Outputs]:
    arrays = inputs.gated(case["cell"], case["B"], case["T"], case["D"], case["K"])
    if case["cell"] == "lstm_norm":
        return _normed(arrays, case["K"], case.get("how", "loop"))
    layer, x, g = module(case, arrays), torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["g"])
    if case["mode"] == "forward":
        return inferred(lambda x: layer(x)[0], x), named(["y"], True)
    leaves = [layer.weight_ih_l0, layer.weight_hh_l0, layer.bias_ih_l0, layer.bias_hh_l0]
    return trained(lambda x: layer(x)[0], x, leaves, g), named(["y", "gx", "gU", "gW", "gb"], True)


def _normed(arrays: dict[str, inputs.Array], K: int, how: str) -> tuple[Run, Outputs]:
    """A loop over the layer-norm LSTM's cell, which torch.nn does not have, with the input's part outside of it."""
    x, g, U, W, b = (torch.from_numpy(arrays[k]) for k in ("x", "g", "U", "W", "b"))
    gain_U, gain_W = torch.ones(4 * K), torch.full((4 * K,), inputs.NORM_GAIN)
    gain_c, b_c = torch.ones(K), torch.zeros(K)
    leaves = [p.requires_grad_() for p in (U, W, b, gain_U, gain_W, gain_c, b_c)]
    loop = torch.jit.script(_normed_loop) if how == "TorchScript" else _normed_loop

    def forward(x: Tensor) -> Tensor:
        u = F.layer_norm(F.linear(x, U), (4 * K,), gain_U, b)
        y: Tensor = loop(u, W, gain_W, gain_c, b_c)
        return y

    return trained(forward, x, leaves, g), named(["y", "gx", "gU", "gW", "gb"], True)


def _normed_loop(u: Tensor, W: Tensor, gain_W: Tensor, gain_c: Tensor, b_c: Tensor) -> Tensor:
    K = W.shape[1]
    h, c = torch.zeros_like(u[0, :, :K]), torch.zeros_like(u[0, :, :K])
    hs: list[Tensor] = []
    for ut in u.unbind(0):
        i, f, n, o = (ut + F.layer_norm(F.linear(h, W), [4 * K], gain_W)).chunk(4, -1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(n)
        h = torch.sigmoid(o) * torch.tanh(F.layer_norm(c, [K], gain_c, b_c))
        hs.append(h)
    return torch.stack(hs)


def _ragged(case: dict[str, Any]) -> tuple[Run, Outputs]:
    B, T = case["B"], case["T"]
    arrays, lengths = inputs.gated("lstm", B, T, case["D"], case["K"], 2), torch.from_numpy(inputs.lengths(B, T))
    layer, x, g = module(case, arrays, True), torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["g"])
    both = {"packed": Packed, "gather": Gathered}[case.get("how", "packed")](layer)
    run = trained(lambda x: both(x, lengths)[0], x, list(both.parameters()), g)
    return run, named(["y", "gx", "gU", "gW", "gb"], True)


class Packed(nn.Module):
    """A bidirectional layer over rows of several lengths, as the documentation of torch.nn has it: by packing.

    x (T, B, D), or (B, T, D) where the layer is batch first: y, zero past each length, and the last h of both
    directions (2, B, K).
    """

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        first = self.layer.batch_first
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=first, enforce_sorted=False)
        y, last = self.layer(packed)
        padded, _ = nn.utils.rnn.pad_packed_sequence(y, batch_first=first, total_length=x.shape[1 if first else 0])
        return padded, last[0] if isinstance(last, tuple) else last


class Gathered(nn.Module):
    """The same, and faster on a CPU, where a packed layer runs step by step: two padded layers, of which one reads each
    row's valid part from its end, by an index that puts its outputs back too. Time first inside."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.batch_first = layer.batch_first
        self.forth, self.back = (type(layer)(layer.input_size, layer.hidden_size) for _ in range(2))
        for name, p in self.forth.named_parameters():
            p.data.copy_(layer.get_parameter(name))
            self.back.get_parameter(name).data.copy_(layer.get_parameter(f"{name}_reverse"))

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        x = x.transpose(0, 1) if self.batch_first else x
        T, B = x.shape[:2]
        t, row = torch.arange(T)[:, None], torch.arange(B)
        inside = t < lengths
        order = (torch.where(inside, lengths - 1 - t, t) * B + row).flatten()
        forth, back = self.forth(x)[0], Reordered.apply(self.back(Reordered.apply(x, order))[0], order)
        y = torch.cat([forth, back], -1) * inside[..., None]
        last = torch.stack([forth[lengths - 1, row], back[0]])
        return y.transpose(0, 1) if self.batch_first else y, last


class Reordered(torch.autograd.Function):
    """Rows of (T, B, K), T and B taken as one axis, in another order, one that is its own inverse: so that its gradient
    is a selection too, not a scatter."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Tensor) -> Tensor:
        ctx.save_for_backward(order)
        return x.flatten(0, 1).index_select(0, order).view_as(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        (order,) = ctx.saved_tensors
        return g.flatten(0, 1).index_select(0, order).view_as(g), None


def _product(case: dict[str, Any]) -> tuple[Run, Outputs]:
    arrays = inputs.product(case["M"], case["K"], case["N"])
    x, w = torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["w"])
    if case.get("how") != "oneDNN":
        return inferred(lambda x: F.linear(x, w), x), named(["y"])
    ops = torch.ops.mkldnn
    packed = ops._reorder_linear_weight(w, case["M"])
    return inferred(lambda x: ops._linear_pointwise(x, packed, None, "none", [], ""), x), named(["y"])


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
