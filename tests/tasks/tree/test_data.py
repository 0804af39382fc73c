"""Trees with labels: brackets and dependencies, and every way to get them wrong."""

import pytest
import torch

from elman.data.batches import Alike, Position
from elman.errors import InputError
from elman.tasks.tree.data import TreeReader, fingerprint, read_brackets
from elman.tasks.tree.forest import Forest, shape

CONLLU = """# text = She reads old books
1\tShe\tshe\tPRON\t_\t_\t2\tnsubj\t_\t_
2-3\treadsold\t_\t_\t_\t_\t_\t_\t_\t_
2\treads\tread\tVERB\t_\t_\t0\troot\t_\t_
3\told\told\tADJ\t_\t_\t4\tamod\t_\t_
4\tbooks\tbook\tNOUN\t_\t_\t2\tobj\t_\t_
"""


def test_brackets_are_nodes_in_post_order() -> None:
    one, two = read_brackets("(3 (2 It)\n  (4 (2 's) (4 -LRB-)))\n\n(1 bad)\n", "file")
    assert one.shape.parents.tolist() == [4, 3, 3, 4, -1] and one.shape.heights.tolist() == [0, 0, 0, 1, 2]
    assert one.words == ["It", "'s", "-LRB-", "", ""] and one.labels == ["2", "2", "4", "4", "3"]
    assert one.where == "line 1 of file" and two.where == "line 4 of file" and (one.root, one.height) == (4, 2)
    assert two.words == ["bad"] and two.shape.parents.tolist() == [-1]


def test_a_word_may_have_a_space_in_it_that_does_not_break() -> None:
    (tree,) = read_brackets("(3 (2 8\u00a01\\/2) (4 stars))\r\n")
    assert tree.words == ["8\u00a01\\/2", "stars", ""]


def test_labels_may_be_missing_where_none_are_needed() -> None:
    (tree,) = read_brackets("((It) ((2 's) (lovely)))", labelled=False)
    assert tree.words == ["It", "'s", "lovely", "", ""] and tree.labels == ["", "2", "", "", ""]


@pytest.mark.parametrize("text, message", [
    ("(3 (2 It) (4 works)\n", "line 1, column 1 of f: this bracket is never closed"),
    ("(3 (2 It) (4 works)))", "line 1, column 21 of f: this bracket closes nothing"),
    ("(3 (2 It)\n(4 works)) x", "line 2, column 12 of f: 'x' is outside"),
    ("(3 (It) (4 works))", "line 1, column 4 of f: this node has no label"),
    ("((2 It) (4 works))", "line 1, column 1 of f: this node has no label"),
    ("(3 (2 It) ())", "line 1, column 11 of f: there is nothing between"),
    ("(3 (2 It is) (4 x))", "line 1, column 10 of f: 'is' is one word too many"),
    ("(3 It (4 x))", "line 1, column 7 of f: a node has a word, 'It', and a child"),
])  # fmt: skip
def test_what_is_wrong_is_said_with_line_and_column(text: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        read_brackets(text, "f")
    assert message in str(error.value)


def test_a_deep_tree_needs_no_recursion() -> None:
    (tree,) = read_brackets("(1 " * 5000 + "(0 deep)" + ")" * 5000)
    assert tree.height == 5000 and len(tree.words) == 5001


def test_dependencies_are_trees_with_a_word_on_every_node(tmp_path) -> None:
    (tmp_path / "a.conllu").write_text(CONLLU)
    (tree,) = TreeReader()([str(tmp_path / "a.conllu")])
    assert tree.words == ["She", "reads", "old", "books"] and tree.labels == ["nsubj", "root", "amod", "obj"]
    assert tree.shape.parents.tolist() == [1, -1, 3, 1] and tree.shape.reads.all() and tree.root == 1
    other = TreeReader(tag="upos")([str(tmp_path / "a.conllu")])
    assert other[0].labels[0] == "PRON" and fingerprint(other) != fingerprint([tree])


@pytest.mark.parametrize("head, message", [
    ("0", "has the roots [1, 2]"),
    ("_", "word 1, 'She', has the head '_'; it must be 0 for the root"),
    ("9", "has the head '9'"),
    ("1", "cycle"),
])  # fmt: skip
def test_heads_that_make_no_tree(tmp_path, head: str, message: str) -> None:
    (tmp_path / "a.conllu").write_text(CONLLU.replace("PRON\t_\t_\t2", f"PRON\t_\t_\t{head}"))
    with pytest.raises(InputError) as error:
        TreeReader()([str(tmp_path / "a.conllu")])
    assert message in str(error.value) and "line 1 of" in str(error.value)


def test_no_root_and_no_tree(tmp_path) -> None:
    (tmp_path / "a.conllu").write_text(CONLLU.replace("VERB\t_\t_\t0", "VERB\t_\t_\t1"))
    with pytest.raises(InputError, match="no root"):
        TreeReader()([str(tmp_path / "a.conllu")])
    (tmp_path / "b.txt").write_text("\n")
    with pytest.raises(InputError, match=r"b\.txt is empty"):
        TreeReader()([str(tmp_path / "b.txt")])


def test_a_forest_lays_trees_level_by_level() -> None:
    forest = Forest.of([shape([2, 2, -1], [True, True, False]), shape([-1]), shape([1, -1])])
    assert forest.levels.tolist() == [0, 4, 6] and forest.tree.tolist() == [0, 0, 1, 2, 0, 2]
    assert forest.source.tolist() == [0, 1, 2, 3, -1, 4] and forest.roots.tolist() == [4, 2, 5]
    assert forest.places.tolist() == [[-1, -1]] * 4 + [[0, 1], [3, -1]]
    assert Forest.of([]).levels.tolist() == [0] and Forest.of([]).roots.shape == (0,)


def test_batches_are_of_like_height_in_an_order_of_each_pass() -> None:
    heights = torch.randint(1, 9, (40,), generator=torch.Generator().manual_seed(0)).tolist()
    order = Alike(heights, 6, seed=3)
    passes = []
    for epoch in (0, 1):
        at, rows = Position(epoch, 0), []
        while at.epoch == epoch:
            rows.append(order.rows(at))
            at = order.after(at)
        assert sorted(i for batch in rows for i in batch) == list(range(40))
        spread = [max(heights[i] for i in batch) - min(heights[i] for i in batch) for batch in rows]
        assert max(spread) <= 2 and [len(batch) for batch in rows].count(6) == 6
        passes.append(rows)
    assert passes[0] != passes[1]
    again = Alike(heights, 6, seed=3)
    assert again.rows(Position(1, 0)) == passes[1][0]
