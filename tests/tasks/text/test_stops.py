"""Where a beam search ends a text: at the first stop string, looking back no further than it can reach."""

import numpy as np
import pytest
import torch

from elman.data import VOCABULARIES
from elman.data.vocabulary import BOUNDARY
from elman.tasks.text.generation import stopped
from elman.tasks.text.lm import LanguageModel, LMModelConfig, build

TEXTS = {
    "byte": "a b€ é aé€€ b\n" * 20,
    "char": "a b€ é aé€€ b\n" * 20,
    "word": "to be or not to be\nthat is the question\n" * 9,
}
STOPS = [["€€"], ["é a"], ["be\nthat"], ["question", "or not"], ["\ufffd"], ["x" * 40], ["b\na b€ é aé€€ b"]]


def vocabulary(kind):
    if kind == "byte":
        return VOCABULARIES["byte"]()
    return VOCABULARIES[kind].fit([TEXTS[kind]], min_count=1, size=0)


@pytest.mark.parametrize("stops", STOPS, ids=str)
@pytest.mark.parametrize("kind", sorted(TEXTS))
def test_a_text_ends_where_the_whole_of_it_first_holds_a_stop_string(kind, stops):
    symbols, of = vocabulary(kind).encode(TEXTS[kind]), vocabulary(kind)
    ended = stopped(of, stops)
    for begin in (0, 1, 2, 5):
        given = symbols[begin:]
        whole = next((n for n in range(1, len(given) + 1) if any(s in of.decode(given[:n].tolist()) for s in stops)), 0)
        found = next((n for n in range(1, len(given) + 1) if ended(given[:n])), 0)
        assert found == whole


def test_the_boundary_ends_a_text_with_and_without_stop_strings():
    of = vocabulary("byte")
    for stops in ([], ["x"]):
        assert stopped(of, stops)(np.array([5, BOUNDARY])) and not stopped(of, stops)(np.array([5, 6]))


def test_a_search_decodes_no_more_for_a_symbol_of_a_long_text_than_of_a_short_one(monkeypatch):
    torch.manual_seed(0)
    config = LMModelConfig(size=8)
    model, decoded = LanguageModel(build(config, 257), VOCABULARIES["byte"](), config), []
    kind = type(model.vocabulary)
    decode = kind.decode
    monkeypatch.setattr(kind, "decode", lambda self, ids: (decoded.append(len(ids)), decode(self, ids))[1])
    totals = []
    for length in (40, 80, 160):
        decoded.clear()
        model.generate("a", num_beams=2, max_new_tokens=length, stop="never to be found")
        totals.append(sum(decoded))
    assert totals[2] - totals[1] < 2.2 * (totals[1] - totals[0]), totals
