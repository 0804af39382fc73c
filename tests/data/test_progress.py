import re

import pytest

from elman.data import progress
from elman.data.cache import encode, encode_string
from elman.data.progress import Waiting
from elman.data.text import open_text
from elman.data.vocabulary import Characters
from elman.tasks.language_model import LanguageModel, ModelConfig
from elman.tasks.markov import Markov


@pytest.fixture
def slow(monkeypatch):
    """Two seconds have passed at once."""
    monkeypatch.setattr(progress, "PATIENCE", -1.0)
    monkeypatch.setattr(progress, "INTERVAL", 0.0)


def test_nothing_is_said_before_two_seconds(capsys):
    with Waiting("encoding", 10, "bytes") as waiting:
        waiting.add(5)
    assert capsys.readouterr().err == ""


def test_how_far_it_has_come(slow, capsys):
    with Waiting("encoding", 1_000_000, "bytes") as waiting:
        waiting.add(250_000)
    assert re.fullmatch(r"encoding: 25%, [\d,]+ bytes/s, \d+ s left\n", capsys.readouterr().err)
    with Waiting("encoding", None, "bytes") as waiting:
        waiting.add(2048)
    assert re.fullmatch(r"encoding: 2,048 bytes, [\d,]+ bytes/s\n", capsys.readouterr().err)


def test_a_long_encoding_and_a_long_evaluation_say_how_far_they_are(slow, capsys, tmp_path):
    (tmp_path / "text.txt").write_text("to be or not to be " * 99)
    text = open_text([str(tmp_path / "text.txt")])
    vocabulary = Characters("".join(sorted(set("to be or not to be"))))
    encode(text, vocabulary, folder=tmp_path / "cache")
    said = capsys.readouterr().err
    assert all(re.search(rf"{doing} the text: 100%, .* bytes/s, 0 s left", said) for doing in ("reading", "encoding"))
    model = Markov(vocabulary.size, 1)
    model.fit(encode_string("to be", vocabulary).ids)
    lm = LanguageModel(model, vocabulary, ModelConfig(cell="markov", order=1))
    lm.evaluate(encode_string("to be or not to be", vocabulary), chunk=9)
    assert "evaluating: 50%, " in capsys.readouterr().err
