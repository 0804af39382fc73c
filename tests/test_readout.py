import pytest
import torch

from elman.embed import Embedding
from elman.errors import InputError
from elman.readout import AdaptiveSoftmax, GaussianReadout, Softmax


def test_adaptive_softmax_is_torchs():
    torch.manual_seed(0)
    ours = AdaptiveSoftmax(16, 20, [5, 11]).double()
    theirs = torch.nn.AdaptiveLogSoftmaxWithLoss(16, 20, [5, 11], div_value=4.0).double()
    theirs.head.weight.data = ours.head.weight.data
    for mine, tail in zip(ours.tails, theirs.tail, strict=True):
        for a, b in zip(mine, tail, strict=True):
            assert b.weight.shape == a.weight.shape
            b.weight.data = a.weight.data
    h, y = torch.randn(40, 16).double(), torch.arange(40) % 20
    torch.testing.assert_close(ours(h).log_prob(y), theirs(h, y).output)
    torch.testing.assert_close(ours(h).log_probs(), theirs.log_prob(h))
    shaped = ours(h.reshape(5, 8, 16)).log_prob(y.reshape(5, 8))
    torch.testing.assert_close(shaped.flatten(), ours(h).log_prob(y))


def test_adaptive_softmax_gradients():
    torch.manual_seed(0)
    ours = AdaptiveSoftmax(8, 9, [3, 6]).double()
    h = torch.randn(9, 8, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda h: ours(h).log_prob(torch.arange(9)), (h,))


def test_tied_weights_are_one_parameter():
    embed = Embedding(7, 4)
    readout = Softmax(4, 7, weight=embed.weight)
    assert readout.linear.weight is embed.weight
    with pytest.raises(InputError, match="tied only if"):
        Softmax(5, 7, weight=embed.weight)


def test_dropout_is_for_training_only():
    readout = Softmax(64, 3, dropout=0.5)
    h = torch.ones(1, 64)
    assert not torch.equal(readout(h).logits, readout(h).logits)
    readout.eval()
    assert torch.equal(readout(h).logits, readout(h).logits)


def test_gaussian_widths_are_positive():
    read = GaussianReadout(3, 2)(torch.full((1, 3), -1e4))
    assert (read.std > 0).all() and read.mean.shape == (1, 2)


@pytest.mark.parametrize("cutoffs", [[], [0, 3], [4, 3], [3, 9]])
def test_bad_cutoffs(cutoffs):
    with pytest.raises(InputError, match="cutoffs"):
        AdaptiveSoftmax(8, 9, cutoffs)
