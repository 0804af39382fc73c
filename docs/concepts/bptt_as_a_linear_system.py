"""The figure of bptt-as-a-linear-system.md: each loss sends a signal backwards, and the signals add up.

python docs/concepts/bptt_as_a_linear_system.py; needs the extra [plot].
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from figures import COLOURS, INK, canvas, save
from torch import Tensor

import elman

T, N, LOSSES, SEED = 64, 16, (24, 44, 63), 3


def network() -> elman.Core:
    """A tanh net that turns its state, in eight planes, and shrinks it by 2 % a step."""
    torch.manual_seed(SEED)
    core = elman.cell("elman", 4, N).double()
    turns = [
        torch.tensor([[math.cos(a), -math.sin(a)], [math.sin(a), math.cos(a)]]) for a in torch.linspace(0.2, 0.6, 8)
    ]
    with torch.no_grad():
        core.W.copy_(0.98 * torch.block_diag(*turns))
        core.U.mul_(0.1)  # small inputs: tanh is nearly linear, and the signals live long
    return core


def signals() -> tuple[Tensor, Tensor]:
    """The gradient at the first unit: what each loss sends back (3, T), and what autograd says of their sum (T,)."""
    core = network()
    state, states = core.init_state(1), []
    for x in torch.randn(T, 1, 4, dtype=torch.float64):
        state = type(state)(state.h.requires_grad_())
        y, state = core.step(x, state)
        states.append(state.h)
    losses = [states[t][0, 0] for t in LOSSES]  # each loss is the first unit at one step
    total = torch.stack([g[0, 0] for g in torch.autograd.grad(sum(losses), states, retain_graph=True)])
    jacobians = [(1 - h[0] ** 2)[:, None] * core.W for h in states]  # ds[t] / ds[t-1] = diag(1 - h^2) W
    sent = torch.zeros(len(LOSSES), T, dtype=torch.float64)
    for i, at in enumerate(LOSSES):
        g = torch.eye(N, dtype=torch.float64)[0]
        for t in range(at, -1, -1):
            sent[i, t] = g[0]
            g = jacobians[t].T @ g
    return sent.detach(), total


def main() -> None:
    sent, total = signals()
    assert torch.allclose(sent.sum(0), total, rtol=0, atol=1e-12)
    figure, (axes,) = canvas(width=7, height=3.2)
    axes.axhline(0, color=INK, lw=0.6)
    for line, at, colour in zip(sent, LOSSES, COLOURS, strict=False):
        axes.plot(range(at + 1), line[: at + 1], color=colour, lw=1.8, label=f"what the loss at step {at} sends back")
        axes.plot(at, line[at], "o", color=colour, ms=7)
    axes.plot(total, ".", color=INK, ms=6, label="autograd, of all three losses: the sum")
    axes.set(xlabel="step (the signals run to the left)", ylabel="gradient at one unit", xlim=(0, T + 0.5))
    axes.legend(fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, labelcolor=INK)
    save(figure, Path(__file__).with_name("bptt-as-a-linear-system.svg"))


if __name__ == "__main__":
    main()
