"""Markov models: the next symbol given the last few, by counting. The baseline of every language model."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from elman import artifact
from elman.data import DataConfig, vocabulary
from elman.errors import FileError
from elman.markov import Markov
from elman.tasks import files
from elman.tasks.settings import Settings
from elman.tasks.text import TextModel
from elman.tasks.text_task import PreviewConfig, TextData, TextTask


@dataclass(frozen=True)
class ModelConfig:
    """What the model is.

    Args:
        order: symbols that it sees
    """

    order: int = 5


@dataclass(frozen=True)
class RunConfig(Settings):
    """A run from text to Markov model.

    >>> RunConfig(model=ModelConfig(order=3)).data.vocabulary
    'char'

    Args:
        task: what is fitted; markov is a Markov model with Kneser-Ney smoothing
        data: the texts; how batches are cut does not matter here
        model: the model
        preview: the sample that is written when it is fitted
    """

    task: str = "markov"
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    preview: PreviewConfig = field(default_factory=PreviewConfig)
    out: str = "runs/markov"


class MarkovModel(TextModel[Markov]):
    """Counts, their vocabulary, and what can be done with the two."""

    task: ClassVar[str] = "markov"

    @classmethod
    def load(cls, path: str | Path) -> MarkovModel:
        """Read what `save` wrote."""
        folder = Path(path)
        content = artifact.read_model_json(folder)
        try:
            config = ModelConfig(int(content["config"]["order"]))
            symbols, unit = vocabulary.from_json(content["vocabulary"]), content["unit"]
        except (KeyError, TypeError, ValueError) as error:
            raise FileError(f"{folder / 'model.json'} is not a model that this version knows: {error}") from error
        model = Markov(symbols.size, config.order)
        stored = artifact.read_tensors(folder / "model.safetensors")
        if stored.keys() != model.names:
            raise files.foreign(folder)
        model.restore(stored)
        return cls(model.eval(), symbols, config, unit)


class MarkovTask(TextTask[RunConfig, MarkovModel]):
    Config = RunConfig
    title = "a Markov model of text"
    fitted = True

    def build(self, config: RunConfig, data: TextData) -> MarkovModel:
        symbols = data.splits.vocabulary
        return MarkovModel(Markov(symbols.size, config.model.order), symbols, config.model, config.data.unit)

    def load(self, folder: Path) -> MarkovModel:
        return MarkovModel.load(folder)

    def fit(self, face: MarkovModel, config: RunConfig, data: TextData) -> list[dict[str, float]]:
        face.model.fit(data.splits.train.ids)
        return [{"tokens": data.splits.train.tokens}]
