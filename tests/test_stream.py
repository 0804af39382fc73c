"""Streams of cells, words and whole models: equal to `scan`, bit for bit, for any number of sessions."""

from __future__ import annotations

import copy
import pickle
import re
import weakref
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from elman import kernels
from elman import state as states
from elman.cells import CELLS, cell
from elman.compose import (
    Bidirectional,
    Dense,
    Dropout,
    Norm,
    Parallel,
    Pool,
    Residual,
    Stack,
    WeightDrop,
    Zoneout,
    stack,
)
from elman.compose.attention import Additive
from elman.core import Core
from elman.decoding.sample import Sampling
from elman.errors import InputError
from elman.kernels.builder import Unstreamable
from elman.model import SequenceModel
from elman.nn.distributions import Categorical
from elman.nn.embed import Embedding
from elman.nn.readout import (
    AdaptiveSoftmax,
    BernoulliReadout,
    GaussianReadout,
    NegativeBinomialReadout,
    PoissonReadout,
    Softmax,
    StudentTReadout,
)
from elman.stream import CoreStream, ModelStream, Stream, _contents, logits_of, stream_of

native_only = pytest.mark.skipif("native" not in kernels.available(), reason="without native kernels it is a scan")
VARIANTS = [(name, options) for name, kind in CELLS.items() for options in kind.variants]
WORDS = {
    "stack": lambda: stack("gru", 5, 9, layers=3, residual=True, norm="layer", dropout=0.2),
    "rms": lambda: stack("lstm", 5, 9, layers=2, norm="rms"),
    "inputs": lambda: Stack(cell("elman", 5, 3), cell("lru", 8, 4), inputs="all"),
    "parallel": lambda: Parallel(cell("gru", 5, 3), Stack(Norm(5), Dense(5, 5, activation="silu"))),
    "residual": lambda: Residual(Stack(cell("mgu", 5, 7), Dense(7, 5, activation="softplus"))),
    "mamba": lambda: stack("mamba", 5, 40, layers=2, norm="rms"),
    "wrapped": lambda: Dropout(WeightDrop(cell("lstm", 5, 4), 0.5), 0.5),
    "zoneout": lambda: Zoneout(cell("lstm", 5, 19), 0.1),
    "maximum": lambda: Stack(cell("gru", 5, 9), Pool("max", 9)),
}


class Sum(Core):
    """A core that does not say what its step is made of."""

    def init_state(self, batch_size: int) -> Tensor:
        return self.zeros(batch_size, self.output_size)

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return x + state, x + state


def same(given: Tensor, wanted: Tensor) -> bool:
    """Bit for bit on the native kernels; Torch's own promise rounding."""
    return torch.equal(given, wanted) if kernels.active() == "native" else torch.allclose(given, wanted, atol=1e-5)


def check(core: Core, rows: int, *, native: bool) -> None:
    core = core.eval()
    x = torch.randn(rows, 6, core.input_size, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        y, last = core.scan(x)
    stream = Stream(core, rows)
    assert stream.native == (native and kernels.active() == "native")
    for t in range(6):
        assert same(torch.from_numpy(stream.step(x[:, t].numpy())), y[:, t])
    assert all(map(same, states.leaves(stream.state), states.leaves(last)))


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_every_cell_streams_as_it_scans(name, options, rows):
    torch.manual_seed(0)
    for size in (5, 19):
        core = cell(name, size, size, **options)
        for parameter in core.parameters():  # gains of one and peepholes of zero would hide whether they are read
            torch.nn.init.normal_(parameter, std=0.2)
        check(core, rows, native=True)


@pytest.mark.parametrize("rows", [1, 17])
@pytest.mark.parametrize("name", WORDS)
def test_every_word_streams_as_it_scans(name, rows):
    torch.manual_seed(0)
    check(WORDS[name](), rows, native=True)


def test_what_has_no_native_form_is_scanned():
    check(Sum(4, 4), 2, native=False)


@pytest.mark.parametrize(
    "readout",
    [
        Softmax(9, 11),
        BernoulliReadout(9, 3),
        PoissonReadout(9, 3),
        GaussianReadout(9, 3),
        StudentTReadout(9, 3),
        NegativeBinomialReadout(9, 3),
        AdaptiveSoftmax(9, 11, [4]),
    ],
)
def test_models_stream_as_they_scan(readout):
    torch.manual_seed(0)
    model = SequenceModel(Embedding(11, 5), WORDS["stack"](), readout).eval()
    symbols = torch.randint(0, 11, (3, 6))
    with torch.no_grad():
        wanted, _ = model.scan(symbols)
    stream = Stream(model, 3)
    for t in range(6):
        given = stream.step(symbols[:, t])
        for tensor in ("logits", "mean", "std", "scale", "df", "shape"):
            if tensor in vars(wanted):  # its parameters; what is computed of them is not the stream's
                assert same(getattr(given, tensor), getattr(wanted, tensor)[:, t])
        assert same(given.mode, wanted.mode[:, t])


def model(symbols: int, *, dtype: torch.dtype | None = None) -> SequenceModel:
    torch.manual_seed(0)
    return SequenceModel(Embedding(symbols, 5, dtype=dtype), cell("gru", 5, 9), Softmax(9, 11)).eval()


@pytest.mark.parametrize("symbols", [11, 300_000])  # of the larger table a stream does not remember what it has made
def test_logits_of_symbols_that_come_again(symbols):
    whole = model(symbols)
    x = torch.tensor([[3, 1], [3, 3], [1, 3], [symbols - 1, 0], [3, symbols - 1], [4, 2], [5, 4]])  # (T, B)
    with torch.no_grad():
        wanted = whole.scan(x.T)[0].logits
    stream = Stream(whole, 2)
    with torch.no_grad():
        whole.embed.weight.zero_(), whole.core.U.zero_()  # a snapshot
    for t, symbol in enumerate(x):
        assert same(torch.from_numpy(stream.logits(symbol.numpy())), wanted[:, t])


def test_activations_in_bfloat16_stream_as_they_scan():
    whole, x = model(11, dtype=torch.bfloat16), torch.tensor([[3], [4]])
    with torch.no_grad():
        wanted = whole.scan(x)[0].logits[:, 0]
    assert torch.equal(Stream(whole, 2).step(x[:, 0].int()).logits, wanted)


@native_only
@pytest.mark.parametrize(
    ("x", "message"),
    [([1, 11], "no such symbol"), ([-1, 1], "no such symbol"), ([1], r"int64\[2\]"), ([0.5, 1], "are integers")],
)
def test_bad_symbols_are_refused(x, message):
    with pytest.raises(InputError, match=message):
        Stream(model(11), 2).step(x)


def test_logits_take_int64_alone():
    for x in (np.array([0.5, 1]), np.array([0, 1], np.int32)):
        with pytest.raises(InputError, match=r"it needs int64\[2\]"):
            Stream(model(11), 2).logits(x)
    assert Stream(model(11), 2).logits([0, 1]).shape == (2, 11)  # type: ignore[arg-type]


def test_sessions_fork_and_roll_back():
    torch.manual_seed(0)
    core = stack("gru", 3, 4, layers=2)
    one, two = Stream(core, 1), Stream(core, 2)
    one.step(torch.ones(1, 3))
    saved = one.state
    ahead = one.step(torch.zeros(1, 3))
    two.state = states.repeat(saved, 2)
    both = two.step(torch.tensor([[0.0] * 3, [1.0] * 3]))
    assert same(both[:1], ahead) and not torch.equal(both[0], both[1])
    one.state = saved
    assert torch.equal(one.step(torch.zeros(1, 3)), ahead)


def test_the_weights_are_a_snapshot():
    torch.manual_seed(0)
    core = cell("gru", 3, 4)
    stream, before = Stream(core, 1), core.scan(torch.ones(1, 1, 3))[0][:, 0]
    with torch.no_grad():
        core.W.zero_(), core.U.zero_()
    assert same(stream.step(torch.ones(1, 3)), before.detach())


BAD: dict[str, tuple[object, str]] = {
    "width": (np.zeros((2, 4), np.float32), r"float32\[2, 3\]"),
    "rows": (np.zeros((1, 3), np.float32), r"float32\[2, 3\]"),
    "dtype": (np.zeros((2, 3), np.complex64), r"complex64\[2, 3\]"),
}


@native_only
def test_double_rows_are_narrowed():
    x = np.random.default_rng(0).normal(size=(2, 3))
    core = cell("gru", 3, 4)
    assert np.array_equal(Stream(core, 2).step(x), Stream(core, 2).step(x.astype(np.float32)))


@native_only
@pytest.mark.parametrize(("x", "message"), BAD.values(), ids=BAD)
def test_bad_rows_are_refused(x, message):
    with pytest.raises(InputError, match=message):
        Stream(cell("gru", 3, 4), 2).step(x)


def test_a_stream_is_one_of_a_core_or_of_a_model():
    assert type(Stream(cell("gru", 3, 4), 1)) is CoreStream and type(Stream(model(11), 1)) is ModelStream
    assert isinstance(Stream(cell("gru", 3, 4), 1).share(2), CoreStream)


def test_bad_states_sizes_and_cores_are_refused():
    with pytest.raises(InputError, match=r"Stream was given a LSTM; it takes a Core .*elman\.from_torch"):
        Stream(torch.nn.LSTM(3, 4), 2)
    with pytest.raises(InputError, match="batch_size is 0; it must be a whole number of at least 1"):
        Stream(cell("gru", 3, 4), 0)
    with pytest.raises(InputError, match="reads the future"):
        Stream(Bidirectional(cell("gru", 3, 4), cell("gru", 3, 4)), 1)
    stream = Stream(cell("gru", 3, 4), 1)
    with pytest.raises(InputError, match="state"):
        stream.state = (Tensor([[1.0]]),)


@pytest.mark.parametrize("name", ["gru", "lstm", "lru", "mamba", "window"])
@pytest.mark.parametrize("size", [16, 5])  # with and without gaps between the leaves
def test_rows_as_bytes_are_those_of_the_state_and_go_on(name: str, size: int) -> None:
    torch.manual_seed(0)
    core = stack(name, 3, size, layers=2).eval()
    stream, other = Stream(core, 4), Stream(core, 2)
    x = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    stream.step(x)
    rows = states.to_rows(stream.take([3, 1]))
    other.put([0, 1], states.from_rows(rows, core.init_state(1)))
    assert np.array_equal(other.step(x[[3, 1]]), stream.step(x)[[3, 1]])
    assert np.array_equal(states.to_rows(other.state), states.to_rows(stream.take([3, 1])))
    with pytest.raises(InputError, match=r"expected \[1, .*state\.take or state\.repeat"):
        other.put([0], stream.take([3, 1]))
    with pytest.raises(InputError, match="none may be named twice"):
        other.put([0, 0], stream.take([3, 1]))


@pytest.mark.parametrize("table", kernels.available())
@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_a_stream_takes_the_states_that_a_scan_takes(name: str, table: str) -> None:
    core = cell(name, 3, 4)
    good = core.init_state(2)
    plain, double = tuple(good), states.map(lambda leaf: leaf.double(), good)
    with kernels.use(table):
        stream = Stream(core, 2)
        for bad in (plain, double, states.take(good, [0]), good[0], [*good]):
            with pytest.raises(InputError) as scanned:
                core.scan(torch.zeros(2, 1, 3), bad)
            with pytest.raises(InputError) as streamed:
                stream.state = bad
            assert str(streamed.value) == str(scanned.value).replace("[0, 4]", "[1, 4]")  # rows of what is shown
        stream.state = good


@pytest.mark.parametrize(
    "make", [*(lambda n=n: cell(n, 5, 5) for n in CELLS), lambda: Zoneout(cell("gru", 5, 16), 0.1)]
)
def test_states_that_are_carried_go_on_as_rows_do(make) -> None:
    """More rows than are stepped at once, of both layouts, from states that are not the start; no row is touched."""
    torch.manual_seed(0)
    core = make().eval()
    x = torch.randn(300, 3, 5)
    with torch.no_grad():
        _, before = core.scan(x[:, :2])
        y, after = core.scan(x[:, 2:], before)
    stream = Stream(core, 1)
    untouched = states.to_rows(stream.state).tobytes()
    found, carried = stream.carry(x[:, 2].numpy(), states.to_rows(before).tobytes())
    last = states.from_rows(np.frombuffer(carried, np.uint8).reshape(300, -1).copy(), core.init_state(1))
    assert same(torch.from_numpy(found), y[:, 0])
    assert all(map(same, states.leaves(last), states.leaves(after)))
    alone, one = stream.carry(x[:1, 2].numpy(), states.to_rows(before)[:1].tobytes())
    if kernels.active() == "native":
        assert np.array_equal(alone, found[:1]) and carried.startswith(one)
    assert stream.carry(x[:0, 2].numpy(), b"")[1] == b"" and states.to_rows(stream.state).tobytes() == untouched


@pytest.mark.parametrize("size", [16, 9])  # with and without gaps between the leaves
@pytest.mark.parametrize("readout", [Softmax, lambda n, V: AdaptiveSoftmax(n, V, [4])], ids=["softmax", "adaptive"])
def test_symbols_are_carried_as_rows_read_them(size, readout) -> None:
    """One, many, fewer again: to the bits of a stream that has as many rows, which are not touched."""
    torch.manual_seed(0)
    whole = SequenceModel(Embedding(11, 5), stack("lstm", 5, size, layers=2), readout(size, 11)).eval()
    stream, symbols = Stream(whole, 70), np.arange(70) % 11
    stream.step(symbols)
    carried, untouched = states.to_rows(stream.state), states.to_rows(stream.state).tobytes()
    for n in (1, 70, 3):
        said, after = stream.carry(symbols[:n], carried[:n].tobytes())
        rows = stream.share(n)
        rows.state = states.from_rows(carried[:n].copy(), whole.init_state(1))
        assert np.array_equal(logits_of(said), rows.logits(symbols[:n]))
        assert after == states.to_rows(rows.state).tobytes()
    assert states.to_rows(stream.state).tobytes() == untouched
    with pytest.raises(InputError, match="2 inputs were given"):
        stream.carry(symbols[:2], carried[:1].tobytes())


class Doubling:
    """A model that is not a SequenceModel; its state is how much it has read."""

    def init_state(self, batch_size):
        return torch.zeros(batch_size, 1)

    def step(self, x, state):
        return Categorical(torch.nn.functional.one_hot(x * 2 % 5, 5).float()), state + x[:, None]


def test_whatever_has_a_state_and_a_step_is_streamed() -> None:
    stream = ModelStream(Doubling(), 3)
    assert not stream.native
    assert stream.step(np.array([1, 2, 4])).mode.tolist() == [2, 4, 3]
    assert stream.logits(np.array([3]), rows=[1]).argmax(1).tolist() == [1]
    assert stream.state.tolist() == [[1.0], [5.0], [4.0]]
    said, after = stream.carry(np.array([1, 1]), states.to_rows(stream.take([2, 0])).tobytes())
    assert said.mode.tolist() == [2, 2] and np.frombuffer(after, np.float32).tolist() == [5.0, 2.0]


def test_a_model_over_numbers_has_no_logits() -> None:
    numbers = SequenceModel(Embedding(11, 5), cell("gru", 5, 9), GaussianReadout(9, 2)).eval()
    for ask in (Stream(numbers, 1).logits, Stream(numbers, 1).log_probs):
        with pytest.raises(InputError, match="a Gaussian, which is not over symbols"):
            ask(np.array([3]))


def test_carrying_refuses_what_does_not_fit() -> None:
    stream = Stream(cell("gru", 3, 4), 1)
    with pytest.raises(InputError, match="a state has 16"):
        stream.carry(np.ones((2, 3), np.float32), bytes(16))
    if stream.native:
        with pytest.raises(InputError, match="needs float32"):
            stream.carry(np.ones((1, 2), np.float32), bytes(16))


@pytest.mark.parametrize("name", ["gru", "jordan"])
def test_what_is_not_an_array_is_refused(name):
    stream = Stream(cell(name, 3, 4), 1)
    with pytest.raises(InputError, match=r"a step was given a list; it takes a numpy array or a tensor"):
        stream.step([[1.0, 2.0, 3.0]])
    with pytest.raises(InputError, match="carry was given a list"):
        stream.carry([[1.0, 2.0, 3.0]], bytes(16))


class Own(Core):
    """Without a native form."""

    def init_state(self, batch_size):
        return torch.zeros(batch_size, self.output_size)

    def step(self, x, state):
        state = torch.sin(state + x)
        return state, state


@pytest.mark.parametrize("core", [cell("gru", 3, 3), Own(3, 3)], ids=["native", "scanned"])
def test_a_deep_copy_stands_where_the_stream_stands_and_goes_its_own_way(core):
    x = np.random.default_rng(0).normal(size=(3, 2, 3)).astype(np.float32)
    stream = Stream(core, 2)
    stream.step(x[0])
    twin = copy.deepcopy(stream)
    wanted = stream.step(x[1])
    assert np.array_equal(twin.step(x[1]), wanted)
    twin.step(x[2])
    assert not np.array_equal(states.to_rows(twin.state), states.to_rows(stream.state))
    for how in (copy.copy, pickle.dumps):
        with pytest.raises(InputError, match="cannot be pickled"):
            how(stream)


def test_rows_of_a_core_that_is_scanned_read_their_own_memory():
    """As many rows as the time before, and others: each looks at what is its own."""
    torch.manual_seed(0)
    decoder = Additive(cell("lru", 3 + 4, 5), 4)
    with torch.no_grad():
        core = decoder.given(torch.randn(4, 6, 4), torch.tensor([6, 3, 5, 1]))
        x = torch.randn(4, 3, 3)
        wanted, _ = core.scan(x)
    stream = Stream(core, 4)
    assert not stream.native
    for t, orders in enumerate(([[0, 1], [2, 3]], [[3], [2], [1], [0]], [[1, 3], [2, 0]])):
        for rows in orders:
            assert torch.equal(stream.step(x[rows, t], rows), wanted[rows, t])


# Weights in fewer bits


def narrowed(w: Tensor, weights: str) -> Tensor:
    """What a matrix is after it was stored so: in bfloat16, or in 8 bits by groups of 64 columns."""
    if weights == "bfloat16":
        return w.bfloat16().float()
    groups = []
    for part in w.split(64, dim=1):
        scale = part.abs().amax(1, keepdim=True) / 127
        groups.append(torch.where(scale > 0, (part / scale).round(), 0.0) * scale)
    return torch.cat(groups, 1)


MATRICES = ("U", "W", "P", "linear.weight")  # what products read; biases, gains and tables stay as they are


@native_only
@pytest.mark.parametrize("weights", ["bfloat16", "int8"])
@pytest.mark.parametrize(("name", "size"), [("gru", 100), ("lstm", 70), ("mgu", 20), ("elman", 9)])
def test_narrow_weights_are_the_rounded_ones(name: str, size: int, weights: str) -> None:
    torch.manual_seed(0)
    core = stack(name, 130, size, layers=2).eval()
    stream, rounded = Stream(core, 3, weights), copy.deepcopy(core)
    with torch.no_grad():
        for key, parameter in rounded.named_parameters():
            if key.endswith(MATRICES):
                parameter.copy_(narrowed(parameter, weights))
    x = torch.randn(3, 5, 130)
    wanted = rounded.scan(x)[0].detach()
    found = torch.stack([stream.step(x[:, t]) for t in range(5)], 1)
    torch.testing.assert_close(found, wanted, atol=2e-6, rtol=1e-5)
    assert not torch.allclose(found, core.scan(x)[0], atol=2e-6, rtol=1e-5)  # the rounding shows


@native_only
@pytest.mark.parametrize("weights", [None, "bfloat16", "int8"])
@pytest.mark.parametrize("name", ["gru", "lstm", "mgu", "minlstm"])
def test_a_row_has_its_bits_in_any_batch_and_on_any_threads(name: str, weights: str | None) -> None:
    """Wide enough that threads divide the units of a row."""
    torch.manual_seed(0)
    core, x = stack(name, 201, 401, layers=2).eval(), torch.randn(9, 4, 201)

    def steps(rows: list[int]) -> Tensor:
        stream = Stream(core, len(rows), weights)
        return torch.stack([stream.step(x[rows, t]) for t in range(4)], 1)

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        wanted = steps(list(range(9)))
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            for rows in ([0], [8], [3, 1], list(range(9))):
                assert torch.equal(steps(rows), wanted[rows])
    finally:
        torch.set_num_threads(before)


@native_only
@pytest.mark.parametrize(
    "hold", [lambda y: y, lambda y: y[0], memoryview, torch.from_numpy, lambda y: y.T, lambda y: [y]]
)
def test_an_output_that_somebody_holds_is_not_written_to(hold: Callable[[np.ndarray], object]) -> None:
    stream, x = Stream(cell("gru", 3, 4), 2), np.ones((2, 3), np.float32)
    held, copies = [], []
    for _ in range(6):
        y = stream.step(x)
        copies.append(y.copy())
        held.append(hold(y))
        del y
    for kept, wanted in zip(held, copies, strict=True):
        numbers = np.asarray(kept[0] if isinstance(kept, list) else kept)
        assert np.array_equal(np.sort(numbers.ravel()), np.sort((wanted[:1] if numbers.ndim == 1 else wanted).ravel()))
    assert not np.array_equal(copies[0], copies[1])


@native_only
def test_an_output_that_nobody_holds_is_used_again_as_it_was() -> None:
    stream, x = Stream(cell("gru", 3, 4), 2), np.ones((2, 3), np.float32)
    places = set()
    for _ in range(20):
        y = stream.step(x)
        places.add(y.ctypes.data)
    assert len(places) == 2  # y still names one when the next is made
    y.shape = (8,)
    y = stream.step(x)
    y.flags.writeable = False
    del y
    for _ in range(3):
        y = stream.step(x)
        assert y.shape == (2, 4) and y.flags.writeable
        del y
    assert stream.step(x[:1], [1]).shape == (1, 4)
    assert stream.step(stream.step(x)[:, :3].copy()).shape == (2, 4)
    large = Stream(cell("indrnn", 3, 5_000), 4)
    freed = weakref.finalize(large.step(np.ones((4, 3), np.float32)), lambda: None)
    assert not freed.alive  # a large one is not kept


@native_only
def test_an_input_may_lie_anyhow_and_be_of_any_numbers() -> None:
    x = np.random.default_rng(0).normal(size=(3, 2)).astype(np.float32).T
    x.flags.writeable = False
    core = cell("gru", 3, 4)
    wanted = Stream(core, 2).step(x.copy("C"))
    odd = np.frombuffer(b"." + x.tobytes(), np.float32, offset=1).reshape(2, 3)
    for given in (x, x.astype(np.float64), x.astype(">f4"), odd):
        assert np.array_equal(Stream(core, 2).step(given), wanted)
    assert np.array_equal(Stream(core, 2).step(np.ones((2, 3), int)), Stream(core, 2).step(np.ones((2, 3), np.float32)))


@native_only
@pytest.mark.parametrize(
    "x",
    [np.ones((2, 4), np.float32), np.ones(3, np.float32), np.ones((3, 2), np.float32), np.ones((2, 2)),
     np.ones((2, 3), complex), np.ones((2, 3), "M8[s]"), np.array([[None] * 3] * 2)],
)  # fmt: skip
def test_an_array_that_is_not_an_input_is_refused(x: np.ndarray) -> None:
    said = f"a step was given {x.dtype}{list(x.shape)}; it needs float32[2, 3]"
    with pytest.raises(InputError, match=re.escape(said)):
        Stream(cell("gru", 3, 4), 2).step(x)


def test_what_narrow_weights_cannot_be() -> None:
    core = cell("gru", 3, 4)
    with pytest.raises(InputError, match="weights is 'int4'; it must be one of 'bfloat16', 'int8'"):
        Stream(core, 1, weights="int4")
    with pytest.raises(InputError, match=r"weights is 'int8'.*float64"):
        Stream(core.double(), 1, weights="int8")
    with kernels.use("reference"), pytest.raises(InputError, match=r"weights is 'int8'.*reference kernels"):
        Stream(cell("gru", 3, 4), 1, weights="int8")


@native_only
def test_a_weight_that_is_no_number_is_not_lost_in_8_bits() -> None:
    core = cell("gru", 3, 4)
    with torch.no_grad():
        core.W[0, 1] = float("nan")
    assert np.isnan(Stream(core, 1, "int8").step(np.ones((1, 3), np.float32))).any()


@native_only
def test_weights_whose_scale_has_few_bits_keep_their_sign_in_8_bits() -> None:
    core = cell("elman", 1, 4)
    with torch.no_grad():
        for parameter in core.parameters():
            parameter.zero_()
        core.U.fill_(190 * 2.0**-149)  # a scale of 190 / 127 of the smallest number is rounded to 1
    y = Stream(core, 1, "int8").step(np.full((1, 1), 1e36, np.float32))
    assert (y > 0).all() and (y < 1e-6).all()


# What is kept with a model


def language_model() -> SequenceModel:
    torch.manual_seed(0)
    return SequenceModel(Embedding(7, 5), stack("gru", 5, 9, layers=2), Softmax(9, 7)).eval()


@native_only
@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.core.cores[1].U.data.mul_(1.5),  # which no counter of Torch sees
        lambda m: m.readout.linear.bias.detach().numpy().__setitem__(2, 3.0),
        lambda m: m.load_state_dict({k: v + 0.1 for k, v in m.state_dict().items()}),
        lambda m: torch.optim.SGD(m.parameters(), 1.0, weight_decay=0.5).step(),
        lambda m: setattr(m, "readout", Softmax(9, 7).eval()),
        lambda m: m.core.cores[0].b.data.copy_(m.core.cores[0].b.data.flip(0) + torch.arange(27)),
    ],
)
def test_a_stream_that_was_kept_is_never_an_old_one(change) -> None:
    model = language_model()
    symbols = np.array([3, 1])
    before = stream_of(model, 2).logits(symbols)
    assert np.array_equal(stream_of(model, 2).logits(symbols), before)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    change(model)
    after = stream_of(model, 2).logits(symbols)
    assert np.array_equal(after, ModelStream(model, 2).logits(symbols)) and not np.array_equal(after, before)


@native_only
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(256, 256), (40, 33), (1, 3)])
def test_a_digest_sees_signs_exponents_and_places(shape, dtype) -> None:
    w = torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(0))
    changed = [w.clone() for _ in range(10)]
    changed[0].neg_()
    changed[1].mul_(2)
    changed[2][:, 0].neg_()
    changed[3][:, 1::2].neg_()
    changed[4][0, 0].neg_()
    changed[5][[0, -1]] = changed[5][[-1, 0]]
    changed[6] = changed[6].flip(1)
    changed[7][:, :2].neg_()
    changed[8].mul_(-2)
    changed[9][:, [0, 2]] = changed[9][:, [2, 0]]
    different = {tuple(x.flatten().tolist()) for x in [w, *changed]}
    assert len({kernels.digest(x) for x in [w, *changed]}) == len(different) > 6


@native_only
def test_a_digest_sees_every_number_alone() -> None:
    """Three rounds of 256 bytes, and a part of one."""
    one = torch.eye(200)
    assert len({kernels.digest(row.clone()) for row in (torch.zeros(200), *one, *-one)}) == 401


class Scaled(Softmax):
    """With a setting of some type."""

    def __init__(self, setting: object) -> None:
        super().__init__(9, 7)
        self.setting = setting

    def describe_step(self, builder, y):
        setting = self.setting
        factor = setting(1.0) if callable(setting) else setting["a"] if isinstance(setting, dict) else setting[0]
        return builder.linear(y, self.linear.weight * factor, self.linear.bias)


def _put(setting, value) -> None:
    setting["a" if isinstance(setting, dict) else 0] = value


@native_only
@pytest.mark.parametrize(
    ("setting", "change"),
    [
        ([1.0], lambda m: _put(m.readout.setting, 3.0)),
        ({"a": 1.0}, lambda m: _put(m.readout.setting, 3.0)),
        ((1.0,), lambda m: setattr(m.readout, "setting", (3.0,))),
        (torch.ones(1), lambda m: m.readout.setting.mul_(3)),
        ((torch.ones(1),), lambda m: m.readout.setting[0].mul_(3)),
        (abs, lambda m: setattr(m.readout, "setting", lambda x: 3 * x)),
    ],
    ids=["list", "dict", "tuple", "tensor", "tensor in a tuple", "function"],
)
def test_a_setting_that_changes_is_seen(setting, change) -> None:
    torch.manual_seed(0)
    model = SequenceModel(Embedding(7, 5), cell("gru", 5, 9), Scaled(setting)).eval()

    symbols = np.array([3, 1])
    before = stream_of(model, 2).logits(symbols)
    change(model)
    after = stream_of(model, 2).logits(symbols)
    assert np.array_equal(after, ModelStream(model, 2).logits(symbols)) and not np.array_equal(after, before)


@native_only
def test_parameters_that_are_tied_in_another_way_are_seen() -> None:
    layers = torch.nn.Sequential(*(torch.nn.Linear(3, 3, bias=False) for _ in range(3)))
    x, y = layers[0].weight, layers[2].weight
    layers[1].weight = x
    before = _contents(layers)
    layers[1].weight, layers[2].weight = y, x
    assert _contents(layers) != before


def test_a_decoder_with_a_memory_of_some_rows_is_streamed_with_them() -> None:
    torch.manual_seed(0)
    decoder = Additive(cell("gru", 5 + 4, 9), 4)
    memory = torch.randn(2, 6, 4)
    bound = decoder.given(memory, torch.tensor([6, 3]))
    model = SequenceModel(Embedding(7, 5), bound, Softmax(bound.output_size, 7)).eval()
    symbols = np.array([3, 1])
    for _ in range(2):
        assert np.array_equal(stream_of(model, 2).logits(symbols), ModelStream(model, 2).logits(symbols))


@native_only
def test_a_softmax_that_cannot_be_described_is_called() -> None:
    class Undescribed(Softmax):
        def describe_step(self, builder, y):
            raise Unstreamable("not this one")

    torch.manual_seed(0)
    model = SequenceModel(Embedding(7, 5), cell("gru", 5, 9), Undescribed(9, 7)).eval()
    stream = ModelStream(model, 2)
    assert not stream.writes and stream.logits(np.array([3, 1])).shape == (2, 7)


@native_only
def test_what_is_packed_is_packed_once() -> None:
    model = language_model()
    first, second = stream_of(model, 2), stream_of(model, 3)
    assert first._engine._program is second._engine._program
    assert stream_of(model, 1, "int8")._engine._program is not first._engine._program


@native_only
@pytest.mark.parametrize("threads", [1, 2])
def test_reading_is_stepping(threads: int) -> None:
    torch.manual_seed(0)
    model = SequenceModel(Embedding(7, 300), stack("gru", 300, 300, layers=2), Softmax(300, 7)).eval()
    one, other, symbols = ModelStream(model, 3), ModelStream(model, 3), np.array([1, 5, 2, 2, 6])
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        one.read(symbols, 1)
    finally:
        torch.set_num_threads(before)
    for symbol in symbols:
        other.logits(np.array([symbol]), [1])
    assert all(map(torch.equal, states.leaves(one.state), states.leaves(other.state)))


@native_only
def test_a_pending_symbol_that_is_not_there_is_refused() -> None:
    stream = stream_of(language_model(), 2)
    for symbol in (-1, 7):
        pending = {"symbols": torch.tensor([3, symbol]), "seen": torch.zeros(2, 7, dtype=torch.bool)}
        pending["draws"] = torch.zeros(2, 2, dtype=torch.int64)
        with pytest.raises(IndexError, match="a symbol is outside the table"):
            stream.write(Sampling().choice, pending, np.array([0, 1]), 1, 0)


@native_only
def test_a_kept_stream_is_one_of_the_kernels_in_use() -> None:
    model = language_model()
    assert stream_of(model, 1).native
    with kernels.use("reference"):
        assert not stream_of(model, 1).native
    assert stream_of(model, 1).native


@native_only
def test_a_kept_stream_has_the_settings_that_the_model_has_now() -> None:
    model = SequenceModel(Embedding(7, 5), cell("elman", 5, 9), Softmax(9, 7)).eval()
    symbols = np.array([3])
    before = stream_of(model, 1).logits(symbols)
    model.core.phi = "relu"
    after = stream_of(model, 1).logits(symbols)
    assert np.array_equal(after, ModelStream(model, 1).logits(symbols)) and not np.array_equal(after, before)
