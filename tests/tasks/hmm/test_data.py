"""Columns and symbols as people have them in files."""

import numpy as np
import pytest

from elman.errors import ElmanError, FileError, InputError
from elman.tasks.hmm.data import HMMDataConfig, Reader, open_observations, open_reader


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def file(text, name="a.csv"):
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        return name

    return file


@pytest.mark.parametrize(
    "text",
    [
        "1,2\n3,4\n",
        "1;2\n3;4",
        "1\t2\r\n3\t4\r\n",
        "1 2\n 3   4 \n",
        "x,y\n1,2\n3,4\n",
        '"x","y"\n"1","2"\n3,4\n',
        b"\xef\xbb\xbfx,y\n1,2\n3,4\n",
        "\n\nx y\n1 2\n3 4\n\n\n",
    ],
)
def test_every_way_to_write_two_columns(write, text):
    found = Reader()([write(text)])
    assert found.X.tolist() == [[1, 2], [3, 4]] and found.lengths == [2] and found.unknown == 0


def test_an_empty_line_and_a_file_end_a_sequence(write):
    first, second = write("v\n1\n2\n\n\n3\n"), write("v\n4\n5\n6\n", "b.csv")
    found = Reader()([first, second])
    assert found.X[:, 0].tolist() == [1, 2, 3, 4, 5, 6] and found.lengths == [2, 1, 3]


def test_missing_values(write):
    name = write("1,nan\nNA,4\n?,\n5,null\n")
    X = Reader()([name]).X
    assert Reader()([write("1,2\n,\n \n3,4\n", "b.csv")]).lengths == [2, 1]  # an observation of which nothing is known
    np.testing.assert_array_equal(X, [[1, np.nan], [np.nan, 4], [np.nan, np.nan], [5, np.nan]])
    with pytest.raises(InputError, match=r"5 values in a\.csv are missing"):
        Reader()([name], missing="refuse")


def test_columns_are_chosen_by_name_or_number(write):
    name = write("day,x,y\nmonday,1,2\ntuesday,3,4\n")
    for columns in (["y", "x"], ["3", "2"]):
        reader, found, valid = open_observations(HMMDataConfig(train=name, columns=columns))
        assert found.X.tolist() == [[2, 1], [4, 3]] and reader.names == ("y", "x") and valid is None
    # A model finds its columns wherever they stand, and in a file without names by their number.
    assert reader([write("x,z,y\n5,0,6\n", "b.csv")]).X.tolist() == [[6, 5]]
    assert reader([write("7,8\n", "c.csv")]).X.tolist() == [[7, 8]]


@pytest.mark.parametrize(("columns", "names"), [([2], ("x",)), (2, ("x",)), ("x", ("x",)), ([3, "x"], ("y", "x"))])
def test_columns_are_chosen_one_or_many(write, columns, names):
    name = write("day,x,y\nmonday,1,2\n")
    assert open_reader(HMMDataConfig(train=name, columns=columns)).names == names


@pytest.mark.parametrize("columns", [["9"], [9], ["x"], ["1", "x"], [0]])
def test_a_column_that_a_file_without_names_lacks_is_refused(write, columns):
    name = write("1,2\n3,4\n")
    with pytest.raises(InputError, match=r"its columns have no names, so they go by number, 1 to 2"):
        open_observations(HMMDataConfig(train=name, columns=columns))


def test_a_file_without_names_is_read_by_the_numbers_that_were_chosen(write):
    reader, found, _ = open_observations(HMMDataConfig(train=write("1,2\n3,4\n"), columns=[2]))
    assert found.X.tolist() == [[2], [4]] and reader([write("5,6,7\n", "b.csv")]).X.tolist() == [[6]]
    with pytest.raises(InputError, match="no column '2'"):
        reader([write("5\n", "c.csv")])


def test_two_columns_of_one_name_are_refused(write):
    with pytest.raises(InputError, match=r"a\.csv has the column 'x' twice"):
        open_observations(HMMDataConfig(train=write("x,y,x\n1,2,3\n")))


def test_cells_that_are_not_read_can_be_kept(write):
    reader = open_reader(HMMDataConfig(train=write("day,x\nmonday,1\n"), columns="x"))
    files = [write("x,day,id\n1,tue,7\n", "b.csv"), write("x\n2\n", "c.csv")]
    assert list(reader(files, others=True).others) == [{"day": "tue", "id": "7"}, {}]
    assert not reader(files).others


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ("", InputError, "a.csv is empty"),
        ("\n\n", InputError, "a.csv is empty"),
        ("x,y\n", InputError, "no observation"),
        ("1,2\n3\n", InputError, r"line 2 of a\.csv has 1 values; the first line has 2"),
        ("x,y\n1,2\n3,4,5\n", InputError, r"line 3 of a\.csv has 3 values"),
        ("x,y\n1,2\n3,abc\n", InputError, r"line 3 of a\.csv has 'abc' in column y, which is not a number"),
        ("1,2\n3,abc\n", InputError, "in column 2"),
        (b"1,2\n3,\xff\n", FileError, "not UTF-8: byte 6"),
        ("1,\n3,\n", InputError, "column 2 of a.csv has no value at all"),
        ("1,2\n1,\0\n", InputError, "not a number"),
    ],
)
def test_what_cannot_be_read_is_said(write, text, error, says):
    with pytest.raises(error, match=says):
        open_observations(HMMDataConfig(train=write(text)))


def test_names_that_do_not_exist(write):
    name = write("x,y\n1,2\n")
    with pytest.raises(InputError, match="no column 'z'; it has x, y"):
        open_observations(HMMDataConfig(train=name, columns=["z"]))
    with pytest.raises(FileError, match=r"no file or folder none\.csv"):
        open_observations(HMMDataConfig(train="none.csv"))
    with pytest.raises(InputError, match=r"data\.train is empty"):
        open_observations(HMMDataConfig(train=""))
    for parts in ({"read": "words"}, {"missing": "drop"}, {"read": "letters", "unit": "line"}, {"errors": "drop"}):
        with pytest.raises(ElmanError, match=f"{list(parts.values())[-1]!r}"):
            open_observations(HMMDataConfig(train=name, **parts))
    write("1,2,3\n", "b.csv"), write("1,2\n", "c.csv")
    with pytest.raises(InputError, match=r"c\.csv has 2 columns; the files before it have 3"):
        Reader()(["b.csv", "c.csv"])


def test_letters_and_characters(write):
    name = write("Ab, cß!\n12 a\n", "a.txt")
    reader = open_reader(HMMDataConfig(train=name, read="letters"))
    assert reader.names == (" ", "a", "b", "c", "s")
    found = reader([name])
    assert reader.text(found.X) == "ab css a " and found.lengths == [9]
    lines = open_reader(HMMDataConfig(train=name, read="characters", unit="lines"))
    found = lines([name])
    assert lines.text(found.X) == "Ab, cß!12 a" and found.lengths == [7, 4]


def test_a_symbol_that_the_model_lacks_is_missing_and_counted(write):
    reader = Reader("characters", ("a", "b"))
    found = reader([write("abcab")])
    assert found.unknown == 1 and np.isnan(found.X[2, 0]) and found.X[3, 0] == 0
    assert reader([write("abc")], missing="refuse").unknown == 1  # not what `missing` is about


def test_columns_can_be_read_again_as_they_are_written(write):
    X = np.array([[1.5, -2e-7], [3.0, 1e10]])
    again = Reader()([write(Reader(names=("x", "y")).text(X))])
    np.testing.assert_allclose(again.X, X, rtol=1e-9)
