"""Classification and regression of whole sequences: from labelled or synthetic rows to a classifier."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from elman.data import Batch, Batches, Examples, OrderedBatches, Shuffled, padded
from elman.data.names import Names, file_list
from elman.data.splits import SplitConfig, read_parts, split_summary
from elman.data.synthetic import PREFIX, SyntheticBatches, SyntheticData, SyntheticRow, is_synthetic, parse
from elman.data.tables import is_frame
from elman.data.text import ERRORS
from elman.data.vocabulary import VOCABULARIES
from elman.errors import InputError
from elman.files.config import Json, one_of
from elman.lens import Sample
from elman.model import SequenceModel
from elman.nn.distributions import Categorical
from elman.options import choice, fraction, several, whole
from elman.state import State
from elman.tasks import network, plots
from elman.tasks.classify.data import FORMATS, Reader, Row, fingerprint, input_of
from elman.tasks.classify.inputs import LABEL_KINDS, AnyInputs, Labels, SeriesInputs, TextInputs
from elman.tasks.classify.model import EACH, Classifier, ClassifyModelConfig, build
from elman.tasks.plots import Results
from elman.tasks.request import Request, Rows, TextRequest, batch_size, data_option, opened, option, rows_of
from elman.tasks.serving import Served
from elman.tasks.task import Data, Evaluation, Inspection, InspectRequest, Response, Task, TrainedSettings
from elman.training.loss import Loss
from elman.training.scores import Scores


@dataclass(frozen=True)
class ClassifyDataConfig(SplitConfig):
    """Rows with labels.

    Args:
        train: files of one format, one name or a list; or synthetic rows, as synthetic:adding,T=600
        format: auto, table (.tsv, .csv), jsonl, fasttext, files (one per class), ts, npz or idx (images)
        text: the column or field of the text
        label: the column or field of the label
        label_kind: class (one a row), classes (any number) or number
        permute: the seed of a fixed random order of the pixels of images; null for the original order
        errors: what to do with invalid UTF-8, strict (an error) or replace (U+FFFD)
        vocabulary: the vocabulary of texts, word, char, byte or bpe
        min_count: symbols that occur less often in the training texts are unknown
        vocabulary_size: the number of symbols, of bpe
        lower: read texts in lower case
        batch_size: rows in a step, over all processes
    """

    train: Names = "train.tsv"
    format: str = one_of("auto", FORMATS)
    text: str = "text"
    label: str = "label"
    label_kind: str = one_of("class", LABEL_KINDS)
    permute: int | None = None
    errors: str = one_of("strict", ERRORS)
    vocabulary: str = one_of("word", VOCABULARIES)
    min_count: int = 1
    vocabulary_size: int = 4096
    lower: bool = False
    batch_size: int = 32


@dataclass(frozen=True)
class LossConfig:
    """How the loss is computed.

    Args:
        weights: the weights of the classes, equal or balanced (each class counts as much as any other, however rare)
        smoothing: this share of each target is spread over all classes
    """

    weights: str = one_of("equal", ("equal", "balanced"))
    smoothing: float = 0.0


@dataclass(frozen=True)
class ClassifyConfig(TrainedSettings[Classifier]):
    """A run from labelled rows to a classifier.

    >>> ClassifyConfig(model=ClassifyModelConfig(pool="mean")).data.label_kind
    'class'

    Args:
        task: what is trained; classify predicts one label for each sequence
        data: the rows
        model: the network
        loss: the loss
        init_from: a run or a saved model whose weights, vocabulary and labels this run begins with; empty for none
    """

    task: str = "classify"
    data: ClassifyDataConfig = field(default_factory=ClassifyDataConfig)
    model: ClassifyModelConfig = field(default_factory=ClassifyModelConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    init_from: str = ""


class RowData(Data):
    """Rows as tensors, in shuffled batches; `synthetic` ones are made as they are needed."""

    unit = "rows"

    def __init__(
        self, config: ClassifyConfig, reader: Reader, saved: Classifier | None, train: list[Row], valid: list[Row],
        test: list[Row], synthetic: SyntheticData | None = None,
    ) -> None:  # fmt: skip
        self.config, self.reader, self.synthetic = config, reader, synthetic
        # A class may occur only in the rows that the random split has set aside.
        aside = [*([] if config.data.valid else valid), *([] if config.data.test else test)]
        self.inputs = saved.inputs if saved else _inputs(config.data, train)
        self.labels = saved.labels if saved else Labels.fit([*train, *aside], config.data.label_kind)
        self.train, self.valid = self.examples(train), self.examples(valid)
        self.test = self.examples(test) if test else None
        parts = {"train": train, "valid": valid, "test": test}
        self.fingerprint = {f"data.{name}": fingerprint(rows) for name, rows in parts.items()}
        self.weights = _weights(config.loss, self.labels, self.train.y)

    def examples(self, rows: list[Row]) -> Examples:
        return Examples(self.inputs.all(rows), self.labels.targets(rows))

    def summary(self) -> list[str]:
        numbers = [len(part) for part in (self.train, self.valid, self.test or ())]
        return [
            f"data: {file_list(self.config.data.train)}: {split_summary('rows', *numbers)}",
            f"labels: {'a number' if self.labels.kind == 'number' else f'{len(self.labels.names)} classes'}",
        ]

    def first(self, part: Examples, count: int) -> Examples:
        return part if count >= len(part) else Examples([part.x[i] for i in range(count)], part.y[:count])

    def batches(self, rank: int, world: int) -> Batches:
        size, seed = self.config.data.batch_size, self.config.seed
        if self.synthetic:
            return SyntheticBatches(
                self.synthetic.train, size, seed, lambda made, number: self.batch(_rows_of(made)), rank, world
            )
        order = Shuffled(len(self.train), size, seed, rank, world)
        return OrderedBatches(order, lambda rows, at: self.weigh(self.train.batch(rows)))

    def batch(self, rows: list[Row]) -> Batch:
        """Some rows, with what the loss is measured against."""
        return self.weigh(self.examples(rows).batch(range(len(rows))))

    def weigh(self, batch: Batch) -> Batch:
        """The batch with what the loss is measured against: of classes, a weighted distribution (B, C)."""
        y, share = batch.y, self.config.loss.smoothing
        assert isinstance(y, Tensor)
        if self.labels.kind == "number":
            return batch._replace(y=((y - self.labels.mean) / self.labels.scale).float()[:, None])
        if self.labels.kind == "classes":
            return batch._replace(y=y * (1 - share) + share / 2)
        C = len(self.labels.names)
        target = torch.nn.functional.one_hot(y, C) * (1 - share) + share / C
        return batch._replace(y=target * self.weights[y, None])


def _rows_of(made: Sequence[SyntheticRow]) -> list[Row]:
    rows = []
    for i, (x, label) in enumerate(made):
        assert not isinstance(x, list) and isinstance(label, str)
        rows.append(Row(x, (label,), f"row {i}", i))
    return rows


def _inputs(config: ClassifyDataConfig, rows: list[Row]) -> AnyInputs:
    if not isinstance(rows[0].input, str):
        return SeriesInputs.fit(rows)
    return TextInputs.fit(rows, config.vocabulary, config.min_count, config.vocabulary_size, config.lower)


def _weights(config: LossConfig, labels: Labels, y: Tensor) -> Tensor:
    """Of each class (C,), one on average over the rows."""
    choice("loss.weights", config.weights, ("equal", "balanced"))
    fraction("loss.smoothing", config.smoothing)
    if labels.kind != "class":
        if config.weights != "equal":
            raise InputError(f"loss.weights is {config.weights}, which is for data.label_kind class only")
        return torch.ones(0)
    if config.weights == "equal":
        return torch.ones(len(labels.names))
    return len(y) / (len(labels.names) * torch.bincount(y, minlength=len(labels.names)).clamp(min=1)).float()


class ClassifyTask(Task[ClassifyConfig, RowData, Classifier]):
    Config, Model = ClassifyConfig, Classifier
    title = "a classifier of sequences"

    @property
    def requests(self) -> dict[str, tuple[type[Request], Response]]:
        inspect = self.inspector(lambda found, request: found.examples(_rows(found, request, True)))
        return {"evaluate": (Evaluate, evaluate), "predict": (Predict, predict), "inspect": (Inspect, inspect)}

    def open(self, config: ClassifyConfig, saved: Classifier | None) -> RowData:
        return self.open_in_memory(config, saved, {})

    def open_in_memory(self, config: ClassifyConfig, saved: Classifier | None, parts: dict[str, Any]) -> RowData:
        data = config.data
        for name in ("min_count", "vocabulary_size", "batch_size"):
            whole(f"data.{name}", getattr(data, name))
        if is_synthetic(data.train):
            synthetic = SyntheticData.open(data.train, data.valid, data.test, "classify")
            kind = "number" if synthetic.train.kind == "adding" else "class"
            config = replace(config, data=replace(data, label_kind=kind, vocabulary="char"))
            return RowData(config, Reader(), saved, *synthetic.parts(_rows_of), synthetic)
        reader = Reader(data.format, data.text, data.label, data.permute, data.errors)
        in_memory = {
            name: reader.frame(part) if is_frame(part) else labelled_rows(part) for name, part in parts.items()
        }
        return RowData(config, reader, saved, *read_parts(data, reader, lambda row: row.number, "rows", in_memory))

    def build(self, config: ClassifyConfig, data: RowData) -> Classifier:
        resolved = network.resolve_defaults(config.model)
        model = build(resolved, data.inputs, data.labels)
        return Classifier(model, resolved, data.reader, data.inputs, data.labels)

    def settings(self, predictor: Classifier) -> dict[str, Json]:
        values: dict[str, Json] = {f"model.{name}": value for name, value in asdict(predictor.config).items()}
        values |= {f"data.{name}": getattr(predictor.reader, name) for name in ("text", "label", "permute")}
        values["data.label_kind"] = predictor.labels.kind
        if isinstance(predictor.inputs, TextInputs):
            values |= {"data.vocabulary": predictor.inputs.vocabulary.kind, "data.lower": predictor.inputs.lower}
        return values

    def copy_weights(self, predictor: Classifier, source: Classifier) -> list[str]:
        answers = f"{len(source.labels.names)} classes" if source.labels.names else "the scale of its numbers"
        return [*super().copy_weights(predictor, source), "how it reads", answers]

    def loss(self, model: nn.Module, batch: Batch, state: State | None) -> Loss:
        """- sum of log P, each row's against its target; rows are independent, so nothing is carried."""
        assert isinstance(model, SequenceModel) and isinstance(batch.y, Tensor)
        predicted, _ = model.scan(batch.x, lengths=batch.lengths)
        if isinstance(predicted, Categorical):
            return -(batch.y * predicted.log_probs()).sum(), len(batch.y), None
        return -predicted.log_prob(batch.y).sum(), len(batch.y), None

    def evaluate(self, predictor: Classifier, part: Examples) -> Evaluation:
        scores = predictor.evaluate(part)
        names = predictor.labels.names if predictor.labels.kind == "class" else ()
        results = Results(scores, names, scores.details["confusion"] if names else ())  # type: ignore[arg-type]
        return Evaluation(scores, lambda run, step: plots.preview(run, step, results))

    def inspect_inputs(self, predictor: Classifier, part: Examples, rows: int, steps: int) -> Inspection:
        """Rows from the start of the data, each as far as `steps` inputs."""
        some = [part.x[i][:steps] for i in range(min(rows, len(part)))]
        x, lengths = padded(some)
        y, labels = part.y[: len(some)], predictor.labels
        if labels.kind == "number":
            y = ((y - labels.mean) / labels.scale).float()[:, None]
        names = [
            predictor.inputs.vocabulary.spell(row.tolist())
            if isinstance(predictor.inputs, TextInputs)
            else [f"{step.flatten()[0]:.3g} " for step in row]
            for row in some
        ]
        return Inspection(predictor.model, Sample(x, y, lengths, names=names))

    def serve(self, predictor: Classifier) -> Served:
        return predictor.served()


# What it answers


def _format() -> Any:
    return option(None, "the format of the files; by default from their names", choices=FORMATS)


@dataclass(frozen=True)
class Evaluate(TextRequest):
    """How good a classifier is on labelled rows."""

    data: Rows = data_option(f"files, - or {PREFIX}KIND,T=100", rows=list[str | list[float | list[float]]])
    format: str | None = _format()
    batch_size: int = batch_size(EACH, "rows")


@dataclass(frozen=True)
class Predict(Evaluate):
    """The label of each row; a row is a text, or the numbers of a series."""

    probabilities: bool = option(False, "also print the probabilities of classes, the deviation of a number")
    each: bool = option(False, "print a prediction after each input, if the model is causal")


@dataclass(frozen=True)
class Inspect(InspectRequest):
    format: str | None = _format()


def _rows(predictor: Classifier, request: Evaluate | Inspect, labelled: bool) -> list[Row]:
    names = opened(request.data)
    if is_frame(request.data):
        return predictor.reader.frame(request.data, labelled=labelled)
    if names is None:
        rows = rows_of(request.data, "rows, each a text or the numbers of a series")
        return [row if isinstance(row, Row) else Row(input_of(row, i), (), f"row {i}", i) for i, row in enumerate(rows)]
    if is_synthetic(names):
        return _rows_of(parse(names[0], "classify").part())
    reader = replace(predictor.reader, format=request.format or predictor.reader.format, errors=request.errors)
    return reader(names, labelled=labelled)


def labelled_rows(pairs: Sequence[tuple[object, object] | Row]) -> list[Row]:
    """Pairs of a row, a text or the numbers of a series, and its label; or its labels, a list of them.

    >>> labelled_rows([("a good day", 1)])[0].labels
    (1,)
    """
    rows = []
    for i, pair in enumerate(several("data", pairs, "pairs: a text or the numbers of a series, and its label")):
        if not isinstance(pair, Row):
            if not isinstance(pair, tuple | list) or len(pair) != 2:
                raise InputError(f"row {i} is {str(pair)[:60]!r}; it must be a pair, a text or numbers and its label")
            labels = pair[1] if isinstance(pair[1], tuple | list) else (pair[1],)
            own = tuple(label.item() if isinstance(label, np.generic) else label for label in labels)
            pair = Row(input_of(pair[0], i), own, f"row {i}", i)
        rows.append(pair)
    return rows


def evaluate(predictor: Classifier, request: Evaluate) -> Scores:
    return predictor.evaluate(predictor.examples(_rows(predictor, request, True)), request.batch_size)


def predict(predictor: Classifier, request: Predict) -> Iterator[str]:
    """A line for each row, or for each input of each row: tab-separated, with a header where there are columns."""
    rows = _rows(predictor, request, False)
    inputs = predictor.inputs.all(rows)
    if request.each:
        outputs = [predictor.each(x) for x in inputs]
        places = [[str(i), str(t)] for i, output in enumerate(outputs) for t in range(len(output))]
        values = torch.cat(outputs)
    else:
        values, places = predictor.outputs(inputs, request.batch_size), [[] for _ in rows]
    header = [*(["row", "step"] if request.each else []), "label"]
    if request.probabilities:
        header += ["width"] if predictor.labels.kind == "number" else predictor.labels.names
    return _lines(predictor, values, places, header if len(header) > 1 else [], request.probabilities)


def _lines(
    predictor: Classifier, values: Tensor, places: list[list[str]], header: list[str], probabilities: bool
) -> Iterator[str]:
    if header:
        yield "\t".join(header) + "\n"
    chances = predictor.probabilities(values)[:, 1 if predictor.labels.kind == "number" else 0 :].tolist()
    for place, answer, row in zip(places, predictor.answers(values), chances, strict=True):
        if predictor.labels.kind == "number":
            label = f"{answer:.6g}"
        else:
            label = "|".join(map(str, answer)) if isinstance(answer, tuple) else str(answer)
        yield "\t".join([*place, label, *(f"{p:.6g}" for p in row if probabilities)]) + "\n"
