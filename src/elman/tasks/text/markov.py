"""Markov models: the next symbol given the last few, by counting. The baseline of every language model."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from elman.data import Vocabulary, vocabulary
from elman.files import artifact
from elman.files.artifact import Content
from elman.tasks.predictor import wrong_weights
from elman.tasks.task import Settings
from elman.tasks.text.data import TextDataConfig
from elman.tasks.text.kneser_ney import Markov
from elman.tasks.text.model import TextModel
from elman.tasks.text.task import PreviewConfig, TextData, TextTask


@dataclass(frozen=True)
class MarkovModelConfig:
    """The settings of the model.

    Args:
        order: the number of previous symbols that it sees
    """

    order: int = 5


@dataclass(frozen=True)
class MarkovConfig(Settings["MarkovModel"]):
    """A run from text to Markov model.

    >>> MarkovConfig(model=MarkovModelConfig(order=3)).data.vocabulary
    'char'

    Args:
        task: what is fitted; markov is a Markov model with Kneser-Ney smoothing
        data: the texts; batch_size and window have no effect here
        model: the model
        preview: the sample that is written when it is fitted
    """

    task: str = "markov"
    data: TextDataConfig = field(default_factory=TextDataConfig)
    model: MarkovModelConfig = field(default_factory=MarkovModelConfig)
    preview: PreviewConfig = field(default_factory=PreviewConfig)


class MarkovModel(TextModel[Markov]):
    """Counts, their vocabulary, and what can be done with the two.

    >>> model, _ = elman.train(MarkovConfig(model={"order": 3}), "to be or not to be, " * 99, progress=False)
    >>> model.generate("to be or", max_new_tokens=7)
    ' not to'
    """

    task: ClassVar[str] = "markov"

    @classmethod
    def parts(cls, content: Content) -> tuple[Vocabulary, MarkovModelConfig, str]:
        config = MarkovModelConfig(int(content["config"]["order"]))
        return vocabulary.from_json(content["vocabulary"]), config, content["unit"]

    @classmethod
    def network(cls, symbols: Vocabulary, config: MarkovModelConfig, unit: str) -> Markov:
        return Markov(symbols.size, config.order)

    @classmethod
    def restore(cls, model: Markov, folder: Path) -> None:
        stored = artifact.read_tensors(folder / "model.safetensors")
        if stored.keys() != model.names:
            raise wrong_weights(folder)
        model.restore(stored)


class MarkovTask(TextTask[MarkovConfig, MarkovModel]):
    Config, Model = MarkovConfig, MarkovModel
    title = "a Markov model of text"
    fitted = True

    def build(self, config: MarkovConfig, data: TextData) -> MarkovModel:
        symbols = data.splits.vocabulary
        return MarkovModel(Markov(symbols.size, config.model.order), symbols, config.model, config.data.unit)

    def fit(self, predictor: MarkovModel, config: MarkovConfig, data: TextData) -> list[dict[str, float]]:
        predictor.model.fit(data.splits.train.ids)
        return [{"tokens": data.splits.train.tokens}]
