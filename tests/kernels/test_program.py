"""A stream is a scan in steps of one, bit for bit: every gated kind, the linear scan, norms, stacks and read-outs."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from elman import kernels
from elman.cells import cell
from elman.compose import Dense, Norm, Parallel, Stack, WeightDrop, stack
from elman.core import Core
from elman.errors import InputError

native = pytest.importorskip("elman.kernels.native")
from elman.kernels.builder import Builder, Slot, Unstreamable  # noqa: E402
from elman.kernels.native.gated import KINDS  # noqa: E402
from elman.stream import Stream  # noqa: E402


class Gated(Core):
    """Any kind of gated cell, by its kernel."""

    def __init__(self, kind: str, D: int, H: int) -> None:
        super().__init__(D, H)
        self.kind, facts = kind, KINDS[kind]
        self.U = nn.Parameter(torch.randn(facts.gates * H, D) * D**-0.5)
        self.b = nn.Parameter(torch.randn(facts.gates * H))
        weights = [torch.randn(facts.gates * H, H) * H**-0.5] if facts.matrix else []
        if kind == "gru" or kind.startswith(("rate", "indrnn")):
            weights.append(torch.rand(H))
        self.w = nn.ParameterList(nn.Parameter(w) for w in weights)

    def init_state(self, batch_size: int) -> tuple[Tensor, ...]:
        return tuple(self.U.new_zeros(batch_size, self.output_size) for _ in range(KINDS[self.kind].states))

    def _scan(self, x: Tensor, state: Any, lengths: Tensor, reset: Tensor) -> tuple[Tensor, Any]:
        u = kernels.linear(x, self.U, self.b)
        return kernels.gated(self.kind, u, tuple(self.w), state, lengths, reset, None)  # type: ignore[arg-type]

    def describe_step(self, builder: Builder, x: Slot, state: Any) -> Slot:
        return builder.gated(self.kind, x, self.U, self.b, tuple(self.w), state)


class Scanned(Core):
    """A core with nothing but a step: it is streamed by scans of one."""

    def __init__(self, input_size: int, size: int) -> None:
        super().__init__(input_size, size)
        self.W = nn.Parameter(torch.randn(size, input_size))

    def init_state(self, batch_size: int) -> Tensor:
        return self.zeros(batch_size, self.output_size)

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(x @ self.W.T + state)
        return h, h


class Linear(Core):
    """h = a h + b x, real or complex; y = h (as pairs), normalised, gated by a sigmoid, beside half of x."""

    def __init__(self, D: int, C: int, *, complex_: bool) -> None:
        super().__init__(D, 0 or (2 * C if complex_ else C) + D)
        self.C, self.complex_ = C, complex_
        self.width = 2 * C if complex_ else C
        self.a = nn.Parameter(torch.rand(self.width) * 0.7)
        self.B, self.gain, self.bias = (
            nn.Parameter(torch.randn(s)) for s in ((self.width, D), (self.width,), (self.width,))
        )

    def _pairs(self, v: Tensor) -> Tensor:
        return torch.view_as_complex(v.unflatten(-1, (-1, 2))) if self.complex_ else v

    def init_state(self, batch_size: int) -> Tensor:
        return self._pairs(torch.zeros(batch_size, self.width))

    def _scan(self, x: Tensor, state: Any, lengths: Tensor, reset: Tensor) -> tuple[Tensor, Any]:
        b = kernels.linear(x, self.B)
        h, last = kernels.linear_scan(self._pairs(self.a), self._pairs(b), state, lengths, reset)
        h = torch.view_as_real(h).flatten(-2) if self.complex_ else h
        h = native.layer_norm(h, self.gain, self.bias, 1e-5)
        h = native.rms_norm(torch.relu(h) + kernels.softplus(h), self.gain, 1e-5)
        return torch.cat([h * kernels.sigmoid(b), x], -1), last

    def describe_step(self, builder: Builder, x: Slot, state: Any) -> Slot:
        b = builder.linear(x, self.B)
        h = builder.scan(builder.constant(self.a), b, state, is_complex=self.complex_)
        h = builder.layer_norm(h, self.gain, self.bias, 1e-5)
        h = builder.rms_norm(builder.add(builder.map("relu", h), builder.map("softplus", h)), self.gain, 1e-5)
        both = builder.concat([x, builder.mul(h, builder.map("sigmoid", b))])
        return builder.concat([builder.cut(both, x.width, h.width), builder.cut(both, 0, x.width)])


class Chain(Core):
    def __init__(self, *cores: Core) -> None:
        super().__init__(cores[0].input_size, cores[-1].output_size)
        self.cores = nn.ModuleList(cores)

    def init_state(self, batch_size: int) -> Any:
        return tuple(core.init_state(batch_size) for core in self.cores)  # type: ignore[operator]

    def _scan(self, x: Tensor, state: Any, lengths: Tensor, reset: Tensor) -> tuple[Tensor, Any]:
        ends = []
        for core, part in zip(self.cores, state, strict=True):
            x, end = core._scan(x, part, lengths, reset)  # type: ignore[operator]
            ends.append(end)
        return x, tuple(ends)

    def describe_step(self, builder: Builder, x: Slot, state: Any) -> Slot:
        for core, part in zip(self.cores, state, strict=True):
            x = core.describe_step(builder, x, part)
        return x


def check(core: Core, B: int, T: int = 5) -> Stream:
    """Bits of outputs and of the last state; then the same from the middle, from a state put back."""
    x = torch.randn(B, T, core.input_size)
    with torch.no_grad():
        expected, last = core.scan(x)
    stream = Stream(core, B)
    assert stream.native
    for t in range(T):
        if t == 2:
            middle = stream.state
        assert np.array_equal(stream.step(x[:, t].numpy()), expected[:, t].numpy()), t
    assert all(map(torch.equal, leaves(stream.state), leaves(last)))
    stream.state = middle
    for t in range(2, T):
        assert torch.equal(stream.step(x[:, t]), expected[:, t])
    return stream


def leaves(state: Any) -> list[Tensor]:
    from elman import state as states

    return states.leaves(state)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("D,H", [(3, 7), (16, 128), (5, 65), (1, 1)])
def test_gated_kinds(kind: str, D: int, H: int) -> None:
    torch.manual_seed(0)
    core = Gated(kind, D, H)
    for B in (1, 2, 3, 8):
        check(core, B)


@pytest.mark.parametrize("complex_", [False, True])
def test_linear_scan_norms_and_elementwise(complex_: bool) -> None:
    torch.manual_seed(1)
    for B in (1, 3):
        check(Linear(5, 9, complex_=complex_), B)


def test_stack_of_different_cores() -> None:
    torch.manual_seed(2)
    core = Chain(Gated("lstm", 4, 20), Linear(20, 6, complex_=True), Gated("gru_before", 32, 9))
    stream = check(core, 4)
    other = Stream(core, 4)
    other.state = stream.state  # a fork
    x = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
    assert np.array_equal(stream.step(x), other.step(x))


def test_float64_and_a_frozen_snapshot() -> None:
    core = Gated("gru", 3, 5).double()
    stream = Stream(core, 2)
    x = torch.randn(2, 3, dtype=torch.float64)
    with torch.no_grad():
        expected, _ = core.scan(x[:, None])
        core.U.zero_()
    assert torch.equal(stream.step(x), expected[:, 0])


def test_what_has_no_native_form_is_scanned() -> None:
    class Plain(Gated):
        def describe_step(self, builder: Builder, x: Slot, state: Any) -> Slot:
            raise Unstreamable("an option")

    core = Plain("gru", 3, 4)
    stream = Stream(core, 2)
    assert not stream.native
    x = torch.randn(2, 3, 3)
    with torch.no_grad():
        expected, last = core.scan(x)
    for t in range(3):
        y = stream.step(x[:, t].numpy())
    assert np.array_equal(y, expected[:, 2].numpy())
    assert torch.equal(stream.state[0], last[0])


def test_the_state_is_a_value() -> None:
    stream = Stream(Gated("lstm", 3, 4), 2)
    stream.step(np.ones((2, 3), np.float32))
    state = stream.state
    state[0].fill_(7)
    assert not (stream.state[0] == 7).any()
    with pytest.raises(InputError, match=r"\[1, 4\]; expected \[2, 4\]"):
        stream.state = (state[0], state[1][:1])


def test_a_wrong_input_says_what_is_needed() -> None:
    stream = Stream(Gated("gru", 3, 4), 2)
    with pytest.raises(InputError, match=r"\[2, 3\]"):
        stream.step(np.ones((3, 3), np.float32))
    assert stream.step(np.ones((2, 3), np.float64)).dtype == np.float32


@pytest.mark.parametrize("centred", [True, False])
def test_norms_are_torchs(centred: bool) -> None:
    x, g, b = (torch.randn(s, dtype=torch.float64, requires_grad=True) for s in ((4, 3, 9), (9,), (9,)))
    if centred:
        torch.testing.assert_close(native.layer_norm(x, g, b, 1e-5), nn.functional.layer_norm(x, (9,), g, b, 1e-5))
        assert torch.autograd.gradcheck(lambda *a: native.layer_norm(*a, 1e-5), (x, g, b))
    else:
        torch.testing.assert_close(native.rms_norm(x, g, 1e-5), nn.functional.rms_norm(x, (9,), g, 1e-5))
        assert torch.autograd.gradcheck(lambda *a: native.rms_norm(*a, 1e-5), (x, g))


LAYERS: dict[str, dict[str, Any]] = {
    "gru": {}, "lstm": {}, "elman": {}, "mgu": {}, "indrnn": {}, "rate": {"baseline": 0.5},
    "gru before": {"reset_after": False},
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_every_gated_cell_of_the_library(name: str) -> None:
    torch.manual_seed(3)
    for B in (1, 3):
        check(cell(name.split()[0], 5, 9, **LAYERS[name]), B)


def test_words_of_composition() -> None:
    torch.manual_seed(4)
    deep = stack("lstm", 6, 10, layers=3, residual=True, norm="layer", dropout=0.2).eval()
    check(Stack(deep, Norm(10, kind="rms"), Dense(10, 4, activation="silu")), 3)
    inner = WeightDrop(cell("gru", 7, 5), 0.3).eval()
    wide = Stack(Dense(3, 4, activation="relu"), Parallel(inner, Dense(7, 2)), inputs="all")
    check(wide, 2)


CORES = {
    "gru": lambda: Gated("gru", 3, 33), "lstm": lambda: Gated("lstm", 3, 17), "mgu": lambda: Gated("mgu", 3, 5),
    "complex scan": lambda: Linear(3, 6, complex_=True), "mamba": lambda: cell("mamba", 3, 4),
    "stack": lambda: Chain(Gated("lstm", 3, 20), Linear(20, 6, complex_=True), Gated("gru_before", 32, 9)),
    "s4d": lambda: cell("s4d", 3, 4), "scanned": lambda: Scanned(3, 4),
}  # fmt: skip


def chosen_steps(core: Core, B: int, steps: int, seed: int) -> tuple[Stream, list[tuple[np.ndarray, np.ndarray]]]:
    """A stream after steps of random rows; of each row, what it was given and what it gave."""
    rng = np.random.default_rng(seed)
    stream, given, found = Stream(core, B), [[] for _ in range(B)], [[] for _ in range(B)]  # type: ignore[var-annotated]
    for _ in range(steps):
        rows = rng.permutation(B)[: rng.integers(0, B + 1)]
        if rng.random() < 0.3:
            rows.sort()
        x = rng.standard_normal((len(rows), core.input_size)).astype(np.float32)
        for row, now, y in zip(rows, x, stream.step(x, rows), strict=True):
            given[row].append(now)
            found[row].append(y)
    return stream, [(np.array(x), np.array(y)) for x, y in zip(given, found, strict=True)]


@pytest.mark.parametrize("name", CORES)
def test_any_rows_at_a_time_are_each_row_alone(name: str) -> None:
    """Law 8 for a stream: outputs and states of a row do not depend on which rows stepped beside it."""
    torch.manual_seed(5)
    core = CORES[name]()
    for B, steps in ((1, 4), (5, 12), (300, 3)):  # 300: more than are stepped at a time
        stream, rows = chosen_steps(core, B, steps, B)
        for row, (x, y) in list(enumerate(rows))[:20]:
            if not len(x):
                assert all(map(torch.equal, leaves(stream.take([row])), leaves(core.init_state(1))))
                continue
            with torch.no_grad():
                expected, last = core.scan(torch.from_numpy(x)[None])
            assert stream.native == (name != "scanned")
            equal = torch.equal if stream.native else torch.allclose
            assert equal(torch.from_numpy(y), expected[0])
            assert all(map(equal, leaves(stream.take([row])), leaves(last)))


def test_all_rows_at_once_are_each_row_alone() -> None:
    """Without naming them, and more than are stepped at a time."""
    torch.manual_seed(9)
    core = CORES["gru"]()
    x = torch.randn(300, 4, core.input_size)
    stream = Stream(core, 300)
    y = torch.stack([stream.step(x[:, t]) for t in range(4)], 1)
    with torch.no_grad():
        for row in (0, 127, 128, 255, 256, 299):
            expected, last = core.scan(x[row : row + 1])
            assert torch.equal(y[row], expected[0])
            assert all(map(torch.equal, leaves(stream.take([row])), leaves(last)))


def test_rows_over_threads_are_rows_on_one() -> None:
    torch.manual_seed(6)
    core, threads, found = Gated("lstm", 3, 130), torch.get_num_threads(), []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            stream, rows = chosen_steps(core, 150, 3, 7)
            found.append((stream.state, rows))
    finally:
        torch.set_num_threads(threads)
    for state, rows in found[1:]:
        assert all(map(torch.equal, leaves(state), leaves(found[0][0])))
        assert all(np.array_equal(a[1], b[1]) for a, b in zip(rows, found[0][1], strict=True))


def test_take_and_put_fork_a_row_and_leave_the_others() -> None:
    torch.manual_seed(8)
    for name in ("stack", "mamba", "scanned"):
        stream, _ = chosen_steps(CORES[name](), 4, 6, 1)
        before = stream.state
        stream.put([2, 0], stream.take([1, 3]))
        for now, was in zip(leaves(stream.state), leaves(before), strict=True):
            assert torch.equal(now[[2, 0, 1, 3]], was[[1, 3, 1, 3]])
        x = np.ones((1, 3), np.float32)
        assert np.array_equal(stream.step(x, [2]), stream.step(x, [1]))


def test_rows_go_on_from_their_parents() -> None:
    torch.manual_seed(10)
    for name in ("stack", "scanned"):
        stream, _ = chosen_steps(CORES[name](), 4, 6, 1)
        for parents in ([1, 1, 3, 0], [3, 2, 1, 0], [0, 1, 2, 3]):
            before = stream.state
            stream.reorder(parents)
            for now, was in zip(leaves(stream.state), leaves(before), strict=True):
                assert torch.equal(now, was[parents])
        for bad in ([0, 1], [0, 1, 2, 4]):
            with pytest.raises(InputError, match=r"parents|rows"):
                stream.reorder(bad)


def test_a_row_that_was_taken_is_one_stretch_of_memory() -> None:
    stream = Stream(CORES["stack"](), 5)
    taken = leaves(stream.take([3, 1]))
    assert len({leaf.untyped_storage().data_ptr() for leaf in taken}) == 1
    assert taken[0].untyped_storage().nbytes() < 2 * (sum(leaf[0].nbytes for leaf in taken) + 64 * len(taken)) + 1


def test_a_taken_state_can_be_saved_and_put_back(tmp_path: Any) -> None:
    from elman import state as states

    stream, _ = chosen_steps(CORES["stack"](), 3, 5, 2)
    states.save(tmp_path / "row.safetensors", stream.take([1]))
    stream.put([2], states.load(tmp_path / "row.safetensors", stream.take([1])))
    for leaf in leaves(stream.state):
        assert torch.equal(leaf[1], leaf[2])


def test_streams_share_weights_but_no_state() -> None:
    torch.manual_seed(9)
    core = CORES["stack"]()
    one = Stream(core, 2)
    x = np.ones((2, 3), np.float32)
    first = one.step(x)
    with torch.no_grad():
        next(core.parameters()).zero_()  # packed before
    two = one.share(3)
    assert np.array_equal(two.step(x[:1], [2])[0], first[0])
    assert two.batch_size == 3 and not np.array_equal(one.step(x), first)
    del one
    assert np.array_equal(two.step(x[:1], [0])[0], first[0])


@pytest.mark.parametrize("name", ["gru", "scanned"])
@pytest.mark.parametrize("rows", [[0, 0], [0, 4], [-1, 0], [0.5, 1], [[0, 1]]])
def test_rows_that_are_not_there_or_named_twice_are_refused(name: str, rows: list[int]) -> None:
    stream = Stream(CORES[name](), 4)
    before = stream.state
    with pytest.raises(InputError, match="rows"):
        stream.step(np.ones((2, 3), np.float32), rows)
    with pytest.raises(InputError, match="rows"):
        stream.put(rows, stream.take([0, 1]))
    assert all(map(torch.equal, leaves(stream.state), leaves(before)))


def test_a_step_of_no_rows_is_nothing() -> None:
    for name in ("gru", "scanned"):
        stream = Stream(CORES[name](), 4)
        assert len(stream.step(np.ones((0, 3), np.float32), [])) == 0


def test_a_shared_stream_of_a_model_is_one_of_a_model() -> None:
    from elman.model import SequenceModel
    from elman.nn.embed import Embedding
    from elman.nn.readout import Softmax

    model = Stream(SequenceModel(Embedding(5, 3), cell("gru", 3, 4), Softmax(4, 5)), 2)
    alone = model.share(1)
    assert np.array_equal(model.logits(np.array([4, 2]))[1:], alone.logits(np.array([2])))
    assert np.array_equal(model.logits(np.array([1]), [1]), alone.logits(np.array([1])))
