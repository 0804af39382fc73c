"""The language model that all libraries run: its weights, its text, its sizes."""

import numpy as np
import torch

from elman.data.cache import Encoded
from elman.data.vocabulary import Characters
from elman.tasks.text.lm import LanguageModel, LMModelConfig, build

CHARACTERS = "".join(chr(32 + i) for i in range(65))
PROMPT = "THE QUICK BROWN FOX"
TOKENS = 100  # generated in one call
NEXT = 7  # the symbol after the prompt, where one step more is compared


def language_model(cell: str) -> LanguageModel:
    """Two layers of 256 units, the same weights in every process."""
    torch.manual_seed(0)
    vocabulary = Characters(CHARACTERS)
    config = LMModelConfig(cell=cell, size=256, layers=2)
    model = build(config, vocabulary.size)
    model.readout.linear.bias.data[:2] = -20.0  # as after training: no boundary, so that a text has its full length
    return LanguageModel(model, vocabulary, config)


def text(tokens: int = 200_000) -> Encoded:
    ids = np.random.default_rng(0).integers(2, 67, tokens + 1)
    return Encoded(ids, tokens, 0)
