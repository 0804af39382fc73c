import itertools

import numpy as np
import pytest
import torch

from elman import state as states
from elman.cells import CELLS, cell
from elman.compose import stack
from elman.core import Core
from elman.data.vocabulary import BOUNDARY
from elman.decoding import beam
from elman.errors import InputError
from elman.model import SequenceModel
from elman.nn.distributions import Categorical
from elman.nn.embed import Embedding
from elman.nn.readout import AdaptiveSoftmax, Softmax
from elman.tasks.text.kneser_ney import Markov

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
        found = beam(model, state, torch.tensor([1]), num_beams=V**T, max_new_tokens=T, length_penalty=0)[0]
    assert [h.tokens for h in found] == [tokens for _, tokens in truth]
    torch.testing.assert_close([h.log_prob for h in found], [p for p, _ in truth])


@torch.no_grad()
def plain_beam(model, state, token, *, num_beams, max_new_tokens):
    """The search as it is defined: every beam alone, every token a scan, by the sums of log-probabilities alone."""
    beams = [(0.0, [], state)]
    for _ in range(max_new_tokens):
        grown = []
        for score, tokens, before in beams:
            if tokens[-1:] == [BOUNDARY]:
                grown.append((score, tokens, before))
                continue
            predicted, after = model.scan(torch.tensor([[tokens[-1] if tokens else token]]), before)
            for symbol, log_prob in enumerate(predicted.log_probs()[0, 0].double().tolist()):
                grown.append((score + log_prob, [*tokens, symbol], after))
        beams = sorted(grown, key=lambda beam: -beam[0])[:num_beams]
    return [(tokens, score) for score, tokens, _ in beams if score > -torch.inf]


class Own(Core):
    """A core with nothing but a step: no stream of it is native."""

    def __init__(self, input_size, size):
        super().__init__(input_size, size)
        self.W = torch.nn.Parameter(torch.randn(size, input_size))

    def init_state(self, batch_size):
        return self.zeros(batch_size, self.output_size)

    def step(self, x, state):
        h = torch.tanh(x @ self.W.T + state)
        return h, h


def symbols_model(core, readout, symbols=11):
    model = SequenceModel(Embedding(symbols, core.input_size), core, readout).eval()
    for parameter in model.readout.parameters():
        parameter.data *= 3  # far from uniform
    if isinstance(readout, Softmax):
        readout.linear.bias.data[BOUNDARY] = 2.5  # some end
    return model


def markov():
    model = Markov(6, 2)
    model.fit(np.random.default_rng(0).integers(0, 6, 300))
    return model


MODELS = {
    "gru": lambda: symbols_model(cell("gru", 5, 9), Softmax(9, 11)),
    "stack": lambda: symbols_model(stack("lstm", 5, 8, layers=2, residual=True, norm="rms"), Softmax(8, 11)),
    "mamba": lambda: symbols_model(cell("mamba", 5, 6), Softmax(6, 11)),
    "adaptive": lambda: symbols_model(cell("gru", 5, 9), AdaptiveSoftmax(9, 11, [4])),
    "own": lambda: symbols_model(Own(5, 9), Softmax(9, 11)),
    "bfloat16": lambda: SequenceModel(Embedding(11, 5, dtype=torch.bfloat16), cell("gru", 5, 9), Softmax(9, 11)).eval(),
    "markov": markov,
}


@pytest.mark.parametrize("num_beams", [1, 2, 5])
@pytest.mark.parametrize("name", MODELS)
def test_what_is_found_is_what_the_definition_finds(name, num_beams):
    torch.manual_seed(1)
    model, over = MODELS[name](), 0
    with torch.no_grad():
        for prompt in ([1], [2, 3, 1], [5, 5, 4, 3, 2, 1]):
            _, state = model.scan(torch.tensor([prompt[:-1]], dtype=torch.int64), model.init_state(1))
            wanted = plain_beam(model, state, prompt[-1], num_beams=num_beams, max_new_tokens=12)
            (found,) = beam(
                model, state, torch.tensor(prompt[-1:]), num_beams=num_beams, max_new_tokens=12, length_penalty=0
            )
            assert [h.tokens for h in found] == [tokens for tokens, _ in wanted]
            torch.testing.assert_close([h.log_prob for h in found], [p for _, p in wanted], atol=1e-5, rtol=1e-5)
            over += sum(tokens[-1] == BOUNDARY for tokens, _ in wanted)
    assert over or num_beams == 1 or name in ("bfloat16", "own")  # some have ended, and wait


@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 1.0, 2.0])
def test_a_wide_beam_finds_the_best_by_the_length_penalty(length_penalty):
    model = model_of("gru", seed=2)
    with torch.no_grad():
        state = model.init_state(1)
        sums = [(log_prob(model, state, 1, s), s) for s in sequences()]
        truth = sorted(((p / len(s) ** length_penalty, s) for p, s in sums), reverse=True)
        found = beam(model, state, torch.tensor([1]), num_beams=V**T, max_new_tokens=T, length_penalty=length_penalty)[
            0
        ]
    assert [h.tokens for h in found] == [tokens for _, tokens in truth]
    by_tokens = {tuple(tokens): p for p, tokens in sums}
    torch.testing.assert_close([h.log_prob for h in found], [by_tokens[tuple(h.tokens)] for h in found])


class Hesitant:
    """At each step the text ends with probability 0.1, or goes on with a certain symbol."""

    def init_state(self, batch_size):
        return torch.zeros(batch_size, 1)

    def step(self, x, state):
        p = torch.tensor([0.1, 0.9, 0.0]) if x.numel() else None
        return Categorical(p.log().expand(*x.shape, 3)), state


def test_wide_beams_do_not_prefer_the_shortest_text():
    """Ten steps have probability 0.35, forty 0.015: by the sum alone the best text is to end at once."""
    alone, by_length = (
        beam(Hesitant(), torch.zeros(1, 1), torch.tensor([1]), num_beams=100, max_new_tokens=40, **options)[0][0]
        for options in ({"length_penalty": 0}, {})
    )
    assert alone.tokens == [0] and by_length.tokens == [1] * 40


def test_what_is_banned_is_not_found():
    model = symbols_model(cell("gru", 5, 9), Softmax(9, 11))
    found = beam(model, model.init_state(2), torch.tensor([1, 2]), num_beams=20, max_new_tokens=6, banned=[0, 3])
    tokens = [symbol for row in found for hypothesis in row for symbol in hypothesis.tokens]
    assert len(tokens) == 2 * 20 * 6 and not {0, 3} & set(tokens)


@pytest.mark.parametrize("setting", [{"num_beams": 0}, {"length_penalty": float("nan")}, {"banned": range(11)}])
def test_settings_are_checked(setting):
    model = symbols_model(cell("gru", 5, 9), Softmax(9, 11))
    with pytest.raises(InputError):
        beam(model, model.init_state(1), torch.tensor([1]), **{"num_beams": 2, "max_new_tokens": 3, **setting})


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


class Trap(Hesitant):
    """After 1, 2 is likelier than 3; but what follows 2 is anyone's guess, and 3 is surely followed by 3."""

    table = torch.tensor([[0.25] * 4, [0.0, 0.0, 0.6, 0.4], [0.25] * 4, [0.0, 0.0, 0.0, 1.0]])

    def step(self, x, state):
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


class Constant(Hesitant):
    """Predicts the same at every step; its state is how much it has read."""

    def __init__(self, log_probs):
        self.log_probs = torch.as_tensor(log_probs, dtype=torch.float32)

    def step(self, x, state):
        return Categorical(self.log_probs.expand(*x.shape, -1)), state + 1


def found_of(model, **settings):
    return [h.tokens for h in beam(model, torch.zeros(1, 1), torch.tensor([1]), **settings)[0]]


def test_ended_adds_to_the_boundary_and_does_not_replace_it():
    model = Constant(np.log([0.9, 0.05, 0.05]))
    settings = {"num_beams": 2, "max_new_tokens": 3, "length_penalty": 0.0}
    assert found_of(model, ended=lambda tokens: False, **settings) == found_of(model, **settings) == [[0], [1, 0]]
    assert found_of(model, ended=lambda tokens: tokens[-1] == 1, **settings) == [[0], [1]]


@pytest.mark.parametrize("size", [5, 3000])
def test_of_equal_sequences_the_earlier_wins(size):
    """All symbols are as probable. By parent and then by symbol, the first of all continuations are kept."""
    found = found_of(Constant(np.zeros(size)), num_beams=3, max_new_tokens=3, banned=[BOUNDARY])
    assert found == [[1, 1, 1], [1, 1, 2], [1, 1, 3]]


def test_of_equal_symbols_below_a_better_one_the_earlier_win():
    logits = np.full(3000, -1.0)
    logits[[0, 2500]] = -np.inf, 0.0
    assert found_of(Constant(logits), num_beams=4, max_new_tokens=1) == [[2500], [1], [2], [3]]
