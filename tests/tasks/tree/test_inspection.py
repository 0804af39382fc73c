"""What the lens sees of trees: the way up as a Core, gradients of nodes, the verb, fresh weights."""

import json
from functools import partial

import numpy as np
import pytest
import torch
from treebanks import write

from elman import laws, lens
from elman import state as states
from elman.cli import main
from elman.errors import InputError
from elman.lens.layers import inspection_mode
from elman.run import load
from elman.tasks.tree import inspection
from elman.tasks.tree.forest import Forest, shape
from elman.trees import TREES, Climb, climbs, deepest, tree


def bushy(n, seed):
    """Parents of n nodes, each of a later one; two children at most."""
    random, free, parents = np.random.default_rng(seed), [], []
    for i in range(n):
        taken = free[: 2 if len(free) > 1 and random.random() < 0.7 else 0]
        free = [*free[len(taken) :], i]
        for child in taken:
            parents[child] = i
        parents.append(-1)
    while len(free) > 1:
        parents[free[0]] = parents[free[1]] = len(parents)
        free = [*free[2:], len(parents)]
        parents.append(-1)
    return shape(parents)


@pytest.mark.parametrize("name", TREES)
def test_the_way_up_is_an_ordinary_core_that_ends_at_the_root(name):
    torch.manual_seed(0)
    core = tree(name, 3, 4)
    assert laws.check(Climb(core, places=2)).ok
    shapes = [bushy(n, n) for n in (9, 1, 14)]
    forest = Forest.of(shapes)
    x = torch.randn(len(forest.source), 3)
    y, _ = core.scan(x, forest)
    ways = [deepest(s) for s in shapes]
    assert [len(way) for way in ways] == [int(s.heights.max()) + 1 for s in shapes]
    begin = 0
    for s, way, read in zip(shapes, ways, climbs(core, x, shapes, ways), strict=True):
        own, _ = Climb(core, places=2).scan(read[None])
        torch.testing.assert_close(own[0], y[forest.rows[begin + torch.tensor(way)]])
        begin += len(s.parents)


@pytest.mark.parametrize("name", ["binary_tree_lstm", "child_sum_tree_lstm"])
def test_gates_are_those_of_the_equation_and_of_the_child_below(name):
    core = tree(name, 3, 4).double()
    climb = Climb(core, places=2)
    x = torch.zeros(3, climb.input_size, dtype=torch.float64)
    x[:, :3] = torch.randn(3, 3)
    x[1, 3] = x[2, 4] = 1.0  # no child, the first, the second
    state = states.map(lambda leaf: torch.randn(3, 4, dtype=torch.float64), climb.init_state(3))
    found = climb.named_gates(x, state)
    assert found["i"].shape == (3, 4) and found["f"].shape == (2, 4) and core.keep_gate == "f"
    # Nothing else comes from a child: c - i g = f c_k, and dc / dc_k = f.
    c = state.c.clone().requires_grad_()
    _, after = climb.step(x, state._replace(c=c))
    (own,) = torch.autograd.grad(after.c.sum(), c)
    torch.testing.assert_close(own, torch.cat([torch.zeros(1, 4, dtype=own.dtype), found["f"]]))


def test_gates_of_a_child_sum_tree_are_those_of_the_paper_with_all_its_children():
    """i and o see the sum of all children, f_k its own child alone (Tai et al., equations 3, 4 and 6), in Numpy."""
    torch.manual_seed(0)
    core = tree("child_sum_tree_lstm", 2, 3).double()
    with torch.no_grad():
        core.b.normal_()
    climb, H = Climb(core, places=3), 3
    vector, others = torch.randn(4, 2).double(), torch.randn(2, 4, 3, H).double()  # h and c of the other children
    at = torch.zeros(4, 3).double()
    at[0, 0] = at[1, 2] = at[2, 1] = 1.0  # the last has no child below
    others = others * (1 - at[None, ..., None])
    state = states.map(lambda leaf: torch.randn(4, H).double(), climb.init_state(4))
    x = torch.cat([vector, at, others[0].flatten(1), others[1].flatten(1)], 1)
    found = climb.named_gates(x, state)

    def sigmoid(v):
        return 1 / (1 + np.exp(-v))

    (Wi, _, Wo, Wf), (Ui, _, Uo, Uf), (bi, _, bo, bf) = (
        np.split(core.get_parameter(letter).detach().numpy(), 4) for letter in "WUb"
    )
    wanted = {"i": [], "o": [], "f": []}
    for step in range(4):
        children = (others[0, step] + at[step][:, None] * state.h[step]).numpy()
        below, v = children.sum(0), vector[step].numpy()
        wanted["i"].append(sigmoid(Wi @ below + Ui @ v + bi))
        wanted["o"].append(sigmoid(Wo @ below + Uo @ v + bo))
        if at[step].any():
            wanted["f"].append(sigmoid(Wf @ state.h[step].numpy() + Uf @ v + bf))
    assert set(found) == set(wanted)
    for name, values in wanted.items():
        np.testing.assert_allclose(found[name].detach(), np.stack(values), rtol=1e-9)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trees")
    train = write(folder / "train.txt", 40)
    small = [
        "--model.size", "5", "--model.embedding_size", "4", "--training.steps", "4", "--training.evaluate_every", "2",
        "--threads", "1", "--task", "tree", "--data.train", train,
    ]  # fmt: skip
    rows = "1\t<b>\t_\tX\t_\t_\t2\tdep\t_\t_\n2\tsaw\t_\tX\t_\t_\t0\troot\t_\t_\n" + "".join(
        f"{i}\tw{i}\t_\tX\t_\t_\t2\tdep\t_\t_\n" for i in (3, 4)
    )
    (folder / "d.conllu").write_text("\n".join([rows] * 20))
    commands = {
        "nodes": ["--training.lens", "true"], "roots": ["--data.target", "roots", "--model.cell", "recursive"],
        "number": ["--data.target", "number"],
        "words": ["--data.train", str(folder / "d.conllu"), "--model.cell", "child_sum_tree_lstm"],
    }  # fmt: skip
    for name, more in commands.items():
        assert main(["train", *small, *more, "--out", str(folder / name)]) == 0, name
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nodes", "roots", "number", "words"])
def test_every_target_is_looked_into(runs, capfd, name):
    capfd.readouterr()
    assert main(["inspect", str(runs / name), "--json", "--at", "init", "--out", str(runs / f"{name}.html")]) == 0
    here, begun = json.loads(capfd.readouterr().out)
    cell = {"roots": "0 recursive", "words": "0 childsumtreelstm"}.get(name, "0 binarytreelstm")
    assert [part["layer"] for part in here["reach"]] == [cell] and here["steps"] == len(here["names"])
    assert here["lyapunov"] and here["isometry"] and here["context"] and here["loss"] > 0
    assert {g["gate"] for g in here["gates"]} == (set() if name == "roots" else {"i", "o", "f"})
    assert here["influence"][1]["residual"] < 1e-3 and not here["missing"] and "edge of a tree" in here["about"]
    (panel,), (other,) = here["panels"], begun["panels"]
    assert panel["words"] == other["words"] and panel["gradient"] != other["gradient"]
    labels = [said for said in panel["said"] if said]
    assert len(labels) == (len(panel["words"]) if name in ("nodes", "words") else 1)
    assert name == "number" or set(labels) <= set(panel["labels"])


def test_gradients_of_nodes_agree_along_the_way(runs):
    """Two ways to the same numbers: the whole tree, and the steps from the deepest leaf to the root."""
    predictor = load(runs / "nodes")
    trees = predictor.reader([str(runs / "train.txt")])
    looked = inspection.inspect_inputs(predictor, trees, 1, 100)
    (panel,) = looked.sample.panels
    found = []
    model, n = looked.model, int(looked.sample.lengths[0])
    with inspection_mode(model):
        for t in range(n):
            _, state = model.core.scan(looked.sample.x[:, : t + 1])
            state = states.map(lambda leaf: leaf.detach().requires_grad_(), state)
            y = state.h[:, None] if t + 1 == n else model.core.scan(looked.sample.x[:, t + 1 :], state)[0]
            loss = -model.readout(y[:, -1]).log_prob(looked.sample.y[:, n - 1]).sum()
            own = torch.autograd.grad(loss, states.leaves(state), allow_unused=True, materialize_grads=True)
            found.append(float(torch.cat(own, 1).norm()))
    assert found == pytest.approx([panel["gradient"][node] for node in panel["way"]], rel=1e-4)
    [reach] = lens.reach(model, looked.sample, anchors=1)
    assert reach.raw == pytest.approx(found[:-1][::-1][: len(reach.raw)], rel=1e-4)
    assert predictor.evaluate(trees).numbers == load(runs / "nodes").evaluate(trees).numbers  # looking changed nothing


def test_what_was_noted_while_it_trained(runs):
    lines = [json.loads(line) for line in (runs / "nodes" / "metrics.jsonl").open()]
    assert sum("lens_0_binarytreelstm_f_saturation" in line for line in lines) == 2


def test_odd_trees_and_bad_input(runs, capfd, tmp_path):
    (tmp_path / "one.txt").write_text("(2 film)\n")
    assert main(["inspect", str(runs / "nodes"), str(tmp_path / "one.txt"), "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["steps"] == 1
    model = load(runs / "nodes")
    with pytest.raises(InputError, match="no tree of fewer than 1 levels"):
        inspection.inspect_inputs(model, model.reader([str(runs / "train.txt")])[:1], 4, 1)
    (tmp_path / "bad.txt").write_text("(3 (2 it)\n")
    assert main(["inspect", str(runs / "nodes"), str(tmp_path / "bad.txt")]) == 2
    assert "never closed" in capfd.readouterr().err


def test_a_leaf_that_has_nothing_below_it_does_not_erase_the_state(runs, capfd, tmp_path):
    """The exponents are those of the edges: together ln |det| of the product of their Jacobians, over their number."""
    model = load(runs / "roots")
    tree_ = "(3 (2 it) (4 (2 was) (4 (2 a) (3 (2 fine) (2 film)))))\n"
    (tmp_path / "one.txt").write_text(tree_)
    assert main(["inspect", str(runs / "roots"), str(tmp_path / "one.txt"), "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    looked = inspection.inspect_inputs(model, model.reader([str(tmp_path / "one.txt")]), 1, 100)
    core, x = looked.model.core.double(), looked.sample.x.double()
    product, edges = torch.eye(5, dtype=torch.float64), x.shape[1] - 1
    with torch.no_grad():
        _, state = core.step(x[:, 0], states.map(torch.Tensor.double, core.init_state(1)))
    for t in range(1, edges + 1):
        (own,) = states.leaves(state)
        J = torch.autograd.functional.jacobian(partial(_stepped, core, x[:, t], state), own)
        product = J[:, 0] @ product
        with torch.no_grad():
            _, state = core.step(x[:, t], state)
    (exponents,) = (part["exponents"] for part in found["lyapunov"])
    assert edges == 4 and sum(exponents) == pytest.approx(float(product.det().abs().log()) / edges, rel=1e-3)
    assert main(["inspect", str(runs / "roots"), str(tmp_path / "one.txt")]) == 0
    assert "keeps nothing" not in capfd.readouterr().out


def _stepped(core, x, like, leaf):
    return core.step(x, states.map(lambda _: leaf, like))[0][0]
