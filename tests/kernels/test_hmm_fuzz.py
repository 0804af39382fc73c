"""Shapes, lengths, resets, zeros and dtypes as they come: native filter, its gradients and paths against Torch's."""

import random

import numpy as np
import pytest
import torch
from torch import Tensor

from elman import kernels

native = pytest.mark.skipif("native" not in kernels.available(), reason="the native kernels are not built")


def draw(seed: int) -> tuple[list[Tensor], Tensor, Tensor]:
    """x, start, transition, state in float64; lengths; reset."""
    rng, g = random.Random(seed), torch.Generator().manual_seed(seed)
    B, T = rng.choice([0, 1, 2, 5, 17, 40]), rng.choice([0, 1, 2, 15, 16, 17, 63, 64, 65, 130])
    K = rng.choice([1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 17, 31, 33, 64, 70])
    zeros = rng.choice([0.0, 0.3])

    def chances(*shape: int) -> Tensor:
        p = torch.rand(*shape, generator=g, dtype=torch.float64) + 0.01
        p = p * (torch.rand(*shape, generator=g) >= zeros)
        p[..., 0] += 0.01  # nothing leads nowhere
        return p / p.sum(-1, keepdim=True)

    x = torch.randn(B, T, K, generator=g, dtype=torch.float64) * rng.choice([1.0, 30.0])
    lengths = torch.tensor([rng.choice([0, T, rng.randint(0, T)]) for _ in range(B)], dtype=torch.int64)
    reset = torch.rand(B, T, generator=g) < rng.choice([0.0, 0.1])
    return [x, chances(K), chances(K, K), chances(B, K)], lengths, reset


def run(kernel: str, inputs: list[Tensor], lengths: Tensor, reset: Tensor, arrives: str) -> list[Tensor]:
    """Outputs and gradients, with gradient arriving at all outputs, unevenly at the likelihoods, or evenly at them."""
    with kernels.use(kernel):
        inputs = [v.clone().requires_grad_() for v in inputs]
        if arrives == "at all":
            out = kernels.hmm_filter(*inputs, lengths, reset)
        else:
            out = (kernels.hmm_log_prob(*inputs, lengths, reset),)
        weights = [torch.ones_like(o) if arrives == "evenly" else _ramp(o) for o in out]
        total = torch.stack([(w * o).sum() for w, o in zip(weights, out, strict=True)]).sum()
        total = total + sum(0 * v.sum() for v in inputs)  # without steps there is no graph
        grads = torch.autograd.grad(total, inputs, allow_unused=True, materialize_grads=True)
    return [*(o.detach() for o in out), *grads]


def _ramp(o: Tensor) -> Tensor:
    return torch.linspace(0.5, 1.5, o.numel(), dtype=o.dtype).reshape(o.shape)


@native
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("seed", range(60))
def test_native_is_the_reference(seed: int, dtype: torch.dtype) -> None:
    inputs, lengths, reset = draw(seed)
    rounded, arrives = [v.to(dtype) for v in inputs], ("at all", "unevenly", "evenly")[seed % 3]
    truth = run("reference", [v.double() for v in rounded], lengths, reset, arrives)
    given = run("native", rounded, lengths, reset, arrives)
    scale = 1e-10 if dtype == torch.float64 else 1e-3
    for a, b in zip(given, truth, strict=True):
        assert a.dtype == dtype and a.shape == b.shape
        assert bool((a.double() - b).abs().le(scale * (1 + b.abs().max())).all()) if b.numel() else True


@native
@pytest.mark.parametrize("seed", range(60))
def test_paths_are_as_good_as_the_best(seed: int) -> None:
    (x, start, transition, _), lengths, reset = draw(seed)
    with kernels.use("reference"):
        truth, best = kernels.viterbi(x, start, transition, lengths, reset)
    with kernels.use("native"):
        path, score = kernels.viterbi(x, start, transition, lengths, reset)
    torch.testing.assert_close(score, best, rtol=1e-11, atol=1e-10)
    assert torch.equal(path, truth)


@native
def test_the_operations_compile_and_keep_their_promises() -> None:
    """torch.library's own checks, of schema and fake; and a graph without a break that gives the same gradients."""
    (x, start, transition, state), lengths, reset = draw(5)
    ops = torch.ops.elman
    log_c, p, shift, scale, _, lost = ops.hmm_filter(x, start, transition, state, lengths, reset, True, True)
    utils = ("test_schema", "test_faketensor")
    for keep in (True, False):
        arguments = (x, start, transition, state, lengths, reset, keep, not keep)
        torch.library.opcheck(ops.hmm_filter.default, arguments, test_utils=utils)
    back = (x, start, transition, state, p, shift, scale, lost, lengths, reset, torch.ones_like(log_c))
    for counts in (True, False):
        torch.library.opcheck(ops.hmm_filter_back.default, (*back, None, None, counts), test_utils=utils)
    torch.library.opcheck(ops.hmm_filter_back.default, (*back, torch.ones_like(p), state, True), test_utils=utils)
    for stop in (None, start):
        torch.library.opcheck(ops.viterbi.default, (x, start, transition, stop, lengths, reset), test_utils=utils)


@pytest.mark.parametrize("seed", range(8))
def test_posteriors_alone_are_those_beside_the_counts(seed: int) -> None:
    (x, start, transition, state), lengths, reset = draw(seed)
    x.requires_grad_()
    whole = kernels.hmm_log_prob(x, start, transition.clone().requires_grad_(), state, lengths, reset)
    alone = kernels.hmm_log_prob(x, start, transition, state, lengths, reset)
    weight = torch.randn_like(alone)
    assert torch.equal(torch.autograd.grad(alone, x, weight)[0], torch.autograd.grad(whole, x, weight)[0])


@native
def test_a_compiled_likelihood_has_the_same_posteriors() -> None:
    (x, start, transition, state), lengths, reset = draw(4)

    def posterior(x: Tensor) -> Tensor:
        return kernels.hmm_log_prob(x, start, transition, state, lengths, reset).sum()

    def gradient(f: object, x: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        return torch.autograd.grad(f(x), x)[0]  # type: ignore[operator]

    torch.testing.assert_close(
        gradient(torch.compile(posterior, backend="aot_eager", fullgraph=True), x), gradient(posterior, x)
    )


class Likelihood(torch.nn.Module):
    def forward(
        self, x: Tensor, start: Tensor, transition: Tensor, state: Tensor, lengths: Tensor, reset: Tensor
    ) -> Tensor:
        return kernels.hmm_log_prob(x, start, transition, state, lengths, reset)


@native
def test_an_exported_likelihood_computes_the_same() -> None:
    inputs, lengths, reset = draw(5)
    arguments = (*inputs, lengths, reset)
    exported = torch.export.export(Likelihood(), arguments)
    torch.testing.assert_close(exported.module()(*arguments), Likelihood()(*arguments))


@native
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_logarithm_is_within_three_units_in_the_last_place(dtype: torch.dtype) -> None:
    """Against numpy's in extended precision: over all magnitudes, denormals too, and close to 1, where it vanishes."""
    g = torch.Generator().manual_seed(0)
    info = torch.finfo(dtype)
    magnitudes = torch.rand(20000, generator=g, dtype=torch.float64) * 600 - 300
    near_one = 1 + (torch.rand(20000, generator=g, dtype=torch.float64) - 0.5) * 1e-3
    edges = torch.tensor([info.tiny, info.tiny / 8, info.smallest_normal, info.max, 1.0, 0.5, 2.0**0.5, info.eps])
    x = torch.cat([torch.exp2(magnitudes).to(dtype), near_one.to(dtype), edges.to(dtype)])
    x = x[(x > 0) & x.isfinite()]
    with kernels.use("native"):
        y = kernels.log(x).numpy()
        assert kernels.log(torch.tensor([0.0, torch.inf], dtype=dtype)).tolist() == [-torch.inf, torch.inf]
    truth = np.log(x.numpy().astype(np.longdouble))
    unit = np.spacing(np.abs(truth).astype(y.dtype)).astype(np.longdouble)
    assert float((np.abs(y - truth) / unit).max()) <= 3
