"""Lags and Scale keep the laws, and are what their definitions say."""

import numpy as np
import pytest
import torch

import elman
from elman import kernels, laws
from elman.cells import cell
from elman.compose import Columns, Lags, Parallel, Scale, Stack
from elman.errors import InputError

CORES = {
    "lags": lambda: Lags(2, [0, 1, 5]),
    "no past": lambda: Lags(3, [0]),
    "long": lambda: Lags(1, [30]),
    "scale": lambda: Scale(3),
    "decaying": lambda: Scale(1, decay=0.9),
    "columns": lambda: Columns(4, 1, 2),
}


@pytest.fixture(params=kernels.available())
def on(request):
    with kernels.use(request.param):
        yield request.param


@pytest.mark.parametrize("name", CORES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_laws(on, name, dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)  # a core without parameters is checked in this
    try:
        report = laws.check(CORES[name]().to(dtype), time=11)
    finally:
        torch.set_default_dtype(before)
    assert report.dtype == dtype and report, report
    assert report.exact or on != "native"


def test_the_laws_before_a_cell(on):
    torch.manual_seed(0)
    front = Parallel(Lags(4, [0, 3]), Stack(Columns(4, 0, 2), Scale(1)))
    report = laws.check(Stack(front, cell("lstm", 9, 3)))
    assert report and (report.exact or on != "native"), report


def test_lags_and_scale_are_their_definitions(on):
    g = np.random.default_rng(0)
    x = g.normal(size=(1, 12, 2)).astype(np.float32)
    x[..., 1] = g.random((1, 12)) < 0.7
    reset = torch.zeros(1, 12, dtype=torch.bool)
    reset[0, 5] = True
    lagged, _ = Lags(2, [1, 4]).scan(torch.from_numpy(x), reset=reset)
    scaled, state = Scale(1, decay=0.8).scan(torch.from_numpy(x), reset=reset)
    for t in range(12):
        start = 5 if t >= 5 else 0
        for column, delay in enumerate((1, 4)):
            wanted = x[0, t - delay] if t - delay >= start else np.zeros(2)
            np.testing.assert_array_equal(lagged[0, t, 2 * column : 2 * column + 2].numpy(), wanted)
        weights = 0.8 ** np.arange(t - start, -1, -1) * x[0, start : t + 1, 1]
        wanted = (weights * np.abs(x[0, start : t + 1, 0])).sum() / weights.sum() if weights.sum() else 0.0
        assert scaled[0, t, 0].item() == pytest.approx(wanted, rel=1e-5)
    assert state.weight.item() == pytest.approx(weights.sum(), rel=1e-5)


def test_a_state_that_was_kept_in_the_middle_is_the_whole(on):
    """Bit for bit, one input at a time."""
    torch.manual_seed(0)
    core, x = Parallel(Lags(2, [0, 7]), Scale(1, decay=0.99)), torch.randn(3, 40, 2).abs()
    whole, last = core.scan(x)
    state, pieces = core.init_state(3), []
    for t in range(40):
        y, state = core.scan(x[:, t : t + 1], state)
        pieces.append(y)
    same = torch.equal if on == "native" else torch.allclose
    assert same(torch.cat(pieces, 1), whole) and same(state[1].sum, last[1].sum)


@pytest.mark.slow
def test_a_scale_stays_right_over_many_steps(on):
    """A sum of float32 is 1 % off after 10^6 terms of 0.1, and stays where it is from 2^24 on."""
    x = torch.tensor([0.1, 1.0]).expand(1, 10**6, 2)
    y, state = Scale(1).scan(x)
    assert y[0, -1].item() == pytest.approx(0.1, rel=1e-6) and state.weight.item() == 10**6
    late = state._replace(sum=torch.full((1, 1), 2.0**24).double(), weight=torch.full((1, 1), 2.0**24).double())
    fives = torch.tensor([5.0, 1.0]).expand(1, 2**16, 2)
    wanted = (2**24 + 5 * 2**16) / (2**24 + 2**16)
    assert Scale(1).scan(fives, late)[0][0, -1].item() == pytest.approx(wanted, rel=1e-7)
    stream = elman.Stream(Scale(1), 1)
    stream.state = late
    for _ in range(5):
        stream.step(np.array([[5.0, 1.0]], np.float32))
    assert stream.native == (on == "native")
    assert stream.state.weight.item() == 2**24 + 5 and stream.state.sum.item() == 2**24 + 25


def test_a_scale_of_large_values_is_in_range(on):
    """The sum is past what float32 holds; the mean is not."""
    x = torch.tensor([3e38, 1.0]).expand(1, 9, 2)
    assert Scale(1).scan(x)[0][0, -1].item() == pytest.approx(3e38, rel=1e-6)
    stream = elman.Stream(Scale(1), 1)
    for _ in range(9):
        y = stream.step(x[:, 0].numpy())
    assert y.item() == pytest.approx(3e38, rel=1e-6)


def test_bad_options_are_named():
    with pytest.raises(InputError, match="no delays"):
        Lags(1, [])
    with pytest.raises(InputError, match=r"decay is 1\.5"):
        Scale(1, decay=1.5)
    with pytest.raises(InputError, match="first is 3"):
        Columns(4, 3, 2)
