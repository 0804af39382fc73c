"""The matrix LSTM against transformers' layer of xLSTM, and against its equations without a stabiliser."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from elman import kernels
from elman.cells.matrix import Terms
from elman.cells.mlstm import MLSTM


def test_transformers_computes_the_same() -> None:
    peer = pytest.importorskip("transformers.models.xlstm", exc_type=ImportError)
    if peer.modeling_xlstm.is_xlstm_available():
        pytest.skip("with the package xlstm installed transformers calls that, which has other names")
    torch.manual_seed(0)
    config = peer.xLSTMConfig(hidden_size=8, num_heads=2, num_blocks=1, norm_eps=1e-6, chunk_size=8)
    theirs = peer.modeling_xlstm.xLSTMLayer(config)
    ours = MLSTM(8, 8, heads=2)
    with torch.no_grad():
        for p in theirs.parameters():
            p.copy_(torch.randn_like(p))
        rows = [part.weight for part in (theirs.q, theirs.k, theirs.v, theirs.ogate_preact)]
        gates = (theirs.igate_preact, theirs.fgate_preact)
        for mine, other in (
            (ours.U, torch.cat(rows)), (ours.W, torch.cat([gate.weight for gate in gates])),
            (ours.b, torch.cat([gate.bias for gate in gates])), (ours.g, theirs.multihead_norm.weight),
            (ours.O, theirs.out_proj.weight),
        ):  # fmt: skip
            mine.copy_(other)
    x, arriving = torch.randn(2, 19, 8, requires_grad=True), torch.randn(2, 19, 8)
    results = []
    for y in (ours.scan(x)[0], theirs.train()(x)[0]):
        results.append((y, *torch.autograd.grad(y, x, arriving)))
    assert results[1][0].abs().max() > 0.1
    for mine, other in zip(*results, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-4)


class Bare(MLSTM):
    """h alone: the norm after it would hide by what it is divided."""

    def read(self, s: Tensor, terms: Terms) -> Tensor:
        return s


@pytest.mark.parametrize("kernel", kernels.available())
def test_the_stabiliser_cancels_out(kernel: str, randomised) -> None:
    """The paper's first form: C = f C' + exp(i) k v^T, h = C q / max(|n q|, 1), in NumPy."""
    core, bare = (randomised(kind(3, 4, heads=2, key_size=3, value_size=2)) for kind in (MLSTM, Bare))
    x = torch.randn(1, 10, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 3
    with kernels.use(kernel), torch.no_grad():
        y, _ = core.scan(x)
        h, _ = bare.scan(x)
    p = {name: value.detach().numpy() for name, value in core.named_parameters()}
    C, n = np.zeros((2, 2, 3)), np.zeros((2, 3))
    for t, xt in enumerate(x[0].numpy()):
        q, k, v, o = np.split(p["U"] @ xt, [6, 12, 16])
        i, f = np.split(15 * np.tanh((p["W"] @ xt + p["b"]) / 15), 2)
        read, plain = [], []
        for head in range(2):
            qh, kh, vh = q[3 * head : 3 * head + 3] / 3**0.5, k[3 * head : 3 * head + 3], v[2 * head : 2 * head + 2]
            forget = 1 / (1 + np.exp(-f[head]))
            C[head] = forget * C[head] + np.exp(i[head]) * np.outer(vh, kh)
            n[head] = forget * n[head] + np.exp(i[head]) * kh
            s = C[head] @ qh / max(abs(n[head] @ qh), 1.0)
            plain.append(s)
            read.append((s - s.mean()) / np.sqrt(s.var() + 1e-6))
        np.testing.assert_allclose(h[0, t].numpy(), np.concatenate(plain), rtol=1e-4, atol=1e-5)
        expected = p["O"] @ (p["g"] * np.concatenate(read) / (1 + np.exp(-o)))
        np.testing.assert_allclose(y[0, t].numpy(), expected, rtol=1e-4, atol=1e-5)  # eps of the quotient


@torch.no_grad()
def test_memories_start_as_in_the_authors_code() -> None:
    """Of 20 steps in the first head, of 400 in the last, whatever the input."""
    torch.manual_seed(0)
    core = MLSTM(64, 128)
    f = (torch.randn(500, 64) @ core.W.T + core.b)[:, 2:]
    steps = -1 / torch.nn.functional.logsigmoid(f)
    assert steps[:, 0].min() > 10 and steps[:, 0].max() < 40
    assert steps[:, 1].min() > 200 and steps[:, 1].max() < 800


@torch.no_grad()
def test_gates_beyond_the_range_of_float32_stay_finite() -> None:
    """A thousand steps that each multiply by exp(15) would overflow after six without m."""
    torch.manual_seed(0)
    core = MLSTM(3, 4)
    core.b.fill_(1e4)
    y, state = core.scan(torch.randn(2, 1000, 3))
    assert y.isfinite().all() and all(leaf.isfinite().all() for leaf in state)
    assert state.m.max() <= 15 + 1e-3
