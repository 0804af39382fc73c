"""Pools keep the laws, and are what their names say of everything so far."""

from pathlib import Path

import numpy as np
import pytest
import torch

from elman import kernels, laws
from elman import state as states
from elman.cells import cell
from elman.compose import Bidirectional, Pool, Stack
from elman.compose.pool import POOLS, _running_argmax
from elman.errors import FileError, UnknownNameError
from elman.stream import Stream
from elman.tasks.serving_numbers import ServedNumbers

each_kind = pytest.mark.parametrize("kind", POOLS)


@pytest.fixture(params=kernels.available())
def on(request):
    with kernels.use(request.param):
        yield request.param


@each_kind
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1, 4, 19])
def test_the_laws(on, kind, dtype, size):
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)  # a core without parameters is checked in this
    try:
        report = laws.check(Pool(kind, size).to(dtype), time=11)
    finally:
        torch.set_default_dtype(before)
    assert report.dtype == dtype and len(report.verdicts) == (8 if on == "native" else 7)
    assert report, report


@each_kind
def test_the_laws_behind_a_cell_and_in_a_network(on, kind):
    torch.manual_seed(0)
    assert laws.check(Stack(cell("gru", 3, 5), Pool(kind, 5), cell("mingru", 5, 2)))
    assert laws.check(Stack(Bidirectional(cell("gru", 3, 2), cell("gru", 3, 3)), Pool(kind, 5)))


def expected(core, x):
    """The pool of x (t, H), by numpy in float64, from its definition."""
    if core.kind != "attention":
        return {"last": lambda: x[-1], "mean": lambda: x.mean(0), "max": lambda: x.max(0)}[core.kind]()
    U, b, q = (p.detach().double().numpy() for p in (core.core.U, core.core.b, core.core.q[0]))
    weight = np.exp(np.tanh(x @ U.T + b) @ q)
    return (weight[:, None] * x).sum(0) / weight.sum()


@each_kind
def test_each_step_is_the_pool_so_far(on, kind):
    torch.manual_seed(0)
    core = Pool(kind, 3)
    x = torch.randn(2, 9, 3)
    reset = torch.zeros(2, 9, dtype=torch.bool)
    reset[1, 4] = True
    y, _ = core.scan(x, lengths=torch.tensor([7, 9]), reset=reset)
    for row, start, steps in ((0, 0, range(7)), (1, 0, range(4)), (1, 4, range(4, 9))):
        for t in steps:
            wanted = expected(core, x[row, start : t + 1].double().numpy())
            np.testing.assert_allclose(y[row, t].detach().numpy(), wanted, rtol=1e-5, atol=1e-6)
    assert not y[0, 7:].any()


@each_kind
def test_gradients(on, kind):
    torch.manual_seed(0)
    core = Pool(kind, 2).double()
    x = torch.randn(2, 5, 2, dtype=torch.float64, requires_grad=True)
    reset = torch.tensor([[False] * 5, [False, False, True, False, False]])
    assert torch.autograd.gradcheck(lambda x: core.scan(x, lengths=torch.tensor([4, 5]), reset=reset)[0], (x,))


def test_of_equal_inputs_the_earliest_gets_the_gradient_of_a_maximum(on):
    x = torch.tensor([[[1.0], [3.0], [3.0], [2.0]]], requires_grad=True)
    for y in (Pool("max", 1).scan(x)[0][:, -1], Pool("max", 1).core.step(x[:, 2], x[:, 1])[0]):
        (gradient,) = torch.autograd.grad(y.sum(), x)
        assert gradient.flatten().tolist() == [0, 1, 0, 0]


def test_the_running_maximum_is_the_loops():
    g = torch.Generator().manual_seed(0)
    for T in (1, 2, 3, 8, 33):
        x, first = torch.randint(0, 5, (4, T, 3), generator=g), torch.rand(4, T, generator=g) < 0.2
        first[:, 0] = True
        found = _running_argmax(x, first)
        for b in range(4):
            start = 0
            for t in range(T):
                start = t if first[b, t] else start
                assert torch.equal(found[b, t], start + x[b, start : t + 1].max(0).indices)


def test_attention_to_an_input_far_above_the_others_overflows_nowhere(on):
    """Also where the largest logit of an episode is far above those of the next."""
    core = Pool("attention", 1)
    with torch.no_grad():
        core.core.U.fill_(1.0), core.core.b.zero_(), core.core.q.fill_(1e4)
    x = torch.tensor([[[-2.0], [0.5], [2.0], [-1.0], [-2.0], [-2.0]]], requires_grad=True)
    reset = torch.tensor([[False, False, False, False, True, False]])
    y, state = core.scan(x, reset=reset)
    torch.testing.assert_close(y.flatten(), torch.tensor([-2.0, 0.5, 2.0, 2.0, -2.0, -2.0]))
    (gradient,) = torch.autograd.grad(y.sum() + state.sum.sum(), x)
    assert gradient.isfinite().all()


@each_kind
def test_pools_stream_as_they_scan(kind):
    torch.manual_seed(0)
    core = Stack(cell("gru", 3, 5), Pool(kind, 5)).eval()
    x = torch.randn(2, 6, 3)
    y, _ = core.scan(x)
    stream = Stream(core, 2)
    for t in range(6):
        torch.testing.assert_close(stream.step(x[:, t]), y[:, t].detach(), rtol=0, atol=0 if kernels.isa() else 1e-6)


@pytest.mark.slow
def test_a_mean_of_many_inputs_keeps_its_digits(on):
    """In float32 a sum of 0.1 is 1 % off after 10^6 inputs, and no longer grows after 2^24."""
    core = Pool("mean", 1)
    y, state = core.scan(torch.full((1, 10**6, 1), 0.1))
    np.testing.assert_allclose(y[0, -1].item(), np.float32(0.1), rtol=1e-7)
    late = state._replace(number=state.number * 0 + 2.0**24, sum=state.sum * 0 + 2.0**24)
    y, after = core.scan(torch.full((1, 3, 1), 2.0), late)
    assert after.number.item() == 2**24 + 3 and after.sum.item() == 2**24 + 6
    assert core.step(torch.full((1, 1), 2.0), late)[1].number.item() == 2**24 + 1


@pytest.mark.slow
def test_attention_to_many_inputs_keeps_its_digits(on):
    """Of equal inputs it is the mean, and its sum of weights a count."""
    torch.manual_seed(0)
    core = Pool("attention", 1)
    with torch.no_grad():
        x = torch.full((1, 1_000_000, 1), 0.1)
        y, state = core.scan(x)
        np.testing.assert_allclose(y[0, -1].item(), np.float32(0.1), rtol=1e-6)
        assert state.weight.item() == 10**6
        late = state._replace(weight=state.weight * 0 + 2.0**24, sum=state.sum * 0 + 0.1 * 2.0**24)
        assert core.scan(x[:, :3], late)[1].weight.item() == 2**24 + 3
        assert core.step(x[:, 0], late)[1].weight.item() == 2**24 + 1


@pytest.mark.parametrize("kind", ["mean", "attention"])
def test_states_of_when_sums_were_float32_are_read(kind):
    """The files were written at 867694c, of 50 inputs by this network, by the lines below."""
    torch.manual_seed(0)
    core = Stack(cell("gru", 2, 3), Pool(kind, 3))
    x = torch.randn(2, 50, 2)
    path = Path(__file__).parent / "version-867694c" / f"pool_{kind}.safetensors"
    read = states.load(path, core.init_state(0), fingerprint=states.fingerprint(core))
    _, now = core.scan(x)
    for old, new in zip(states.leaves(read), states.leaves(now), strict=True):
        assert old.dtype == new.dtype
        torch.testing.assert_close(old, new, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(core.scan(x, read)[0], core.scan(x, now)[0], rtol=1e-5, atol=1e-5)
    narrow = states.map(lambda leaf: leaf.float(), read)
    rows = [states.widen_row(row.tobytes(), now) for row in states.to_rows(narrow)]
    assert b"".join(rows) == states.to_rows(read).tobytes()
    assert states.widen_row(rows[0], now) == rows[0]
    with pytest.raises(FileError, match="another wrote it"):
        states.widen_row(rows[0][:-4], now)


def test_other_dtypes_are_still_refused():
    narrow = states.dump(cell("gru", 2, 3).init_state(1))
    with pytest.raises(FileError, match="float32"):
        states.parse(narrow, cell("gru", 2, 3).double().init_state(0))


def test_sessions_of_when_sums_were_float32_go_on():
    torch.manual_seed(0)
    core = Stack(cell("gru", 2, 3), Pool("mean", 3)).eval()
    served = ServedNumbers.of_core(core)
    _, state = core.scan(torch.randn(1, 5, 2))
    now = states.to_rows(state).tobytes()
    before = states.to_rows(states.map(lambda leaf: leaf.float(), state)).tobytes()
    assert len(before) < len(now)
    x = np.ones((2, 2), np.float32)
    (one, other), _, good = served.together(x, [before, now])
    assert len(one) == len(other) == len(now) and good == [True, True]
    wide = [states.from_rows(np.frombuffer(row, np.uint8)[None], state) for row in (one, other)]
    states.map(torch.testing.assert_close, *wide)
    work = served.reading([[1.0, 1.0]])
    work.begin(before)
    served.advance([work])
    assert work.end() == one
    states.map(torch.testing.assert_close, states.parse(served.dump(before), core.init_state(0)), state)


def test_an_unknown_pool_is_named():
    with pytest.raises(UnknownNameError, match="'median'"):
        Pool("median", 3)
