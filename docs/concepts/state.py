"""The figure of state.md: one past, three futures, and back.

python docs/concepts/state.py; needs the extra [plot].
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from figures import COLOURS, INK, canvas, save
from torch import Tensor

import elman
from elman import state

PAST, FUTURE = 22, 10


def network() -> elman.Core:
    """A tanh net of two units that turns its state by a 24th of a circle: all of its state fits on a page."""
    core = elman.cell("elman", 2, 2)
    angle = 2 * math.pi / 24
    turn = torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    with torch.no_grad():
        core.W.copy_(1.07 * turn)
        core.U.copy_(0.15 * torch.eye(2))
        core.b.zero_()
    return core


def paths() -> tuple[Tensor, Tensor, Tensor]:
    """States along the past (T, 2), along three futures (3, T, 2), and along the first of them once more (T, 2)."""
    core = network()
    kick = torch.zeros(1, PAST, 2)
    kick[0, 0, 0] = 1.0
    futures = torch.zeros(3, FUTURE, 2)
    futures[1, :, 0] = 1.0
    futures[2, :, 0] = -1.0
    with torch.no_grad():
        past, here = core.scan(kick)  # the output of this cell is its state
        ahead, _ = core.scan(futures, state.repeat(here, 3))
        again, _ = core.scan(futures[:1], here)
    return past[0], torch.cat([here.h.expand(3, 1, 2), ahead], 1), again[0]


def main() -> None:
    past, ahead, again = paths()
    assert torch.equal(ahead[0, 1:], again)
    figure, (axes,) = canvas(width=5, height=4.2)
    axes.plot(*past.T, ".-", color=INK, lw=1.5)
    axes.text(*past.mean(0).tolist(), "the past", color=INK, ha="center")
    labels = ("first future: no input", "second: an input to the right at each step", "third: an input to the left")
    for path, colour, label in zip(ahead, COLOURS, labels, strict=False):
        axes.plot(*path.T, ".-", color=colour, lw=1.5, label=label)
    axes.plot(*past[-1], "o", color=INK, ms=8)
    axes.annotate("here", past[-1].tolist(), (6, -13), textcoords="offset points", color=INK)
    axes.set(
        xlabel="first unit of the state",
        ylabel="second unit",
        aspect="equal",
        xticks=(-0.5, 0, 0.5),
        yticks=(-0.5, 0, 0.5),
    )
    axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(0, -0.16), labelcolor=INK)
    save(figure, Path(__file__).with_name("state.svg"))


if __name__ == "__main__":
    main()
