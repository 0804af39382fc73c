"""Layers over images: the laws of every Core, literal transcriptions of their equations, and what each pixel sees."""

from functools import cache

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from elman import kernels, laws
from elman.errors import InputError, UnknownNameError
from elman.tasks.image import DiagonalBiLSTM, MaskedConvolution, MultiLSTM, PixelNetwork, ResidualPixels, RowLSTM

B, R, C, D, N = 2, 4, 5, 3, 2
LAYERS = {
    "convolution A": lambda: MaskedConvolution(D, N, C, kernel=5, kind="A"),
    "convolution B": lambda: MaskedConvolution(D, N, C, kernel=3, kind="B"),
    "row": lambda: RowLSTM(D, N, C),
    "row, wide": lambda: RowLSTM(D, N, C, kernel=5),
    "diagonal": lambda: DiagonalBiLSTM(D, N, C),
    "multi": lambda: MultiLSTM(D, N, C),
    "residual": lambda: ResidualPixels(RowLSTM(D, N, C)),
    "network": lambda: PixelNetwork(D, N, C, layer="diagonal", layers=2, kernel=3),
}


def made(name, dtype=torch.float64):
    torch.manual_seed(0)
    core = LAYERS[name]().to(dtype)
    with torch.no_grad():
        for parameter in core.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))  # biases that are not zero
    return core


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("name", LAYERS)
def test_the_laws(name, dtype):
    report = laws.check(made(name, dtype), batch_size=4, time=4)
    assert report.ok, report
    assert report.exact or kernels.active() != "native", report


@pytest.mark.parametrize("name", ["row", "diagonal", "multi"])
def test_the_laws_on_the_reference(name):
    with kernels.use("reference"):
        report = laws.check(made(name), batch_size=4, time=4)
    assert report.ok, report


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def literal(cell, x, neighbours):
    """State (h, c) of pixel (r, c) by recursion, the equations of neighbours.py written out."""
    W, U, b = (getattr(cell, name).detach().numpy() for name in "WUb")
    rows, columns = x.shape[:2]

    @cache
    def state(r, c):
        before = []
        for down, right in neighbours:
            inside = 0 <= r + down < rows and 0 <= c + right < columns
            before.append(state(r + down, c + right) if inside else (np.zeros(N), np.zeros(N)))
        z = U @ x[r, c] + b + W @ np.concatenate([h for h, _ in before])
        i, g, o, *f = np.split(z, len(z) // N)
        cell_ = sigmoid(i) * np.tanh(g)
        for gate, (_, other) in zip(f, before, strict=False):
            cell_ = cell_ + sigmoid(gate) * other
        return sigmoid(o) * np.tanh(cell_), cell_

    return np.stack([[state(r, c)[0] for c in range(columns)] for r in range(rows)])


@pytest.mark.parametrize("name", ["diagonal", "multi"])
def test_diagonals_are_their_recursion(name):
    core, x = made(name), torch.randn(B, R, C, D, dtype=torch.float64)
    y, state = core.scan(x.flatten(-2))
    for b in range(B):
        left = literal(core.left, x[b].numpy(), [(0, -1), (-1, 0)])
        right = literal(core.right, x[b].numpy(), [(0, 1), (-1, 0)])
        left[1:] += right[:-1]  # the half from the right is read one row lower
        np.testing.assert_allclose(y[b].detach().reshape(R, C, N), left, atol=1e-12)
        np.testing.assert_allclose(state.right.h[b].detach(), right[-1], atol=1e-12)


def test_rows_are_their_recursion():
    core, x = made("row"), torch.randn(B, R, C, D, dtype=torch.float64)
    y, _ = core.scan(x.flatten(-2))
    beside = F.pad(x, (0, 0, 1, 0))[:, :, :-1]
    for b in range(B):
        read = torch.cat([beside[b], x[b]], -1).numpy()
        found = literal(core.cell, read, [(-1, 0), (-1, -1), (-1, 1)])
        np.testing.assert_allclose(y[b].detach().reshape(R, C, N), found, atol=1e-12)


@pytest.mark.parametrize("kind", ["A", "B"])
def test_the_masked_convolution_is_torchs(kind):
    core = made(f"convolution {kind}")
    k, x = core.reach, torch.randn(B, R, C, D, dtype=torch.float64)
    own = k + (kind == "B")
    square = torch.zeros(N, 2 * k + 1, 2 * k + 1, D, dtype=torch.float64)
    taps = core.U.detach().reshape(N, -1, D)
    square[:, :k] = taps[:, : k * (2 * k + 1)].reshape(N, k, 2 * k + 1, D)
    square[:, k, :own] = taps[:, k * (2 * k + 1) :]
    theirs = F.conv2d(x.permute(0, 3, 1, 2), square.permute(0, 3, 1, 2), core.b, padding=k)
    torch.testing.assert_close(core.scan(x.flatten(-2))[0].unflatten(-1, (C, N)), theirs.permute(0, 2, 3, 1))


@pytest.mark.parametrize("name", LAYERS)
def test_no_pixel_sees_a_later_one(name):
    """dy[pixel] / dx[later pixel] is zero, and of networks and convolutions A that of itself too."""
    core, T = made(name), R * C
    x = torch.randn(1, R, C * D, dtype=torch.float64)
    J = torch.autograd.functional.jacobian(lambda x: core.scan(x)[0], x)
    seen = J.reshape(T, core.size, T, core.channels).abs().amax((1, 3)) > 0  # (pixel out, pixel in)
    strict = name in ("convolution A", "network")
    assert not seen.triu(0 if strict else 1).any()
    if name in ("diagonal", "multi"):  # y knows every pixel before its own, and that
        assert seen[torch.ones(T, T).tril().bool()].all()
    if name == "network":  # all pixels before, but for the last one of the row above where the window ends before it
        r, c = torch.arange(T) // C, torch.arange(T) % C
        hidden = (r[:, None] == r + 1) & (c == C - 1) & (c[:, None] + 1 < C - 1)
        assert torch.equal(seen, torch.ones(T, T).tril(-1).bool() & ~hidden)


@pytest.mark.skipif(kernels.active() != "native", reason="of the native kernel")
def test_the_native_loop_is_called():
    before = kernels.calls().get("gathered", 0)
    made("diagonal").scan(torch.zeros(B, R, C * D, dtype=torch.float64))
    assert kernels.calls()["gathered"] == before + 2


def test_rows_are_drawn_pixel_by_pixel_as_they_are_scanned():
    core = made("network")
    x = torch.randn(B, R, C, D, dtype=torch.float64)
    whole, last = core.scan(x.flatten(-2))
    state = core.init_state(B)
    for r in range(R):
        row = core.open(state)
        for c in range(C):
            y, row = core.predict(row)  # before x[r, c] is known
            torch.testing.assert_close(y, whole[:, r].unflatten(-1, (C, -1))[:, c])
            row = core.put(x[:, r, c], row)
        state = core.close(row)
    torch.testing.assert_close(state, last)


@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 3, 1), (1, 1, 1), (2, 0, 3)])
@pytest.mark.parametrize("layer", [RowLSTM, DiagonalBiLSTM, MultiLSTM])
def test_images_of_few_pixels(layer, shape):
    images, rows, columns = shape
    core, x = layer(D, N, columns), torch.randn(images, rows, columns * D, requires_grad=True)
    y, state = core.scan(x)
    assert y.shape == (images, rows, columns * N)
    assert torch.autograd.grad(y.sum(), x)[0].shape == x.shape
    stepped = core.init_state(images)
    for row in x.unbind(1):
        _, stepped = core.step(row, stepped)
    torch.testing.assert_close(state, stepped)


def test_what_cannot_be_built_is_said():
    with pytest.raises(InputError, match="kernel is 4; it must be odd"):
        MaskedConvolution(D, N, C, kernel=4)
    with pytest.raises(InputError, match="kernel is 2; it must be odd"):
        RowLSTM(D, N, C, kernel=2)
    with pytest.raises(UnknownNameError, match=r"layer of an image model 'rwo'.*row"):
        PixelNetwork(D, N, C, layer="rwo")
    with pytest.raises(InputError, match="columns is 0"):
        DiagonalBiLSTM(D, N, 0)


def test_an_order_that_evaluation_made_serves_training():
    layer, x = DiagonalBiLSTM(1, 2, 7), torch.randn(3, 11, 7)  # a size that no other test has
    with torch.inference_mode():
        layer.scan(x)
    layer.scan(x)[0].sum().backward()
    assert layer.left.W.grad is not None
