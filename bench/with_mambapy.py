"""mambapy's Mamba block, with its scan in plain PyTorch: Blelloch's, over all states at once."""

from typing import Any

import torch
from mambapy.mamba import MambaBlock, MambaConfig

from bench import inputs
from bench.memory import peak
from bench.with_torch import named, trained
from bench.worker import Outputs, Run

# Ours: theirs
NAMES = {
    "U": "in_proj.weight", "w": "conv1d.weight", "c": "conv1d.bias", "S": "x_proj.weight", "W": "dt_proj.weight",
    "b": "dt_proj.bias", "A_log": "A_log", "D": "D", "V": "out_proj.weight",
}  # fmt: skip
RESULTS = ["y", "gx", *(f"g{name}" for name in NAMES)]


def prepare(case: dict[str, Any], threads: int) -> tuple[Run, Outputs]:
    torch.set_num_threads(threads)
    arrays = inputs.mamba(case["B"], case["T"], case["D"])
    block = MambaBlock(MambaConfig(d_model=case["D"], n_layers=1))
    leaves = [block.get_parameter(name) for name in NAMES.values()]
    for name, parameter in zip(NAMES, leaves, strict=True):
        array = torch.from_numpy(arrays[name])
        parameter.data.copy_(array.T[:, None] if name == "w" else array)  # (K, I) here, (I, 1, K) there
    run = trained(block, torch.from_numpy(arrays["x"]), leaves, torch.from_numpy(arrays["g"]))
    if case["mode"] == "peak":
        return lambda: peak(run), lambda megabytes: {}

    def outputs(results: tuple[torch.Tensor, ...]) -> dict[str, Any]:
        arrays = named(RESULTS)(results)
        return {**arrays, "gw": arrays["gw"][:, 0].T}

    return run, outputs
