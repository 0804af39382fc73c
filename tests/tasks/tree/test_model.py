"""What a labeller of trees reads; how good it is: right labels, and right sides of the middle one."""

import pytest
import torch

from elman.tasks.tree.data import read_brackets
from elman.tasks.tree.forest import Forest
from elman.tasks.tree.model import (
    NONE,
    Example,
    TreeInput,
    TreeLexicon,
    TreeModel,
    TreeModelConfig,
    _accuracies,
    batch_of,
    loss,
)

P = torch.tensor([
    [0.40, 0.00, 0.10, 0.25, 0.25],  # the best label is below the middle, and more than half of the rest above it
    [0.10, 0.60, 0.10, 0.10, 0.10],
    [0.10, 0.10, 0.60, 0.05, 0.15],
    [0.20, 0.20, 0.20, 0.20, 0.20],
]).double()  # fmt: skip


def test_sides_are_compared_by_all_of_their_labels_and_the_middle_has_none():
    found = _accuracies("node", P.log(), torch.tensor([4, 0, 2, NONE]), ["0", "1", "2", "3", "4"])
    assert found == {
        "node_accuracy": pytest.approx(1 / 3), "nodes": 3, "node_binary_accuracy": 1.0, "binary_nodes": 2,
    }  # fmt: skip
    found = _accuracies("root", P.log(), torch.tensor([0, 4, 2, 1]), ["0", "1", "2", "3", "4"])
    assert found["root_binary_accuracy"] == pytest.approx(1 / 3) and found["root_accuracy"] == pytest.approx(2 / 4)


@pytest.mark.parametrize("labels", [["a", "b", "c"], ["0", "1", "2", "3"], ["1", "2", "3"]])
def test_labels_that_are_not_0_to_2n_have_no_sides(labels):
    found = _accuracies("root", P[:, : len(labels)].log(), torch.tensor([0, 1, 2, 0]), labels)
    assert {*found} == {"root_accuracy", "roots"}


@pytest.mark.parametrize("lower", [True, False])
def test_words_are_read_in_lower_case_where_they_were_learnt_so(lower):
    trees = read_brackets("(1 (0 The) (1 cat))(0 (0 a) (1 Cat))")
    lexicon = TreeLexicon.fit(trees, "nodes", 1, lower)
    known = [lexicon.numbers(tree).tolist() for tree in read_brackets("(1 (0 the) (1 CAT))(0 (0 The) (1 Cat))")]
    unknown = 1
    if lower:
        assert {*lexicon.words.names} == {"the", "cat", "a"} and known[0] == known[1] and unknown not in known[0]
    else:
        assert known[0] == [unknown, unknown] and unknown not in known[1]


@pytest.mark.parametrize("target", ["nodes", "roots"])
def test_the_loss_counts_the_nodes_that_have_a_label(target):
    """As words with their heads have: a label that is "_" is none."""
    torch.manual_seed(0)
    trees = read_brackets("(1 (0 The) (1 cat))(0 (0 a) (1 Cat))")
    lexicon = TreeLexicon.fit(trees, target, 1, True)
    model = TreeModel(TreeModelConfig(size=4, embedding_size=3), lexicon).eval()
    bare = [trees[0]._replace(labels=["", "1", "1"]), trees[1]]
    batch = batch_of([Example(tree, lexicon.numbers(tree), lexicon.targets(tree)) for tree in bare], target)
    total, count, _ = loss(model, batch)
    log_p = [
        float(model(TreeInput(lexicon.numbers(tree), Forest.of([tree.shape]))).log_probs()[row, int(label)])
        for tree in bare
        for row, label in zip(Forest.of([tree.shape]).rows.tolist(), tree.labels, strict=True)
        if label and target == "nodes"
    ]
    assert count == (5 if target == "nodes" else 2)
    assert target == "roots" or total.item() == pytest.approx(-sum(log_p), rel=1e-5)
