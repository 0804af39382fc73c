"""Language models: a recurrent network reads symbols, and a softmax predicts the next one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch

from elman.compose import learn_start
from elman.core import Options
from elman.data import Vocabulary, vocabulary
from elman.data.cache import Encoded
from elman.data.vocabulary import BOUNDARY
from elman.errors import InputError, UnknownNameError
from elman.files.artifact import Content
from elman.files.config import one_of
from elman.lens import Sample
from elman.model import SequenceModel
from elman.nn.embed import Embedding
from elman.nn.readout import AdaptiveSoftmax, Softmax
from elman.options import flag, whole
from elman.tasks import network
from elman.tasks.network import NetworkConfig
from elman.tasks.request import Request
from elman.tasks.task import Inspection, InspectRequest, Response, TrainedSettings
from elman.tasks.text.data import TextDataConfig
from elman.tasks.text.model import TextModel
from elman.tasks.text.pretrained.network import build as build_pretrained
from elman.tasks.text.task import PreviewConfig, TextData, TextTask, read_text

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.float32}  # of the parameters


@dataclass(frozen=True)
class LMModelConfig(NetworkConfig):
    """The settings of the network.

    Args:
        embedding_size: the width of the embedding; 0 for that of the layers
        embedding_dropout: the dropout after the embedding
        readout_dropout: the dropout before the read-out
        tied: use one matrix for embedding and read-out
        cutoffs: the cutoffs of an adaptive softmax, for large vocabularies; empty for a plain softmax
        dtype: float32, float64, or bfloat16 for the activations
        pretrained: the network of a model that `elman convert` has read; empty for layers of the cell
    """

    layers: int = 2
    embedding_size: int = 0
    embedding_dropout: float = 0.0
    readout_dropout: float = 0.0
    tied: bool = False
    cutoffs: list[int] = field(default_factory=list)
    dtype: str = one_of("float32", DTYPES)
    pretrained: Options = field(default_factory=dict)


@dataclass(frozen=True)
class LMConfig(TrainedSettings["LanguageModel"]):
    """A run from text to language model.

    >>> LMConfig(model=LMModelConfig(cell="lstm", size=512)).model.cell
    'lstm'

    Args:
        task: what is trained; lm is a language model
        data: the texts, and how batches are cut from them
        model: the network
        preview: the sample that is written at each evaluation
        init_from: a run or a saved model whose weights and vocabulary this run begins with; empty for none
    """

    task: str = "lm"
    data: TextDataConfig = field(default_factory=TextDataConfig)
    model: LMModelConfig = field(default_factory=LMModelConfig)
    preview: PreviewConfig = field(default_factory=PreviewConfig)
    init_from: str = ""


def build(config: LMModelConfig, vocabulary_size: int) -> SequenceModel:
    """The model of a config, with fresh parameters."""
    if config.dtype not in DTYPES:
        raise UnknownNameError("dtype", config.dtype, DTYPES)
    if config.cell == "markov":
        raise InputError("a Markov model is a task of its own: elman train --task markov --model.order 5")
    whole("model.embedding_size", config.embedding_size, least=0)
    if config.pretrained:
        return _pretrained(config, vocabulary_size)
    width = config.embedding_size or config.size
    core = network.core(config, width)
    activations = torch.bfloat16 if config.dtype == "bfloat16" else None
    embed = Embedding(vocabulary_size, width, dropout=config.embedding_dropout, dtype=activations)
    H, p = core.output_size, config.readout_dropout
    if config.cutoffs and config.tied:
        raise InputError(
            "model.tied and model.cutoffs exclude each other: an adaptive softmax has no (V, H) matrix to share"
        )
    readout = (
        AdaptiveSoftmax(H, vocabulary_size, config.cutoffs, dropout=p)
        if config.cutoffs
        else Softmax(H, vocabulary_size, dropout=p, weight=embed.weight if config.tied else None)
    )
    return SequenceModel(embed, core, readout).to(DTYPES[config.dtype])


def _pretrained(config: LMModelConfig, vocabulary_size: int) -> SequenceModel:
    """The network of a converted model, which is as its family has it, so most settings have nothing to act on."""
    plain = LMModelConfig()
    for name in ("embedding_size", "options", "residual", "norm", "dropout", "weight_dropout", "cutoffs"):
        if getattr(config, name) != getattr(plain, name):
            raise InputError(
                f"model.{name} is {getattr(config, name)}, but the network is that of a converted model "
                f"({config.pretrained.get('family')}), which has no such setting: leave it out"
            )
    if config.dtype == "bfloat16":
        raise InputError("model.dtype is bfloat16; a converted model computes in float32 or float64")
    dropout = config.embedding_dropout, config.readout_dropout
    model = build_pretrained(
        config.pretrained, vocabulary_size, config.size, config.layers, tied=config.tied, dropout=dropout
    )
    if flag("model.learn_initial_state", config.learn_initial_state):
        model.core = learn_start(model.core)
    return model.to(DTYPES[config.dtype])


class LanguageModel(TextModel[SequenceModel]):
    """A network, its vocabulary, and what can be done with the two.

    >>> from elman.data import VOCABULARIES
    >>> config = LMModelConfig(cell="gru", size=8, layers=1)
    >>> lm = LanguageModel(build(config, 257), VOCABULARIES["byte"](), config)
    >>> score, state = lm.score("Once upon")
    >>> more, state = lm.score(" a time", state)
    >>> score.tokens + more.tokens
    16
    """

    task: ClassVar[str] = "lm"

    @classmethod
    def parts(cls, content: Content) -> tuple[Vocabulary, LMModelConfig, str]:
        return vocabulary.from_json(content["vocabulary"]), LMModelConfig(**content["config"]), content["unit"]

    @classmethod
    def network(cls, symbols: Vocabulary, config: LMModelConfig, unit: str) -> SequenceModel:
        return build(config, symbols.size)


class LanguageModelTask(TextTask[LMConfig, LanguageModel]):
    Config, Model = LMConfig, LanguageModel
    title = "a language model"

    def build(self, config: LMConfig, data: TextData) -> LanguageModel:
        symbols, model = data.splits.vocabulary, network.resolve_defaults(config.model)
        return LanguageModel(build(model, symbols.size), symbols, model, config.data.unit)

    @property
    def requests(self) -> dict[str, tuple[type[Request], Response]]:
        return {**super().requests, "inspect": (InspectRequest, self.inspector(read_text))}

    def inspect_inputs(self, predictor: LanguageModel, part: Encoded, rows: int, steps: int) -> Inspection:
        T = min(steps, part.tokens)
        if T == 0:
            raise InputError("the text is empty; there is nothing to look at")
        starts = sorted({int(start) for start in np.linspace(0, part.tokens - T, rows)})
        ids = torch.from_numpy(
            np.stack([np.asarray(part.ids[start : start + T + 1], dtype=np.int64) for start in starts])
        )
        x = ids[:, :-1].contiguous()
        names = [predictor.vocabulary.spell(row) for row in x.tolist()]
        return Inspection(predictor.model, Sample(x, ids[:, 1:].contiguous(), reset=x == BOUNDARY, names=names))

    def summary(self, predictor: LanguageModel) -> str:
        assert isinstance(predictor.config, LMModelConfig)
        family = predictor.config.pretrained.get("family")
        layer = "is that of a converted " + family if family else f"computes {network.describe(predictor.config)}"
        return f"{super().summary(predictor)}; a layer {layer}"
