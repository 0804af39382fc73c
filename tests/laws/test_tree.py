"""Recursions over trees: the laws, foreign oracles, odd trees, bad input."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from elman import kernels, laws
from elman import state as states
from elman.cells.lstm import LSTM
from elman.errors import InputError, UnknownNameError
from elman.laws import tree as tree_laws
from elman.stream import Stream
from elman.tasks.tree.forest import Forest, shape
from elman.trees import TREES, ShiftReduce, TreeCore, steps, tree


@pytest.fixture(params=kernels.available(), autouse=True)
def on(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "reference":
        monkeypatch.setattr(tree_laws, "DEEP", 200)  # level by level in Torch, 5,000 take seconds
    with kernels.use(request.param):
        torch.manual_seed(0)
        yield request.param


@pytest.mark.slow
@pytest.mark.parametrize("name", TREES)
def test_the_laws(name: str, on: str) -> None:
    report = tree_laws.check(tree(name, 4, 5))
    assert report.ok, str(report)
    assert report.exact == (on == "native"), str(report)


@pytest.mark.parametrize("name", TREES)
def test_the_shift_reduce_view_is_an_ordinary_core(name: str, on: str) -> None:
    report = laws.check(ShiftReduce(tree(name, 3, 4), depth=6))
    assert report.ok and report.exact == (on == "native"), str(report)


def test_it_streams_and_forks() -> None:
    core = ShiftReduce(tree("child_sum_tree_lstm", 3, 4), depth=6).eval()
    x = torch.randn(2, 7, 4)
    whole, last = core.scan(x)
    stream = Stream(core, 2)
    for t in range(7):
        torch.testing.assert_close(stream.step(x[:, t]), whole[:, t])
    states.map(torch.testing.assert_close, stream.state, last)


class Literal:
    """Equations 2 to 14 of Tai, Socher and Manning, and Socher's p = tanh(W [c1; c2] + b), by recursion."""

    def __init__(self, name: str, core: TreeCore) -> None:
        self.name = name
        self.W, self.U, self.b = (core.get_parameter(letter) for letter in "WUb")
        self.H = core.output_size

    def __call__(self, node: int, children: list[list[int]], x: dict[int, Tensor]) -> tuple[Tensor, Tensor]:
        below = [self(child, children, x) for child in children[node]]
        zero = self.b.new_zeros(self.H)
        u = self.b + self.U @ x[node] if node in x else self.b
        if self.name == "child_sum_tree_lstm":
            (Wi, Wg, Wo, Wf), (ui, ug, uo, uf) = self.W.chunk(4), u.chunk(4)
            h = sum((h for h, _ in below), zero)
            i, g, o = torch.sigmoid(Wi @ h + ui), torch.tanh(Wg @ h + ug), torch.sigmoid(Wo @ h + uo)
            c = i * g + sum((torch.sigmoid(Wf @ h_k + uf) * c_k for h_k, c_k in below), zero)
            return o * torch.tanh(c), c
        (h1, c1), (h2, c2) = [*below, (zero, zero), (zero, zero)][:2]
        both = torch.cat([h1, h2])
        if self.name == "recursive":
            return torch.tanh(self.W @ both + u), zero
        (Wi, Wg, Wo, W1, W2), (ui, ug, uo, uf) = self.W.chunk(5), u.chunk(4)
        i, g, o = torch.sigmoid(Wi @ both + ui), torch.tanh(Wg @ both + ug), torch.sigmoid(Wo @ both + uo)
        c = i * g + torch.sigmoid(W1 @ both + uf) * c1 + torch.sigmoid(W2 @ both + uf) * c2
        return o * torch.tanh(c), c


@pytest.mark.parametrize("name", TREES)
@given(seed=st.integers(0, 10_000), leaf_count=st.integers(1, 12))
@settings(max_examples=15, deadline=None)
def test_it_is_the_papers_equations(name: str, seed: int, leaf_count: int) -> None:
    core = tree(name, 3, 4).double()
    draw = torch.Generator().manual_seed(seed)
    one = tree_laws.random_tree(leaf_count, 4 if core.places is None else 2, draw)
    x = torch.randn(int(one.reads.sum()), 3, generator=draw, dtype=torch.float64, requires_grad=True)
    children: list[list[int]] = [[] for _ in one.parents]
    for node, parent in enumerate(one.parents.tolist()):
        if parent >= 0:
            children[parent].append(node)
    inputs = dict(zip(one.reads.nonzero()[0].tolist(), x, strict=True))
    wanted, _ = Literal(name, core)(len(children) - 1, children, inputs)
    forest = Forest.of([one])
    found = core.scan(x, forest)[0][forest.roots[0]]
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)
    for a, b in zip(
        *(torch.autograd.grad(h.square().sum(), x, retain_graph=True) for h in (found, wanted)), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-8)


def test_a_chain_under_child_sum_is_the_lstm() -> None:
    T, D, H = 9, 3, 5
    lstm, chain = LSTM(D, H).double(), tree("child_sum_tree_lstm", D, H).double()
    with torch.no_grad():
        for letter in "WUb":
            i, f, g, o = lstm.get_parameter(letter).chunk(4)
            chain.get_parameter(letter).copy_(torch.cat([i, g, o, f]))
    x = torch.randn(T, D, dtype=torch.float64)
    y, _ = chain.scan(x, Forest.of([shape([*range(1, T), -1])]))
    torch.testing.assert_close(y, lstm.scan(x[None])[0][0], rtol=1e-12, atol=1e-12)


def test_a_core_of_one_s_own_needs_combine_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Mean(TreeCore):
        def init_state(self, batch_size: int) -> Tensor:
            return torch.zeros(batch_size, self.output_size)

        def combine(self, x: Tensor, children: Tensor) -> Tensor:
            return torch.tanh(x + children.sum(1))

    monkeypatch.setattr(tree_laws, "DEEP", 1500)  # more than recursion goes
    report = tree_laws.check(Mean(3, 3))
    assert report.ok and "correct" in str(report)


def test_dependency_trees_number_nodes_in_any_order() -> None:
    core = tree("child_sum_tree_lstm", 2, 3)
    parents, x = [1, -1, 1, 2], torch.randn(4, 2)  # the root is the second word
    forest = Forest.of([shape(parents)])
    found = core.scan(x, forest)[0][forest.rows]
    turned = [3, 2, 3, -1]  # the same tree, its nodes numbered 0, 3, 2, 1
    other = Forest.of([shape(turned)])
    again = core.scan(x[[0, 3, 2, 1]], other)[0][other.rows]
    torch.testing.assert_close(again, found[[0, 3, 2, 1]])


def test_bad_input_is_named() -> None:
    core = tree("binary_tree_lstm", 2, 3)
    with pytest.raises(UnknownNameError, match="recursive"):
        tree("tree_gru", 2, 3)
    with pytest.raises(InputError, match="no option 'peephole'"):
        tree("recursive", 2, 3, peephole=True)
    with pytest.raises(InputError, match="3 children; BinaryTreeLSTM takes 2"):
        core.scan(torch.zeros(4, 2), Forest.of([shape([3, 3, 3, -1])]))
    with pytest.raises(InputError, match="x has 2 rows; the nodes of this forest read 3"):
        core.scan(torch.zeros(2, 2), Forest.of([shape([2, 2, -1])]))
    with pytest.raises(InputError, match=r"\(inputs, 2\)"):
        core.scan(torch.zeros(3, 5), Forest.of([shape([2, 2, -1])]))
    for parents in ([], [-1, -1], [5, -1], [1, 0]):
        with pytest.raises(InputError, match="not those of a tree"):
            shape(parents)
    with pytest.raises(InputError, match="cycle"):
        shape([1, 2, 1, -1])
    with pytest.raises(InputError, match="post-order"):
        steps(torch.zeros(3, 2), [shape([-1, 0, 0])])
    with pytest.raises(InputError, match="takes a TreeCore"):
        tree_laws.check(LSTM(2, 2))  # type: ignore[arg-type]
