"""DeltaNet against the delta rule of transformers, and against whole matrices."""

from __future__ import annotations

import pytest
import torch

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


@torch.no_grad()
def test_the_equations_with_a_carried_state_and_a_reset(randomised) -> None:
    """S = (I - b k k^T) S' + b k v^T, as the paper has it, with whole matrices."""
    core = randomised(DeltaNet(3, 4, heads=2, key_size=3, value_size=2, conv=3))
    x = torch.randn(1, 6, 3, dtype=torch.float64)
    start = type(core.init_state(0))(*(torch.randn_like(leaf) for leaf in core.init_state(1)))
    reset = torch.tensor([[False, False, False, True, False, False]])
    y, last = core.scan(x, start, reset=reset)
    S, window = start.S[0].clone(), start.window[0]
    for t in range(6):
        if reset[0, t]:
            S, window = torch.zeros_like(S), torch.zeros_like(window)
        u, r = (core.U @ x[0, t]).split([16, 2])
        window = torch.cat([window, u[None]])
        c = (core.w * window).sum(0)
        q, k, v = (part.view(2, -1) for part in (c * torch.sigmoid(c)).split([6, 6, 4]))
        window, reads = window[1:], []
        for h in range(2):
            qh = q[h] / torch.sqrt(q[h] @ q[h] + 1e-6) / 3**0.5
            kh, b = k[h] / torch.sqrt(k[h] @ k[h] + 1e-6), torch.sigmoid(r[h])
            S[h] = (torch.eye(3) - b * torch.outer(kh, kh)) @ S[h] + b * torch.outer(kh, v[h])
            s = S[h].T @ qh
            reads.append(core.g * s / torch.sqrt((s**2).mean() + 1e-5))
        torch.testing.assert_close(y[0, t], core.O @ torch.cat(reads), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(last.S[0], S, rtol=1e-10, atol=1e-12)


def test_options_outside_their_range_are_named() -> None:
    with pytest.raises(InputError, match="conv is 0"):
        DeltaNet(2, 6, conv=0)
    with pytest.raises(InputError, match="key_size is 0"):
        DeltaNet(2, 6, key_size=0)
