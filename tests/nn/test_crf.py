"""The CRF against enumeration of all paths, against itself in double precision, and against its own promises."""

import itertools

import numpy as np
import pytest
import torch
from scipy.special import logsumexp

from elman import kernels
from elman.errors import InputError
from elman.nn.crf import CRF, SPAN, Allowed, LinearChain


def chain(B, T, K, *, lengths=None, scale=1.0, seed=0, dtype=torch.float64):
    make = torch.Generator().manual_seed(seed)
    e = scale * torch.randn(B, T, K, generator=make, dtype=dtype)
    start, stop = (scale * torch.randn(K, generator=make, dtype=dtype) for _ in range(2))
    S = scale * torch.randn(K, K, generator=make, dtype=dtype)
    return LinearChain(e, torch.full((B,), T) if lengths is None else torch.tensor(lengths), start, stop, S)


def paths_of(c, row):
    """Every path of a row with its score, by the definition."""
    e, start, stop, S = (t.detach().double().numpy() for t in (c.emissions[row], c.start, c.stop, c.transition))
    S = np.maximum(S, S.max() - SPAN)
    found = {}
    for path in itertools.product(range(e.shape[1]), repeat=int(c.lengths[row])):
        score = sum(e[t, k] for t, k in enumerate(path)) + sum(S[i, j] for i, j in itertools.pairwise(path))
        found[path] = score + (start[path[0]] + stop[path[-1]] if path else 0.0)
    return found


def padded(path, T):
    return [*path, *[-1] * (T - len(path))]


KERNELS = pytest.mark.parametrize("kernel", kernels.available())


@KERNELS
@pytest.mark.parametrize("scale", [1.0, 30.0, 1e3])
@pytest.mark.parametrize("seed", range(3))
def test_against_all_paths(kernel, scale, seed):
    c = chain(6, 5, 3, lengths=[0, 1, 2, 3, 4, 5], scale=scale, seed=seed)
    with kernels.use(kernel):
        Z, marginals, best = c.log_partition(), c.marginals(), c.mode
        several, scores = c.k_best(7)
    for row in range(6):
        truth = paths_of(c, row)
        L, values = int(c.lengths[row]), np.array(list(truth.values()))
        total = logsumexp(values)
        assert Z[row].item() == pytest.approx(total, abs=1e-9 * scale)
        wanted = np.zeros((5, 3))
        for path, score in truth.items():
            for t, k in enumerate(path):
                wanted[t, k] += np.exp(score - total)
        np.testing.assert_allclose(marginals[row], wanted, atol=1e-9)
        ranked = sorted(truth, key=truth.get, reverse=True)
        assert best[row].tolist() == padded(ranked[0], 5)
        for i in range(7):
            if i < len(ranked):
                assert tuple(several[row, i, :L].tolist()) == ranked[i]
                assert scores[row, i].item() == pytest.approx(truth[ranked[i]], abs=1e-9 * scale)
            else:
                assert scores[row, i] == -torch.inf and (several[row, i] == -1).all()
        path = torch.tensor([padded(ranked[len(ranked) // 2], 5)])
        alone = LinearChain(c.emissions[row : row + 1], c.lengths[row : row + 1], c.start, c.stop, c.transition)
        with kernels.use(kernel):
            found = alone.log_prob(path).item()
        assert found == pytest.approx(truth[ranked[len(ranked) // 2]] - total, abs=1e-9 * scale)


@KERNELS
def test_the_gradient_is_expected_minus_seen(kernel):
    """Of log P, with respect to each score: how often it is used, less how often it is expected to be."""
    c = chain(1, 4, 3)
    parts = [t.requires_grad_() for t in (c.emissions, c.start, c.stop, c.transition)]
    truth = paths_of(c, 0)
    total = logsumexp(list(truth.values()))
    own = (2, 0, 0, 1)
    e, start, stop, S = np.zeros((4, 3)), np.zeros(3), np.zeros(3), np.zeros((3, 3))
    for path, score in truth.items():
        weight = float(path == own) - np.exp(score - total)
        start[path[0]] += weight
        stop[path[-1]] += weight
        for t, k in enumerate(path):
            e[t, k] += weight
        for i, j in itertools.pairwise(path):
            S[i, j] += weight
    with kernels.use(kernel):
        found = torch.autograd.grad(c.log_prob(torch.tensor([own])).sum(), parts)
    for got, wanted in zip(found, (e[None], start, stop, S), strict=True):
        np.testing.assert_allclose(got, wanted, atol=1e-10)


@KERNELS
@pytest.mark.parametrize("scale", [1.0, 1e3])
def test_float32_is_as_good_as_float64_after_ten_thousand_steps(kernel, scale):
    T = 10_000 if kernel == "native" else 200
    small = chain(2, T, 4, lengths=[T, T // 2 + 1], scale=scale, dtype=torch.float32)
    wide = LinearChain(*(t.double() if t.is_floating_point() else t for t in vars(small).values()))
    with kernels.use(kernel):
        Z, truth = small.log_partition(), wide.log_partition()
        path = small.mode
        log_p, log_p_truth = small.log_prob(path), wide.log_prob(path)
        marginals, wanted = small.marginals(), wide.marginals()
    assert torch.isfinite(log_p).all()
    torch.testing.assert_close(Z, truth, rtol=2e-7, atol=0)
    # A sum of 10,000 numbers of the size of `scale`, each rounded to float32.
    torch.testing.assert_close(log_p.double(), log_p_truth, rtol=2e-5, atol=2e-5 * scale)
    torch.testing.assert_close(marginals.double(), wanted, rtol=0, atol=2e-3 if scale > 1 else 2e-5)
    assert bool((path == wide.mode).double().mean() > 0.999)


def test_probabilities_of_all_paths_add_up_to_one_where_scores_are_cut():
    """A transition score far below the others counts as SPAN below, in the partition and in the score alike."""
    c = chain(1, 3, 2)
    c.transition[0, 1] = -1e4
    paths = torch.tensor(list(itertools.product(range(2), repeat=3)))
    many = LinearChain(c.emissions.expand(8, -1, -1), torch.full((8,), 3), c.start, c.stop, c.transition)
    assert many.log_prob(paths).exp().sum().item() == pytest.approx(1, abs=1e-12)


def test_what_is_not_allowed_is_not_chosen():
    c = chain(2, 4, 3, lengths=[4, 1], seed=5)
    first, last = torch.tensor([True, True, False]), torch.tensor([True, False, True])
    following = torch.tensor([[True, False, True], [True, True, False], [False, True, True]])
    found = c.best_path(Allowed(first, following, last))
    for row in range(2):
        legal = {
            path: score
            for path, score in paths_of(c, row).items()
            if first[path[0]] and last[path[-1]] and all(following[i, j] for i, j in itertools.pairwise(path))
        }
        assert found[row].tolist() == padded(max(legal, key=legal.get), 4)


def test_samples_have_the_probabilities_of_the_paths():
    c = chain(1, 3, 2, seed=3)
    n = 20_000
    many = LinearChain(c.emissions.expand(n, -1, -1), torch.full((n,), 3), c.start, c.stop, c.transition)
    draws = torch.stack([torch.arange(n), torch.zeros(n, dtype=torch.int64)], 1)
    drawn = many.sample(draws)
    truth = paths_of(c, 0)
    total = logsumexp(list(truth.values()))
    for path, score in truth.items():
        share = (drawn == torch.tensor(path)).all(1).double().mean().item()
        p = np.exp(score - total)
        assert share == pytest.approx(p, abs=5 * np.sqrt(p * (1 - p) / n))
    ragged = LinearChain(c.emissions.expand(2, -1, -1), torch.tensor([0, 2]), c.start, c.stop, c.transition)
    assert ragged.sample(draws[:2])[0].tolist() == [-1, -1, -1] and ragged.sample(draws[:2])[1, 2] == -1


def test_a_row_is_the_same_alone_and_in_a_batch():
    c = chain(5, 9, 4, lengths=[9, 3, 0, 1, 7], dtype=torch.float32)
    value = torch.randint(0, 4, (5, 9), generator=torch.Generator().manual_seed(1))
    whole, best = c.log_prob(value), c.mode
    for row in range(5):
        L = max(1, int(c.lengths[row]))
        alone = LinearChain(c.emissions[row : row + 1, :L], c.lengths[row : row + 1], c.start, c.stop, c.transition)
        assert torch.equal(alone.log_prob(value[row : row + 1, :L]), whole[row : row + 1])
        assert torch.equal(alone.mode[0, : c.lengths[row]], best[row, : c.lengths[row]])


def test_an_empty_batch_and_an_empty_time():
    for B, T in ((0, 3), (2, 0)):
        c = chain(B, T, 3)
        assert c.log_prob(torch.zeros(B, T, dtype=torch.int64)).tolist() == [0.0] * B
        assert c.mode.shape == (B, T) and c.marginals().shape == (B, T, 3)
        assert c.k_best(2)[0].shape == (B, 2, T) and c.k_best(2)[1].tolist() == [[0.0, -np.inf]] * B


def test_the_read_out_learns_and_says_what_is_wrong():
    torch.manual_seed(0)
    readout = CRF(4, 3)
    y, lengths, tags = torch.randn(8, 6, 4), torch.tensor([6, 5, 4, 3, 2, 1, 0, 6]), torch.arange(48).view(8, 6) % 3
    optimiser = torch.optim.Adam(readout.parameters(), 0.2)
    losses = []
    for _ in range(60):  # the tags go round, whatever y says: only transitions can know
        loss = -readout(y, lengths).log_prob(tags).sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.05 * losses[0]
    with pytest.raises(InputError, match="has no step"):
        readout(y[:, 0])
    with pytest.raises(InputError, match="there are 3, from 0 to 2"):
        readout(y, lengths).log_prob(tags + 1)
    with pytest.raises(InputError, match=r"expected int64\[8, 6\]"):
        readout(y, lengths).log_prob(tags[:, :5])
    with torch.inference_mode():
        assert torch.allclose(readout(y, lengths).marginals().sum(-1)[0], torch.ones(6), atol=1e-5)


@KERNELS
def test_rows_without_steps_have_marginals_too(kernel):
    none = LinearChain(
        torch.zeros(2, 0, 3), torch.tensor([0, 0]), *(torch.randn(3) for _ in range(2)), torch.zeros(3, 3)
    )
    with kernels.use(kernel):
        assert none.marginals().shape == (2, 0, 3) and none.mode.shape == (2, 0)
        assert none.log_partition().tolist() == [0.0, 0.0]


@KERNELS
def test_where_nothing_is_allowed_there_is_no_path(kernel):
    c = chain(3, 4, 2, lengths=[0, 1, 3])
    yes, no = torch.ones(2, dtype=torch.bool), torch.zeros(2, dtype=torch.bool)
    every, none = torch.ones(2, 2, dtype=torch.bool), torch.zeros(2, 2, dtype=torch.bool)
    with kernels.use(kernel):
        for allowed, row, length in [
            (Allowed(no, every, yes), 1, 1), (Allowed(yes, every, no), 1, 1), (Allowed(yes, none, yes), 2, 3),
        ]:  # fmt: skip
            with pytest.raises(InputError, match=f"leaves no path of {length} tags, which row {row} has"):
                c.best_path(allowed)
        only = Allowed(torch.tensor([True, False]), torch.tensor([[False, True], [True, False]]), yes)
        assert c.best_path(only)[2].tolist() == [0, 1, 0, -1]


@KERNELS
@pytest.mark.parametrize("seed", range(4))
def test_of_equal_paths_mode_and_k_best_take_the_same(kernel, seed):
    """Scores that are small whole numbers have many ties, which no rounding breaks."""
    make = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randint(0, 2, shape, generator=make).double()  # noqa: E731
    c = LinearChain(draw(20, 6, 40), torch.randint(0, 7, (20,), generator=make), draw(40), draw(40), draw(40, 40))
    with kernels.use(kernel):
        assert torch.equal(c.mode, c.k_best(1)[0][:, 0]) and torch.equal(c.mode, c.k_best(3)[0][:, 0])


@KERNELS
def test_what_stands_in_the_padding_reaches_nothing(kernel):
    """Marginals of 1 / 2 by symmetry; a NaN past the lengths came back in the gradients of the valid steps."""
    e = torch.zeros(2, 3, 2)
    e[0, 1:] = torch.nan
    weights = [torch.zeros(2), torch.zeros(2), torch.zeros(2, 2)]
    for each in (e, *weights):
        each.requires_grad_()
    c = LinearChain(e, torch.tensor([1, 3]), *weights)
    with kernels.use(kernel):
        wanted = torch.tensor([[0.5, 0.0, 0.0], [0.5, 0.5, 0.5]])[..., None].expand(2, 3, 2)
        torch.testing.assert_close(c.marginals(), wanted)
        c.log_prob(torch.tensor([[0, -1, -1], [0, 0, 0]])).sum().backward()
        assert all(bool(each.grad.isfinite().all()) for each in (e, *weights)) and not e.grad[0, 1:].any()
        assert c.mode.tolist() == [[0, -1, -1], [0, 0, 0]] == c.k_best(1)[0][:, 0].tolist()
        assert c.sample(torch.zeros(2, 2, dtype=torch.int64))[0, 1:].tolist() == [-1, -1]
