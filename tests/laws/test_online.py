"""The laws of learning online hold for every cell that claims them, and fail for rules that are broken."""

from __future__ import annotations

import pytest
import torch

import elman
from elman.cells import CELLS
from elman.errors import UnknownNameError
from elman.laws import online
from elman.online import influence

CLAIMED = {
    (name, i): options
    for name, kind in CELLS.items()
    for i, options in enumerate(kind.variants)
    if online.claims(kind(4, 4, **options))
}
DIAGONAL = ["indrnn", "mingru", "minlstm", "lru", "s4d", "s5"]


def test_the_cells_of_the_issue_claim_them() -> None:
    assert {*DIAGONAL, "rglru", "elman", "gru", "lstm", "mgu", "rate"} <= {name for name, _ in CLAIMED}


@pytest.mark.parametrize("law", ["O1", "O3", "O4"])
@pytest.mark.parametrize("name", DIAGONAL)
def test_diagonal_cells(name: str, law: str) -> None:
    torch.manual_seed(0)
    worst = online.check(CELLS[name](3, 2, **({"state_size": 4} if name in ("s4d", "s5") else {})).double(), law)
    assert worst <= (1e-9 if law == "O1" else 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("key", CLAIMED, ids=lambda key: f"{key[0]}{key[1]}")
def test_every_cell_that_claims_them(key: tuple[str, int]) -> None:
    for law in online.LAWS:
        torch.manual_seed(0)
        core = CELLS[key[0]](4, 4, **CLAIMED[key])
        if law not in online.claims(core) or (key[1] and law not in ("O1", "O4")):  # which no option changes
            continue
        for dtype in (torch.float32, torch.float64) if law == "O1" else (torch.float32,):
            worst = online.check(core.to(dtype), law)
            assert worst <= {"O1": online.TOLERANCES[dtype], "O2": 1e-4, "O5": 1.0}.get(law, 0.0), (law, dtype, worst)


def test_a_trace_that_decays_too_fast_breaks_the_first_law(monkeypatch: pytest.MonkeyPatch) -> None:
    right = influence._Trace.advance
    monkeypatch.setattr(influence._Trace, "advance", lambda self, g, J, i, E: right(self, g, J, i, 0.9 * E))
    assert online.check(elman.cell("mingru", 3, 4).double(), "O1") > 1e-3


def test_a_biased_sign_breaks_the_fifth_law(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elman.online.rules.Uoro.signs", lambda self, draws: torch.ones(len(draws), 4))
    assert online.check(elman.cell("elman", 3, 4), "O5") > 1.0


def test_a_law_that_is_not_there_is_named() -> None:
    with pytest.raises(UnknownNameError, match="unknown law 'O6'"):
        online.check(elman.cell("mingru", 3, 4), "O6")
