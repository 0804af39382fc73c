import itertools

import pytest
import torch
from torch import nn

from elman.cells import cell
from elman.compose import Bidirectional
from elman.errors import InputError
from elman.nn.crf import TagSoftmax
from elman.tasks.tag.autoregressive import AutoregressiveTagger

B, T, K = 3, 4, 3


@pytest.fixture
def model():
    torch.manual_seed(3)
    core = Bidirectional(cell("gru", 2, 4), cell("gru", 2, 4))
    made = AutoregressiveTagger(nn.Identity(), core, cell("lstm", 8 + 5, 6), TagSoftmax(6, K), size=5)
    with torch.no_grad():
        made.readout.linear.weight.mul_(4)  # so that paths differ in more than a little
    return made.eval()


X, LENGTHS = torch.randn(B, T, 2, generator=torch.Generator().manual_seed(1)), torch.tensor([4, 2, 0])


def total(model, row, path):
    n = int(LENGTHS[row])
    x, y, lengths = X[row : row + 1, :n], torch.tensor([path]), LENGTHS[row : row + 1]
    return model.forced(x, y, lengths).log_prob(y).sum().item() if n else 0.0


@torch.no_grad()
def test_a_wide_beam_finds_the_best_of_all_paths(model):
    found = model.search(X, LENGTHS, num_beams=K**T)
    for row in range(2):
        n = int(LENGTHS[row])
        best = max(itertools.product(range(K), repeat=n), key=lambda path: total(model, row, path))
        assert found[row].tolist() == [*best, *[-1] * (T - n)]
    assert found[2].tolist() == [-1] * T


@torch.no_grad()
def test_greedy_takes_the_best_tag_after_those_it_took(model):
    path, chances = model.scored(X, LENGTHS)
    for row in range(2):
        n = int(LENGTHS[row])
        predicted = model.forced(X[row : row + 1, :n], path[row : row + 1, :n], LENGTHS[row : row + 1])
        assert predicted.mode[0].tolist() == path[row, :n].tolist()
        wanted = predicted.log_probs().exp().amax(-1)[0]
        torch.testing.assert_close(chances[row, :n], wanted, rtol=1e-5, atol=1e-6)
        beam = model.search(X, LENGTHS, num_beams=3)[row, :n].tolist()
        assert total(model, row, beam) >= total(model, row, path[row, :n].tolist()) - 1e-6


@torch.no_grad()
def test_a_row_is_the_same_alone(model):
    for beams in (1, 3):
        whole = model.search(X, LENGTHS, beams)
        for row in range(2):
            n = int(LENGTHS[row])
            alone = model.search(X[row : row + 1, :n], LENGTHS[row : row + 1], beams)
            assert torch.equal(alone[0], whole[row, :n])


def test_it_knows_the_tag_before_and_no_later_one(model):
    x, lengths = X[:1], LENGTHS[:1]
    one, other = torch.tensor([[0, 1, 2, 0]]), torch.tensor([[0, 1, 0, 1]])
    a, b = model.forced(x, one, lengths).logits[0], model.forced(x, other, lengths).logits[0]
    assert torch.equal(a[:3], b[:3]) and not torch.allclose(a[3], b[3])


def test_tags_are_drawn_in_training_only(model):
    x, y, lengths = X[:1], torch.tensor([[0, 1, 2, 0]]), LENGTHS[:1]
    model.sampled = 0.9
    still = [model.forced(x, y, lengths).logits for _ in range(2)]
    assert torch.equal(*still)
    model.train()
    torch.manual_seed(0)
    drawn = [model.forced(x, y, lengths).logits for _ in range(5)]
    assert all(torch.equal(d[:, 0], still[0][:, 0]) for d in drawn)  # nothing stands before the first
    assert any(not torch.allclose(d, still[0]) for d in drawn)


def test_the_decoder_must_be_causal():
    core = Bidirectional(cell("gru", 2, 4), cell("gru", 2, 4))
    with pytest.raises(InputError, match="causal"):
        AutoregressiveTagger(nn.Identity(), core, core, TagSoftmax(8, K), size=5)
