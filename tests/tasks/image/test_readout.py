"""A model of images is a distribution over them: brute force over all images of 3 x 3 bits."""

import itertools

import pytest
import torch

from elman.errors import InputError, UnknownNameError
from elman.model import SequenceModel
from elman.tasks.image import PixelNetwork
from elman.tasks.image.readout import Brightness, PixelReadout


def model(layer, layers, kind="binary", levels=2, side=3):
    torch.manual_seed(1)
    network = PixelNetwork(1, 3, side, layer=layer, layers=layers, kernel=5)
    readout = PixelReadout(kind, network.size, side, hidden=4, levels=levels)
    made = SequenceModel(Brightness(levels), network, readout).double()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    return made


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("layer", ["row", "diagonal", "multi"])
def test_all_512_images_sum_to_one(layer, layers):
    images = torch.tensor(list(itertools.product((0, 1), repeat=9))).reshape(512, 3, 3)
    log_prob = model(layer, layers).scan(images)[0].log_prob(images).sum(1)
    assert torch.logsumexp(log_prob, 0).abs() < 1e-12
    assert log_prob.std() > 0.1  # and they are not all alike


@pytest.mark.parametrize("kind", ["categorical", "logistic"])
def test_all_81_grey_images_sum_to_one(kind):
    images = torch.tensor(list(itertools.product((0, 1, 2), repeat=4))).reshape(81, 2, 2)
    log_prob = model("diagonal", 1, kind, 3, 2).scan(images)[0].log_prob(images).sum(1)
    assert torch.logsumexp(log_prob, 0).abs() < 1e-12


@pytest.mark.parametrize("layer", ["row", "diagonal", "multi"])
def test_a_pixel_changes_no_earlier_prediction(layer):
    made, image = model(layer, 2, side=5), torch.randint(0, 2, (1, 5, 5))
    before = made.scan(image)[0].pixels.logits.flatten()
    for place in range(25):
        other = image.clone()
        other.view(-1)[place] ^= 1
        changed = made.scan(other)[0].pixels.logits.flatten() != before
        assert not changed[: place + 1].any()
        assert changed[place + 1 :].any() or place == 24


def test_modes_and_what_a_row_cannot_do():
    made = model("diagonal", 1)
    row = made.scan(torch.zeros(2, 3, 3, dtype=torch.int64))[0]
    assert torch.equal(row.mode, (row.pixels.logits[..., 0] > 0).double())
    with pytest.raises(InputError, match="depend on one another"):
        row.sample(torch.zeros(2, 2, dtype=torch.int64))
    with pytest.raises(UnknownNameError, match="read-out of an image model"):
        PixelReadout("bits", 4, 3)
