"""Each law must hold for a right cell and fail for a cell with that law broken and for the known bugs."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from elman import kernels, laws
from elman import state as states
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
    assert report.ok, str(report)
    assert [v.law for v in report.verdicts] == [1, 2, 3, 4, 5, 6, 7, *([8] if kernels.active() == "native" else [])]


@pytest.mark.parametrize(("mutant", "law"), MUTANTS, ids=lambda value: getattr(value, "__name__", str(value)))
def test_each_law_fails_on_its_mutant(mutant, law):
    report = laws.check(mutant().double())
    assert not {v.law: v.ok for v in report.verdicts}[law], str(report)
    assert not report


def test_every_law_has_a_mutant_and_a_title():
    assert set(laws.LAWS) == set(laws.TITLES)
    assert {law for _, law in MUTANTS} == {v.law for v in laws.check(Leaky()).verdicts}


@pytest.mark.parametrize(("batch_size", "time"), [(0, 4), (1, 0), (3, 1), (2, 2), (1, 5)])
def test_small_samples_work(batch_size, time):
    assert laws.check(Leaky().double(), batch_size=batch_size, time=time).ok


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
