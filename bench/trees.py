"""Training a binary Tree-LSTM against plain Torch, batched level by level: `python -m bench.trees`.

Theirs has, for each level, one gather, one product and one scatter, or one concatenation; the faster one counts. Trees
are random binary ones of 10 to 30 words, 25 in a batch; a label at every node; Adagrad. Both sides run in this process,
in turn, on one thread and on two. Outputs are compared first.

`--epoch FILE` trains one pass over a treebank (300 wide, 150 units, batch 25) and prints the seconds.
"""

import json
import statistics
import time
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn

from bench.turns import Report, Result, in_turn, parser, result
from elman.data import Batch, Position
from elman.tasks.tree import model as tree_labeller
from elman.tasks.tree.binary_tree_lstm import BinaryTreeLSTM
from elman.tasks.tree.data import LabelledTree
from elman.tasks.tree.forest import Shape
from elman.tasks.tree.forest import shape as shape_of
from elman.tasks.tree.model import Example, TreeInput, TreeLexicon, TreeModel, TreeModelConfig, batch_of
from elman.tasks.tree.task import TreeConfig, TreeDataConfig, TreeTask
from elman.training.optim import OptimConfig, by_rows, clip, optimiser

BATCH, WORDS = 25, 5000


def trees(n: int) -> list[LabelledTree]:
    """Binary trees over made-up words, with labels 0 to 4."""
    random = torch.Generator().manual_seed(0)
    found = []
    for i in range(n):
        made = strictly_binary(int(torch.randint(10, 31, (1,), generator=random)), random)
        leaf = made.heights == 0
        words = [f"w{int(torch.randint(WORDS, (1,), generator=random))}" if is_leaf else "" for is_leaf in leaf]
        labels = [str(k) for k in torch.randint(5, (len(words),), generator=random).tolist()]
        found.append(LabelledTree(made._replace(reads=leaf), words, labels, number=i))
    return found


def strictly_binary(leaf_count: int, random: torch.Generator) -> Shape:
    """A random tree in which every node has two children or none, in post-order."""
    parents: list[int] = []
    stack: list[int] = []
    left = leaf_count
    while left or len(stack) > 1:
        if left and (len(stack) < 2 or torch.rand((), generator=random) < 0.5):
            left -= 1
        else:
            for child in (stack.pop(), stack.pop()):
                parents[child] = len(parents)
        stack.append(len(parents))
        parents.append(-1)
    return shape_of(parents)


class Plain(nn.Module):
    """The same model as one would write it in Torch, level by level; it reads the forest that ours reads."""

    def __init__(self, ours: TreeModel) -> None:
        super().__init__()
        V, D = ours.embed.weight.shape
        self.H = ours.core.output_size
        self.words = nn.Embedding(V, D)
        self.leaf, self.inner = nn.Linear(D, 3 * self.H), nn.Linear(2 * self.H, 5 * self.H)
        self.out = nn.Linear(self.H, 5)
        with torch.no_grad():  # the same weights, so that outputs can be compared
            self.words.weight.copy_(ours.embed.weight)
            core = ours.core
            assert isinstance(core, BinaryTreeLSTM)
            self.leaf.weight.copy_(core.U[: 3 * self.H])
            self.leaf.bias.copy_(core.b[: 3 * self.H])
            self.inner.weight.copy_(core.W)
            self.inner.bias.copy_(torch.cat([core.b, core.b[3 * self.H :]]))
            self.out.load_state_dict(ours.readout.linear.state_dict())  # type: ignore[union-attr, operator]

    def forward(self, given: TreeInput) -> Tensor:
        forest, H = given.forest, self.H
        N, cuts, places = len(forest.rows), forest.levels.tolist(), forest.places
        i, g, o = self.leaf(self.words(given.words[forest.source[: cuts[1]]])).split(H, 1)
        c_level = torch.sigmoid(i) * torch.tanh(g)
        h, c = (leaf.new_zeros(N, H) for leaf in (c_level, c_level))
        h = h.index_copy(0, torch.arange(cuts[1]), torch.sigmoid(o) * torch.tanh(c_level))
        c = c.index_copy(0, torch.arange(cuts[1]), c_level)
        for first, end in pairwise(cuts[1:]):
            children, rows = places[first:end], torch.arange(first, end)
            i, g, o, left, right = self.inner(h[children].flatten(1)).split(H, 1)
            below = c[children]
            c_level = (
                torch.sigmoid(i) * torch.tanh(g)
                + torch.sigmoid(left) * below[:, 0]
                + torch.sigmoid(right) * below[:, 1]
            )
            h = h.index_copy(0, rows, torch.sigmoid(o) * torch.tanh(c_level))
            c = c.index_copy(0, rows, c_level)
        logits: Tensor = self.out(h)
        return logits


class Listed(Plain):
    """The same, kept as a list of levels that are concatenated for each gather: no scatter of a whole array."""

    def forward(self, given: TreeInput) -> Tensor:
        forest, H = given.forest, self.H
        cuts, places = forest.levels.tolist(), forest.places
        i, g, o = self.leaf(self.words(given.words[forest.source[: cuts[1]]])).split(H, 1)
        c = torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        for first, end in pairwise(cuts[1:]):
            children = places[first:end]
            i, g, o, left, right = self.inner(h[children].flatten(1)).split(H, 1)
            below = c[children]
            new = (
                torch.sigmoid(i) * torch.tanh(g)
                + torch.sigmoid(left) * below[:, 0]
                + torch.sigmoid(right) * below[:, 1]
            )
            h, c = torch.cat([h, torch.sigmoid(o) * torch.tanh(new)]), torch.cat([c, new])
        logits: Tensor = self.out(h)
        return logits


def training(width: int, size: int, rounds: int) -> list[Result]:
    """Trees a second, ours and theirs, the faster of two ways to write it, on one thread and on two."""
    data = trees(BATCH * 8)
    lexicon = TreeLexicon.fit(data, "nodes", 1, False)
    examples = [Example(tree, lexicon.numbers(tree), lexicon.targets(tree)) for tree in data]
    groups = [examples[i : i + BATCH] for i in range(0, len(examples), BATCH)]
    batches = [batch_of(group, "nodes") for group in groups]
    config = TreeModelConfig(size=size, embedding_size=width, embedding_dropout=0.0, readout_dropout=0.0)
    torch.manual_seed(0)
    ours = TreeModel(config, lexicon)
    others = [Plain(ours), Listed(ours)]
    for theirs in others:
        torch.testing.assert_close(theirs(batches[0].x), ours(batches[0].x).logits, rtol=1e-4, atol=1e-4)

    def stepper(model: nn.Module, loss: Callable[[Batch], Tensor]) -> Callable[[], None]:
        change = torch.optim.Adagrad(model.parameters(), lr=0.05, fused=True)

        def once_through() -> None:
            for group in groups:
                batch = batch_of(group, "nodes")  # both sides lay out their trees
                change.zero_grad()
                (loss(batch) / len(batch.y)).backward()
                change.step()

        return once_through

    def theirs_loss(model: nn.Module) -> Callable[[Batch], Tensor]:
        return lambda batch: nn.functional.cross_entropy(model(batch.x), batch.y, reduction="sum")  # type: ignore[arg-type]

    steps = [stepper(ours, lambda batch: tree_labeller.loss(ours, batch)[0])]
    steps += [stepper(theirs, theirs_loss(theirs)) for theirs in others]
    rows = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        mine, *each = in_turn(steps, rounds)
        how, best = min(zip(("scatter", "cat"), each, strict=True), key=lambda pair: statistics.median(pair[1]))
        name = f"train a Tree-LSTM, {width} wide, {size} units{', 1 thread' * (threads == 1)}"
        rows.append(result(name, f"torch {how}", mine, best, per_round=len(data), unit="trees/s"))
    return rows


def epoch(file: str) -> dict[str, float]:
    """Seconds of one pass, as the loop trains: the batch, the loss, its gradient, clipping and Adagrad."""

    config = TreeConfig(
        data=TreeDataConfig(train=file, valid=file),
        optim=OptimConfig(name="adagrad", lr=0.05, embedding_lr=0.1, clip_norm=5.0),
    )
    task = TreeTask()
    data = task.open(config, None)
    predictor, batches = task.build(config, data), data.batches(0, 1)
    change = optimiser(config.optim, predictor.model)
    parameters = list(predictor.model.train().parameters())
    at, nodes, start = Position(), 0, time.perf_counter()
    with by_rows(change):
        while at.epoch == 0:
            batch = batches.batch(at)
            change.zero_grad()
            total, count, _ = tree_labeller.loss(predictor.model, batch)
            (total / count).backward()
            clip(config.optim, parameters)
            change.step()
            at, nodes = batches.after(at), nodes + count
    return {"seconds": time.perf_counter() - start, "trees": len(data.train), "nodes": nodes}


def main() -> None:
    flags = parser("trees", __doc__, 20)
    flags.add_argument("--epoch", metavar="FILE", help="a treebank to train one pass on, on two threads")
    options = flags.parse_args()
    if options.epoch:
        torch.set_num_threads(2)
        print(json.dumps({"one pass": epoch(options.epoch)}))
        return
    report = Report(options.json)
    for width, size in ((64, 64), (300, 150)):
        report.add(*training(width, size, options.rounds))
    report.end()


if __name__ == "__main__":
    main()
