"""The verdict: what a network with a known gain is told."""

import math

import numpy as np
import pytest
import torch

from elman import lens
from elman.core import Core


class Tanh(Core):
    """h = tanh(W h' + U x), from a state of norm 0.01."""

    def __init__(self, size, gain):
        super().__init__(size, size)
        self.W, self.U = (torch.nn.Parameter(torch.empty(size, size)) for _ in range(2))
        torch.nn.init.orthogonal_(self.W, gain)
        torch.nn.init.orthogonal_(self.U)

    def init_state(self, batch_size):
        return self.W.new_full((batch_size, self.output_size), 0.01 / self.output_size**0.5)

    def step(self, x, h):
        h = torch.tanh(h @ self.W.T + x @ self.U.T)
        return h, h


def by_hand(core, x):
    """The mean over rows of |dL / ds| 1, 2, ... steps before the end, L the sum of the last outputs over sqrt(H)."""
    W, U = core.W.detach().numpy(), core.U.detach().numpy()
    H, found = len(W), []
    for row in x:
        h, hs = np.full(H, 0.01 / H**0.5), []
        for step in row:
            h = np.tanh(W @ h + U @ step)
            hs.append(h)
        g, norms = np.full(H, H**-0.5), []
        for h in hs[::-1]:
            g = W.T @ ((1 - h**2) * g)
            norms.append(np.linalg.norm(g))
        found.append(norms)
    return np.mean(found, 0).tolist()


@pytest.mark.slow
@pytest.mark.parametrize(("gain", "wanted"), [(0.5, "vanishing"), (1.0, "stable"), (2.0, "exploding")])
def test_the_verdict_tells_gains_apart(gain, wanted):
    torch.manual_seed(0)
    core, x = Tanh(16, gain).double(), 0.01 * torch.randn(8, 50, 16, dtype=torch.float64)
    report = lens.inspect(core, x, anchors=8)
    assert report.kind == wanted
    reach, raw = report.reach[0], by_hand(core, x.numpy())
    assert reach.raw == pytest.approx(raw[: len(reach.raw)], rel=1e-3)
    tau = range(1, 1 + max(i for i, value in enumerate(raw, 1) if value >= 0.01 * raw[0]))
    assert reach.slope == pytest.approx(np.polyfit(tau, np.log(raw[: len(tau)]), 1)[0], rel=1e-3, abs=1e-6)
    if gain <= 1:  # what explodes leaves the straight part of tanh on its way
        assert reach.slope == pytest.approx(math.log(gain), abs=0.02)
    assert (
        len(report.verdict) == 5
        and {"vanishing": "vanishes", "stable": "stable", "exploding": "explodes"}[wanted] in report.verdict[0]
    )
