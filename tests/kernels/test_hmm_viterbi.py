"""The native Viterbi path where sums are long: float32 must not lose what tells one state from another."""

from itertools import pairwise, product

import pytest
import torch
from torch import Tensor

from elman import kernels

native = pytest.importorskip("elman.kernels.native")


def probability(path: Tensor, x: Tensor, start: Tensor, transition: Tensor) -> float:
    """The logarithm of the joint probability of one path (T,) with x (T, K), by its definition."""
    steps = transition.log()[path[:-1], path[1:]].sum()
    return float(start.log()[path[0]] + steps + x[torch.arange(len(path)), path].sum())


@pytest.mark.parametrize("K", [2, 5, 17])
def test_a_long_path_is_as_probable_as_the_one_in_float64(K: int) -> None:
    """Every step adds -500: after 4000, neighbouring float32 are 1/8 apart, more than states often differ by."""
    g = torch.Generator().manual_seed(K)
    T = 4000
    x = (torch.randn(1, T, K, generator=g, dtype=torch.float64) - 500).float()
    start = torch.full((K,), 1 / K)
    transition = torch.rand(K, K, generator=g).add(torch.eye(K)).softmax(1)
    full, none = torch.tensor([T]), torch.zeros(1, T, dtype=torch.bool)
    before = native.calls["viterbi"]
    path, score = kernels.viterbi(x, start, transition, full, none)
    assert native.calls["viterbi"] == before + 1
    wide = [t.double() for t in (x[0], start, transition)]
    with kernels.use("reference"):
        best, _ = kernels.viterbi(wide[0][None], *wide[1:], full, none)
    lost = probability(best[0], *wide) - probability(path[0], *wide)
    assert 0 <= lost < 0.05
    assert float(score) == pytest.approx(probability(path[0], *wide), rel=1e-6)


@pytest.mark.parametrize("K", [2, 5, 17])
def test_ties_go_to_the_first_state(K: int) -> None:
    reset = torch.zeros(1, 70, dtype=torch.bool)
    reset[0, 30] = True
    uniform = torch.full((K,), 1 / K)
    path, _ = kernels.viterbi(torch.zeros(1, 70, K), uniform, uniform.expand(K, K), torch.tensor([70]), reset)
    assert not path.any()


@pytest.mark.parametrize("kernel", ["native", "reference"])
def test_scores_to_stop_are_added_at_the_end_of_each_row(kernel: str) -> None:
    torch.manual_seed(0)
    B, T, K = 5, 7, 3
    x, start, moves, stop = (torch.randn(*shape) for shape in ((B, T, K), (K,), (K, K), (K,)))
    lengths, reset = torch.tensor([7, 1, 0, 4, 2]), torch.zeros(B, T, dtype=torch.bool)
    with kernels.use(kernel):
        path, score = kernels.best_path(x, start, moves, stop, lengths, reset)

    def of(row: int, z: tuple[int, ...]) -> float:
        steps = sum(float(x[row, t, k]) for t, k in enumerate(z)) + sum(float(moves[i, j]) for i, j in pairwise(z))
        return steps + float(start[z[0]] + stop[z[-1]]) if z else 0.0

    for row, n in enumerate(lengths.tolist()):
        best = max(product(range(K), repeat=n), key=lambda z: of(row, z))
        assert path[row].tolist() == [*best, *[-1] * (T - n)]
        assert float(score[row]) == pytest.approx(of(row, best), abs=1e-5)
