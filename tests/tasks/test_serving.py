"""What serving asks of bytes: whether the state of a row is one that a session can go on from."""

import numpy as np
import pytest
import torch

from elman import state as states
from elman.tasks.serving import cut, finite, joined


@pytest.mark.parametrize("kinds", [("float32", "float32"), ("float64", "float64"), ("float32", "int64")])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_one_number_that_is_not_finite_makes_its_row_so_and_no_other(kinds, bad):
    first, second = (getattr(torch, kind) for kind in kinds)
    for at in range(3):
        state = torch.ones(4, 3, dtype=first), torch.ones(4, 2, dtype=second)
        state[0][2, at] = bad
        assert finite(states.to_rows(state), state) == [True, True, False, True]
    if second.is_floating_point:
        state = torch.ones(4, 3, dtype=first), torch.ones(4, 2, dtype=second)
        state[1][0, 1] = bad
        assert finite(states.to_rows(state), state) == [False, True, True, True]


def test_states_are_joined_and_cut_in_their_order():
    rows = [bytes([i] * 5) for i in range(3)]
    assert joined(rows).shape == (3, 5) and cut(joined(rows).tobytes(), 5) == rows
