"""Text from a model, piece by piece: where rows end, and what they go on from."""

import pytest
import torch

from elman.data.cache import encode_string
from elman.data.vocabulary import BOUNDARY, Characters
from elman.errors import InputError
from elman.markov import Markov
from elman.tasks.generation import Generation, _Row
from elman.tasks.markov import MarkovModel, ModelConfig

TEXT = "abc abd abe. " * 9


@pytest.fixture
def lm():
    vocabulary = Characters("".join(sorted(set(TEXT))))
    model = Markov(vocabulary.size, 2)
    model.fit(encode_string(TEXT, vocabulary).ids)
    return MarkovModel(model, vocabulary, ModelConfig(2))


def start(lm, prompts, **settings):
    state = lm.init_state(range(len(prompts)))
    return Generation(lm.model, lm.vocabulary, lambda: lm.read(prompts, state), prompts, **settings)


def test_a_row_ends_behind_the_first_stop_string_even_across_pieces():
    row = _Row(Characters("ab.").decoder(""), ["ab", "b."])
    a, b, dot = (Characters("ab.").encode(c)[0] for c in "ab.")
    assert [row.push(int(s)) for s in (b, a, b, dot)] == ["b", "a", "b", ""] and row.done
    row = _Row(Characters("ab").decoder(""), [])
    assert row.push(BOUNDARY) == "" and row.done


def test_a_row_that_has_ended_waits_as_it_was(lm):
    both = start(lm, ["ab", "abe"], max_new_tokens=30, stop=". ")
    texts = ["", ""]
    for pieces in both:
        texts = [text + piece for text, piece in zip(texts, pieces, strict=True)]
    assert all(text.endswith(". ") for text in texts) and len(texts[0]) != len(texts[1])
    for row, prompt in enumerate(["ab", "abe"]):
        alone = Generation(
            lm.model, lm.vocabulary, lambda: lm.read([prompt], lm.init_state([row])), [prompt],  # noqa: B023
            max_new_tokens=30, stop=". ",
        )  # fmt: skip
        assert "".join(piece for (piece,) in alone) == texts[row]
        for a, b in zip(alone.state, both.state, strict=True):
            assert torch.equal(a[0], b[row])


def test_no_tokens_is_no_text_and_the_state_after_the_prompt(lm):
    generation = start(lm, ["ab"], max_new_tokens=0)
    assert list(generation) == []
    assert lm.vocabulary.decode(generation.state.token.tolist()) == "b"


def test_settings_are_checked_before_anything_is_read(lm):
    def read():
        raise AssertionError("it was read")

    for settings in ({"max_new_tokens": -1}, {"num_beams": 0}, {"temperature": -1.0}, {"stop": ""}):
        with pytest.raises(InputError):
            Generation(lm.model, lm.vocabulary, read, [""], **settings)
