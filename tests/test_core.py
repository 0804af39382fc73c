from __future__ import annotations

import pytest
import torch
from torch import nn

import elman
from elman.cells import CELLS
from elman.core import Core
from elman.errors import ElmanError, InputError


class Leak(Core):
    """h = w h' + U x: the smallest core with a parameter of each kind."""

    def __init__(self) -> None:
        super().__init__(2, 3)
        self.w = nn.Parameter(torch.full((3,), 0.5))
        self.U = nn.Parameter(torch.ones(3, 2))

    def init_state(self, batch_size):
        return (self.zeros(batch_size, 3),)

    def step(self, x, state):
        h = self.w * state[0] + torch.nn.functional.linear(x, self.U)
        return h.to(x.dtype), (h,)


def test_scan_by_hand():
    y, (h,) = Leak().scan(torch.ones(1, 3, 2))
    assert y[0, :, 0].tolist() == [2.0, 3.0, 3.5] and h.tolist() == [[3.5] * 3]


def test_lengths_and_resets_by_hand():
    x = torch.ones(3, 3, 2)
    reset = torch.tensor([[False, True, False]] * 3)
    y, (h,) = Leak().scan(x, (torch.full((3, 3), 8.0),), lengths=torch.tensor([3, 1, 0]), reset=reset)
    assert y[:, :, 0].tolist() == [[6.0, 2.0, 3.0], [6.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    assert h[:, 0].tolist() == [3.0, 6.0, 8.0]


@pytest.mark.parametrize(("B", "T"), [(0, 0), (0, 4), (2, 0)])
def test_nothing_to_do_is_done(B, T):
    state = (torch.ones(B, 3),)
    y, last = Leak().scan(torch.ones(B, T, 2), state, lengths=torch.zeros(B, dtype=torch.long))
    assert y.shape == (B, T, 3) and torch.equal(last[0], state[0])


def test_forward_is_scan():
    x = torch.randn(2, 3, 2)
    assert torch.equal(Leak()(x)[0], Leak().scan(x)[0])


def test_lengths_may_be_a_list_and_any_integer_type():
    x = torch.ones(2, 3, 2)
    wanted = Leak().scan(x, lengths=torch.tensor([1, 2]))[0]
    assert torch.equal(Leak().scan(x, lengths=[1, 2])[0], wanted)
    assert torch.equal(Leak().scan(x, lengths=torch.tensor([1, 2], dtype=torch.int32))[0], wanted)


def test_bfloat16_activations_beside_wider_states():
    core = Leak().bfloat16()
    x = torch.ones(1, 2, 2, dtype=torch.bfloat16)
    for dtype in (torch.float32, torch.float64):
        y, (h,) = core.scan(x, (torch.ones(1, 3, dtype=dtype),))
        assert y.dtype == torch.bfloat16 and h.dtype == dtype
    assert core.scan(x)[1][0].dtype == torch.float32


X = torch.ones(2, 4, 2)
BAD = {
    "not a tensor": (dict(x=[[1.0]]), "torch.as_tensor"),
    "rank 2": (dict(x=torch.ones(4, 2)), r"x\[None\]"),
    "rank 4": (dict(x=torch.ones(1, 2, 4, 2)), r"\(B, T, 2\)"),
    "width": (dict(x=torch.ones(2, 4, 5)), r"shape \[2, 4, 5\].*\(B, T, 2\)"),
    "integers": (dict(x=torch.ones(2, 4, 2, dtype=torch.long)), "embed"),
    "double x": (dict(x=X.double()), r"x\.to\(torch\.float32\)"),
    "device": (dict(x=X.to("meta")), "meta"),
    "length past T": (dict(lengths=torch.tensor([1, 5])), r"\[1, 5\].*\[0, 4\]"),
    "negative length": (dict(lengths=torch.tensor([-1, 4])), r"\[0, 4\]"),
    "too many lengths": (dict(lengths=torch.tensor([1, 2, 3])), "2 whole numbers"),
    "float lengths": (dict(lengths=torch.tensor([1.0, 2.0])), "whole numbers"),
    "bool lengths": (dict(lengths=torch.tensor([True, True])), "whole numbers"),
    "lengths elsewhere": (dict(lengths=torch.zeros(2, dtype=torch.long, device="meta")), "meta"),
    "reset shape": (dict(reset=torch.zeros(2, 3, dtype=torch.bool)), r"bool\[2, 4\]"),
    "reset dtype": (dict(reset=torch.zeros(2, 4)), r"float32\[2, 4\].*bool"),
    "reset list": (dict(reset=[[False] * 4] * 2), "a list"),
    "reset elsewhere": (dict(reset=torch.zeros(2, 4, dtype=torch.bool, device="meta")), "meta"),
    "state batch": (dict(state=(torch.zeros(3, 3),)), r"expected \[2, 3\]"),
    "state structure": (dict(state=torch.zeros(2, 3)), "structure"),
    "state dtype": (dict(state=(torch.zeros(2, 3).double(),)), "float64"),
    "state list": (dict(state=[torch.zeros(2, 3)]), "tuple"),
    "state device": (dict(state=(torch.zeros(2, 3, device="meta"),)), "meta"),
}


@pytest.mark.parametrize(("given", "message"), BAD.values(), ids=BAD)
def test_bad_input_is_refused_at_the_boundary(given, message):
    with pytest.raises(InputError, match=message) as caught:
        Leak().scan(**{"x": X, **given})
    assert isinstance(caught.value, ElmanError) and isinstance(caught.value, ValueError)


@pytest.mark.parametrize("size", [0, -1, 2.0, None])
def test_sizes_must_be_positive(size):
    with pytest.raises(InputError, match=r"size is .*; it must be a whole number of at least 1"):
        Core(size, 3)


@pytest.mark.parametrize("batch_size", [-1, 1.5])
def test_batch_size_must_be_a_count(batch_size):
    with pytest.raises(InputError, match="batch_size"):
        Leak().init_state(batch_size)


def test_an_unfinished_core_says_what_is_missing():
    with pytest.raises(NotImplementedError, match="init_state"):
        Core(1, 1).scan(torch.zeros(1, 1, 1))


def test_padding_gets_no_gradient_and_gives_none():
    core = Leak()
    x = torch.full((1, 3, 2), float("nan"))
    x[:, 0] = 1
    x.requires_grad_()
    core.scan(x, lengths=torch.tensor([1]))[0].sum().backward()
    assert x.grad[0, 1:].abs().max() == 0 and core.U.grad.isfinite().all()


def test_a_packed_sequence_is_told_about_lengths_and_what_it_is_told_works():
    packed = nn.utils.rnn.pack_sequence([torch.ones(3, 2), torch.ones(1, 2)])
    with pytest.raises(InputError, match=r"pad_packed_sequence\(x, batch_first=True\).*core\(x, lengths=lengths\)"):
        Leak()(packed)
    x, lengths = nn.utils.rnn.pad_packed_sequence(packed, batch_first=True)
    assert Leak()(x, lengths=lengths)[1][0].tolist() == [[3.5] * 3, [2.0] * 3]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("cell", ["gru", "lru", "mamba"])
def test_autocast_behind_a_linear(dtype, cell):
    torch.manual_seed(0)
    core, linear, x = elman.cell(cell, 3, 4), nn.Linear(3, 3), torch.randn(2, 5, 3)
    with torch.autocast("cpu", dtype=dtype):
        y, _ = core(linear(x))
    assert y.dtype == dtype
    y.float().sum().backward()
    assert linear.weight.grad.isfinite().all()
    torch.testing.assert_close(y.float(), core(linear(x))[0], rtol=0.1, atol=0.05)


@pytest.mark.parametrize("name", CELLS)
def test_a_step_refuses_rows_that_do_not_match(name):
    """The definition would broadcast one row of state to all of x, or one row of x to all states."""
    core = elman.cell(name, 4, 4)
    x = torch.zeros(3, 4)
    core.step(x, core.init_state(3))
    with pytest.raises(InputError, match="x has 3 rows"):
        core.step(x, core.init_state(1))
    with pytest.raises(InputError, match="x has 1 rows"):
        core.step(x[:1], core.init_state(3))
    with pytest.raises(InputError, match=r"step takes one input for each row, \(B, 4\)"):
        core.step(x[0], core.init_state(1))
    with pytest.raises(InputError, match=r"\(B, 4\)"):
        core.step(torch.zeros(3, 1), core.init_state(3))


def test_a_step_refuses_the_state_of_another_cell():
    gru, lstm = elman.cell("gru", 2, 3), elman.cell("lstm", 2, 3)
    with pytest.raises(InputError, match="that of GRU has the fields h"):
        gru.step(torch.zeros(1, 2), lstm.init_state(1))
    with pytest.raises(InputError, match="that of LSTM has the fields h, c"):
        lstm.step(torch.zeros(1, 2), gru.init_state(1))
    inside = elman.Stack(gru, elman.cell("gru", 3, 3))
    with pytest.raises(InputError, match="that of GRU"):
        inside.step(torch.zeros(1, 2), (lstm.init_state(1), gru.init_state(1)))


def test_a_core_of_one_s_own_is_checked_too_and_may_call_the_step_that_it_inherits():
    class Twice(Leak):
        def step(self, x, state):
            y, state = super().step(x, state)
            return 2 * y, state

    core = Twice()
    assert core.step(torch.ones(2, 2), core.init_state(2))[0].shape == (2, 3)
    with pytest.raises(InputError, match="x has 2 rows"):
        core.step(torch.ones(2, 2), core.init_state(1))


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float64])
def test_a_step_refuses_inputs_of_a_type_that_scan_refuses(dtype):
    for core in (elman.cell("gru", 3, 4), elman.cell("lru", 3, 4), elman.Stack(elman.cell("gru", 3, 4))):
        with pytest.raises(InputError, match="x is torch"):
            core.step(torch.ones(2, 3).to(dtype), core.init_state(2))


@pytest.mark.parametrize("name", ["gru", "lstm", "lru", "mamba", "hmm"])
def test_a_step_refuses_a_state_of_another_type_and_keeps_its_own(name):
    core = elman.cell(name, 3, 3)
    state = core.init_state(2)
    for dtype in (torch.float32, torch.bfloat16):  # activations may be narrower than the state
        after = core.step(torch.ones(2, 3).to(dtype), state)[1]
        assert [leaf.dtype for leaf in after] == [leaf.dtype for leaf in state]
    wider = elman.state.map(lambda leaf: leaf.to(torch.promote_types(leaf.dtype, torch.float64)), state)
    with pytest.raises(InputError, match=r"complex128|float64"):
        core.step(torch.ones(2, 3), wider)


def test_a_pool_keeps_its_float64_sums_in_a_step():
    pool = elman.Pool("mean", 3)
    state = pool.init_state(2)
    y, after = pool.step(torch.ones(2, 3), state)
    assert y.dtype == torch.float32 and after.sum.dtype == torch.float64
    with pytest.raises(InputError, match="float32"):
        pool.step(torch.ones(2, 3), elman.state.map(lambda leaf: leaf.float(), state))


@pytest.mark.parametrize("name", ["elman", "mgu", "mingru"])
def test_a_step_refuses_the_state_of_another_cell_of_the_same_shape(name):
    state, core = elman.cell("gru", 3, 4).init_state(2), elman.cell(name, 3, 4)
    with pytest.raises(InputError, match="GRUState"):
        core.step(torch.ones(2, 3), state)


@pytest.mark.parametrize("word", [elman.Stack, elman.Parallel])
def test_a_word_refuses_the_state_of_more_or_fewer_cores(word):
    one = elman.cell("gru", 4, 4)
    core = word(one, one)
    for parts in (1, 3):
        given = (one.init_state(2),) * parts
        with pytest.raises(InputError, match=f"the state has {parts} parts"):
            core.step(torch.ones(2, 4), given)
        with pytest.raises(InputError, match="structure"):
            core.scan(torch.ones(2, 5, 4), given)
    with pytest.raises(InputError, match="the state has 3 parts"):  # of which none has a leaf
        word(elman.Dense(4, 4), elman.Dense(4, 4)).scan(torch.ones(2, 5, 4), ((),) * 3)
