"""The mean of the weights at the last evaluations."""

import pytest
import torch
from torch import nn

from elman.errors import FileError
from elman.training.average import Average


def test_the_mean_of_the_last_ones_and_back():
    model = nn.Linear(2, 2)
    average = Average(model, 3)
    for i in range(5):
        nn.init.constant_(model.weight, float(i))
        with average.weights():
            seen = sum(range(max(0, i - 2), i + 1)) / min(3, i + 1)
            torch.testing.assert_close(model.weight, torch.full((2, 2), seen))
        assert (model.weight == i).all() and model.weight.requires_grad
    other = Average(model, 3)
    other.restore(average.tensors())
    assert len(other.kept) == 3 and all(
        torch.equal(a[name], b[name]) for a, b in zip(other.kept, average.kept, strict=True) for name in a
    )


def test_of_more_than_ten_the_oldest_goes_first_after_a_restart_too():
    model = nn.Linear(1, 1)
    average = Average(model, 12)
    for i in range(12):
        nn.init.constant_(model.weight, float(i))
        with average.weights():
            pass
    other = Average(model, 12)
    other.restore(dict(sorted(average.tensors().items())))  # as a file gives them back
    for i in range(12, 15):
        nn.init.constant_(model.weight, float(i))
        with other.weights():
            assert model.weight.item() == sum(range(i - 11, i + 1)) / 12


def test_weights_come_back_when_an_evaluation_fails():
    model = nn.Linear(1, 1)
    average = Average(model, 2)
    with average.weights():
        pass
    nn.init.constant_(model.weight, 7.0)
    with pytest.raises(KeyboardInterrupt), average.weights():
        raise KeyboardInterrupt
    assert model.weight.item() == 7.0


def test_one_keeps_nothing():
    average = Average(nn.Linear(1, 1), 1)
    with average.weights():
        assert average.tensors() == {}


def test_weights_of_another_model_are_refused():
    with pytest.raises(FileError, match="another model"):
        Average(nn.Linear(1, 1), 2).restore({"0.other": torch.zeros(1)})
