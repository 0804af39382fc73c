import itertools

import pytest
import torch

from elman import state as states
from elman.cells import CELLS, cell
from elman.data.vocabulary import BOUNDARY
from elman.decoding import beam
from elman.distributions import Categorical
from elman.embed import Embedding
from elman.model import SequenceModel
from elman.readout import Softmax

V, T = 4, 3


def model_of(name, seed=0):
    torch.manual_seed(seed)
    core = cell(name, 3, 3)
    model = SequenceModel(Embedding(V, 3), core, Softmax(core.output_size, V)).double().eval()
    model.readout.linear.weight.data *= 4  # far from uniform
    return model


def log_prob(model, state, token, tokens):
    """log P(tokens), symbol by symbol, by `step`."""
    total = 0.0
    for symbol in tokens:
        predicted, state = model.step(torch.tensor([token]), state)
        total += float(predicted.log_probs()[0, symbol])
        token = symbol
    return total


def sequences():
    """All that can be said in T symbols: an ended sequence ends with its only boundary."""
    for n in range(1, T + 1):
        for tokens in itertools.product(range(V), repeat=n):
            inner, last = tokens[:-1], tokens[-1]
            if BOUNDARY not in inner and (n == T or last == BOUNDARY):
                yield list(tokens)


@pytest.mark.parametrize("name", [name for name in CELLS if name != "hmm"])
def test_a_wide_beam_is_exhaustive_search(name):
    model = model_of(name)
    with torch.no_grad():
        state = model.init_state(1)
        _, state = model.step(torch.tensor([2]), state)
        truth = sorted(((log_prob(model, state, 1, s), s) for s in sequences()), reverse=True)
        found = beam(model, state, torch.tensor([1]), num_beams=V**T, max_new_tokens=T)[0]
    assert [h.tokens for h in found] == [tokens for _, tokens in truth]
    torch.testing.assert_close([h.log_prob for h in found], [p for p, _ in truth])


def test_rows_of_a_batch_are_searched_apart():
    model = model_of("gru")
    with torch.no_grad():
        state = states.concat([model.init_state(1), model.step(torch.tensor([3]), model.init_state(1))[1]])
        both = beam(model, state, torch.tensor([1, 2]), num_beams=3, max_new_tokens=5)
        for row in range(2):
            alone = beam(model, states.take(state, [row]), torch.tensor([row + 1]), num_beams=3, max_new_tokens=5)[0]
            assert [h.tokens for h in alone] == [h.tokens for h in both[row]]


def test_greedy_is_beam_one():
    model = model_of("lstm", seed=3)
    with torch.no_grad():
        state, token, greedy = model.init_state(1), torch.tensor([1]), []
        while len(greedy) < 6 and BOUNDARY not in greedy:
            predicted, state = model.step(token, state)
            token = predicted.mode
            greedy.append(int(token))
        (best,) = beam(model, model.init_state(1), torch.tensor([1]), num_beams=1, max_new_tokens=6)[0]
    assert best.tokens == greedy


class Trap:
    """After 1, 2 is likelier than 3; but what follows 2 is anyone's guess, and 3 is surely followed by 3."""

    table = torch.tensor([[0.25] * 4, [0.0, 0.0, 0.6, 0.4], [0.25] * 4, [0.0, 0.0, 0.0, 1.0]])

    def scan(self, x, state):
        return Categorical(self.table[x].log()), state


def test_a_narrow_beam_finds_what_greedy_misses():
    state, token = torch.zeros(1, 1), torch.tensor([1])
    greedy = beam(Trap(), state, token, num_beams=1, max_new_tokens=3)[0][0]
    narrow = beam(Trap(), state, token, num_beams=2, max_new_tokens=3)[0][0]
    assert greedy.tokens[0] == 2 and narrow.tokens == [3, 3, 3]
    assert narrow.log_prob == pytest.approx(torch.tensor(0.4).log().item())


def test_the_state_of_a_hypothesis_has_read_all_but_its_last_symbol():
    model = model_of("gru")
    with torch.no_grad():
        best = beam(model, model.init_state(1), torch.tensor([1]), num_beams=4, max_new_tokens=4)[0][0]
        _, state = model.scan(torch.tensor([[1, *best.tokens[:-1]]]))
    torch.testing.assert_close(best.state, state)
