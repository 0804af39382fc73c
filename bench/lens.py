"""The lens against what one would write with torch.nn: `python -m bench.lens`.

inspect    `elman.lens.inspect` of a 2 x 256 GRU language model, all panels, 64 anchors of 1,000 steps: seconds
reach      T = 1000, K = 256, 64 anchors, one GRU layer, against the obvious loop: for each anchor a GRUCell is stepped
           through its 1,000 inputs with all states in the graph, and one autograd.grad gives d loss / d state for all
lyapunov   all exponents of a GRU of 256 over 2,000 steps, against a row-by-row autograd Jacobian of GRUCell and QR in
           each step. The loops of the other side are timed on a part and scaled: --part says how much of them
page       bytes of a page with 1,000 steps of 512 units
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

import elman
from elman import lens
from elman.embed import Embedding
from elman.lens.report import Shown
from elman.readout import Softmax

T, K, ANCHORS, STEPS = 1000, 256, 64, 2000


def seconds(work: Callable[[], object], rounds: int) -> float:
    """The median of some rounds."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def reach_by_hand(cell: nn.GRUCell, x: Tensor, anchors: int) -> list[Tensor]:
    """|d loss / d state| of each anchor, one after the other: the loss is the sum of the last output."""
    found = []
    for row in x[:anchors]:
        h = torch.zeros(1, K, requires_grad=True)
        states = [h]
        for inputs in row:
            h = cell(inputs[None], h)
            states.append(h)
        gradients = torch.autograd.grad(h.sum() / K**0.5, states[:-1])
        found.append(torch.stack(gradients).norm(dim=(1, 2)))
    return found


def exponents_by_hand(cell: nn.GRUCell, x: Tensor, steps: int) -> Tensor:
    """All exponents, by a Jacobian of K backward passes and a QR in each step."""
    h, Q, total = torch.zeros(1, K), torch.eye(K), torch.zeros(K)
    for t in range(steps):
        before = h.detach().requires_grad_()
        h = cell(x[t : t + 1], before)
        rows = [torch.autograd.grad(h[0, i], before, retain_graph=True)[0][0] for i in range(K)]
        Q, R = torch.linalg.qr(torch.stack(rows) @ Q)
        total += R.diagonal().abs().log()
    return total / steps


def twin(cell: nn.GRUCell) -> elman.Core:
    """Our cell with the weights of theirs."""
    whole = nn.GRU(K, K, batch_first=True)
    with torch.no_grad():
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            getattr(whole, f"{name}_l0").copy_(getattr(cell, name))
    return elman.from_torch(whole)


def reach(rounds: int, part: float) -> dict[str, float]:
    torch.manual_seed(0)
    theirs, x = nn.GRUCell(K, K).requires_grad_(False), torch.randn(ANCHORS, T, K)
    ours = twin(theirs)
    few = max(1, round(part * ANCHORS))
    [found] = lens.reach(ours, lens.Sample(x[:few]), anchors=few)
    wanted = torch.stack(reach_by_hand(theirs, x, few)).mean(0).flip(0)
    torch.testing.assert_close(torch.tensor(found.raw)[:20], wanted[:20], rtol=1e-3, atol=1e-6)
    mine = seconds(lambda: lens.reach(ours, lens.Sample(x), anchors=ANCHORS), rounds)
    other = seconds(lambda: reach_by_hand(theirs, x, few), 1) * ANCHORS / few
    return {"ours": mine, "theirs": other, "ratio": other / mine}


def lyapunov(rounds: int, part: float) -> dict[str, float]:
    torch.manual_seed(0)
    theirs, x = nn.GRUCell(K, K).requires_grad_(False), torch.randn(1, STEPS, K)
    [layer] = lens.layers_of(twin(theirs), lens.Sample(x))
    few = max(20, round(part * STEPS / 10))
    mine = seconds(lambda: lens.lyapunov(layer), rounds)
    other = seconds(lambda: exponents_by_hand(theirs, x[0], few), 1) * STEPS / few
    return {"ours": mine, "theirs": other, "ratio": other / mine}


def inspect() -> tuple[dict[str, float], lens.Report]:
    torch.manual_seed(0)
    model = elman.SequenceModel(Embedding(100, K), elman.stack("gru", K, K, layers=2), Softmax(K, 100))
    ids = torch.randint(0, 100, (ANCHORS, T + 1))
    names = [[chr(32 + i % 90) for i in row] for row in ids[:, :-1].tolist()]
    start = time.perf_counter()
    report = lens.inspect(model, ids[:, :-1], ids[:, 1:], names=names)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.html"
        report.save(path)
        return {"seconds": time.perf_counter() - start, "bytes": path.stat().st_size}, report


def page(report: lens.Report) -> dict[str, int]:
    torch.manual_seed(0)
    values = torch.randn(T, 512).cumsum(0).tanh()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.html"
        replace(report, shown=[Shown("0 gru", "h", list(range(512)), values, torch.rand(250, 512))]).save(path)
        return {"bytes": path.stat().st_size}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.lens", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="timings of ours")
    parser.add_argument("--part", type=float, default=0.125, help="of the other side's loops that is run")
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    print(json.dumps({"reach": reach(given.rounds, given.part)}), flush=True)
    print(json.dumps({"lyapunov": lyapunov(given.rounds, given.part)}), flush=True)
    found, report = inspect()
    print(json.dumps({"inspect": found, "page": page(report)}), flush=True)


if __name__ == "__main__":
    main()
