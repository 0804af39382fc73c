import json
import re
import time
from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elman.data import vocabulary as vocabularies
from elman.data.vocabulary import BOUNDARY, UNKNOWN, Bytes, Characters, Words, rejoin
from elman.errors import InputError, UnknownNameError

plain = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@given(plain)
def test_characters_and_bytes_come_back(text):
    for vocabulary in (Characters.fit([text], 1, 0), Bytes()):
        ids = vocabulary.encode(text)
        assert vocabulary.decode(ids.tolist()) == text
        assert not (ids == BOUNDARY).any()
        assert ids.max(initial=0) < vocabulary.size
        decoder = vocabulary.decoder()
        assert "".join(decoder.push(int(i)) for i in ids) == text


@given(st.lists(st.sampled_from(["to", "be", "\n", "or,"]), max_size=12))
def test_words_come_back_and_stream(words):
    text = " ".join(words).replace(" \n ", "\n").replace("\n ", "\n").replace(" \n", "\n")
    vocabulary = Words.fit(["to be\nor,"], 1, 0)
    ids = vocabulary.encode(text).tolist()
    assert vocabulary.decode(ids) == text
    decoder = vocabulary.decoder()
    assert "".join(decoder.push(i) for i in ids) == text


def test_rare_words_are_unknown():
    vocabulary = Words.fit(["a a b"], 2, 0)
    assert vocabulary.encode("a b c").tolist() == [2, UNKNOWN, UNKNOWN]


@given(st.lists(st.text("ab \n", max_size=6), max_size=6))
def test_pieces_are_rejoined_where_words_end(pieces):
    vocabulary = Words.fit(["a b aa ab ba bb \n"], 1, 0)
    apart = [vocabulary.encode(p).tolist() for p in rejoin(pieces, vocabulary.cut)]
    assert list(chain(*apart)) == vocabulary.encode("".join(pieces)).tolist()
    assert "".join(rejoin(pieces, vocabulary.cut)) == "".join(pieces)


def test_bytes_keep_what_is_no_utf8():
    raw = b"a\xff\xe9b"
    ids = Bytes().encode(raw.decode("utf-8", "surrogateescape"))
    assert (ids - 1).tolist() == list(raw)


def test_a_model_carries_its_vocabulary():
    for vocabulary in (Characters("aé\n"), Bytes(), Words(["be", "to"])):
        again = vocabularies.from_json(json.loads(json.dumps(vocabulary.to_json())))
        assert type(again) is type(vocabulary)
        np.testing.assert_array_equal(again.encode("to be aé"), vocabulary.encode("to be aé"))


def test_unknown_symbols_of_a_prompt_are_named():
    with pytest.raises(InputError, match="'z'"):
        Characters("ab").encode_known("abz")
    with pytest.raises(InputError, match="'zebra'"):
        Words(["a"]).encode_known("a zebra")
    with pytest.raises(UnknownNameError, match="Did you mean 'char'"):
        vocabularies.kind("chars")


def test_bpe_round_trip_and_pieces():
    pytest.importorskip("tokenizers")
    text = "the cat sat on the mat, the cät said\n\nno  more\n" * 5
    vocabulary = vocabularies.Bpe.fit([text], 1, 300)
    ids = vocabulary.encode(text).tolist()
    assert vocabulary.decode(ids) == text
    assert len(ids) < len(text.encode())
    decoder = vocabulary.decoder()
    assert "".join(decoder.push(i) for i in ids) == text
    pieces = [text[i : i + 7] for i in range(0, len(text), 7)]
    assert list(chain(*(vocabulary.encode(p).tolist() for p in rejoin(pieces, vocabulary.cut)))) == ids
    assert vocabularies.from_json(vocabulary.to_json()).encode(text).tolist() == ids


@given(st.text("ab \n\t\u2003", max_size=9))
def test_a_text_is_cut_before_its_last_spaces(text):
    end = Words([]).cut(text)
    assert re.fullmatch(r"(\s+\S*)?", text[end:]) or end == 0
    assert text[:end] == text[:end].rstrip()


def test_long_runs_of_spaces_cost_no_time():
    """A pattern that tries each of them takes a time that grows as their square: minutes for these."""
    start = time.monotonic()
    assert Words([]).cut(" " * 1_000_000 + "a b") == 1_000_001
    assert time.monotonic() - start < 5


def test_bpe_is_the_same_in_shorter_pieces(monkeypatch):
    pytest.importorskip("tokenizers")
    pieces = ["one two  three\n", "four fi", "ve six " * 30]
    whole = vocabularies.Bpe.fit(pieces, 1, 280).to_json()
    monkeypatch.setattr(vocabularies, "SMALL", 8)
    assert vocabularies.Bpe.fit(pieces, 1, 280).to_json() == whole


def test_shorter_pieces_are_the_same_text(monkeypatch):
    monkeypatch.setattr(vocabularies, "SMALL", 8)
    pieces = ["one two  three\n", " " * 20 + "x", "a" * 30 + " b", ""]
    smaller = list(vocabularies._smaller(pieces))
    assert "".join(smaller) == "".join(pieces) and smaller[:2] == ["one two", "  three\n"]


def test_a_prompt_in_letters_that_the_text_never_had_says_so():
    lower = Characters.fit(["once upon a time"], min_count=1, size=0)
    with pytest.raises(InputError, match=r"the text has 'O', which .* lacks: .* the training text.*in lower case"):
        lower.encode_known("Once")
