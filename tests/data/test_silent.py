"""What would be read, but as something else than was meant, is refused with a message."""

import json
import math

import numpy as np
import pandas as pd
import pytest

from elman.data.arrays import read_arrays
from elman.errors import InputError
from elman.tasks.classify.data import Reader, Row
from elman.tasks.classify.inputs import Labels
from elman.tasks.forecast.data import PanelReader
from elman.tasks.tag.data import TagReader
from elman.tasks.translate.data import PairReader

MANY = 6


@pytest.mark.parametrize("lengths", [np.arange(MANY) > 1, np.full(MANY, 1.7), np.full((MANY, 4), 1)])
def test_lengths_are_whole_numbers(tmp_path, lengths):
    name = str(tmp_path / "a.npz")
    np.savez(name, x=np.ones((MANY, 4)), y=np.arange(MANY) % 2, lengths=lengths)
    np.savez(tmp_path / "b.npz", x=np.ones((MANY, 4)), lengths=lengths)
    message = r"lengths of .* are (bool|float64|int64)\[6(, 4)?\]; they must be 6 whole numbers"
    with pytest.raises(InputError, match=message):
        Reader()([name])
    with pytest.raises(InputError, match=message):
        read_arrays(str(tmp_path / "b.npz"))


def test_lengths_of_a_mat_file_may_be_whole_floats(tmp_path):
    from scipy.io import savemat

    for lengths, good in ([2.0, 3.0], True), ([2.5, 3.0], False):
        savemat(tmp_path / "a.mat", {"x": np.ones((2, 4)), "lengths": np.array(lengths)})
        if good:
            assert [len(row) for _, row in read_arrays(str(tmp_path / "a.mat"))] == [2, 3]
        else:
            with pytest.raises(InputError, match="they must be 2 whole numbers"):
                read_arrays(str(tmp_path / "a.mat"))


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


@pytest.mark.parametrize("ending", [".csv", ".tsv"])
def test_a_column_named_twice_in_a_table(tmp_path, ending):
    path, between = tmp_path / f"a{ending}", "\t" if ending == ".tsv" else ","
    for header in ("text,label,text", "text,label,label"):
        path.write_text(f"{header}\na,x,b\nc,y,d\n".replace(",", between))
        with pytest.raises(InputError, match=r"has the column '(text|label)' twice"):
            Reader()([str(path)])
    path.write_text("text,label,,\na,x,1,2\n".replace(",", between))
    assert Reader()([str(path)])[0].labels == ("x",)  # of columns that nobody asks for it does not matter


ROWS = {"ds": ["1", "2", "3"], "y": ["1", "2", "3"]}


def test_a_column_named_twice_among_series(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("ds,y,y\n1,1,9\n2,2,9\n3,3,9\n")
    frame = pd.DataFrame([[1, 1.0, 9.0], [2, 2.0, 9.0]], columns=["ds", "y", "y"])
    for given in (str(path), frame, {**ROWS, 1: ROWS["y"], "1": ROWS["y"]}):
        with pytest.raises(InputError, match=r"has the column '(y|1)' twice"):
            PanelReader().fit(given)
    path.write_text("ds,y,,\n1,1,,\n2,2,,\n3,3,,\n")  # as spreadsheets leave them
    assert PanelReader().fit(str(path))[1][0].y[:, 0].tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    "changes", [{"y": ["1", "2"]}, {"y": ["1"] * 4}, {"ds": ["1"]}, {"unique_id": ["a", "a"]}, {"x": [], "y": ["1"]}]
)
def test_columns_of_a_mapping_are_as_long_as_each_other(changes):
    with pytest.raises(InputError, match=r"columns of different lengths: ds has \d.*; each row needs a value in all"):
        PanelReader().fit({**ROWS, **changes})


def test_a_column_of_a_mapping_is_a_list():
    with pytest.raises(InputError, match=r"column 'y' is one text, '123'; it must be a list of values"):
        PanelReader().fit({**ROWS, "y": "123"})
    with pytest.raises(InputError, match=r"column 'y' is a float; it must be a list of values"):
        PanelReader().fit({**ROWS, "y": 1.0})


def test_a_label_that_is_missing_is_no_class(tmp_path):
    name, x = str(tmp_path / "a.npz"), np.ones((MANY, 4))
    np.savez(name, x=x, y=np.array([0.0, 1.0, math.nan] * 2))
    with pytest.raises(InputError, match=r"row 2 of .* has the label nan, which is missing"):
        Labels.fit(Reader()([name]), "class")
    with pytest.raises(InputError, match="has the label nan, which is missing"):
        Labels.fit([Row("a", ("x", math.nan), "here"), Row("b", ("x",), "there")], "classes")
    for wrong in (math.nan, 2.0, -1.0):
        np.savez(name, x=x, y=np.array([[0.0, 1.0], [1.0, wrong]] * 3))
        with pytest.raises(InputError, match=rf"row 1 of y of .* has {wrong}; y \(N, C\) must be zeros and ones"):
            Reader()([name])
