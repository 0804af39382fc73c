"""The values of a first layer in later ones: the laws, and what reaches whom."""

from __future__ import annotations

import pytest
import torch

import elman
from elman import laws
from elman.cells.past import ScanPast
from elman.compose import Columns, Dense, Stack
from elman.compose.value_residual import Carry, FirstTimeMixing, LaterTimeMixing
from elman.errors import ElmanError

SMALL = {"heads": 2, "rank": 2, "a_rank": 3, "gate_rank": 2}


def two_layers() -> Stack:
    torch.manual_seed(0)
    first = FirstTimeMixing(4, 4, **SMALL)
    return Stack(Carry(first, 4), Carry(LaterTimeMixing(4, 4, value_rank=2, **SMALL), 4), Columns(8, 0, 4))


def test_the_laws_hold() -> None:
    report = laws.check(two_layers())
    assert report.ok and report.exact, report
    assert elman.Stream(two_layers(), 2).native


def test_values_are_mixed() -> None:
    """With a share of one the later layer has the values of the first; with a share of zero its own."""
    core, x = two_layers(), torch.randn(1, 3, 4)
    later = core.cores[1].core
    h = torch.randn(1, 3, 4)
    first = core.cores[0].core.scan(x)[0][..., 4:]
    torch.nn.init.zeros_(later.V_2)
    for share, values in ((100.0, first), (-100.0, h @ later.W_v.T)):
        torch.nn.init.constant_(later.v_0, share)
        # What a token shift of zeros leaves of x_v is x itself.
        torch.nn.init.zeros_(later.mu)
        terms = later.terms(torch.cat([h, first], -1), past_of(later))
        torch.testing.assert_close(terms.v, values)


def past_of(core: elman.Core) -> ScanPast:
    state = core.init_state(1)
    return ScanPast(state._asdict(), torch.tensor([3]), torch.zeros(1, 3, dtype=torch.bool))


def test_columns_that_nobody_renews_pass() -> None:
    core, x = Carry(Stack(Columns(5, 0, 3), Dense(3, 3)), 3), torch.randn(2, 4, 5)
    y = core.scan(x)[0]
    assert torch.equal(y[..., 3:], x[..., 3:])
    torch.testing.assert_close(y[..., :3], x[..., :3] + core.core.cores[1].scan(x[..., :3])[0])


def test_a_core_that_is_too_narrow_is_refused() -> None:
    with pytest.raises(ElmanError, match="at least 4 columns"):
        Carry(Dense(3, 3), 4)
