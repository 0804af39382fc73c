"""What all predictors share."""

import pytest
import torch
from torch import nn

from elman.cells import cell
from elman.compose import LearnedStart, Stack
from elman.data import VOCABULARIES
from elman.errors import FileError, InputError
from elman.files import artifact
from elman.tasks.predictor import Predictor, copy_weights, read_weights, tensors
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


class Tied(nn.Module):
    """Two layers of one weight, (3, 3), and a bias each."""

    def __init__(self, width=3):
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        self.second.weight = self.first.weight


def test_what_is_shared_is_counted_and_written_once(tmp_path):
    model = Tied()
    assert Predictor(model).parameter_count == 9 + 3 + 3
    assert {*tensors(model)} == {"first.weight", "first.bias", "second.bias"}
    artifact.write_tensors(tmp_path / "model.safetensors", tensors(model))
    other = Tied()
    read_weights(other, tmp_path)
    assert torch.equal(other.second.weight, model.first.weight) and other.second.weight is other.first.weight
    assert Predictor(other).fingerprint == Predictor(model).fingerprint


def test_weights_of_another_shape_or_name_are_refused(tmp_path):
    artifact.write_tensors(tmp_path / "model.safetensors", tensors(Tied()))
    for other in (Tied(4), nn.Linear(3, 3)):
        with pytest.raises(FileError, match="are not those of the model"):
            read_weights(other, tmp_path)
        with pytest.raises(InputError, match="does not fit this config: the shape of"):
            copy_weights(Tied(), other)


@pytest.mark.parametrize("batch_size", [1, 2, 3, 99])
def test_rows_are_answered_in_their_order_like_sizes_side_by_side(batch_size):
    rows, seen = ["aaa", "b", "", "cc", "dddd"], []

    def run(some):
        seen.append([len(row) for row in some])
        return (row.upper() for row in some)

    assert Predictor(Tied()).batched(rows, run, batch_size, len) == ["AAA", "B", "", "CC", "DDDD"]
    assert [size for some in seen for size in some] == [4, 3, 2, 1, 0] and max(map(len, seen)) == min(batch_size, 5)


def test_weights_of_a_model_that_learns_no_start_fit_one_that_does():
    def network(learned):
        inner = cell("gru", 3, 4)
        return Stack(Stack(LearnedStart(inner) if learned else inner), cell("lru", 4, 2))

    plain, inner = network(False), network(True)
    outer = LearnedStart(network(True))
    for model in (inner, outer, LearnedStart(network(False))):
        starts = {name: start.data for name, start in model.named_parameters() if name.endswith("initial_state")}
        for start in starts.values():
            start.fill_(7.0)
        assert copy_weights(plain, model) == len(tensors(plain))
        assert starts and all((start == 7.0).all() for start in starts.values())
        for start in starts.values():
            start.zero_()
        assert torch.equal(model.scan(torch.ones(1, 5, 3))[0], plain.scan(torch.ones(1, 5, 3))[0])
    assert copy_weights(inner, network(True)) == len(tensors(inner))
    for source, model in ((inner, plain), (Stack(cell("gru", 3, 4)), outer)):
        with pytest.raises(InputError, match="does not fit this config"):
            copy_weights(source, model)
