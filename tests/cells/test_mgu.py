from __future__ import annotations

import torch
from torch import nn
from torch.func import functional_call

from elman.cells.mgu import MGU, MGUState


def test_is_the_equation_of_the_paper(same, randomised, draw):
    """Written out with torch.nn.Linear for each of the two gates: no library has this unit."""
    core = randomised(MGU(3, 4))
    x, h0 = draw(0, 2, 5, 3), draw(1, 2, 4)
    y, last = core.scan(x, MGUState(h0))
    gate = nn.Linear(7, 4).double()
    forget = {"weight": torch.cat([core.W[:4], core.U[:4]], 1), "bias": core.b[:4]}
    new = {"weight": torch.cat([core.W[4:], core.U[4:]], 1), "bias": core.b[4:]}
    h, hs = h0, []
    for t in range(5):
        f = functional_call(gate, forget, (torch.cat([h, x[:, t]], 1),)).sigmoid()
        n = functional_call(gate, new, (torch.cat([f * h, x[:, t]], 1),)).tanh()
        h = torch.lerp(h, n, f)
        hs.append(h)
    same([y, last.h], [torch.stack(hs, 1), h], {"x": x, "h": h0, **dict(core.named_parameters())})


def test_each_gate_starts_orthogonal(orthogonal):
    orthogonal(MGU(3, 8).W, gates=2)
