"""Parallel in time against the loop: the gradients of autograd through it, and its states."""

from __future__ import annotations

import doctest
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from elman import kernels, laws
from elman import state as states
from elman.cells import cell
from elman.compose import Stack
from elman.core import Core
from elman.errors import ElmanError, InputError, KernelError
from elman.kernels.parallel_in_time import newton
from elman.kernels.parallel_in_time.adjoint import affine_scan
from elman.laws import sequence
from elman.laws.report import distance as distance_of
from elman.laws.report import error

CORES: dict[str, Callable[[], Core]] = {
    "tanh": lambda: cell("elman", 3, 4),
    "gru": lambda: cell("gru", 3, 4),
    "lstm": lambda: cell("lstm", 3, 4),
    "y beside the state": lambda: cell("jordan", 3, 4),
    "leaves of three axes": lambda: cell("mamba", 3, 3),
    "stack": lambda: Stack(cell("gru", 3, 2), cell("lstm", 2, 2)),
}
each_kernel = pytest.mark.parametrize("kernel", kernels.available())


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def scanned(core: Core, scan: Callable[..., Any], **options: Any) -> Core:
    """The core with `scan` in the place of the loop; what it reports is in `core.report`."""

    def run(self: Any, x: Tensor, state: Any, lengths: Tensor, reset: Tensor) -> Any:
        result = scan(self.step, x, state, self.init_state(len(x)), lengths, reset, self.output_size, **options)
        self.report = result[2] if len(result) > 2 else None
        return result[:2]

    core._scan = types.MethodType(run, core)  # type: ignore[method-assign]
    return core


def by_loop(core: Core) -> Core:
    return scanned(core, kernels.loop)


def distance(core: Core, scan: Callable[..., Any], sample: laws.Sample, **options: Any) -> float:
    """The largest difference from autograd through the loop: outputs, last state, gradients of everything."""
    wanted = sequence._gradients(by_loop(core), sample)
    given = sequence._gradients(scanned(core, scan, **options), sample)
    return distance_of(tuple(given), tuple(wanted))


@each_kernel
@pytest.mark.parametrize("time", [1, 2, 7, 16, 33])
@pytest.mark.parametrize("name", CORES)
def test_bptt_is_autograd_through_the_loop(name: str, time: int, kernel: str) -> None:
    core = CORES[name]().double()
    sample = laws.draw(core, torch.float64, seed=time, batch_size=5, time=time)
    with kernels.use(kernel):
        assert distance(core, kernels.parallel_bptt, sample) < 1e-13


@pytest.mark.parametrize("jacobian", ["full", "diagonal"])
@pytest.mark.parametrize("name", CORES)
def test_newton_is_the_loop(name: str, jacobian: str) -> None:
    core = CORES[name]().double()
    sample = laws.draw(core, torch.float64, seed=1, batch_size=5, time=30)
    assert distance(core, kernels.newton_scan, sample, jacobian=jacobian) < 1e-11
    assert not core.report.fallback.any() and core.report.iterations.max() > 0
    assert (core.report.iterations <= sample.lengths).all()  # each makes one more state exact, at least


@pytest.mark.slow
@pytest.mark.parametrize("scan", [kernels.parallel_bptt, kernels.newton_scan])
@pytest.mark.parametrize("name", ["tanh", "gru", "lstm"])
def test_laws_hold_parallel_in_time(name: str, scan: Any) -> None:
    report = laws.check(Recurring(CORES[name]().double(), scan))
    assert all(v.ok for v in report.verdicts if v.law != 8), str(report)  # 8 is the promise of native kernels


class Recurring(Core):
    """A core whose scan is parallel in time."""

    def __init__(self, core: Core, scan: Any) -> None:
        super().__init__(core.input_size, core.output_size)
        self.core, self.parallel = core, scan

    def init_state(self, batch_size: int) -> Any:
        return self.core.init_state(batch_size)

    def step(self, x: Tensor, state: Any) -> Any:
        return self.core.step(x, state)

    def _scan(self, x: Tensor, state: Any, lengths: Tensor, reset: Tensor) -> Any:
        init = self.init_state(len(x))
        return self.parallel(self.step, x, state, init, lengths, reset, self.output_size)[:2]


def arguments(core: Core, T: int, B: int = 3, dtype: torch.dtype = torch.float64) -> tuple[Any, ...]:
    zero = core.to(dtype).init_state(B)
    x = torch.randn(B, T, core.input_size, dtype=dtype)
    return core.step, x, zero, zero, torch.full((B,), T), torch.zeros(B, T, dtype=torch.bool), core.output_size


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", ["tanh", "gru", "lstm"])
def test_full_newton_takes_few_iterations_at_any_length(name: str, dtype: torch.dtype) -> None:
    core = CORES[name]()
    for T in (64, 512):
        given = arguments(core, T, dtype=dtype)
        with torch.no_grad():
            y, _, report = kernels.newton_scan(*given)
            wanted, _ = kernels.loop(*given)
        assert not report.fallback.any() and report.iterations.max() <= 10
        assert error(y, wanted) <= laws.TOLERANCES[dtype]


class Growing(Core):
    """h = 2 |h'| - 1: between -1 and 1, and what differs is twice as far apart after each step."""

    def init_state(self, batch_size: int) -> Tensor:
        return torch.full((batch_size, 1), 0.3)

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        h = 2 * state.abs() - 1
        return h, h


def test_without_convergence_the_loop_decides_and_the_report_says_so() -> None:
    core = CORES["gru"]().double()
    core.W.data *= 40  # far from a contraction
    given = arguments(core, 60)
    with torch.no_grad():
        y, last, report = kernels.newton_scan(*given, max_iterations=5)
        wanted, end = kernels.loop(*given)
    assert report.fallback.all() and (report.iterations == 5).all() and (report.residual > 1e-12).all()
    assert torch.equal(y, wanted) and torch.equal(last.h, end.h)


def test_rows_fall_back_one_by_one() -> None:
    core = CORES["gru"]().double()
    core.W.data *= 40
    step, x, state, init, _, reset, size = arguments(core, 60)
    lengths = torch.tensor([60, 4, 0])
    with torch.no_grad():
        y, _, report = kernels.newton_scan(step, x, state, init, lengths, reset, size, max_iterations=5)
        wanted, _ = kernels.loop(step, x, state, init, lengths, reset, size)
    assert report.fallback.tolist() == [True, False, False]
    assert report.iterations[2] == 0
    torch.testing.assert_close(y, wanted, rtol=0, atol=1e-11)


def test_the_trust_region_refuses_what_overflows_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over 140 steps the Jacobians multiply to 2^140, which is no float32."""
    given = arguments(Growing(1, 1), 140, dtype=torch.float32)
    tried: list[float] = []
    correction = newton._Problem.correction

    def watched(self: Any, point: Any, rho: Tensor) -> Tensor:
        tried.append(float(rho.min()))
        return correction(self, point, rho)

    monkeypatch.setattr(newton._Problem, "correction", watched)
    with torch.no_grad():
        _, _, report = kernels.newton_scan(*given, max_iterations=1000)
    assert tried[0] == 1 and min(tried) < 1, "no correction was refused"
    assert not report.fallback.any(), report


def test_a_unit_that_grows_hides_nothing_in_the_others() -> None:
    """Unit 0 counts steps, to 4000: a rounding of that is an error in the others, which stay within one."""
    core = cell("lstm", 3, 4)
    with torch.no_grad():
        core.b[::4], core.W[::4], core.U[::4] = 15.0, 0.0, 0.0
        core.W.mul_(2)
    step, x, *rest = arguments(core, 4000, B=2, dtype=torch.float32)
    with torch.no_grad():
        y, last, report = kernels.newton_scan(step, 2 * x, *rest)
        wanted, end = kernels.loop(step, 2 * x, *rest)
    assert end.c[:, 0].min() > 3000  # it does count
    torch.testing.assert_close(y, wanted, rtol=0, atol=5e-4)
    torch.testing.assert_close(last.c, end.c, rtol=1e-5, atol=5e-4)
    assert (report.fallback | (report.residual <= 100 * torch.finfo(torch.float32).eps)).all()


class Expanding(Core):
    """h = 3 h' + x: after 81 steps a product of its Jacobians is not a float32 any more."""

    def __init__(self) -> None:
        super().__init__(1, 1)
        self.w = torch.nn.Parameter(torch.tensor([[3.0]]))

    def init_state(self, batch_size: int) -> Tensor:
        return self.zeros(batch_size, 1)

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        h = state @ self.w + x
        return h, h


def test_where_products_of_jacobians_overflow_gradients_come_step_by_step_and_it_is_said() -> None:
    core = Expanding()
    step, x, *rest = arguments(core, 400, B=3, dtype=torch.float32)
    x = torch.zeros_like(x).requires_grad_()
    weights = torch.zeros(3, 400, 1)
    weights[0, 0], weights[1, 60], weights[2, 7] = 1.0, 1.0, -2.0  # no gradient is above 3^60
    wanted = torch.autograd.grad((kernels.loop(step, x, *rest)[0] * weights).sum(), (x, core.w))
    assert all(part.isfinite().all() for part in wanted)
    with pytest.warns(RuntimeWarning, match="products of Jacobians overflow in 3 of 3 rows"):
        found = torch.autograd.grad((kernels.parallel_bptt(step, x, *rest)[0] * weights).sum(), (x, core.w))
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=0)


def test_a_gradient_that_is_infinite_in_the_loop_too_is_no_news(recwarn: pytest.WarningsRecorder) -> None:
    step, x, *rest = arguments(Expanding(), 400, B=1, dtype=torch.float32)
    x = torch.zeros_like(x).requires_grad_()
    ends = [scan(step, x, *rest)[0][:, -1].sum() for scan in (kernels.loop, kernels.parallel_bptt)]
    wanted, found = (torch.autograd.grad(end, x)[0] for end in ends)
    assert wanted.isinf().any() and wanted.isfinite().any()
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=0)
    assert not recwarn.list


@pytest.mark.parametrize("scan", [kernels.parallel_bptt, kernels.newton_scan])
@pytest.mark.parametrize("B, T", [(0, 5), (2, 0), (0, 0)])
def test_nothing_to_scan(scan: Any, B: int, T: int) -> None:
    y, state, *_ = scan(*arguments(CORES["lstm"](), T, B))
    assert y.shape == (B, T, 4) and state.h.shape == (B, 4)


@pytest.mark.parametrize("dtype", [torch.float64])
def test_affine_scan_is_its_recurrence(dtype: torch.dtype) -> None:
    for T in (0, 1, 2, 3, 8, 13):
        A, b, cut = torch.randn(2, T, 3, 3, dtype=dtype), torch.randn(2, T, 3, dtype=dtype), torch.rand(2, T) < 0.3
        A[:, 1:2] = torch.where(cut[:, 1:2, None, None], torch.inf, A[:, 1:2])  # does not come through a cut
        h, wanted = torch.zeros(2, 3, dtype=dtype), []
        for t in range(T):
            moved = (A[:, t] @ h[..., None])[..., 0] + b[:, t]
            h = b[:, t] if t == 0 else torch.where(cut[:, t, None], b[:, t], moved)
            wanted.append(h)
        torch.testing.assert_close(affine_scan(A, b, cut), torch.stack(wanted, 1) if T else b)


def test_a_second_derivative_is_refused() -> None:
    step, x, *rest = arguments(CORES["gru"](), 5)
    y, _ = kernels.parallel_bptt(step, x.requires_grad_(), *rest)
    with pytest.raises(KernelError, match=r"no second derivative; use kernels\.loop"):
        torch.autograd.grad(y.sum(), x, create_graph=True)


@pytest.mark.parametrize("scan", [kernels.parallel_bptt, kernels.newton_scan])
def test_bad_input(scan: Any) -> None:
    step, x, state, init, lengths, reset, size = arguments(CORES["gru"](), 5)
    bad: list[tuple[tuple[Any, ...], str]] = [
        ((step, x[0], state, init, lengths, reset, size), r"x is .* expected \(B, T, D\)"),
        ((step, x, state, init, lengths[:1], reset, size), r"lengths is int64\[1\]; expected int64\[3\]"),
        ((step, x, state, init, lengths, reset.int(), size), r"reset is int32\[3, 5\]; expected bool"),
        ((step, x, states.take(state, [0]), init, lengths, reset, size), r"shape \[1, 4\]; expected \[3, 4\]"),
        ((step, x, (), (), lengths, reset, size), "must have leaves"),
        ((step, x, torch.zeros(3, 4, dtype=torch.complex64), init.h + 0j, lengths, reset, size), "linear_scan"),
    ]
    for given, message in bad:
        with pytest.raises(InputError, match=message):
            scan(*given)


@pytest.mark.parametrize(
    "option", [{"jacobian": "half"}, {"tolerance": 0.0}, {"tolerance": float("nan")}, {"max_iterations": -1}]
)
def test_bad_options(option: dict[str, Any]) -> None:
    with pytest.raises(ElmanError, match=next(iter(option))):
        kernels.newton_scan(*arguments(CORES["gru"](), 5), **option)


def test_the_page_on_it_runs() -> None:
    page = Path(__file__).parent.parent.parent / "docs" / "concepts" / "parallel-in-time.md"
    result = doctest.testfile(str(page), module_relative=False)
    assert result.attempted > 8 and result.failed == 0
