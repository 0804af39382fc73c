"""Elman as a user calls it: cores from torch.nn's weights, kernels.linear_scan, kernels.linear, Stream."""

from typing import Any

import torch
from torch import Tensor

import elman
from bench import hmm_elman, inputs, lm_elman
from bench.memory import peak
from bench.with_torch import functional, inferred, module, named, trained
from bench.worker import Outputs, Run
from elman import kernels
from elman.convert import from_torch

if kernels.active() != "native":
    raise SystemExit(f"the native kernels are what is measured, but {kernels.why_not_native()}")


def prepare(case: dict[str, Any], threads: int) -> tuple[Run, Outputs]:
    torch.set_num_threads(threads)
    families = {"gated": _gated, "ragged": _ragged, "scan": _scan, "product": _product, "stream": _stream}
    families |= {
        "hmm": hmm_elman.prepare,
        "mamba": _mamba,
        "matrix": _matrix,
        "narrow": _narrow,
        "lm": lm_elman.prepare,
    }
    return families[case["family"]](case)


def _gated(case: dict[str, Any]) -> tuple[Run, Outputs]:
    arrays = inputs.gated(case["cell"], case["B"], case["T"], case["D"], case["K"])
    core = (
        _normed(case, arrays)
        if case["cell"] == "lstm_norm"
        else from_torch(module(case, arrays), time_first_ok=True).cores[0]
    )
    x, g = (torch.from_numpy(arrays[k]).transpose(0, 1).contiguous() for k in ("x", "g"))
    leaves = [core.U, core.W, core.b, *(p for name, p in core.named_parameters() if name not in ("U", "W", "b"))]
    if "every" in case:
        core = elman.Recompute(core, case["every"])
    if case["mode"] == "forward":
        return inferred(lambda x: core.scan(x)[0], x), named(["y"])
    if case["mode"] == "saved":
        return lambda: _saved(core, x.requires_grad_()), lambda megabytes: {}
    return trained(lambda x: core.scan(x)[0], x, leaves, g), named(["y", "gx", "gU", "gW", "gb"])


def _normed(case: dict[str, Any], arrays: dict[str, inputs.Array]) -> elman.Core:
    core = elman.cell("lstm", case["D"], case["K"], layer_norm=True)
    for name in ("U", "W", "b"):
        core.get_parameter(name).data.copy_(torch.from_numpy(arrays[name]))
    core.get_parameter("gain_W").data.fill_(inputs.NORM_GAIN)
    return core


def _saved(core: elman.Core, x: Tensor) -> float:
    """Megabytes that autograd keeps from a scan of x, each storage once, beyond x, y and the parameters."""
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y, _ = core.scan(x)
    for tensor in (x, y, *core.parameters()):
        kept.pop(tensor.untyped_storage().data_ptr(), None)
    return sum(kept.values()) / 1e6


def _ragged(case: dict[str, Any]) -> tuple[Run, Outputs]:
    B, T = case["B"], case["T"]
    arrays, lengths = inputs.gated("lstm", B, T, case["D"], case["K"], 2), torch.from_numpy(inputs.lengths(B, T))
    core = from_torch(module(case, arrays, True), time_first_ok=True)
    x, g = (torch.from_numpy(arrays[k]).transpose(0, 1).contiguous() for k in ("x", "g"))
    leaves = dict(core.named_parameters())
    order = [next(n for n in leaves if n.endswith(f".{k}")) for k in ("U", "W", "b")]
    parameters = [leaves[n] for n in (*order, *(n for n in leaves if n not in order))]
    return trained(lambda x: core.scan(x, lengths=lengths)[0], x, parameters, g), named(["y", "gx", "gU", "gW", "gb"])


def _product(case: dict[str, Any]) -> tuple[Run, Outputs]:
    arrays = inputs.product(case["M"], case["K"], case["N"])
    x, w = torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["w"])
    return inferred(lambda x: kernels.linear(x, w), x), named(["y"])


def _scan(case: dict[str, Any]) -> tuple[Run, Outputs]:
    B, T, C = case["B"], case["T"], case["C"]
    arrays = inputs.scan(B, T, C, case["number"])
    a, b, g = (torch.from_numpy(arrays[k]) for k in ("a", "b", "g"))
    h0, lengths, reset = b.new_zeros(B, C), torch.full((B,), T), torch.zeros(B, T, dtype=torch.bool)

    def forward(b: Tensor) -> Tensor:
        return kernels.linear_scan(a, b, h0, lengths, reset)[0]

    if case["mode"] == "forward":
        return inferred(forward, b), named(["y"])
    a.requires_grad_()
    return trained(forward, b, [a], g), named(["y", "gb", "ga"])


def _mamba(case: dict[str, Any]) -> tuple[Run, Outputs]:
    arrays = inputs.mamba(case["B"], case["T"], case["D"])
    x, g = (torch.from_numpy(arrays.pop(k)) for k in ("x", "g"))
    core = elman.cell("mamba", case["D"], case["D"])
    leaves = [core.get_parameter(name) for name in arrays]
    for leaf, array in zip(leaves, arrays.values(), strict=True):
        leaf.data.copy_(torch.from_numpy(array))
    run = trained(lambda x: core.scan(x)[0], x, leaves, g)
    if case["mode"] == "peak":
        return lambda: peak(run), lambda megabytes: {}
    return run, named(["y", "gx", *(f"g{name}" for name in arrays)])


def _matrix(case: dict[str, Any]) -> tuple[Run, Outputs]:
    """The decay comes as a logarithm, and what is not prepared without its factor, as others take them."""
    B, T, K, rule, prepared = case["B"], case["T"], case["K"], case["rule"], case.get("prepared", False)
    given = inputs.matrix(rule, B, T, case["H"], K)
    arrays = {name: torch.from_numpy(x) for name, x in (inputs.prepared(rule, given) if prepared else given).items()}
    g, S0 = arrays.pop("g"), torch.zeros(B, case["H"], K, K)
    lengths, reset = torch.full((B,), T), torch.zeros(B, T, dtype=torch.bool)

    def forward(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, b: Tensor) -> Tensor:
        if rule == "ssd":
            v = v if prepared else b[..., None] * v
            return kernels.matrix_scan(q, k, v, kernels.exp(-b), S0, lengths, reset)[0]
        q = q if prepared else q * K**-0.5
        return kernels.matrix_scan(q, k, v, kernels.exp(decay), S0, lengths, reset, b)[0]

    return functional(case, forward, arrays, g)


def _stream(case: dict[str, Any]) -> tuple[Run, Outputs]:
    arrays = inputs.gated(case["cell"], case["B"], 1, case["D"], case["K"])
    stream, x = elman.Stream(from_torch(module(case, arrays), time_first_ok=True), case["B"]), arrays["x"][0]
    return lambda: stream.step(x), lambda y: {"y": y}


def _narrow(case: dict[str, Any]) -> tuple[Run, Outputs]:
    """Some layers of one width, with the weights stored as named, or as they are."""
    torch.manual_seed(0)
    core = elman.stack(case["cell"], case["K"], case["K"], layers=case["layers"]).eval()
    stream, x = elman.Stream(core, case["B"], weights=case.get("weights")), torch.randn(case["B"], case["K"]).numpy()
    return lambda: stream.step(x), lambda y: {"y": y}
