"""What classifies whole sequences: a core reads a row, a pool gathers it, one read-out answers.

Of `class` labels a row has one, of `classes` any number; a `number` is predicted with its standard deviation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from elman.compose import Pool, Stack
from elman.compose.pool import POOLS
from elman.data import Examples, padded
from elman.errors import InputError
from elman.files.artifact import Content
from elman.files.config import Json, one_of
from elman.model import SequenceModel
from elman.nn.distributions import Distribution, WithValues
from elman.nn.readout import Affine, BernoulliReadout, BothEnds, GaussianReadout, Linear, Pooled, Softmax
from elman.options import choice, several, whole
from elman.progress import check_cancelled
from elman.tasks import network
from elman.tasks.classify import metrics
from elman.tasks.classify.data import Label, Reader, Row
from elman.tasks.classify.inputs import AnyInputs, Labels, TextInputs, inputs_from_json
from elman.tasks.network import NetworkConfig
from elman.tasks.predictor import Predictor, evaluating
from elman.tasks.serving_numbers import ServedNumbers, rows_of_numbers
from elman.tasks.tag.word_features import WordEmbedding
from elman.training.scores import Scores

POOLED = (*POOLS, "both")  # what a classifier is read out of
EACH = 64  # rows at a time by default
Input = object  # a text, or an array of numbers (T, D) or (T,)
Answer = Label | tuple[Label, ...]


@dataclass(frozen=True)
class ClassifyModelConfig(NetworkConfig):
    """The settings of the network.

    Args:
        size: units in each layer and direction
        bidirectional: read in both directions; such a model cannot predict before the end of a sequence
        pool: how outputs are pooled, last, mean, max or attention, or both (the last state of each direction)
        embedding_size: the width of the embedding of symbols, or of a linear map of numbers; 0 for that of a layer
        embedding_dropout: the dropout after the embedding of symbols
        word_dropout: the probability that a symbol is replaced by the unknown symbol in training
        readout_dropout: the dropout before the read-out
    """

    size: int = 128
    bidirectional: bool = True
    pool: str = one_of("max", POOLED)
    embedding_size: int = 0
    embedding_dropout: float = 0.2
    word_dropout: float = 0.05
    readout_dropout: float = 0.2


def build(config: ClassifyModelConfig, inputs: AnyInputs, labels: Labels) -> SequenceModel:
    """The model of a config, with fresh parameters."""
    choice("model.pool", config.pool, POOLED)
    width = whole("model.embedding_size", config.embedding_size, least=0) or config.size
    # Numbers do not go straight into a layer: a norm over one of them would leave nothing.
    embed: nn.Module = (
        _symbols(config, inputs, width) if isinstance(inputs, TextInputs) else Linear(inputs.width, width)
    )
    core = network.core(config, width, bidirectional=config.bidirectional)
    H, p = core.output_size, config.readout_dropout
    readouts: dict[str, Affine[Distribution]] = {
        "class": Softmax(H, max(1, len(labels.names)), dropout=p),
        "classes": BernoulliReadout(H, max(1, len(labels.names)), dropout=p),
        "number": GaussianReadout(H, 1, dropout=p),
    }
    readout = readouts[labels.kind]
    if config.pool == "both":
        if not config.bidirectional:
            raise InputError("model.pool is both, which needs model.bidirectional: true; else the last state is `last`")
        if network.block_of(config) != "plain":
            raise InputError(
                "model.pool is both, which reads the last state of each direction; a residual block mixes the two. "
                "Add --model.block plain, or take another pool."
            )
        return SequenceModel(embed, core, BothEnds(readout, H // 2))
    return SequenceModel(embed, Stack(core, Pool(config.pool, H)), Pooled(readout))


def _symbols(config: ClassifyModelConfig, inputs: TextInputs, width: int) -> WordEmbedding:
    hidden = config.word_dropout if inputs.vocabulary.unknown is not None else 0.0
    return WordEmbedding(inputs.vocabulary.size, width, dropout=config.embedding_dropout, word_dropout=hidden)


class Classifier(Predictor[SequenceModel]):
    """A network, how it reads and what its answers are called.

    >>> rows = [Row(text, (label,), "here") for text, label in [("good", "pos"), ("bad", "neg")] * 2]
    >>> inputs, labels = TextInputs.fit(rows, "word", 1, 0, False), Labels.fit(rows, "class")
    >>> config = ClassifyModelConfig(size=4)
    >>> classifier = Classifier(build(config, inputs, labels), config, Reader(), inputs, labels)
    >>> classifier.predict_proba(["good", "bad"]).shape
    torch.Size([2, 2])
    """

    task = "classify"
    config: ClassifyModelConfig
    reader: Reader
    inputs: AnyInputs
    labels: Labels

    def __init__(
        self, model: SequenceModel, config: ClassifyModelConfig, reader: Reader, inputs: AnyInputs, labels: Labels
    ) -> None:
        super().__init__(model, config=config, reader=reader, inputs=inputs, labels=labels)

    def predict(self, inputs: Sequence[Input], batch_size: int = EACH) -> list[Answer]:
        """The answer to each input: a class, some classes, or a number. Classes that were whole numbers where they were
        read from (in .npz, JSON lines, IDX) are whole numbers here."""
        return self.answers(self.outputs(self._encode(inputs), batch_size))

    def predict_proba(self, inputs: Sequence[Input], batch_size: int = EACH) -> Tensor:
        """P of each class (N, C) float64; of a number, its mean and standard deviation (N, 2)."""
        return self.probabilities(self.outputs(self._encode(inputs), batch_size))

    def answers(self, outputs: Tensor) -> list[Answer]:
        """What `outputs` (N, P) say."""
        if self.labels.kind == "number":
            return [float(value) for value in outputs[:, 0]]
        if self.labels.kind == "class":
            return [self.labels.answers[i] for i in outputs.argmax(-1).tolist()]
        return [
            tuple(answer for answer, one in zip(self.labels.answers, row, strict=True) if one)
            for row in (outputs > 0).tolist()
        ]

    def probabilities(self, outputs: Tensor) -> Tensor:
        """What `outputs` (N, P) stand for."""
        kind = self.labels.kind
        return outputs if kind == "number" else outputs.exp() if kind == "class" else outputs.sigmoid()

    def outputs(self, inputs: Sequence[Tensor], batch_size: int = EACH) -> Tensor:
        """(N, P) float64: log P of classes, logits of several, or mean and standard deviation of a number."""

        def run(rows: list[Tensor]) -> Tensor:
            x, lengths = padded(rows)
            return self._values(self.model.scan(x.to(self.device), lengths=lengths.to(self.device))[0])

        values = self.batched(inputs, run, batch_size, len)
        width = 2 if self.labels.kind == "number" else len(self.labels.names)
        return torch.stack(values) if values else torch.zeros(0, width, dtype=torch.float64)

    @torch.inference_mode()
    def each(self, x: Tensor) -> Tensor:
        """The outputs (T, P) after each input of one row x (T, ...): what a causal model says on its way."""
        if not self.model.core.causal or not isinstance(self.model.readout, Pooled):
            raise InputError(
                "this model reads from both ends, so it answers at the end only; "
                "to answer after each input train with --model.bidirectional false"
            )
        check_cancelled()
        with evaluating(self.model):
            y, _ = self.model.core.scan(self.model.embed(x[None]))
            return self._values(self.model.readout.readout(y[0]))

    def served(self) -> ServedNumbers:
        """As `elman serve` runs it: an answer after each input, where it reads numbers and not the future."""
        inputs, readout = self.inputs, self.model.readout
        if isinstance(inputs, TextInputs) or not self.model.core.causal or not isinstance(readout, Pooled):
            raise InputError(
                "this classifier reads words, or from both ends, so it does not answer after each input; it answers "
                "`elman predict`. Sessions need numbers and --model.bidirectional false."
            )
        D = inputs.width

        def encode(value: object) -> NDArray[Any]:
            return inputs(rows_of_numbers(value, D, np.dtype(np.float64)), "inputs").numpy()

        about: dict[str, Json] = {"reads": "numbers", "input": f"{D} numbers", "writes": False}
        model = SequenceModel(self.model.embed, self.model.core, readout.readout)
        return ServedNumbers(model, about, self.fingerprint, D, np.dtype(np.float32), encode, self._answers_json)

    def _answers_json(self, predicted: Distribution) -> list[Json]:
        """An answer with its probabilities for each row; of a number, with its standard deviation."""
        values = self._values(predicted)
        chances, names = self.probabilities(values).tolist(), self.labels.names
        if self.labels.kind == "number":
            return [{"answer": mean, "std": std} for mean, std in chances]
        answers = zip(self.answers(values), chances, strict=True)
        return [
            {"answer": cast(Json, answer), "probabilities": dict(zip(names, row, strict=True))}
            for answer, row in answers
        ]

    def _values(self, predicted: Distribution) -> Tensor:
        values = cast(WithValues, predicted).values().cpu()  # as the read-outs of `build` have them
        if self.labels.kind != "number":
            return values
        return self.labels.scale * values + torch.tensor([self.labels.mean, 0.0], dtype=torch.float64)

    def _encode(self, inputs: Sequence[Input]) -> list[Tensor]:
        rows = several("inputs", inputs, "texts, one for each answer")
        return [self.inputs(row, f"input {i}") for i, row in enumerate(rows)]

    def evaluate(self, examples: Examples, batch_size: int = EACH) -> Scores:
        """How good the answers are."""
        if not isinstance(examples, Examples):
            raise InputError(
                f"evaluate reads Examples, as examples(rows) makes them; a {type(examples).__name__} was given. Files, "
                'frames and pairs: elman.tasks.respond(classifier, "evaluate", data=...)'
            )
        outputs, y, names = self.outputs(examples.x, batch_size), examples.y, self.labels.names
        if self.labels.kind == "class":
            return metrics.of_classes(outputs, y, names)
        if self.labels.kind == "classes":
            return metrics.of_several(outputs, y, names)
        return metrics.of_numbers(outputs[:, 0], outputs[:, 1], y)

    def examples(self, rows: Sequence[Row]) -> Examples:
        """Rows as this model reads them."""
        return Examples(self.inputs.all(rows), self.labels.targets(rows))

    @classmethod
    def parts(cls, content: Content) -> tuple[ClassifyModelConfig, Reader, AnyInputs, Labels]:
        config, reader = ClassifyModelConfig(**content["config"]), Reader(**content["reader"])
        labels = Labels(**{**content["labels"], "names": tuple(content["labels"]["names"])})
        inputs, _ = inputs_from_json(content["inputs"]), labels.answers  # which is made of the names, if it can be
        return config, reader, inputs, labels

    @classmethod
    def network(cls, config: ClassifyModelConfig, reader: Reader, inputs: AnyInputs, labels: Labels) -> SequenceModel:
        return build(config, inputs, labels)

    def __repr__(self) -> str:
        c, ways = self.config, "bidirectional " if self.config.bidirectional else ""
        shape = f"{c.layers} x {ways}{c.cell} {c.size}, {c.pool} pool"
        return f"Classifier({shape}, {self.parameter_count:,} parameters)"

    def about(self) -> list[list[str]]:
        return [["answers", self.labels.kind if self.labels.kind == "number" else ", ".join(self.labels.names[:20])]]
