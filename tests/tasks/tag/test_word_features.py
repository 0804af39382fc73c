import pytest
import torch

from elman.data.vocabulary import UNKNOWN
from elman.tasks.tag.word_features import Characters, WordEmbedding


def test_words_are_hidden_in_training_only():
    torch.manual_seed(0)
    embed = WordEmbedding(5, 2, word_dropout=0.25)
    symbols = torch.full((100, 100), 3)
    hidden = (embed(symbols) == embed.weight[UNKNOWN]).all(-1).float().mean().item()
    assert hidden == pytest.approx(0.25, abs=0.02)
    assert (embed.eval()(symbols) == embed.weight[3]).all()


def test_a_word_is_spelt_the_same_alone_and_among_others():
    """[left at the last character, right at the first], by stepping through the word by hand."""
    torch.manual_seed(0)
    spell = Characters(9, "gru", 4, 3).eval()
    characters = torch.randint(2, 9, (2, 3, 5))
    sizes = torch.tensor([[5, 2, 0], [1, 0, 3]])
    found = spell(characters, sizes)
    left, right = spell.core.cores[0], spell.core.cores[1].core
    for b in range(2):
        for t in range(3):
            n = int(sizes[b, t])
            x = spell.embed(characters[b : b + 1, t, :n])
            a, c = left.init_state(1), right.init_state(1)
            ya, yc = torch.zeros(1, 3), torch.zeros(1, 3)
            for i in range(n):
                ya, a = left.step(x[:, i], a)
                yc, c = right.step(x[:, n - 1 - i], c)
            torch.testing.assert_close(found[b, t], torch.cat([ya, yc], -1)[0])
            alone = spell(characters[b : b + 1, t : t + 1, : max(1, n)], sizes[b : b + 1, t : t + 1])
            assert torch.equal(alone[0, 0], found[b, t])  # to the bit
