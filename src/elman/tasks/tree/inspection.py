"""What the lens sees of a labeller of trees: the longest way up in each tree, and the first tree as a whole.

A tree is not a sequence, but the way from its deepest leaf to its root is (`trees.Climb`): a step is an edge, the state
that of the node below, and what the other children bring is an input. So reach, exponents and gates are along depth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from elman import state as states
from elman.errors import InputError
from elman.lengths import valid
from elman.lens import Sample
from elman.lens.fresh import fresh
from elman.lens.layers import inspection_mode
from elman.model import SequenceModel
from elman.nn.distributions import Distribution
from elman.nn.embed import Embed
from elman.state import AnyState, State
from elman.tasks.task import Inspection
from elman.tasks.tree import Climb, TreeCore, climbs, deepest
from elman.tasks.tree.data import LabelledTree
from elman.tasks.tree.forest import Forest, shape
from elman.tasks.tree.model import NONE, TreeLabeller, TreeModel
from elman.tasks.tree.plots import places

NODES = 600  # of a tree that is drawn, at most
LETTERS = 24  # of the words that a step brings
ABOUT = (
    "A step is an edge of a tree, on the way from its deepest leaf up to its root: the state is that of the node "
    "below, and the input is what joins it, the word of the node and the states of its other children. So numbers of "
    "steps are numbers of levels."
)


class Given(Embed):
    """Features as they are."""

    def forward(self, x: Tensor) -> Tensor:
        return x


def inspect_inputs(predictor: TreeLabeller, trees: Sequence[LabelledTree], rows: int, steps: int) -> Inspection:
    """The deepest trees: they say most about depth."""
    some = sorted((tree for tree in trees if tree.height < steps), key=lambda tree: -tree.height)[:rows]
    if not some:
        raise InputError(f"there is no tree of fewer than {steps} levels to inspect")
    inspection = _inspection(predictor, some)

    def begun() -> Inspection:
        model = fresh(predictor.model)
        assert isinstance(model, TreeModel)
        return _inspection(TreeLabeller(model, predictor.config, predictor.reader, predictor.lexicon), some)

    return inspection._replace(begun=begun)


def _inspection(predictor: TreeLabeller, trees: Sequence[LabelledTree]) -> Inspection:
    ways = [deepest(tree.shape) for tree in trees]
    with inspection_mode(predictor.model), torch.no_grad():
        words = predictor.model.embed(torch.cat([predictor.lexicon.numbers(tree) for tree in trees]))
        x = climbs(predictor.model.core, words, [tree.shape for tree in trees], ways)
    core = predictor.model.core
    width = (x[0].shape[1] - core.input_size) // (1 + sum(leaf[0].numel() for leaf in _leaves(core)))
    model = SequenceModel(Given(), Climb(core, places=width), predictor.model.readout)
    lengths = torch.tensor([len(way) for way in ways])
    reset = torch.zeros(len(ways), int(lengths.max()), dtype=torch.bool)
    reset[:, 0] = True  # nothing is below a leaf
    sample = Sample(
        nn.utils.rnn.pad_sequence(x, batch_first=True), _targets(predictor, trees, ways), lengths, reset,
        names=[_names(tree, way) for tree, way in zip(trees, ways, strict=True)], labels=_labels(trees, ways),
        log_prob=_log_prob, panels=_panels(predictor, trees[0], ways[0]), about=ABOUT,
    )  # fmt: skip
    return Inspection(model, sample)


def _leaves(core: TreeCore) -> list[Tensor]:
    return states.leaves(core.init_state(1))


def _targets(predictor: TreeLabeller, trees: Sequence[LabelledTree], ways: Sequence[Sequence[int]]) -> Tensor:
    """The label of each node on the way up (B, T), or the number of the root at its end; NONE or NaN elsewhere."""
    number = predictor.lexicon.target == "number"
    targets = []
    for tree, way in zip(trees, ways, strict=True):
        own = predictor.lexicon.targets(tree)
        targets.append(torch.tensor([*[math.nan] * (len(way) - 1), float(own[0])]) if number else own[list(way)])
    return nn.utils.rnn.pad_sequence(targets, batch_first=True, padding_value=math.nan if number else NONE)


def _log_prob(predicted: Distribution, y: State, lengths: Tensor) -> Tensor:
    """log P of what counts (B, T), zero elsewhere."""
    assert isinstance(y, Tensor)
    if y.is_floating_point():  # numbers, not classes
        there = y.isfinite()
        return torch.where(there, predicted.log_prob(torch.where(there, y, 0.0)[..., None]), 0.0)
    counted = (y >= 0) & valid(lengths, y.shape[1])
    return torch.where(counted, predicted.log_prob(y.clamp(min=0)), 0.0)


def _names(tree: LabelledTree, way: Sequence[int]) -> list[str]:
    """The words that each step brings."""
    under = _under(tree)
    below = [set(), *(under[node] for node in way[:-1])]
    spans = [sorted(under[node] - before) for node, before in zip(way, below, strict=True)]
    texts = [" ".join(tree.words[i] for i in span) for span in spans]
    return [f"{text if len(text) <= LETTERS else text[: LETTERS - 1] + '…'} " for text in texts]


def _under(tree: LabelledTree) -> list[set[int]]:
    """Of each node, the nodes at or below it that have a word."""
    words: list[set[int]] = [{i} if word else set() for i, word in enumerate(tree.words)]
    for node in np.argsort(tree.shape.heights, kind="stable").tolist():
        parent = int(tree.shape.parents[node])
        if parent >= 0:
            words[parent] |= words[node]
    return words


def _labels(trees: Sequence[LabelledTree], ways: Sequence[Sequence[int]]) -> dict[str, Tensor]:
    """What units may follow: how much is below a node, and from which side it was reached."""
    below, side = [], []
    for tree, way in zip(trees, ways, strict=True):
        under = _under(tree)
        below.append(torch.tensor([float(len(under[node])) for node in way]))
        first = [int(np.flatnonzero(tree.shape.parents == node)[0]) for node in way[1:]]
        side.append(torch.tensor([0.0, *(float(a != b) for a, b in zip(way, first, strict=False))]))
    pad = nn.utils.rnn.pad_sequence
    return {"words below": pad(below, batch_first=True), "reached from the right": pad(side, batch_first=True)}


class _Nudged(TreeCore):
    """A tree core in which each node's state is moved by what the node reads behind its vector: by zeros, so that the
    gradient with respect to them is that of the state."""

    def __init__(self, core: TreeCore) -> None:
        self.sizes = [leaf[0].numel() for leaf in _leaves(core)]
        super().__init__(core.input_size + sum(self.sizes), core.output_size)
        self.core, self.places = core, core.places  # type: ignore[misc]

    def init_state(self, batch_size: int) -> AnyState:
        return self.core.init_state(batch_size)

    def combine(self, x: Tensor, children: AnyState) -> AnyState:
        D = self.core.input_size
        nudges = iter(x[:, D:].split(self.sizes, 1))
        return states.map(lambda leaf: leaf + next(nudges).view_as(leaf), self.core.combine(x[:, :D], children))


def gradients(predictor: TreeLabeller, tree: LabelledTree) -> list[float]:
    """The norm of dL / ds of each node, L the loss at the root."""
    model, n = predictor.model, len(tree.words)
    with inspection_mode(model):
        nudged = _Nudged(model.core)
        vectors = torch.zeros(n, nudged.core.input_size)
        vectors[torch.from_numpy(tree.shape.reads)] = model.embed(predictor.lexicon.numbers(tree)).detach()
        nudges = torch.zeros(n, sum(nudged.sizes), requires_grad=True)
        forest = Forest.of([shape(tree.shape.parents.tolist())])
        y, _ = nudged.scan(torch.cat([vectors, nudges], 1), forest)
        predicted = model.readout(y[forest.roots][:, None])
        target = predictor.lexicon.targets(tree)
        at_root = target if predictor.lexicon.target == "number" else target[[tree.root]]
        loss = -_log_prob(predicted, at_root[:, None], torch.ones(1, dtype=torch.int64)).sum()
        (gradient,) = torch.autograd.grad(loss, nudges)
    return gradient.norm(dim=1).tolist()


def _panels(predictor: TreeLabeller, tree: LabelledTree, way: Sequence[int]) -> tuple[dict[str, object], ...]:
    if len(tree.words) > NODES:
        return ()
    (values,), (labels,) = predictor.outputs([tree]), predictor.labels([tree])
    target, n, root = predictor.lexicon.target, len(tree.words), tree.root
    if target == "number":
        chances: list[float | None] = [None]
    else:
        chances = [float(p) for p in values.max(1).values.exp()]
    if target != "nodes":  # the root alone has an answer
        labels = [labels[0] if i == root else "" for i in range(n)]
        chances = [chances[0] if i == root else None for i in range(n)]
    place, height = places(tree)
    what = {"nodes": "the label", "roots": "the label of the root", "number": "the number at the root"}[target]
    return ({
        "kind": "tree", "title": "Tree", "labels": [*predictor.lexicon.labels], "parents": tree.shape.parents.tolist(),
        "place": place, "height": height, "words": [*tree.words], "said": labels, "chance": chances,
        "truth": [label if target == "nodes" or i == root else "" for i, label in enumerate(tree.labels)],
        "gradient": gradients(predictor, tree), "way": [*way],
        "about": f"The first tree, its root on the left. Each node is coloured by {what} that the model gives; or by "
        "how strongly the loss at the root depends on the state of the node. A ring: the label is wrong. The thick "
        "line is the way up that the other panels go; click a node on it to choose the step.",
    },)  # fmt: skip
