"""The lens against what one would write with Torch: `python -m bench.lens`.

inspect    `elman.lens.inspect` of a 2 x 256 GRU language model, all panels, 64 anchors of 1,000 steps: seconds
reach      T = 1000, K = 256, 64 anchors, one GRU layer, against nn.GRU forward, all anchors at once, and autograd over
           steps of the cell from lag to lag: the lags that ours has, until the gradient is dead
lyapunov   all exponents of a GRU of 256 over 2,000 steps, against Jacobians by torch.func, vmap(jacrev), 32 steps at a
           time, and a QR as often as ours has one
page       bytes of a page with 1,000 steps of 512 units

The numbers of both sides are compared first. Both run in this process, in turn.
"""

import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import jacrev, vmap

import elman
from bench.turns import Report, Result, figure, in_turn, parser, result
from elman import lens
from elman.lens import spectra
from elman.lens.flow import DEAD, lags
from elman.lens.report import UnitTraces
from elman.nn.embed import Embedding
from elman.nn.readout import Softmax

T, K, ANCHORS, STEPS = 1000, 256, 64, 2000
BLOCK = 32


def projected(cell: nn.GRUCell, x: Tensor) -> Tensor:
    return F.linear(x, cell.weight_ih, cell.bias_ih)


def step(cell: nn.GRUCell, u: Tensor, h: Tensor) -> Tensor:
    """The next state, u being what the input gives to the gates."""
    r, z, n = u.chunk(3, -1)
    hr, hz, hn = F.linear(h, cell.weight_hh, cell.bias_hh).chunk(3, -1)
    n = torch.tanh(n + torch.sigmoid(r + hr) * hn)
    return n + torch.sigmoid(z + hz) * (h - n)


def reach_by_hand(cell: nn.GRUCell, x: Tensor) -> Tensor:
    """|d loss / d state| (lags, B) of all anchors at once: the loss is the sum of the last output."""
    with torch.no_grad():
        states = [torch.zeros(len(x), K), *whole(cell)(x)[0].unbind(1)]
    gradient, end, norms = torch.full((len(x), K), K**-0.5), x.shape[1], list[Tensor]()
    for start in [end - lag for lag in lags(end)]:
        first = after = states[start].detach().requires_grad_()
        for each in projected(cell, x[:, start:end]).unbind(1):
            after = step(cell, each, after)
        (gradient,), end = torch.autograd.grad(after, first, gradient), start
        norms.append(gradient.norm(dim=1))
        if norms[-1].norm() < DEAD * max(norm.norm() for norm in norms):
            break
    return torch.stack(norms)


@torch.no_grad()
def exponents_by_hand(cell: nn.GRUCell, x: Tensor, Q: Tensor) -> Tensor:
    """All exponents along x (T, D), from tangent vectors Q; the first tenth of the steps only turns them."""
    h, states, u = torch.zeros(K), [], projected(cell, x)
    for each in u.unbind(0):
        states.append(h)
        h = step(cell, each, h)
    before, total, waiting, counted = torch.stack(states), torch.zeros(K, dtype=torch.float64), 0, 0
    every, seen = 1, list[Tensor]()
    jacobians = vmap(jacrev(lambda u, h: step(cell, u, h), argnums=1))
    for t in range(0, len(x), BLOCK):
        for i, J in enumerate(jacobians(u[t : t + BLOCK], before[t : t + BLOCK]), t + 1):
            Q, waiting = J @ Q, waiting + 1
            if waiting >= every or i in (int(spectra.SETTLE * len(x)), len(x)):
                Q, R = torch.linalg.qr(Q)
                logs = R.diagonal().abs().double().log()
                if i > spectra.SETTLE * len(x):
                    total, counted = total + logs, counted + waiting
                seen.append(logs / waiting)
                waiting, every = 0, spectra._every(torch.stack(seen[-8:]).mean(0))
    return (total / counted).sort(descending=True).values


def whole(cell: nn.GRUCell) -> nn.GRU:
    """The layer of a cell."""
    layer = nn.GRU(K, K, batch_first=True)
    with torch.no_grad():
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            getattr(layer, f"{name}_l0").copy_(getattr(cell, name))
    return layer


def twin(cell: nn.GRUCell) -> elman.Core:
    """Our cell with the weights of theirs."""
    return elman.from_torch(whole(cell))


def reach(rounds: int) -> Result:
    torch.manual_seed(0)
    theirs, x = nn.GRUCell(K, K).requires_grad_(False), torch.randn(ANCHORS, T, K)
    ours = twin(theirs)
    [found] = lens.reach(ours, lens.Sample(x), anchors=ANCHORS)
    wanted = reach_by_hand(theirs, x).mean(1)
    assert len(found.tau) == len(wanted), "both must go back equally far"
    torch.testing.assert_close(torch.tensor(found.raw)[:20], wanted[:20], rtol=1e-3, atol=1e-6)
    steps = [lambda: lens.reach(ours, lens.Sample(x), anchors=ANCHORS), lambda: reach_by_hand(theirs, x)]
    return result("lens.reach", "torch autograd in a batch", *in_turn(steps, rounds), unit="s")


def lyapunov(rounds: int) -> Result:
    torch.manual_seed(0)
    theirs, x = nn.GRUCell(K, K).requires_grad_(False), torch.randn(1, STEPS, K)
    [layer] = lens.layers_of(twin(theirs), lens.Sample(x))
    Q = torch.linalg.qr(torch.randn(K, K, generator=torch.Generator().manual_seed(0)))[0]
    found, wanted = lens.lyapunov(layer), exponents_by_hand(theirs, x[0], Q)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-2, atol=1e-3)
    steps = [lambda: lens.lyapunov(layer), lambda: exponents_by_hand(theirs, x[0], Q)]
    return result("lens.lyapunov", "torch vmap(jacrev)", *in_turn(steps, rounds), unit="s")


def inspect() -> tuple[list[Result], lens.Report]:
    torch.manual_seed(0)
    model = elman.SequenceModel(Embedding(100, K), elman.stack("gru", K, K, layers=2), Softmax(K, 100))
    ids = torch.randint(0, 100, (ANCHORS, T + 1))
    names = [[chr(32 + i % 90) for i in row] for row in ids[:, :-1].tolist()]
    start = time.perf_counter()
    report = lens.inspect(model, ids[:, :-1], ids[:, 1:], names=names)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.html"
        report.save(path)
        took, size = time.perf_counter() - start, path.stat().st_size / 1e6
    return [figure("lens.inspect, all panels", took, "s"), figure("its page", size, "MB")], report


def page(report: lens.Report) -> Result:
    torch.manual_seed(0)
    values = torch.randn(T, 512).cumsum(0).tanh()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.html"
        replace(report, traces=[UnitTraces("0 gru", "h", list(range(512)), values, torch.rand(250, 512))]).save(path)
        return figure("a page with 1,000 steps of 512 units", path.stat().st_size / 1e6, "MB")


def main() -> None:
    flags = parser("lens", __doc__, 3)
    flags.add_argument("--threads", type=int, default=2)
    options = flags.parse_args()
    torch.set_num_threads(options.threads)
    report = Report(options.json)
    report.add(reach(options.rounds))
    report.add(lyapunov(options.rounds))
    rows, inspected = inspect()
    report.add(*rows, page(inspected))
    report.end()


if __name__ == "__main__":
    main()
