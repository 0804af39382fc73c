import io
import re

import pytest

from elman import progress
from elman.data.cache import encode, encode_string
from elman.data.text import open_text
from elman.data.vocabulary import Characters
from elman.progress import Waiting
from elman.tasks.text.kneser_ney import Markov
from elman.tasks.text.markov import MarkovModel, MarkovModelConfig


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
    lm = MarkovModel(model, vocabulary, MarkovModelConfig(1))
    lm.evaluate(encode_string("to be or not to be", vocabulary), chunk=9)
    assert "evaluating: 50%, " in capsys.readouterr().err


def clock(monkeypatch, seconds):
    """A clock that moves by `seconds` whenever it is read."""
    now = [0.0]

    def read():
        now[0] += seconds
        return now[0]

    monkeypatch.setattr(progress.time, "monotonic", read)


def test_what_is_quick_is_silent(monkeypatch, capsys):
    clock(monkeypatch, 0.1)
    assert list(progress.track([1, 2, 3], "counting", "cells")) == [1, 2, 3]
    assert capsys.readouterr() == ("", "")


def test_what_is_slow_says_how_long_is_left(monkeypatch, capsys):
    clock(monkeypatch, 3.0)
    assert list(progress.track([1, 2, 3, 4], "counting", "cells")) == [1, 2, 3, 4]
    out, err = capsys.readouterr()
    assert not out
    assert err.splitlines() == [
        "counting: 25%, 3 s each, 9 s left", "counting: 75%, 3 s each, 3 s left",
    ]  # fmt: skip


def test_a_closed_standard_error_does_not_stop_the_work(monkeypatch):
    class Closed(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    monkeypatch.setattr(progress.sys, "stderr", Closed())
    progress.show("step 1")
    progress.say("done")


def test_a_line_is_cut_to_the_terminal(monkeypatch, capsys):
    monkeypatch.setattr(progress.sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "20")
    progress.show("x" * 50)
    assert capsys.readouterr().err == "\r" + "x" * 19 + "\x1b[K"


def test_an_evaluation_counts_neither_for_the_speed_nor_for_the_time_left(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    steps = progress.Steps(4, 0, unit="rows", describe="loss {:.1f}".format, verbose=True)
    now[0] = 10.0
    with steps.paused():
        now[0] = 110.0
    steps.step(2, 1.0, 20)
    assert capsys.readouterr().err == "step 2/4  loss 1.0  2 rows/s  0:10 left\n"


def test_nothing_is_checked_outside_the_block_that_can_be_left():
    def leave():
        raise TimeoutError

    with pytest.raises(TimeoutError), progress.cancellable(leave):
        progress.check_cancelled()
    progress.check_cancelled()
