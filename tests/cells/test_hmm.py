"""The HMM filter against the enumeration of all paths: likelihood, filtered states, posteriors and expected counts."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from elman import kernels
from elman.cells.hmm import HMM
from elman.errors import InputError
from elman.stream import Stream

KERNELS = pytest.mark.parametrize("kernel", kernels.available())
N, T = 3, 5
LENGTHS = [5, 3, 0, 1, 4]
RESETS = [(0, 2), (2, 4), (0,), (), (1, 3)]  # row 1 has one past its end


def sample(mask=None):
    """A core, log p(o | z) (B, T, N) and the resets; `mask` (N, N) says which transitions exist."""
    torch.manual_seed(0)
    core = HMM(N, N).double()
    if mask is not None:
        with torch.no_grad():
            core.log_P.copy_(torch.log_softmax(core.log_P.masked_fill(~mask, -math.inf), -1))
            core.log_pi.copy_(torch.tensor([0.0, -math.inf, -math.inf]))
    x = 2 * torch.randn(len(LENGTHS), T, N, dtype=torch.float64)
    reset = torch.zeros(len(LENGTHS), T, dtype=torch.bool)
    for row, times in enumerate(RESETS):
        reset[row, list(times)] = True
    return core, x, reset


def episodes(row):
    """The stretches (start, end) of a row that are chains by themselves."""
    cuts = [0, *(t for t in RESETS[row] if 0 < t < LENGTHS[row]), LENGTHS[row]]
    return [(start, end) for start, end in itertools.pairwise(cuts) if start < end]


def enumerate_paths(pi, P, likelihoods):
    """One chain, likelihoods (T, N): its probability, posteriors, transitions, distribution of the next state."""
    length = len(likelihoods)
    total, posterior = 0.0, torch.zeros(length, N, dtype=torch.float64)
    transitions, following = torch.zeros(N, N, dtype=torch.float64), torch.zeros(N, dtype=torch.float64)
    for path in itertools.product(range(N), repeat=length):
        weight = pi[path[0]] * math.prod(likelihoods[t][z] for t, z in enumerate(path))
        weight *= math.prod(P[i][j] for i, j in itertools.pairwise(path))
        total += weight
        following += weight * torch.tensor(P[path[-1]], dtype=torch.float64)
        for t, z in enumerate(path):
            posterior[t, z] += weight
        for i, j in itertools.pairwise(path):
            transitions[i, j] += weight
    return total, posterior / total, transitions / total, following / total


def expected(core, x):
    """Log-likelihood, posteriors (B, T, N), transitions and first states of all episodes, and next states (B, N)."""
    pi, P = core.log_pi.exp().tolist(), core.log_P.exp().tolist()
    log_likelihood, marginals = 0.0, torch.zeros_like(x)
    transitions, first = torch.zeros(N, N, dtype=torch.float64), torch.zeros(N, dtype=torch.float64)
    following = core.log_pi.detach().exp().repeat(len(x), 1)
    for row in range(len(x)):
        for start, end in episodes(row):
            total, posterior, counts, after = enumerate_paths(pi, P, x[row, start:end].exp().tolist())
            log_likelihood += math.log(total)
            marginals[row, start:end] = posterior
            transitions += counts
            first += posterior[0]
            following[row] = after
    return log_likelihood, marginals, transitions, first, following


LEFT_TO_RIGHT = torch.tensor([[True, True, False], [False, True, True], [False, False, True]])


@KERNELS
@pytest.mark.parametrize("mask", [None, LEFT_TO_RIGHT], ids=["full", "left-to-right"])
def test_likelihood_posteriors_and_expected_counts_are_those_of_all_paths(mask, kernel):
    core, x, reset = sample(mask)
    x.requires_grad_()
    lengths = torch.tensor(LENGTHS)
    with kernels.use(kernel):
        y, state = core.scan(x, lengths=lengths, reset=reset)
        log_prob = core.log_prob(x, lengths=lengths, reset=reset)
    log_likelihood = log_prob.sum()
    marginals, transitions, first = torch.autograd.grad(log_likelihood, (x, core.log_P, core.log_pi))

    wanted = expected(core, x.detach())
    given = (log_likelihood.detach(), marginals, transitions, first, state.p.detach())
    for got, want in zip(given, wanted, strict=True):
        torch.testing.assert_close(got, torch.as_tensor(want, dtype=torch.float64), rtol=1e-10, atol=1e-10)
    padding = torch.arange(T) >= lengths[:, None]
    assert (y[padding] == 0).all() and (log_prob[padding] == 0).all()
    if mask is not None:
        assert (transitions[~mask] == 0).all()


@KERNELS
def test_outputs_are_predictions_and_likelihoods_are_ratios_of_enumerations(kernel):
    """y[t] = p(z_t+1 | o_1..t), and log_prob[t] = log p(o_1..t) - log p(o_1..t-1)."""
    core, x, _ = sample()
    pi, P = core.log_pi.exp().tolist(), core.log_P.exp().tolist()
    with kernels.use(kernel):
        y, _ = core.scan(x[:1])
        log_prob = core.log_prob(x[:1])
    before = 1.0
    for t in range(T):
        total, _, _, following = enumerate_paths(pi, P, x[0, : t + 1].exp().tolist())
        torch.testing.assert_close(y[0, t].detach(), following, rtol=1e-10, atol=1e-10)
        assert float(log_prob[0, t].detach()) == pytest.approx(math.log(total / before), abs=1e-10)
        before = total


@KERNELS
def test_impossible_observations_give_minus_infinity_and_no_nan(kernel):
    core, x, _ = sample()
    x[:, 2] = -math.inf  # no hidden state can have emitted this
    x.requires_grad_()
    with kernels.use(kernel):
        y, state = core.scan(x)
        log_prob = core.log_prob(x)
        gradients = torch.autograd.grad(log_prob.sum() + y.sum(), (x, core.log_P, core.log_pi))
    assert (log_prob[:, 2:] == -math.inf).all() and log_prob[:, :2].isfinite().all()
    assert (state.p == 0).all()
    assert not any(g.isnan().any() for g in gradients)


@KERNELS
def test_an_impossible_state_has_no_posterior_and_no_nan(kernel):
    core, x, _ = sample()
    x[:, 1, 0] = -math.inf
    x.requires_grad_()
    with kernels.use(kernel):
        posterior = torch.autograd.grad(core.log_prob(x).sum(), x)[0]
    assert (posterior[:, 1, 0] == 0).all()
    torch.testing.assert_close(posterior.sum(-1), torch.ones(len(x), T, dtype=torch.float64))


def test_long_sequences_do_not_underflow():
    core = HMM(3, 3).double()
    x = torch.full((1, 2000, 3), -1000.0, dtype=torch.float64)
    torch.testing.assert_close(core.log_prob(x).sum(), torch.tensor(-2e6, dtype=torch.float64))


@pytest.mark.skipif("native" not in kernels.available(), reason="a promise of the native kernels")
@pytest.mark.parametrize("size", [1, 3, 8, 17, 70])
def test_chunks_and_streams_are_the_whole_to_the_bit(size):
    """Across the 64 steps that the kernel takes together, with resets, and where most of p is hopeless."""
    torch.manual_seed(size)
    core, steps = HMM(size, size), 150
    x = 20 * torch.randn(3, steps, size)
    reset = torch.rand(3, steps) < 0.02
    before = kernels.calls()["hmm_filter"]
    with torch.no_grad():
        whole, last = core.scan(x, reset=reset)
        assert kernels.calls()["hmm_filter"] == before + 1
        for cut in (1, 63, 64, 65, 100):
            first, state = core.scan(x[:, :cut], reset=reset[:, :cut])
            second, state = core.scan(x[:, cut:], state, reset=reset[:, cut:])
            assert torch.equal(torch.cat([first, second], 1), whole) and torch.equal(state.p, last.p)
        stream, unbroken = Stream(core, 3), core.scan(x)[0]
    assert stream.native
    for t in range(steps):
        assert torch.equal(torch.from_numpy(stream.step(x[:, t].numpy())), unbroken[:, t])


def test_the_start_is_normalised_and_not_symmetric():
    core = HMM(4, 4)
    torch.testing.assert_close(core.log_pi.exp().sum(), torch.tensor(1.0))
    torch.testing.assert_close(core.log_P.exp().sum(-1), torch.ones(4))
    assert len(core.log_P.flatten().unique()) == 16


def test_widths_must_agree():
    with pytest.raises(InputError, match="input_size is 2, size 3; they must be equal"):
        HMM(2, 3)
