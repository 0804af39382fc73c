"""What labels trees: words at the nodes that have one, a recursion over the tree, and a read-out at every node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from elman import state as states
from elman.core import Options
from elman.data import Batch
from elman.data.names import refuse_alike
from elman.data.vocabulary import Symbols
from elman.errors import InputError
from elman.files.artifact import Content
from elman.files.config import Json, one_of
from elman.nn.distributions import WithValues
from elman.nn.readout import GaussianReadout, Softmax
from elman.tasks.classify import metrics
from elman.tasks.predictor import Predictor
from elman.tasks.tag.word_features import WordEmbedding
from elman.tasks.tree import TREES
from elman.tasks.tree import tree as tree_cell
from elman.tasks.tree.data import LabelledTree, TreeReader
from elman.tasks.tree.forest import Forest
from elman.training.scores import Scores

EACH = 64  # trees at a time by default
TARGETS = ("nodes", "roots", "number")
NONE = -1  # the target of a node whose label does not count


@dataclass(frozen=True)
class TreeModelConfig:
    """The settings of the network.

    Args:
        cell: recursive, binary_tree_lstm or child_sum_tree_lstm, which takes any number of children
        size: units of each node
        options: the options of the cell, as {name: value}
        embedding_size: the width of the embedding of words
        word_dropout: the probability that a word is replaced by the unknown word in training
        vectors: a text file of pretrained word vectors (GloVe, word2vec or fastText, .gz or not); empty for none
        embedding_dropout: the dropout after the embedding of words
        readout_dropout: the dropout before the read-out
    """

    cell: str = one_of("binary_tree_lstm", TREES)
    size: int = 150
    options: Options = field(default_factory=dict)
    embedding_size: int = 300
    word_dropout: float = 0.0
    vectors: str = ""
    embedding_dropout: float = 0.5
    readout_dropout: float = 0.5


class TreeLexicon(NamedTuple):
    """All that turns trees into tensors and answers back into labels."""

    words: Symbols
    lower: bool
    target: str  # nodes, roots or number
    labels: tuple[str, ...]  # none where the answer is a number
    mean: float = 0.0  # of the numbers, and their standard deviation
    scale: float = 1.0

    @staticmethod
    def fit(trees: Sequence[LabelledTree], target: str, min_count: int, lower: bool) -> TreeLexicon:
        """What some trees need."""
        words = Counter(word.lower() if lower else word for tree in trees for word in tree.words if word)
        symbols = Symbols.count(words, min_count)
        if target == "number":
            y = np.array([number_of(tree) for tree in trees])
            return TreeLexicon(symbols, lower, target, (), float(y.mean()), float(y.std()) or 1.0)
        labels = {label for tree in trees for label in _counting(tree, target) if label}
        refuse_alike(sorted(labels), "labels")
        if len(labels) < 2:
            raise InputError(
                f"the training trees have one label only, {', '.join(labels) or '(none)'}; there is nothing to learn"
            )
        numeric = all(label.lstrip("-").isdecimal() for label in labels)
        return TreeLexicon(symbols, lower, target, tuple(sorted(labels, key=int if numeric else str)))

    def to_json(self) -> dict[str, Json]:
        return {**self._asdict(), "words": [*self.words.names], "labels": [*self.labels]}

    @staticmethod
    def from_json(content: Content) -> TreeLexicon:
        words, labels = Symbols(content["words"]), tuple(content["labels"])
        return TreeLexicon(**{**content, "words": words, "labels": labels})

    def numbers(self, tree: LabelledTree) -> torch.Tensor:
        """The words of a tree, node by node (M,)."""
        words = [word.lower() if self.lower else word for word in tree.words if word]
        return torch.tensor(self.words.numbers(words), dtype=torch.int64)

    def targets(self, tree: LabelledTree) -> Tensor:
        """Of each node (n,) its label, NONE where it does not count; of a number that alone (1,), standardised."""
        if self.target == "number":
            return torch.tensor([(number_of(tree) - self.mean) / self.scale], dtype=torch.float32)
        place = {label: i for i, label in enumerate(self.labels)}
        numbers = []
        for label in _counting(tree, self.target):
            if label and label not in place:
                raise InputError(
                    f"the tree at {tree.where} has the label {label!r}, which the model was not trained on; "
                    f"it knows {', '.join(self.labels[:30])}"
                )
            numbers.append(place[label] if label else NONE)
        if self.target == "roots" and numbers[tree.root] == NONE:
            raise InputError(f"the root of the tree at {tree.where} has no label; with data.target roots it must")
        return torch.tensor(numbers, dtype=torch.int64)


def number_of(tree: LabelledTree) -> float:
    """The number that the label of a root is."""
    label = tree.labels[tree.root]
    try:
        value = float(label)
    except ValueError:
        value = float("nan")
    if not np.isfinite(value):
        raise InputError(f"the root of the tree at {tree.where} has the label {label!r}, which is not a finite number")
    return value


def _counting(tree: LabelledTree, target: str) -> list[str]:
    """The labels that count, "" for the others."""
    return [label if target == "nodes" or i == tree.root else "" for i, label in enumerate(tree.labels)]


class TreeInput(NamedTuple):
    """What a model reads of some trees."""

    words: Tensor  # (M,)
    forest: Forest


class TreeModel(nn.Module):
    """embed -> core -> read-out, over a forest: a distribution for each node, or for each root."""

    def __init__(self, config: TreeModelConfig, lexicon: TreeLexicon) -> None:
        super().__init__()
        self.every = lexicon.target == "nodes"
        self.embed = WordEmbedding(
            lexicon.words.size,
            config.embedding_size,
            dropout=config.embedding_dropout,
            word_dropout=config.word_dropout,
        )
        self.core = tree_cell(config.cell, config.embedding_size, config.size, **config.options)
        H, p = self.core.output_size, config.readout_dropout
        self.readout: nn.Module = (
            GaussianReadout(H, 1, dropout=p)
            if lexicon.target == "number"
            else Softmax(H, len(lexicon.labels), dropout=p)
        )

    def forward(self, trees: TreeInput) -> WithValues:
        """Of every row of the forest (N,), or of every tree (B,)."""
        y, _ = self.core.scan(self.embed(trees.words), trees.forest)
        predicted: WithValues = self.readout(y if self.every else y[trees.forest.roots])
        return predicted


class Example(NamedTuple):
    """A tree as numbers."""

    tree: LabelledTree
    words: Tensor  # (M,)
    targets: Tensor  # (n,), or (1,) of a number


def batch_of(examples: Sequence[Example], target: str) -> Batch:
    """Trees side by side; targets are in the order of the forest's rows, or of the trees."""
    forest = Forest.of([example.tree.shape for example in examples])
    y = torch.cat([example.targets for example in examples])
    if target != "number":
        rows = torch.empty_like(y)
        rows[forest.rows] = y
        y = rows if target == "nodes" else rows[forest.roots]
    B = len(examples)
    sizes = torch.tensor([len(example.tree.words) for example in examples])
    words = torch.cat([example.words for example in examples])
    return Batch(TreeInput(words, forest), y, torch.zeros(B, 1, dtype=torch.bool), sizes)


def loss(model: nn.Module, batch: Batch) -> tuple[Tensor, int, None]:
    """- sum of log P(target), over nodes or trees that have one, and how many do."""
    predicted = model(batch.x)
    assert isinstance(batch.y, Tensor)
    if batch.y.is_floating_point():  # numbers, not classes
        return -predicted.log_prob(batch.y[:, None]).sum(), len(batch.y), None
    total = nn.functional.cross_entropy(predicted.logits, batch.y, ignore_index=NONE, reduction="sum")
    return total, int((batch.y != NONE).sum()), None


class TreeLabeller(Predictor[TreeModel]):
    """A network over trees, how they are read and what its labels are called.

    >>> from elman.tasks.tree.data import read_brackets
    >>> trees = read_brackets("(3 (2 It) (4 works)) (1 (2 It) (0 fails))")
    >>> lexicon = TreeLexicon.fit(trees, "nodes", 1, True)
    >>> config = TreeModelConfig(size=4, embedding_size=3)
    >>> len(TreeLabeller(TreeModel(config, lexicon), config, TreeReader(), lexicon).labels(trees)[0])
    3
    """

    task = "tree"
    config: TreeModelConfig
    reader: TreeReader
    lexicon: TreeLexicon

    def __init__(self, model: TreeModel, config: TreeModelConfig, reader: TreeReader, lexicon: TreeLexicon) -> None:
        super().__init__(model, config=config, reader=reader, lexicon=lexicon)

    def labels(self, trees: Sequence[LabelledTree], batch_size: int = EACH) -> list[list[str]]:
        """The label of every node, of the root alone, or the number as text, of each tree."""
        outputs = self.outputs(trees, batch_size)
        if self.lexicon.target == "number":
            return [[f"{float(values[0, 0]):.6g}"] for values in outputs]
        return [[self.lexicon.labels[i] for i in values.argmax(1).tolist()] for values in outputs]

    def outputs(self, trees: Sequence[LabelledTree], batch_size: int = EACH) -> list[Tensor]:
        """Of each tree log P of the labels (n, C) float64, or of the root (1, C); mean and width (1, 2) of a number."""
        if isinstance(trees, str | LabelledTree) or not all(isinstance(tree, LabelledTree) for tree in trees):
            raise InputError(
                "trees must be a list of trees, as elman.tasks.tree.data.read_brackets(text) makes of a text in "
                f"brackets and the model's `reader` of files; it is {str(trees)[:60]!r}"
            )
        nodes = self.lexicon.target == "nodes"

        def run(some: list[LabelledTree]) -> Sequence[Tensor]:
            forest = Forest.of([tree.shape for tree in some])
            batch = TreeInput(torch.cat([self.lexicon.numbers(tree) for tree in some]), forest)
            values = self._values(self.model(states.map(lambda leaf: leaf.to(self.device), batch)))
            return (values[forest.rows] if nodes else values).split([len(t.words) if nodes else 1 for t in some])

        return self.batched(trees, run, batch_size, lambda tree: tree.height)

    def _values(self, predicted: WithValues) -> Tensor:
        values = predicted.values().cpu()
        if self.lexicon.target != "number":
            return values
        return self.lexicon.scale * values + torch.tensor([self.lexicon.mean, 0.0], dtype=torch.float64)

    def evaluate(self, trees: Sequence[LabelledTree], batch_size: int = EACH) -> Scores:
        """How good the answers are: of roots and, where every node has a label, of nodes."""
        outputs, target = self.outputs(trees, batch_size), self.lexicon.target
        if target == "number":
            values = torch.cat(outputs)
            y = torch.tensor([number_of(tree) for tree in trees], dtype=torch.float64)
            return metrics.of_numbers(values[:, 0], values[:, 1], y)
        truth = [self.lexicon.targets(tree) for tree in trees]
        roots = torch.stack([own[tree.root] for own, tree in zip(truth, trees, strict=True)])
        at_roots = torch.stack(
            [v[tree.root if target == "nodes" else 0] for v, tree in zip(outputs, trees, strict=True)]
        )
        numbers = _accuracies("root", at_roots, roots, self.lexicon.labels)
        if target == "nodes":
            numbers |= _accuracies("node", torch.cat(outputs), torch.cat(truth), self.lexicon.labels)
        numbers["trees"] = len(trees)
        primary = "root_accuracy" if numbers["roots"] else "node_accuracy"
        return Scores(
            numbers, primary, larger_is_better=True, secondary=tuple(n for n in ("node_accuracy",) if n in numbers)
        )

    @classmethod
    def parts(cls, content: Content) -> tuple[TreeModelConfig, TreeReader, TreeLexicon]:
        config, reader = TreeModelConfig(**content["config"]), TreeReader(**content["reader"])
        return config, reader, TreeLexicon.from_json(content["lexicon"])

    @classmethod
    def network(cls, config: TreeModelConfig, reader: TreeReader, lexicon: TreeLexicon) -> TreeModel:
        return TreeModel(config, lexicon)

    def __repr__(self) -> str:
        shape = f"{self.config.cell} {self.config.size}, {self.lexicon.target}"
        return f"TreeLabeller({shape}, {self.parameter_count:,} parameters)"

    def about(self) -> list[list[str]]:
        lexicon, answers = self.lexicon, ", ".join(self.lexicon.labels[:20]) or "a number"
        return [["target", lexicon.target], ["answers", answers], ["words", f"{len(lexicon.words.names):,}"]]


def _accuracies(what: str, values: Tensor, truth: Tensor, labels: Sequence[str]) -> dict[str, float]:
    """How often the most probable label is right; and, of labels 0 to 2 n, whether it is below or above the middle,
    where the truth is not the middle: the two sides are compared by their probabilities together."""
    there = truth != NONE
    values, truth = values[there], truth[there]
    right = int((values.argmax(-1) == truth).sum())
    numbers: dict[str, float] = {f"{what}_accuracy": right / max(1, len(truth)), f"{what}s": len(truth)}
    K = len(labels)
    if [*labels] != [str(i) for i in range(K)] or K % 2 == 0:
        return numbers
    middle = K // 2
    sided, above = truth != middle, truth > middle
    guess = values[:, middle + 1 :].logsumexp(-1) > values[:, :middle].logsumexp(-1)
    numbers[f"{what}_binary_accuracy"] = int((guess == above)[sided].sum()) / max(1, int(sided.sum()))
    numbers[f"binary_{what}s"] = int(sided.sum())
    return numbers


def written(tree: LabelledTree, labels: Sequence[str]) -> Iterator[str]:
    """A tree with other labels: in brackets where words are leaves, and else its words with their heads and labels."""
    if not (tree.shape.reads & (tree.shape.heights > 0)).any():
        yield brackets(tree, labels) + "\n"
        return
    rows = zip(tree.words, tree.shape.parents.tolist(), labels, strict=True)
    for i, (word, parent, label) in enumerate(rows, 1):
        yield f"{i}\t{word}\t{parent + 1}\t{label}\n"
    yield "\n"


def brackets(tree: LabelledTree, labels: Sequence[str]) -> str:
    """A tree in brackets.

    >>> from elman.tasks.tree.data import read_brackets
    >>> brackets(read_brackets("(3 (2 It) (4 works))")[0], ["a", "b", "c"])
    '(c (a It) (b works))'
    """
    texts: dict[int, list[str]] = {node: [] for node in range(len(tree.words))}
    for node, parent in enumerate(tree.shape.parents.tolist()):  # children come before their parents
        inner = " ".join([*([tree.words[node]] if tree.words[node] else []), *texts.pop(node)])
        text = f"({labels[node]} {inner})"
        if parent < 0:
            return text
        texts[parent].append(text)
    raise InputError("the tree has no root")
