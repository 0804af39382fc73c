"""JSON lines: a record a line. One text is not a list of texts, and a number is not a text."""

import json

import pytest

from elman.data.records import json_fields
from elman.errors import InputError
from elman.tasks.tag.data import TagReader
from elman.tasks.translate.data import PairReader


@pytest.mark.parametrize(
    ("content", "field"),
    [
        ({"tokens": "the cat", "tags": ["D"] * 7}, "tokens"),
        ({"tokens": ["a", "b", "c"], "tags": "DNV"}, "tags"),
        ({"tokens": ["a", 1], "tags": ["D", "N"]}, "tokens"),
        ({"tokens": ["a", "b"], "tags": ["D", None]}, "tags"),
        ({"tokens": {"a": 1}, "tags": ["D"]}, "tokens"),
        ({"tokens": ["a", "b"], "tags": ["D", "N"], "case": "xX"}, "case"),
    ],
)
def test_tokens_and_tags_are_lists_of_texts(tmp_path, content, field):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(content) + "\n")
    with pytest.raises(InputError, match=f"line 1 of .* in its field '{field}', which is not a list of texts"):
        TagReader(features=("case",) if "case" in content else ())([str(path)])


@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize("given", [None, 3, ["a", "b"]])
def test_sides_of_pairs_are_texts(tmp_path, side, given):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"source": "a", "target": "b", side: given}) + "\n")
    with pytest.raises(InputError, match=f"line 1 of .* in its field '{side}', which is not a text"):
        PairReader()([str(path)])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 7 is not JSON: "),
        ("[1]", r"line 7 is not JSON with the fields 'a', 'b'$"),
        ('{"a": 1, "c": 2}', "line 7 is not JSON with the fields 'a', 'b'; it has 'a', 'c'"),
        ("[" * 100_000, "line 7 is not JSON: it is nested too deeply"),
    ],
)
def test_a_record_has_its_fields(line, message):
    with pytest.raises(InputError, match=message):
        json_fields(line, "line 7", ("a", "b"))
