"""A request is described once: a new option is in the command, in Python, over HTTP and in its document at once."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from elman import cli
from elman.errors import ElmanError, InputError, UnknownNameError
from elman.serve.api.openapi import openapi
from elman.serve.api.predicting import predictor
from elman.serve.api.routes import ROUTES
from elman.serve.errors import HttpError
from elman.serve.limits import Limits
from elman.tasks import TASKS, Request, open_model, option, respond
from elman.tasks.hmm import task as task_of_hmm
from elman.tasks.request import Files, opened

THERE = Path(__file__).parents[1] / "versions" / "867694c"
RUN, DATA = str(THERE / "runs" / "hmm"), str(THERE / "data" / "readings.csv")


@dataclass(frozen=True)
class Repeated(task_of_hmm.Predict):
    """With an option that is added here."""

    times: int = option(1, "how often each line is written", least=1, most=9, limit="beams")


def predict(model, request):
    for line in task_of_hmm.predict(model, request):
        yield from [line] * request.times


class Task(task_of_hmm.HMMTask):
    requests = {**task_of_hmm.HMMTask().requests, "predict": (Repeated, predict)}


def test_an_option_is_everywhere_at_once(monkeypatch, capsys):
    monkeypatch.setitem(TASKS, "hmm", Task())
    task, model = open_model(RUN)
    plain = [*respond(model, "predict", data=Files([DATA]))]
    wanted = [line for line in plain for _ in range(2)]

    with pytest.raises(SystemExit):
        cli.main(["predict", "--help"])
    assert "--times TIMES" in (said := capsys.readouterr().out)
    assert "how often each line is written (default: 1)" in " ".join(said.split())
    assert cli.main(["predict", RUN, DATA, "--times", "2"]) == 0
    assert capsys.readouterr().out == "".join(wanted)
    assert cli.main(["predict", RUN, DATA, "--times", "10"]) == 2
    assert "times is 10; it must be a whole number of at least 1 and at most 9" in capsys.readouterr().err

    assert [*respond(model, "predict", data=Files([DATA]), times=2)] == wanted
    assert [*predict(model, Repeated(data=Files([DATA]), times=2))] == wanted

    body = {"model": "hmm", "data": Path(DATA).read_text(), "times": 2}
    ask = predictor(task, model, Limits(beams=3))
    assert ask(json.dumps(body).encode()) == [line.rstrip("\n") for line in wanted]
    with pytest.raises(HttpError, match="<= 3") as refused:  # what the server limits it to
        ask(json.dumps({**body, "times": 4}).encode())
    assert refused.value.param == "times"

    schema = openapi(ROUTES, False)["components"]["schemas"]["PredictHmm"]["properties"]["times"]
    assert schema == {
        "type": "integer", "minimum": 1, "maximum": 9, "default": 1, "description": "how often each line is written",
    }  # fmt: skip


@dataclass(frozen=True)
class Every(Request):
    number: float = option(0.5, "a number", least=0, most=1)
    maybe: int | None = option(None, "a whole number, or none", least=2)
    word: str = option("a", "a word", choices=("a", "b"))
    words: tuple[str, ...] = option((), "words", choices=("a", "b"))
    levels: tuple[float, ...] = option((0.1,), "levels", least=0, most=1)
    sure: bool = option(False, "a flag")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"number": 1.5}, "number is 1.5; it must be a number from 0 to 1"),
        ({"number": "x"}, "number is 'x'"),
        ({"maybe": 1}, "maybe is 1; it must be a whole number of at least 2"),
        ({"maybe": 2.5}, "maybe is 2.5"),
        ({"word": "c"}, "word is 'c'; it must be one of 'a', 'b'"),
        ({"words": ("a", "c")}, "words is 'c'"),
        ({"words": "ab"}, "words is a string"),
        ({"levels": (0.5, 2)}, "levels is 2"),
        ({"sure": "no"}, "sure is 'no'; it must be True or False"),
    ],
)
def test_values_are_checked_where_a_request_is_made(wrong, message):
    Every(number=1, maybe=2, word="b", words=("a", "b"), levels=(0, 1), sure=True)
    with pytest.raises(InputError) as error:
        Every(**wrong)
    assert message in str(error.value)


def test_what_names_a_file_is_not_for_others():
    """No option that names a file of the server's is in a body, nor what only code gives."""
    for schema in openapi(ROUTES, False)["components"]["schemas"].values():
        if schema.get("title", "").startswith("Predict") and schema["title"] != "Prediction":
            names = {
                "state",
                "save_state",
                "plot",
                "paths",
                "future",
                "alignments",
                "errors",
                "force",
                "filled",
                "drawn",
            }
            assert not names & schema["properties"].keys(), schema["title"]
            assert schema["additionalProperties"] is False


def test_a_text_is_read_as_a_file_would_be():
    _, model = open_model(RUN)
    text = Path(DATA).read_text()
    assert [*respond(model, "predict", data=text)] == [*respond(model, "predict", data=Files([DATA]))]
    assert opened([[1.0]]) is None and opened(Files(["a", "b"])) == ["a", "b"]
    with pytest.raises(UnknownNameError, match="verb"):
        respond(model, "translate")


def test_a_text_is_not_a_name(tmp_path, monkeypatch):
    """A text is never taken for the name of a file, even where the format is not text."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").write_text("secret")
    _, model = open_model(THERE / "runs" / "classify")
    for format in ("npz", "idx"):
        with pytest.raises(InputError, match="was given as a text"):
            respond(model, "predict", data="secret", format=format)
    assert "secret" not in "".join(respond(model, "predict", data="data", format="lines"))


@pytest.mark.parametrize("name", ["tag", "classify", "mean", "forecast", "translate", "hmm", "tree"])
def test_whatever_is_sent_is_answered_or_refused(name):
    """No data of another task, and none that are damaged, are an error of the server's own."""
    task, model = open_model(THERE / "runs" / name)
    ask, answered = predictor(task, model), 0
    sent = [
        "", "\n", "x", "a\tb", "\x00", "1e400", [], [[]], [""], ["x", ""], [["x", ""]], [[1.0]], [[[1.0]]],
        [[1.0], [[1.0]]],
        [[[1.0], [1.0, 2.0]]], [[1.0, 2.0], [3.0]], [{}], [{"y": 1}], [{"unique_id": None, "ds": None, "y": None}],
        [{"unique_id": "a", "ds": "2024-03-31", "y": "q"}], [{"ds": 5, "y": 1}, {"y": 1}], ["("], ["()"],
        ["(2 (2 a) (2 b)) (3 c)"], None, [None], [[None]], {"a": 1}, 5,
    ]  # fmt: skip
    formats = [{"format": one} for one in ("columns", "conllu", "jsonl", "table", "npz", "ts", "tsv", "brackets")]
    for data in sent:
        for options in ({}, *formats, {"from_start": True}, {"quantiles": [0.0]}, {"series": ["none"]}, {"each": True}):
            try:
                ask(json.dumps({"model": name, "data": data, **options}).encode())
                answered += 1
            except (ElmanError, HttpError):
                pass
    assert answered


def test_values_that_can_be_read_once_are_kept():
    @dataclass(frozen=True)
    class Words(Request):
        words: tuple[str, ...] = option((), "some words")

    made = Words(words=(word for word in ["a", "b"]))
    assert made.words == ("a", "b") == made.words and hash(made) == hash(Words(words=["a", "b"]))
