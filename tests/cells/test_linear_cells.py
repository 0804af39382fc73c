"""What the cells on linear scans, of numbers and of matrices, and the HMM share: bits in a stream, and wide states."""

from __future__ import annotations

import pytest
import torch

from elman import kernels
from elman import state as states
from elman.cells import CELLS
from elman.cells.matrix import Matrix

MATRIX = [name for name, kind in CELLS.items() if issubclass(kind, Matrix)]
NAMES = ["mingru", "minlstm", "lru", "s4d", "s5", "mamba", "hmm", "rglru", *MATRIX]
VARIANTS = [
    pytest.param(name, options, id=f"{name}-{i}") for name in NAMES for i, options in enumerate(CELLS[name].variants)
]
each_variant = pytest.mark.parametrize(("name", "options"), VARIANTS)


@pytest.mark.skipif("native" not in kernels.available(), reason="only native kernels promise equal bits")
@each_variant
def test_one_input_at_a_time_in_a_batch_of_one_gives_the_same_bits(name, options):
    torch.manual_seed(0)
    B, T, size = 5, 13, 33
    core = CELLS[name](size, size, **options)
    x = torch.randn(B, T, size)
    lengths, reset = torch.tensor([0, T, 3, 11, 1]), torch.rand(B, T) < 0.15
    with kernels.use("native"), torch.no_grad():
        y, last = core.scan(x, lengths=lengths, reset=reset)
        for b in range(B):
            state = core.init_state(1)
            for t in range(int(lengths[b])):
                out, state = core.scan(x[b : b + 1, t : t + 1], state, reset=reset[b : b + 1, t : t + 1])
                assert torch.equal(out, y[b : b + 1, t : t + 1]), f"row {b}, t = {t}"
            for given, wanted in zip(states.leaves(state), states.leaves(states.take(last, [b])), strict=True):
                assert torch.equal(given, wanted), f"row {b}"


@each_variant
def test_a_state_wider_than_the_parameters_stays_wide_beside_bfloat16(name, options):
    core = CELLS[name](4, 4, **options)
    wide = states.map(lambda leaf: leaf.to(torch.promote_types(leaf.dtype, torch.float64)), core.init_state(2))
    y, state = core.scan(torch.randn(2, 3, 4).bfloat16(), wide)
    assert y.dtype == torch.bfloat16
    assert [leaf.dtype for leaf in states.leaves(state)] == [leaf.dtype for leaf in states.leaves(wide)]
