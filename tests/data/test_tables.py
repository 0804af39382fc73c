"""Tables as people have them in files, frames and mappings."""

import pandas as pd
import pytest

from elman.data.tables import columns_of, read_columns, table_lines
from elman.errors import InputError
from elman.tasks.classify.data import Reader
from elman.tasks.forecast.data import PanelReader

ROWS = {"ds": ["1", "2", "3"], "y": ["1", "2", "3"]}


@pytest.mark.parametrize("between", ["\t", ";", ","])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_marks_and_line_ends_of_every_program(between, end):
    text = end.join(["", between.join("xy"), between.join(("1", '"a;,b"')), between.join(("2", '"c\n""d"')), ""])
    assert read_columns("a.csv", text) == {"x": ["1", "2"], "y": ["a;,b", 'c\n"d']}


def test_lines_keep_their_numbers_where_some_are_empty():
    lines = [*table_lines("a.csv", "\nx,y\n\n1,2\n")]
    assert lines == [(1, []), (2, ["x", "y"]), (3, []), (4, ["1", "2"])]
    assert [*table_lines("a.txt", " x  y\n\n1 2", spaces=True)] == [(1, ["x", "y"]), (2, []), (3, ["1", "2"])]


def test_frames_and_mappings_are_the_same_columns():
    frame = pd.DataFrame({"a": [1, 2], "b": [0.5, None], "c": pd.to_datetime(["2024-01-31", None])})
    wanted = {"a": ["1", "2"], "b": ["0.5", "nan"], "c": ["2024-01-31 00:00:00", ""]}
    assert columns_of(frame) == columns_of(frame.to_dict("list")) == wanted
    assert columns_of(frame.set_index("a")) == wanted
    with pytest.raises(InputError, match=r"given as a builtins\.int, which is neither a mapping nor a pandas"):
        columns_of(3)


@pytest.mark.parametrize("ending", [".csv", ".tsv"])
def test_a_column_named_twice_in_a_table(tmp_path, ending):
    path, between = tmp_path / f"a{ending}", "\t" if ending == ".tsv" else ","
    for header in ("text,label,text", "text,label,label"):
        path.write_text(f"{header}\na,x,b\nc,y,d\n".replace(",", between))
        with pytest.raises(InputError, match=r"has the column '(text|label)' twice"):
            Reader()([str(path)])
    path.write_text("text,label,,\na,x,1,2\n".replace(",", between))
    assert Reader()([str(path)])[0].labels == ("x",)  # of columns that nobody asks for it does not matter


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
    with pytest.raises(InputError, match=r"column 'y' is a string, '123'; it must be a list of values"):
        PanelReader().fit({**ROWS, "y": "123"})
    with pytest.raises(InputError, match=r"column 'y' is a float; it must be a list of values"):
        PanelReader().fit({**ROWS, "y": 1.0})
