"""Every cell, with every option set it lists, keeps every law: on both kernels, in both precisions, with gradients."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elman import kernels, laws
from elman import state as states
from elman.cells import CELLS

VARIANTS = [(name, options) for name, cell in CELLS.items() for options in cell.variants]
IDS = ["-".join([name, *(f"{k}={v}" for k, v in options.items())]) for name, options in VARIANTS]
each_variant = pytest.mark.parametrize(("name", "options"), VARIANTS, ids=IDS)
each_kernel = pytest.mark.parametrize("kernel", kernels.available())


def build(name: str, options: dict, dtype: torch.dtype = torch.float64):
    torch.manual_seed(0)
    return CELLS[name](3, 3, **options).to(dtype)


@each_kernel
@each_variant
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_laws(name, options, dtype, kernel):
    with kernels.use(kernel):
        report = laws.check(build(name, options, dtype))
    assert all(verdict.ok for verdict in report.verdicts), str(report)


@each_variant
@settings(deadline=None, max_examples=5)
@given(seed=st.integers(0, 10**6), batch_size=st.integers(0, 4), time=st.integers(0, 11), data=st.data())
def test_laws_on_any_sample(name, options, seed, batch_size, time, data):
    kernel = data.draw(st.sampled_from(kernels.available()))
    with kernels.use(kernel):
        report = laws.check(build(name, options), seed=seed, batch_size=batch_size, time=time)
    assert all(verdict.ok for verdict in report.verdicts), str(report)


@each_kernel
@each_variant
def test_gradcheck(name, options, kernel):
    core = build(name, options)
    sample = laws.draw(core, torch.float64, seed=1, batch_size=2, time=3)
    leaves = [leaf.detach().clone().requires_grad_() for leaf in states.leaves(sample.state)]
    parameters = dict(core.named_parameters())

    def scan(x, *rest):
        given = iter(rest[: len(leaves)])
        state = states.map(lambda _: next(given), sample.state)
        weights = dict(zip(parameters, rest[len(leaves) :], strict=True))
        y, last = torch.func.functional_call(
            core, weights, (x, state), {"lengths": torch.tensor([2, 3]), "reset": sample.reset}
        )
        return (y, *states.leaves(last))

    inputs = (sample.x.requires_grad_(), *leaves, *(p.detach().clone().requires_grad_() for p in parameters.values()))
    with kernels.use(kernel):
        assert torch.autograd.gradcheck(scan, inputs, fast_mode=True)


@each_variant
def test_bfloat16_activations_keep_wide_states(name, options):
    core = build(name, options, torch.float32)
    x = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0))
    y, state = core.bfloat16().scan(x.bfloat16())
    assert y.dtype == torch.bfloat16 and y.isfinite().all()
    assert all(leaf.dtype in (torch.float32, torch.complex64) for leaf in states.leaves(state))
    wider = states.map(lambda leaf: leaf.to(torch.promote_types(leaf.dtype, torch.float64)), state)
    _, state = core.scan(x.bfloat16(), wider)
    assert all(leaf.dtype in (torch.float64, torch.complex128) for leaf in states.leaves(state))


@each_variant
def test_states_survive_a_file(name, options, tmp_path):
    core = build(name, options)
    x = torch.randn(2, 6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    whole, _ = core.scan(x)
    _, state = core.scan(x[:, :3])
    states.save(tmp_path / "state", state)
    y, _ = core.scan(x[:, 3:], states.load(tmp_path / "state", like=core.init_state(0)))
    torch.testing.assert_close(y, whole[:, 3:])
