"""Each law must hold for a right cell and fail for a cell with that law broken and for the known bugs."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from elman import kernels, laws
from elman import state as states
from elman.cells.gru import GRU
from elman.core import Core
from elman.errors import InputError


class LeakyState(NamedTuple):
    h: Tensor  # (B, H)
    last: Tensor  # (B, D), the input before: a convolution window of one


class Leaky(Core):
    """A right cell with a memory, a window and a hand-written scan: h = tanh(w h' + U x + V x')."""

    def __init__(self) -> None:
        super().__init__(3, 4)
        self.w = nn.Parameter(torch.linspace(0.5, 0.9, 4))
        self.U = nn.Parameter(torch.randn(4, 3, generator=torch.Generator().manual_seed(1)))
        self.V = nn.Parameter(torch.randn(4, 3, generator=torch.Generator().manual_seed(2)))

    def init_state(self, batch_size: int) -> LeakyState:
        return LeakyState(self.zeros(batch_size, 4), self.zeros(batch_size, 3))

    def step(self, x: Tensor, state: LeakyState) -> tuple[Tensor, LeakyState]:
        h = kernels.tanh(self.w * state.h + kernels.linear(x, self.U) + kernels.linear(state.last, self.V))
        return h, LeakyState(h, x)

    def _scan(self, x, state, lengths, reset):
        before = torch.cat([state.last[:, None], x[:, :-1]], 1)[:, : x.shape[1]]
        before = torch.where(reset[..., None], torch.zeros_like(before), before)
        u = kernels.linear(x, self.U) + kernels.linear(before, self.V)

        def recur(ut: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
            h = kernels.tanh(self.w * h + ut)
            return h, h

        y, h = kernels.loop(recur, u, state.h, torch.zeros_like(state.h), lengths, reset, 4)
        rows = torch.arange(len(x))
        last = state.last if x.shape[1] == 0 else x[rows, (lengths - 1).clamp(min=0)]
        return y, LeakyState(h, torch.where((lengths > 0)[:, None], last, state.last))


class StepIgnoresState(Leaky):
    def step(self, x, state):
        return super().step(x, state._replace(h=torch.zeros_like(state.h)))


class ScanForgetsWindow(Leaky):
    """The last state is right, the window is lost between chunks."""

    def _scan(self, x, state, lengths, reset):
        y, new = super()._scan(x, state, lengths, reset)
        return y, new._replace(last=torch.zeros_like(new.last))


class IgnoresLengths(Leaky):
    def _scan(self, x, state, lengths, reset):
        return super()._scan(x, state, torch.full_like(lengths, x.shape[1]), reset)


class LastStateOfLongestRow(Leaky):
    def _scan(self, x, state, lengths, reset):
        y, _ = super()._scan(x, state, lengths, reset)
        return y, super()._scan(x, state, torch.full_like(lengths, x.shape[1]), reset)[1]


class IgnoresReset(Leaky):
    def _scan(self, x, state, lengths, reset):
        return super()._scan(x, state, lengths, torch.zeros_like(reset))


class WindowCrossesReset(Leaky):
    """A convolution window that crosses a reset."""

    def _scan(self, x, state, lengths, reset):
        y, new = super()._scan(x, state, lengths, reset)
        if not reset.any():
            return y, new
        crossing = torch.where(reset[:, 1:, None], kernels.linear(x[:, :-1], self.V), torch.zeros(()))
        valid = (torch.arange(1, x.shape[1]) < lengths[:, None])[..., None]
        return torch.cat([y[:, :1], y[:, 1:] + torch.where(valid, crossing, torch.zeros(()))], 1), new


class MeanOverPadding(Leaky):
    """Normalises by a statistic of the whole row, padding included."""

    def scan(self, x, state=None, *, lengths=None, reset=None):
        y, new = super().scan(x, state, lengths=lengths, reset=reset)
        return y + 0.0 * x.sum(), new


class CouplesRows(Leaky):
    """Normalises over the batch."""

    def _scan(self, x, state, lengths, reset):
        return super()._scan(x - x.mean(0, keepdim=True) if len(x) else x, state, lengths, reset)


class WrongGradient(Leaky):
    """Right values, but the gradient does not reach the initial state."""

    def _scan(self, x, state, lengths, reset):
        return super()._scan(x, states.detach(state), lengths, reset)


class NoGradientFromLastState(Leaky):
    def _scan(self, x, state, lengths, reset):
        y, new = super()._scan(x, state, lengths, reset)
        return y, states.detach(new)


class DropsInitialState(Leaky):
    """A dropped initial state."""

    def _scan(self, x, state, lengths, reset):
        return super()._scan(x, self.init_state(len(x)), lengths, reset)


class AltersStateInLongChunks(Leaky):
    """A carried state altered when T > 1."""

    def _scan(self, x, state, lengths, reset):
        y, new = super()._scan(x, state, lengths, reset)
        return y, (new if x.shape[1] <= 1 else new._replace(h=new.h * 0.99))


class LastBitDependsOnBatch(Leaky):
    """As close as rounding, but a row's bits depend on how many rows stand beside it."""

    def _scan(self, x, state, lengths, reset):
        y, new = super()._scan(x, state, lengths, reset)
        return y * (1 + len(x) * torch.finfo(y.dtype).eps), new


class BackwardsInName(Leaky):
    """A reversal that does not reverse."""

    causal = False


MUTANTS = [
    (StepIgnoresState, 1),
    (DropsInitialState, 1),
    (AltersStateInLongChunks, 1),
    (BackwardsInName, 1),
    (ScanForgetsWindow, 2),
    (DropsInitialState, 2),
    (AltersStateInLongChunks, 2),
    (IgnoresLengths, 3),
    (LastStateOfLongestRow, 3),
    (IgnoresReset, 4),
    (WindowCrossesReset, 4),
    (MeanOverPadding, 5),
    (CouplesRows, 6),
    (WrongGradient, 7),
    (NoGradientFromLastState, 7),
    (DropsInitialState, 7),
    (WindowCrossesReset, 7),
    (LastBitDependsOnBatch, 8),
]
# Without native kernels there is no law 8.
MUTANTS = [(mutant, law) for mutant, law in MUTANTS if law < 8 or kernels.active() == "native"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_right_cell_keeps_every_law(dtype):
    report = laws.check(Leaky().to(dtype))
    assert report.ok and report.exact == (kernels.active() == "native"), str(report)
    assert [v.law for v in report.verdicts] == [1, 2, 3, 4, 5, 6, 7, *([8] if kernels.active() == "native" else [])]


@pytest.mark.parametrize(("mutant", "law"), MUTANTS, ids=lambda value: getattr(value, "__name__", str(value)))
def test_each_law_fails_on_its_mutant(mutant, law):
    report = laws.check(mutant().double())
    assert not {v.law: v.ok for v in report.verdicts}[law], str(report)
    assert not (report.exact if law == 8 else report), str(report)


def test_every_law_has_a_mutant_and_a_title():
    assert set(laws.LAWS) == set(laws.TITLES)
    assert {law for _, law in MUTANTS} == {v.law for v in laws.check(Leaky()).verdicts}


@pytest.mark.parametrize(("batch_size", "time"), [(0, 4), (1, 0), (3, 1), (2, 2), (1, 5)])
def test_small_samples_work(batch_size, time):
    assert laws.check(Leaky().double(), batch_size=batch_size, time=time).ok


class Ordinary(Core):
    """A correct cell as anyone would write it, with Torch's own product and tanh."""

    def __init__(self) -> None:
        super().__init__(33, 57)  # wide enough that Torch's product changes with the number of rows
        self.both = nn.Linear(33 + 57, 57)

    def init_state(self, batch_size: int) -> Tensor:
        return self.zeros(batch_size, 57)

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(self.both(torch.cat([x, state], 1)))
        return h, h


class Exact(Ordinary):
    """The same with the remedy that the report names."""

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        h = kernels.tanh(kernels.linear(torch.cat([x, state], 1), self.both.weight, self.both.bias))
        return h, h


@pytest.mark.skipif("native" not in kernels.available(), reason="law 8 is a promise of the native kernels")
def test_an_ordinary_cell_is_correct_and_the_remedy_makes_it_exact():
    report = laws.check(Ordinary())
    assert report and report.ok and not report.exact, str(report)
    assert "correct, not exact" in str(report) and "kernels.linear(x, W, b) for nn.Linear" in str(report)
    report = laws.check(Exact())
    assert report.ok and report.exact and str(report).splitlines()[-1] == "correct, exact"


def test_a_core_that_is_not_correct_is_told_so_and_not_about_bits():
    report = laws.check(IgnoresReset())
    assert not report and "NOT correct" in str(report) and "elman.kernels" not in str(report)


@pytest.mark.skipif("native" not in kernels.available(), reason="law 8 is a promise of the native kernels")
def test_the_number_of_threads_comes_back_when_a_scan_raises():
    class Dies(Leaky):
        def _scan(self, x, state, lengths, reset):
            if torch.get_num_threads() == 2:
                raise RuntimeError("died")
            return super()._scan(x, state, lengths, reset)

    before = torch.get_num_threads()
    assert before != 2
    try:
        with pytest.raises(RuntimeError, match="died"):
            laws.check(Dies())
        assert torch.get_num_threads() == before
    finally:
        torch.set_num_threads(before)


class Wrong(Core):
    def __init__(self, result) -> None:
        super().__init__(3, 4)
        self.result = result

    def init_state(self, batch_size: int) -> tuple[Tensor]:
        return (torch.zeros(batch_size, 4),)

    def step(self, x, state):
        return self.result(torch.zeros(len(x), 4), state)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda y, state: y, r"Wrong\.step returned float32\[2, 4\]; it must return \(y, state\)"),
        (lambda y, state: None, r"Wrong\.step returned a NoneType; it must return \(y, state\)"),
        (lambda y, state: (state, y), r"it must return \(y, state\), y a tensor"),
        (lambda y, state: (y, state, y), r"it must return \(y, state\)"),
        (lambda y, state: (y[:, :3], state), r"y of shape \[2, 3\] for 2 rows; it must be \(B, H\), \[2, 4\]"),
        (lambda y, state: (y[0], state), r"y of shape \[4\]"),
        (lambda y, state: (y, y), r"step and Wrong\.init_state do not agree: the state has the structure"),
        (lambda y, state: (y, list(state)), "do not agree: a state is a tensor or a tuple of states, not a list"),
        (lambda y, state: (y, (y[:, :3],)), r"do not agree: leaf \.0 has shape \[2, 3\]; expected \[2, 4\]"),
        (lambda y, state: (y, (y[0],)), r"do not agree: leaf \.0 has shape \[4\]"),
        (lambda y, state: (y, (y.double(),)), "do not agree: leaf .0 is torch.float64"),
    ],
)
def test_a_step_that_breaks_the_protocol_is_told_how(result, message):
    with pytest.raises(InputError, match=message):
        laws.check(Wrong(result))


@pytest.mark.parametrize("given", [nn.LSTM(3, 4), nn.Linear(3, 4), Leaky, None])
def test_only_a_core_has_laws(given):
    with pytest.raises(InputError, match=r"laws\.check was given .*; it takes a Core: .*elman\.from_torch"):
        laws.check(given)


def test_the_sample_is_not_an_easy_one():
    sample = laws.draw(Leaky().double(), torch.float64, seed=0, batch_size=5, time=8)
    assert all(leaf.abs().min() > 0 for leaf in states.leaves(sample.state))
    assert {0, 8} <= set(sample.lengths.tolist())
    assert sample.reset[1, [0, 4, 7]].all() and not sample.reset.all() and sample.lengths[1] == 8


def test_the_report_prints_a_table():
    text = str(laws.check(IgnoresReset()))
    assert "IgnoresReset, float32" in text and "NO" in text and "a reset is a separate episode" in text


def test_half_precision_is_refused_with_advice():
    with pytest.raises(InputError, match=r"core\.float\(\)"):
        laws.check(Leaky().bfloat16())


def test_check_leaves_the_core_as_it_was():
    core = Leaky().train()
    before = {name: p.clone() for name, p in core.named_parameters()}
    laws.check(core)
    assert core.training and all(torch.equal(before[n], p) and p.grad is None for n, p in core.named_parameters())


@pytest.mark.skipif("native" not in kernels.available(), reason="law 8 is a promise of the native kernels")
def test_law_8_asks_for_bits_where_the_others_ask_for_closeness():
    verdicts = {v.law: v for v in laws.check(LastBitDependsOnBatch()).verdicts}
    assert all(verdicts[law].ok for law in range(1, 8)) and not verdicts[8].ok
    with kernels.use("reference"):
        assert 8 not in [v.law for v in laws.check(Leaky()).verdicts]


class StreamsOtherwise(GRU):
    """Its stream is not its scan."""

    def describe_step(self, builder, x, state):
        return builder.map("tanh", super().describe_step(builder, x, state))


@pytest.mark.skipif("native" not in kernels.available(), reason="law 8 is a promise of the native kernels")
def test_a_stream_that_is_not_the_scan_is_not_exact():
    right, wrong = laws.check(GRU(3, 4)), laws.check(StreamsOtherwise(3, 4))
    assert right.ok and right.exact
    assert wrong.ok and not wrong.exact
