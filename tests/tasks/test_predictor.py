"""What all predictors share."""

import pytest
import torch

from elman.data import VOCABULARIES
from elman.errors import InputError
from elman.tasks.text.lm import LanguageModel, LMModelConfig, build

CONFIG = LMModelConfig(size=8, dropout=0.5, layers=2)


def language_model():
    torch.manual_seed(0)
    return LanguageModel(build(CONFIG, 257), VOCABULARIES["byte"](), CONFIG)


def test_one_that_is_built_by_hand_answers_without_dropout():
    network = build(CONFIG, 257)
    assert network.training
    assert not LanguageModel(network, VOCABULARIES["byte"](), CONFIG).model.training and not network.training
    model = language_model()
    assert model.score("to be or not")[0] == model.score("to be or not")[0]


def test_a_network_in_training_is_refused_not_switched():
    model = language_model()
    model.model.train()
    with pytest.raises(InputError, match=r"in training mode.*call predictor\.model\.eval\(\)"):
        model.score("to be or not")
    assert model.model.training
    model.model.eval()
    assert model.score("to be or not")
