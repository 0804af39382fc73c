"""DeltaNet against the delta rule of transformers, and against whole matrices."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from elman.cells.deltanet import DeltaNet
from elman.errors import InputError


def test_the_rule_is_that_of_transformers() -> None:
    """Their gated rule with a decay of one, on our keys, values and queries before they are divided by lengths."""
    peer = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next", exc_type=ImportError)
    torch.manual_seed(0)
    core = DeltaNet(3, 8, heads=2, key_size=3, value_size=2, conv=1)
    x = torch.randn(2, 70, 3)
    with torch.no_grad():
        u, r = (x @ core.U.T).split([16, 2], -1)
        q, k, v = (part.unflatten(-1, (2, -1)) for part in torch.nn.functional.silu(core.w * u).split([6, 6, 4], -1))
        s, last = peer.torch_chunk_gated_delta_rule(
            q, k, v, g=torch.zeros(2, 70, 2), beta=r.sigmoid(), initial_state=None, output_final_state=True,
            use_qk_l2norm_in_kernel=True,
        )  # fmt: skip
        expected = torch.nn.functional.rms_norm(s, (2,), core.g, 1e-5).flatten(2) @ core.O.T
        y, state = core.scan(x)
    assert expected.abs().max() > 0.1
    torch.testing.assert_close(y, expected, rtol=1e-3, atol=2e-5)
    torch.testing.assert_close(state.S, last, rtol=1e-3, atol=2e-5)


def test_the_equations_with_a_carried_state_and_a_reset(randomised, delta_rule) -> None:
    core = randomised(DeltaNet(3, 4, heads=2, key_size=3, value_size=2, conv=3))

    def parts(x: Tensor) -> tuple[Tensor, ...]:
        u, r = (core.U @ x).split([16, 2])
        return u, r, torch.ones(2, 3, dtype=x.dtype), torch.ones(4)

    delta_rule(core, parts)


def test_options_outside_their_range_are_named() -> None:
    with pytest.raises(InputError, match="conv is 0"):
        DeltaNet(2, 6, conv=0)
    with pytest.raises(InputError, match="key_size is 0"):
        DeltaNet(2, 6, key_size=0)
