"""Mamba-2 against transformers' layer, with the same parameters: outputs, gradients, and a state that is carried."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from elman.cells.mamba2 import Mamba2
from elman.errors import InputError

peer = pytest.importorskip("transformers.models.mamba2", exc_type=ImportError)


def layers(groups: int) -> tuple[Mamba2, nn.Module]:
    """Ours and theirs, with the same parameters, none of which is a zero or a one."""
    torch.manual_seed(0)
    config = peer.Mamba2Config(
        hidden_size=6, num_hidden_layers=1, state_size=5, num_heads=4, head_dim=3, n_groups=groups, chunk_size=4,
        layer_norm_epsilon=1e-5, use_bias=False,
    )  # fmt: skip
    theirs = peer.modeling_mamba2.Mamba2Mixer(config, 0)
    ours = Mamba2(6, 6, state_size=5, heads=4, groups=groups)
    with torch.no_grad():
        for p in theirs.parameters():
            p.copy_(0.5 * torch.randn_like(p))
        for mine, other in (
            (ours.U, theirs.in_proj.weight), (ours.w, theirs.conv1d.weight[:, 0].T), (ours.c, theirs.conv1d.bias),
            (ours.b, theirs.dt_bias), (ours.A_log, theirs.A_log), (ours.D, theirs.D), (ours.g, theirs.norm.weight),
            (ours.O, theirs.out_proj.weight),
        ):  # fmt: skip
            mine.copy_(other)
    return ours, theirs.eval()


@pytest.mark.parametrize("groups", [1, 2])
def test_transformers_computes_the_same(groups: int) -> None:
    ours, theirs = layers(groups)
    x = torch.randn(2, 11, 6, requires_grad=True)
    arriving = torch.randn(2, 11, 6)
    results = []
    for y in (ours.scan(x)[0], theirs(x)):
        results.append((y, *torch.autograd.grad(y, x, arriving)))
    assert results[1][0].abs().max() > 0.1
    for mine, other in zip(*results, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)


def step_by_hand(core: Mamba2, x: Tensor, S: Tensor, window: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One input x (D,), number by number, from the equations of the paper."""
    H, N, V, J, G = core.heads, core.key_size, core.value_size, core.conv, core.groups
    projected = core.U @ x
    z, u, r = projected[: H * V], projected[H * V : -H], projected[-H:]
    seen = torch.cat([window, u[None]])
    convolved = core.c + sum(core.w[j] * seen[j] for j in range(J))
    convolved = convolved / (1 + torch.exp(-convolved))
    v, B, C = convolved[: H * V].view(H, V), convolved[H * V :][: G * N].view(G, N), convolved[-G * N :].view(G, N)
    S, y = S.clone(), torch.zeros(H, V, dtype=x.dtype)
    for h in range(H):
        group = h * G // H
        dt = math.log1p(math.exp(r[h] + core.b[h]))
        for n in range(N):
            S[h, n] = math.exp(-dt * math.exp(core.A_log[h])) * S[h, n] + B[group, n] * dt * v[h]
            y[h] += C[group, n] * S[h, n]
        y[h] += core.D[h] * v[h]
    gated = (y.flatten() * z / (1 + torch.exp(-z))).view(G, -1)
    normed = gated / torch.sqrt((gated**2).mean(1, keepdim=True) + 1e-5)
    return core.O @ (core.g * normed.flatten()), S, seen[1:]


@torch.no_grad()
def test_the_equations_with_a_carried_state_and_a_reset(randomised) -> None:
    core = randomised(Mamba2(3, 4, state_size=3, heads=4, groups=2, conv=3))
    x = torch.randn(1, 6, 3, dtype=torch.float64)
    start = type(core.init_state(0))(*(torch.randn_like(leaf) for leaf in core.init_state(1)))
    reset = torch.tensor([[False, False, False, True, False, False]])
    y, last = core.scan(x, start, reset=reset)
    S, window = start.S[0], start.window[0]
    for t in range(6):
        if reset[0, t]:
            S, window = torch.zeros_like(S), torch.zeros_like(window)
        expected, S, window = step_by_hand(core, x[0, t], S, window)
        torch.testing.assert_close(y[0, t], expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(last.S[0], S, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(last.window[0], window)


def test_the_first_steps_and_decays_are_those_of_the_paper() -> None:
    torch.manual_seed(0)
    core = Mamba2(2, 3, heads=600, state_size=1)
    dt, A = torch.log1p(torch.exp(core.b.detach().double())), core.A_log.detach().exp()
    assert dt.min() >= 0.001 * (1 - 1e-4) and dt.max() <= 0.1 * (1 + 1e-4)
    assert abs(float(dt.log().mean()) - math.log(0.01)) < 5 * math.log(100) / 12**0.5 / 600**0.5
    assert 1 <= A.min() < 1.5 and 15.5 < A.max() <= 16


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"state_size": 0}, "state_size is 0"),
        ({"expand": 1.5}, r"expand is 1\.5"),
        ({"heads": 0}, "heads is 0"),
        ({"heads": 3, "groups": 2}, "groups is 2, and there are 3 heads; it must divide them"),
        ({"conv": 0}, "conv is 0"),
    ],
)
def test_options_outside_their_range_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Mamba2(2, 3, **options)


@pytest.mark.parametrize(("size", "heads", "width"), [(3, 1, 6), (32, 1, 64), (33, 2, 33), (256, 8, 64)])
def test_heads_are_about_64_wide(size: int, heads: int, width: int) -> None:
    core = Mamba2(2, size, state_size=2)
    assert (core.heads, core.value_size) == (heads, width)
