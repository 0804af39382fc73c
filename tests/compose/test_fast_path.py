"""Words that leave a cell's scan alone leave it on its native loop: one call for all time steps, each way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from elman import kernels, laws
from elman import state as states
from elman.cells import CELLS
from elman.compose import Bidirectional, Dropout, Residual, Stack, WeightDrop
from elman.core import Core

native = pytest.importorskip("elman.kernels.native")

VARIANTS = [(name, options) for name in ("lstm", "gru") for options in CELLS[name].variants]
IDS = ["-".join([name, *(f"{k}={v}" for k, v in options.items())]) for name, options in VARIANTS]
S = 3  # as wide as the projections among the variants, so that Residual fits
# A word around a cell, and the loops that it takes each way.
WORDS: dict[str, tuple[Callable[[Core], Core], int]] = {
    "weight drop": (lambda core: WeightDrop(core, 0.5), 1),
    "of every matrix": (lambda core: WeightDrop(core, 0.5, names=("W", "U", "b")), 1),
    "variational dropout": (lambda core: Dropout(core, 0.5, per="row"), 1),
    "both": (lambda core: Dropout(WeightDrop(core, 0.5), 0.5, per="row"), 1),
    "inputs dropped too": (lambda core: Stack(Dropout(Residual(core), 0.5, per="row"), WeightDrop(core, 0.3)), 2),
    "both directions": (lambda core: Bidirectional(WeightDrop(core, 0.5), Dropout(core, 0.5)), 2),
}


def outcome(core: Core, sample: laws.Sample) -> list[Tensor]:
    """Outputs, last state and all gradients, with the masks of one seed."""
    torch.manual_seed(7)
    x = sample.x.clone().requires_grad_()
    state = states.map(lambda leaf: leaf.detach().clone().requires_grad_(), sample.state)
    y, last = core.scan(x, state, lengths=sample.lengths, reset=sample.reset)
    results = [y, *states.leaves(last)]
    total = torch.stack([(result * (i + 1)).square().sum() for i, result in enumerate(results)]).sum()
    return [*results, *torch.autograd.grad(total, [x, *states.leaves(state), *core.parameters()])]


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize(("name", "options"), VARIANTS, ids=IDS)
def test_masks_need_no_loop_of_their_own(
    name: str, options: dict[str, Any], word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    wrap, loops = WORDS[word]
    core = wrap(CELLS[name](S, S, **options)).double().train()
    sample = laws.draw(core, torch.float64, seed=0, batch_size=4, time=9)
    with kernels.use("reference"):
        wanted = outcome(core, sample)
    before = native.calls["gated"], native.calls["gated_back"]
    monkeypatch.setattr(CELLS[name], "step", None)  # nobody steps
    monkeypatch.setattr(CELLS[name], "update", None)
    got = outcome(core, sample)
    assert (native.calls["gated"], native.calls["gated_back"]) == (before[0] + loops, before[1] + loops)
    torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-11)
