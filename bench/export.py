"""What `elman export --to onnx` writes beside what Torch's exporter and a hand write: `python -m bench.export`.

How long the export of a language model of 2 x 256 GRU takes, imports taken off; and how long ONNX Runtime takes for a
forward pass of one layer, as the ratio of the other graph's time to that of ours: the minimum of interleaved runs on
one thread. The graphs of others have no lengths; ours are given them, all of them whole.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn

import elman
from bench import inputs
from bench.rows import MIDDLE, ONE, SMALL
from bench.with_onnxruntime import _model, session_of
from elman.tasks.text.lm import LMModelConfig, build

SECONDS = 1.0  # of each case


class Torch(nn.Module):
    """The same language model of torch.nn, for its exporter."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.read = nn.Embedding(257, 256), nn.Linear(256, 257)
        self.core = nn.GRU(256, 256, 2, batch_first=True)

    def forward(self, x: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y, h = self.core(self.embed(x), h)
        return self.read(y), h


def seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def export_times(folder: Path) -> dict[str, float]:
    """Of a model that is built, imports done."""
    model = build(LMModelConfig(cell="gru", size=256, layers=2), 257).eval()
    elman.export.onnx(elman.cell("gru", 2, 2), folder / "warm.onnx")
    found = {"elman": seconds(lambda: elman.export.onnx(model, folder / "lm.onnx"))}
    peer, x, h = Torch().eval(), torch.zeros(2, 7, dtype=torch.int64), torch.zeros(2, 2, 256)
    shapes = {"x": {0: "batch", 1: "time"}, "h": {1: "batch"}}
    for name, dynamo in (("torch, legacy", False), ("torch, dynamo", True)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                run = lambda dynamo=dynamo: torch.onnx.export(  # noqa: E731
                    peer, (x, h), str(folder / f"{dynamo}.onnx"), input_names=["x", "h"], dynamo=dynamo,
                    verbose=False, **({} if dynamo else {"dynamic_axes": shapes}),
                )  # fmt: skip
                found[name] = seconds(run)
            except ImportError as error:
                print(f"{name}: {error}")
    return found


def forward(cell: str, B: int, T: int, D: int, K: int, folder: Path) -> dict[str, float]:
    """Milliseconds of ONNX Runtime: ours, a single node by hand (time first, no state), and Torch's export."""
    core = elman.cell(cell, D, K)
    path = folder / f"{cell}{B}{T}{D}{K}.onnx"
    elman.export.onnx(core, path)
    import onnx

    x = np.random.default_rng(0).normal(size=(B, T, D)).astype(np.float32)
    states = {f"state.{s}": np.zeros((B, K), np.float32) for s in core.init_state(1)._fields}
    peer = {"gru": nn.GRU, "lstm": nn.LSTM}[cell](D, K, batch_first=True).eval()
    h = torch.zeros(1, B, K)
    traced = folder / f"torch-{path.name}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        given = (torch.from_numpy(x), h if cell == "gru" else (h, h))
        names, free = ["x", "h0", "c0"][: 3 if cell == "lstm" else 2], {"x": {0: "B", 1: "T"}, "h0": {1: "B"}}
        torch.onnx.export(peer, given, str(traced), dynamo=False, input_names=names, dynamic_axes=free)
    case = {"cell": cell, "family": "gated", "B": B, "T": T, "D": D, "K": K}
    zeros = np.zeros((1, B, K), np.float32)
    graphs = {
        "elman": (onnx.load(path), {"x": x, "lengths": np.full(B, T), **states}),
        "hand": (_model(case, inputs.gated(cell, B, T, D, K)), {"x": np.ascontiguousarray(x.swapaxes(0, 1))}),
        "torch": (onnx.load(traced), {"x": x, "h0": zeros, **({"c0": zeros} if cell == "lstm" else {})}),
    }
    runs = {name: (session_of(model, 1), feeds) for name, (model, feeds) in graphs.items()}
    best = dict.fromkeys(runs, float("inf"))
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        for name, (session, feeds) in runs.items():
            best[name] = min(best[name], seconds(lambda s=session, f=feeds: s.run(None, f)))
    return {name: 1e3 * value for name, value in best.items()}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, value in export_times(Path(folder)).items():
            print(f"export of 2 x 256 GRU, {name}: {value:.2f} s", flush=True)
        for shape in (ONE, *SMALL, *MIDDLE):
            for cell in ("gru", "lstm"):
                found = forward(cell, *shape, Path(folder))
                ratios = ", ".join(f"{name} / elman {found[name] / found['elman']:.3f}" for name in ("hand", "torch"))
                print(f"forward {cell} {shape}: {found['elman']:.3f} ms; {ratios}", flush=True)


if __name__ == "__main__":
    main()
