"""RWKV-7 against the package of its authors: `python -m bench.rwkv7 [--rounds 20] [--layers 12] [--json]`.

One streaming step of a network of 12 layers of width 768, with 65,536 tokens and random weights, as in rwkv7-g1-0.1b:
one text, one token, its logits. Both read the same .pth in float32, ours by `elman.from_pretrained`; logits after 8
tokens are compared first. Both run in this process, in turn, on one thread and on two; theirs with TorchScript, its
default, and without, of which the faster counts. Beside it ours with the weights of products stored in bfloat16, which
is no bar: it is another precision.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

os.environ |= {"RWKV_V7_ON": "1", "RWKV_CUDA_ON": "0"}  # read when it is imported
os.environ.setdefault("RWKV_JIT_ON", "1")

import numpy as np
import torch
from torch import Tensor

import elman
from bench.turns import Report, Result, in_turn, parser, result

MUST, AIM = 1.5, 3.0
D, HEAD, V, WIDTH, RANKS = 768, 64, 65536, 3072, {"w": 64, "a": 64, "v": 32, "g": 128}


def weights(layers: int) -> dict[str, Tensor]:
    """Random, under the names of the authors, such that activations stay of order one."""
    torch.manual_seed(0)

    def matrix(*shape: int) -> Tensor:
        return torch.randn(shape) / 30

    found = {"emb.weight": torch.randn(V, D), "head.weight": matrix(V, D)}
    norms = ["ln_out", "blocks.0.ln0"]
    for i in range(layers):
        at, ffn = f"blocks.{i}.att.", f"blocks.{i}.ffn."
        norms += [f"blocks.{i}.ln1", f"blocks.{i}.ln2", f"{at}ln_x"]
        found |= {f"{at}x_{name}": torch.rand(1, 1, D) for name in "rwkvag"}
        found |= {f"{at}{name}0": matrix(1, 1, D) for name in "wav"}
        for name, rank in RANKS.items():
            found |= {f"{at}{name}1": matrix(D, rank), f"{at}{name}2": matrix(rank, D)}
        found |= {f"{at}{name}": torch.ones(1, 1, D) for name in ("k_k", "k_a")}
        found[f"{at}r_k"] = matrix(D // HEAD, HEAD)
        found |= {f"{at}{name}.weight": matrix(D, D) for name in ("receptance", "key", "value", "output")}
        found |= {f"{ffn}x_k": torch.rand(1, 1, D), f"{ffn}key.weight": matrix(WIDTH, D)}
        found[f"{ffn}value.weight"] = matrix(D, WIDTH)
    for name in norms:
        found |= {f"{name}.weight": torch.ones(D), f"{name}.bias": torch.zeros(D)}
    return found


def main() -> None:
    flags = parser("rwkv7", __doc__, 20)
    flags.add_argument("--layers", type=int, default=12)
    flags.add_argument("--path", help=argparse.SUPPRESS)
    options = flags.parse_args()
    if options.path:
        print(json.dumps(compare(Path(options.path), options.layers, options.rounds)))
        return
    report = Report(options.json)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "rwkv7.pth"
        torch.save(weights(options.layers), path)
        for jit in ("1", "0"):  # read when the package is imported, so each in a process of its own
            command = [sys.executable, "-m", "bench.rwkv7", "--path", str(path), "--layers", str(options.layers)]
            done = subprocess.run(
                [*command, "--rounds", str(options.rounds)], env={**os.environ, "RWKV_JIT_ON": jit}, check=True,
                stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            report.add(*json.loads(done.stdout.splitlines()[-1]))
    report.end()


def compare(path: Path, layers: int, rounds: int) -> list[Result]:
    """The rows of both sides in this process."""
    from rwkv.model import RWKV

    theirs = RWKV(model=str(path.with_suffix("")), strategy="cpu fp32")
    model = elman.from_pretrained(path).model
    stream, narrow = elman.Stream(model, 1), elman.Stream(model, 1, weights="bfloat16")
    assert stream.native
    carried = None
    for token in range(100, 108):
        want, carried = theirs.forward([token], carried)
        found = stream.logits(np.array([token]))
    error = float(np.abs(found[0] - want.numpy()).max())
    assert error < 1e-3, error
    rows, symbol = [], np.array([100])
    peer = "rwkv, TorchScript" if os.environ["RWKV_JIT_ON"] == "1" else "rwkv"

    def their_step() -> None:
        nonlocal carried
        _, carried = theirs.forward([100], carried)

    for threads in (1, 2):
        torch.set_num_threads(threads)
        ours, less, other = in_turn([lambda: stream.logits(symbol), lambda: narrow.logits(symbol), their_step], rounds)
        name = f"RWKV-7, {layers} layers of {D}, one step of one text, {threads} thread{'s' * (threads > 1)}"
        rows.append(result(name, peer, ours, other, MUST, AIM))
        rows.append(result(f"the same, our weights in bfloat16, {threads}", peer, less, other))
    return rows


if __name__ == "__main__":
    main()
