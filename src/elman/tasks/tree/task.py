"""Trees: a label for every node, for the root, or a number."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import nn

from elman.data import Batch, Batches, OrderedBatches
from elman.data.batches import Alike
from elman.data.names import Names, file_list
from elman.data.splits import SplitConfig, first_rows, read_parts, split_summary
from elman.data.text import ERRORS
from elman.errors import InputError
from elman.files.config import Json, one_of
from elman.options import choice, whole
from elman.state import State
from elman.tasks.plots import PICTURES, check_new
from elman.tasks.request import Request, Rows, TextRequest, batch_size, data_option, opened, option, rows_of
from elman.tasks.tag.data import Column
from elman.tasks.task import Data, Evaluation, Inspection, InspectRequest, Response, Task, TrainedSettings
from elman.tasks.tree import inspection, plots
from elman.tasks.tree import model as tree_labeller
from elman.tasks.tree.data import FORMATS, LabelledTree, TreeReader, fingerprint, read_brackets
from elman.tasks.tree.model import (
    EACH,
    TARGETS,
    Example,
    TreeLabeller,
    TreeLexicon,
    TreeModel,
    TreeModelConfig,
    batch_of,
    written,
)
from elman.training.loss import Loss
from elman.training.record import Preview
from elman.training.scores import Scores


@dataclass(frozen=True)
class TreeDataConfig(SplitConfig):
    """Labelled trees.

    Args:
        format: auto (by the names), brackets as (3 (2 It) (4 works)), or conllu
        tag: the column of labels of conllu, by number or by name
        target: what to predict, nodes (a label for every node), roots (one for the root), or number (the label of
            the root as a number)
        errors: what to do with invalid UTF-8, strict (an error) or replace (U+FFFD)
        min_count: words that occur less often in the training data are unknown
        lower: look words up in lower case
        batch_size: trees in a step, over all processes
    """

    train: Names = "train.txt"
    format: str = one_of("auto", FORMATS)
    tag: Column = "deprel"
    target: str = one_of("nodes", TARGETS)
    errors: str = one_of("strict", ERRORS)
    min_count: int = 1
    lower: bool = True
    batch_size: int = 25


@dataclass(frozen=True)
class TreeConfig(TrainedSettings[TreeLabeller]):
    """A run from labelled trees to a network that labels trees.

    >>> TreeConfig(model=TreeModelConfig(cell="recursive")).data.target
    'nodes'

    Args:
        task: what is trained; tree predicts a label for every node of a tree, or a label or number for its root
        data: the trees
        model: the network
        init_from: a run or a saved model whose weights, words and labels this run begins with; empty for none
    """

    task: str = "tree"
    data: TreeDataConfig = field(default_factory=TreeDataConfig)
    model: TreeModelConfig = field(default_factory=TreeModelConfig)
    init_from: str = ""


class TreeData(Data):
    """Trees, and how they become tensors."""

    unit = "nodes"

    def __init__(
        self, config: TreeConfig, reader: TreeReader, known: TreeLexicon | None, *found: list[LabelledTree]
    ) -> None:
        self.config, self.reader = config, reader
        self.train, self.valid, test = found
        self.test = test or None
        self.fingerprint = {f"data.{n}": fingerprint(p) for n, p in zip(("train", "valid", "test"), found, strict=True)}
        data = config.data
        self.lexicon = known or TreeLexicon.fit(self.train, data.target, data.min_count, data.lower)
        if data.target != "nodes":
            self.unit = "trees"
        for part in (self.valid, test):  # an unknown label is found before an hour of training
            for tree in part:
                self.lexicon.targets(tree)

    def batches(self, rank: int, world: int) -> Batches:
        heights = [tree.height for tree in self.train]
        order = Alike(heights, self.config.data.batch_size, self.config.seed, rank, world)
        lexicon = self.lexicon
        examples = [Example(tree, lexicon.numbers(tree), lexicon.targets(tree)) for tree in self.train]
        return OrderedBatches(order, lambda rows, at: batch_of([examples[i] for i in rows], lexicon.target))

    def summary(self) -> list[str]:
        numbers = [len(part) for part in (self.train, self.valid, self.test or ())]
        nodes, lexicon = sum(len(tree.words) for tree in self.train), self.lexicon
        answers = f"{len(lexicon.labels)} labels" if lexicon.labels else "a number"
        return [
            f"data: {file_list(self.config.data.train)}: {split_summary('trees', *numbers)}; "
            f"{nodes:,} nodes to train on",
            f"vocabulary: {len(lexicon.words.names):,} words; target: {lexicon.target}, {answers}",
        ]

    def first(self, part: list[LabelledTree], count: int) -> list[LabelledTree]:
        """As many trees as have so many nodes, one at least."""
        return first_rows(part, lambda tree: len(tree.words) if self.unit == "nodes" else 1, count)


class TreeTask(Task[TreeConfig, TreeData, TreeLabeller]):
    Config, Model = TreeConfig, TreeLabeller
    title = "a labeller of trees"

    @property
    def requests(self) -> dict[str, tuple[type[Request], Response]]:
        inspect = self.inspector(lambda predictor, request: _read(predictor, request, True))
        return {"evaluate": (Evaluate, evaluate), "predict": (Predict, predict), "inspect": (Inspect, inspect)}

    def open(self, config: TreeConfig, saved: TreeLabeller | None) -> TreeData:
        data = config.data
        choice("data.target", data.target, TARGETS)
        for name in ("min_count", "batch_size"):
            whole(f"data.{name}", getattr(data, name))
        if saved and data.target != saved.lexicon.target:
            raise InputError(
                f"data.target is {data.target}, and the model that this run begins with was trained for "
                f"{saved.lexicon.target}; it has no other answers"
            )
        reader = TreeReader(data.format, data.tag, data.errors)
        parts = read_parts(data, reader, lambda tree: tree.number, "trees")
        return TreeData(config, reader, saved.lexicon if saved else None, *parts)

    def build(self, config: TreeConfig, data: TreeData) -> TreeLabeller:
        model = TreeModel(config.model, data.lexicon)
        if config.model.vectors:
            model.embed.begin_with(config.model.vectors, data.lexicon.words.names)
        return TreeLabeller(model, config.model, data.reader, data.lexicon)

    def settings(self, predictor: TreeLabeller) -> dict[str, Json]:
        model = {f"model.{name}": value for name, value in asdict(predictor.config).items()}
        lexicon = {"data.target": predictor.lexicon.target, "data.lower": predictor.lexicon.lower}
        return {**model, **lexicon, "data.tag": predictor.reader.tag, "model.vectors": ""}

    def copy_weights(self, predictor: TreeLabeller, source: TreeLabeller) -> list[str]:
        words, labels = len(source.lexicon.words.names), source.lexicon.labels
        answers = f"{len(labels)} labels" if labels else "the scale of its numbers"
        return [*super().copy_weights(predictor, source), f"{words:,} words and {answers}"]

    def loss(self, model: nn.Module, batch: Batch, state: State | None) -> Loss:
        """- sum of log P(labels | tree), over nodes; trees are independent, so nothing is carried."""
        return tree_labeller.loss(model, batch)

    def evaluate(self, predictor: TreeLabeller, part: list[LabelledTree]) -> Evaluation:
        """With a picture of the first tree, coloured by what the model says."""
        scores = predictor.evaluate(part)
        return Evaluation(scores, lambda run, step: plots.preview(predictor, part[0]) if part else Preview())

    def inspect_inputs(self, predictor: TreeLabeller, part: list[LabelledTree], rows: int, steps: int) -> Inspection:
        return inspection.inspect_inputs(predictor, part, rows, steps)


# What it answers


def _format() -> Any:
    return option(None, "the format of the files: brackets or conllu", choices=FORMATS)


@dataclass(frozen=True)
class Evaluate(TextRequest):
    """How good a labeller is on labelled trees."""

    data: Rows = data_option("files, or - for standard input", rows=list[str])
    format: str | None = _format()
    batch_size: int = batch_size(EACH, "trees")


@dataclass(frozen=True)
class Predict(Evaluate):
    """The labels of trees; a row is a tree in brackets."""

    plot: str | None = option(
        None,
        "draw the first trees, coloured by label, to a new file: .png, .svg, .pdf or .jpg",
        metavar="FILE",
        local=True,
        endings=tuple(PICTURES),
    )


@dataclass(frozen=True)
class Inspect(InspectRequest):
    format: str | None = _format()


def _read(predictor: TreeLabeller, request: Evaluate | Inspect, labelled: bool) -> list[LabelledTree]:
    names = opened(request.data)
    if names is None:
        rows = enumerate(rows_of(request.data, "trees in brackets"))
        trees: list[LabelledTree] = []
        for i, row in rows:
            trees.extend([row] if isinstance(row, LabelledTree) else read_brackets(row, f"row {i}", labelled))
        return trees
    reader = replace(predictor.reader, format=request.format or predictor.reader.format, errors=request.errors)
    return reader(names, labelled=labelled)


def evaluate(predictor: TreeLabeller, request: Evaluate) -> Scores:
    return predictor.evaluate(_read(predictor, request, True), request.batch_size)


def predict(predictor: TreeLabeller, request: Predict) -> Iterator[str]:
    """Trees with the labels that the model gives them, as they came in; or a line with the answer for each tree."""
    if request.plot:
        check_new(request.plot)
    trees = _read(predictor, request, False)
    if request.plot:
        plots.draw(Path(request.plot), predictor, trees)
    return _lines(predictor, trees, request.batch_size)


def _lines(predictor: TreeLabeller, trees: list[LabelledTree], batch_size: int) -> Iterator[str]:
    for tree, labels in zip(trees, predictor.labels(trees, batch_size), strict=True):
        if predictor.lexicon.target == "nodes":
            yield from written(tree, labels)
        else:
            yield labels[0] + "\n"
