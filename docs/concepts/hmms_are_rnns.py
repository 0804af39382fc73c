"""The figure of hmms-are-rnns.md: what the filter knows, and what its gradient adds.

python docs/concepts/hmms_are_rnns.py; needs the extra [plot].
"""

from __future__ import annotations

from pathlib import Path

import torch
from figures import BLUE, INK, ORANGE, canvas, save
from torch import Tensor

import elman

T, STAY, SEED = 120, 0.95, 4


def data() -> tuple[Tensor, Tensor]:
    """Two hidden states, each kept with probability 0.95, that emit Gaussians one and a half deviations apart."""
    torch.manual_seed(SEED)
    moves = torch.rand(T) > STAY
    moves[0] = False
    z = moves.cumsum(0) % 2
    return z, 1.5 * z + torch.randn(T)


def probabilities(o: Tensor) -> tuple[Tensor, Tensor]:
    """P(second state) at each step given the past and the present, by the filter; given everything, by its gradient."""
    core = elman.cell("hmm", 2, 2).double()
    with torch.no_grad():
        core.log_P.copy_(torch.tensor([[STAY, 1 - STAY], [1 - STAY, STAY]]).log())
        core.log_pi.copy_(torch.tensor([0.5, 0.5]).log())
    x = -0.5 * (o.double()[:, None] - torch.tensor([0.0, 1.5])) ** 2  # log p(o | z), up to a constant
    x = x[None].requires_grad_()
    before = torch.cat([core.init_state(1).p[:, None], core.scan(x)[0][:, :-1]], 1)  # p(z[t] | o[1..t-1]): the state
    filtered = torch.softmax(before.log() + x, -1)
    (smoothed,) = torch.autograd.grad(core.log_prob(x).sum(), x)
    return filtered[0, :, 1].detach(), smoothed[0, :, 1]


def main() -> None:
    z, o = data()
    filtered, smoothed = probabilities(o)
    figure, (axes,) = canvas(width=7, height=2.8)
    axes.fill_between(range(T), z, step="mid", color=INK, alpha=0.25, lw=0, label="the hidden state, which nobody sees")
    axes.plot(filtered, color=ORANGE, lw=1.2, label="the filter: given what was seen so far")
    axes.plot(smoothed, color=BLUE, lw=1.8, label="its gradient: given everything")
    axes.set(xlabel="step", ylabel="P(second state)", ylim=(0, 1.02), xlim=(0, T - 1), yticks=(0, 0.5, 1))
    axes.legend(fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, labelcolor=INK)
    save(figure, Path(__file__).with_name("hmms-are-rnns.svg"))


if __name__ == "__main__":
    main()
