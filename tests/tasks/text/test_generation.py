"""Text from a model, piece by piece: where rows end, and what they go on from."""

import copy
from inspect import signature

import numpy as np
import pytest
import torch

from elman import state as states
from elman.data.cache import encode_string
from elman.data.vocabulary import BOUNDARY, Characters, Words
from elman.errors import InputError
from elman.tasks.text.generation import Row
from elman.tasks.text.kneser_ney import Markov
from elman.tasks.text.lm import LanguageModel, LMModelConfig, build
from elman.tasks.text.markov import MarkovModel, MarkovModelConfig

TEXT = "abc abd abe. " * 9


@pytest.fixture
def lm():
    vocabulary = Characters("".join(sorted(set(TEXT))))
    model = Markov(vocabulary.size, 2)
    model.fit(encode_string(TEXT, vocabulary).ids)
    return MarkovModel(model, vocabulary, MarkovModelConfig(2))


def start(lm, prompts, **settings):
    return lm.start_batch(prompts, seeds=range(len(prompts)), allow=["end"], **settings)


def test_a_row_ends_behind_the_first_stop_string_even_across_pieces():
    row = Row(Characters("ab.").decoder(""), ["ab", "b."])
    a, b, dot = (Characters("ab.").encode(c)[0] for c in "ab.")
    assert [row.push(int(s)) for s in (b, a, b, dot)] == ["b", "a", "b", ""] and row.done
    row = Row(Characters("ab").decoder(""), [])
    assert row.push(BOUNDARY) == "" and row.done


def test_a_row_that_has_ended_waits_as_it_was(lm):
    both = start(lm, ["ab", "abe"], max_new_tokens=30, stop=". ")
    texts = ["", ""]
    for pieces in both:
        texts = [text + piece for text, piece in zip(texts, pieces, strict=True)]
    assert all(text.endswith(". ") for text in texts) and len(texts[0]) != len(texts[1])
    for row, prompt in enumerate(["ab", "abe"]):
        alone = lm.start(prompt, seed=row, max_new_tokens=30, stop=". ", allow=["end"])
        assert "".join(piece for (piece,) in alone) == texts[row]
        for a, b in zip(alone.state, both.state, strict=True):
            assert torch.equal(a[0], b[row])


def network(unit="lines"):
    """With boundaries every few symbols, where they are not banned."""
    torch.manual_seed(0)
    config, vocabulary = LMModelConfig(cell="gru", size=16, layers=2), Characters("abcd")
    model = build(config, vocabulary.size)
    model.readout.linear.weight.data.mul_(10)  # not nearly uniform
    model.readout.linear.bias.data[BOUNDARY] -= 3
    return LanguageModel(model, vocabulary, config, unit)


@pytest.mark.parametrize("prompts", [["ab"], ["ab", "", "dcd"]])
@pytest.mark.parametrize(
    "settings",
    [{}, {"stop": "da"}, {"stop": ("a", "cb")}, {"num_beams": 2}, {"max_new_tokens": 0}, {"temperature": 0}],
)
@pytest.mark.parametrize("unit", ["text", "lines"])
def test_whole_texts_are_their_pieces_and_end_in_the_same_state(unit, settings, prompts):
    lm = network(unit)
    settings = {"max_new_tokens": 150, "repetition_penalty": 1.1, **settings}
    settings = {**settings, "repetition_penalty": 1.0} if "num_beams" in settings else settings
    for seed in range(4):
        seeds = range(seed, seed + len(prompts))
        stepped, whole = (lm.start_batch(prompts, seeds=seeds, **settings) for _ in range(2))
        texts = [""] * len(prompts)
        for pieces in stepped:
            texts = [text + piece for text, piece in zip(texts, pieces, strict=True)]
        assert whole.texts() == texts == lm.generate_batch(prompts, seeds, **settings)
        assert whole.finish_reasons == stepped.finish_reasons
        assert all(map(torch.equal, states.leaves(whole.state), states.leaves(stepped.state)))


def test_those_texts_end_in_every_way():
    ends = [(unit, stop, seed) for unit in ("lines", "text") for stop in ((), "da") for seed in range(4)]
    begun = [network(unit).start("ab", seed=seed, max_new_tokens=150, stop=stop) for unit, stop, seed in ends]
    assert all(generation.texts() for generation in begun)
    assert {generation.finish_reasons[0] for generation in begun} == {"end", "stop", "length"}


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.readout.linear.bias.data.add_(torch.arange(6.0)),
        lambda m: m.core.cores[1].W.data.mul_(-1),
        lambda m: m.core.cores[0].W.detach().numpy().__imul__(-1),  # which Torch does not count
        lambda m: m.load_state_dict({k: -v for k, v in m.state_dict().items()}),
        lambda m: torch.optim.SGD(m.parameters(), 1.0, weight_decay=1.5).step(),
    ],
    ids=["data", "second layer", "numpy", "load_state_dict", "optimiser"],
)
def test_a_model_that_was_changed_writes_as_it_is_now(change):
    lm, settings = network("text"), {"max_new_tokens": 60, "seed": 3}
    before = lm.generate("ab", **settings)
    assert lm.generate("ab", **settings) == before
    for parameter in lm.model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    change(lm.model)
    fresh = LanguageModel(copy.deepcopy(lm.model), lm.vocabulary, lm.config)
    after = lm.generate("ab", **settings)
    assert after == fresh.generate("ab", **settings) != before


def test_a_generation_keeps_the_weights_that_read_its_prompt():
    lm, settings = network("text"), {"max_new_tokens": 60, "seed": 3}
    wanted, begun = lm.generate("ab", **settings), lm.start("ab", **settings)
    lm.model.core.cores[0].W.data.mul_(-1)
    assert begun.texts() == [wanted] != [lm.generate("ab", **settings)]


def test_a_network_that_was_put_into_training_since_its_prompt_is_refused():
    lm = network()
    begun = lm.start("ab", seed=3)
    lm.model.train()
    with pytest.raises(InputError, match="the network is in training mode"):
        begun.texts()


def test_no_tokens_is_no_text_and_the_state_after_the_prompt(lm):
    generation = start(lm, ["ab"], max_new_tokens=0)
    assert list(generation) == []
    assert lm.vocabulary.decode(generation.state.token.tolist()) == "b"


def test_settings_are_checked_before_anything_is_read(lm, monkeypatch):
    def read(*given):
        raise AssertionError("it was read")

    monkeypatch.setattr(MarkovModel, "_read", read)
    bad = ({"max_new_tokens": -1}, {"num_beams": 0}, {"temperature": -1.0}, {"stop": ""}, {"allow": ["all"]})
    for settings in (*bad, {"num_beams": 2, "top_k": 3}):
        with pytest.raises(InputError):
            lm.start("", **settings)


def ending(unit):
    """A model of lines that end after "ab" or "abc", each in half of the cases."""
    vocabulary = Characters("abc")
    model = Markov(vocabulary.size, 2)
    lines = np.concatenate([np.concatenate([vocabulary.encode(line), [BOUNDARY]]) for line in ["ab", "abc"] * 9])
    model.fit(np.concatenate([[BOUNDARY], lines]))
    return MarkovModel(model, vocabulary, MarkovModelConfig(2), unit)


def finished(lm, **settings):
    generation = lm.start("a", max_new_tokens=12, **settings)
    text = "".join(piece for (piece,) in generation)
    return text, generation.finish_reasons


def test_an_endless_text_has_its_full_length():
    for settings in ({"seed": 1}, {"seed": 2}, {"temperature": 0}, {"num_beams": 2}, {"num_beams": 100}):
        text, reasons = finished(ending("text"), **settings)
        assert len(text) == 12 and reasons == ["length"], settings


def test_a_text_says_why_it_ended():
    assert finished(ending("lines"), seed=1) in (("b", ["end"]), ("bc", ["end"]))
    assert finished(ending("text"), seed=1, allow=["end"]) == finished(ending("lines"), seed=1)
    assert finished(ending("lines"), num_beams=3)[1] == ["end"]
    assert finished(ending("text"), stop="b") == ("b", ["stop"])
    assert finished(ending("text"), stop="b", num_beams=2) == ("b", ["stop"])


def test_the_unknown_symbol_is_not_chosen_unless_asked():
    vocabulary = Words(["to", "be"])
    model = Markov(vocabulary.size, 1)
    model.fit(np.array([0, 2, 1, 1, 1, 3, 1, 1, 2, 1, 3, 1]))  # mostly <unk>
    lm = MarkovModel(model, vocabulary, MarkovModelConfig(1))
    for settings in ({"seed": 3}, {"num_beams": 3}):
        assert "<unk>" not in lm.generate("to", max_new_tokens=30, **settings)
        assert "<unk>" in lm.generate("to", max_new_tokens=30, allow=["unknown"], **settings)


def test_a_prompt_with_an_unknown_word_is_read_with_a_warning():
    lm = MarkovModel(Markov(4, 1), Words(["to", "be"]), MarkovModelConfig(1))
    lm.model.fit(np.array([0, 2, 1, 3, 1, 2]))
    with pytest.warns(UserWarning, match="'zebra', which the vocabulary lacks: the model reads <unk>"):
        after = lm.read(["to zebra"], lm.init_state())
    assert int(after.token) == lm.vocabulary.unknown


def test_only_what_can_be_allowed_is():
    with pytest.raises(InputError, match="allow is 'ends'"):
        ending("text").generate("a", allow=["ends"])


def test_whether_a_text_is_endless_is_the_models_to_say():
    assert "length_penalty" in signature(MarkovModel.generate).parameters
    assert "endless" not in signature(MarkovModel.generate).parameters


@pytest.mark.parametrize("stops", [["b", "bc"], ["bc", "b"], ["bcd", "c", "b"]])
def test_a_text_ends_with_the_first_stop_string_that_is_whole(stops):
    """Where one symbol completes several of them at once."""

    class Whole:
        def push(self, symbol):
            return {1: "xa", 2: "ybcd"}[symbol]

    row = Row(Whole(), stops)
    assert row.push(1) == "xa" and not row.done
    assert row.push(2) == "yb" and row.reason == "stop" and row.push(1) == ""
