"""Data in memory mean what they mean in a file."""

import numpy as np
import pandas as pd
import pytest

import elman
from elman.errors import InputError
from elman.tasks import respond
from elman.tasks.hmm.data import HMMDataConfig, open_observations

ROWS = np.array([[0.1, 5.0], [0.2, np.nan], [3.0, 6.0], [3.1, 7.0], [0.0, 5.5], [2.9, 6.5]])


def observations(rows, **settings):
    return open_observations(HMMDataConfig(**settings), {"train": rows})


def of_file(tmp_path, frame, **settings):
    frame.to_csv(tmp_path / "rows.csv", index=False)
    return open_observations(HMMDataConfig(train=str(tmp_path / "rows.csv"), **settings))


@pytest.mark.parametrize("columns", [None, "b", 2, ["b", "a"], [1]])
@pytest.mark.parametrize("kind", [pd.DataFrame, lambda frame: {name: frame[name].tolist() for name in frame}])
def test_columns_are_chosen_as_in_a_file(tmp_path, columns, kind):
    frame = pd.DataFrame(ROWS, columns=["a", "b"])
    reader, found, _ = observations(kind(frame), columns=columns)
    same, wanted, _ = of_file(tmp_path, frame, columns=columns)
    assert reader == same and found.lengths == wanted.lengths
    np.testing.assert_array_equal(found.X, wanted.X)


def _mapping(frame):
    return {name: frame[name].tolist() for name in frame}


@pytest.mark.parametrize("kind", [pd.DataFrame, _mapping])
@pytest.mark.parametrize("word", ["2024-01-01", pd.Timestamp("2024-01-01")])
def test_a_column_that_is_not_read_may_be_dates(tmp_path, kind, word):
    frame = pd.DataFrame(ROWS, columns=["a", "b"])
    frame.insert(0, "ds", word)
    reader, found, _ = observations(kind(frame), columns=["b", 2])
    same, wanted, _ = of_file(tmp_path, frame, columns=["b", 2])
    assert reader == same and reader.names == ("b", "a")
    np.testing.assert_array_equal(found.X, wanted.X)
    with pytest.raises(InputError, match=r"the train data has '2024-01-01.*' in column ds, which is not a number"):
        observations(kind(frame))


def test_columns_of_a_frame_without_names_have_numbers_from_1_beside_words_too():
    frame = pd.DataFrame(ROWS).assign(flag=True).set_axis([0, 1, 2], axis=1)
    np.testing.assert_array_equal(observations(frame, columns=[2, 3])[1].X, np.c_[ROWS[:, 1], np.ones(6)])
    frame[2] = "a word"
    np.testing.assert_array_equal(observations(frame, columns=2)[1].X, ROWS[:, 1:])


@pytest.mark.parametrize("lengths", [[2, 4], (2, 4), np.array([2, 4])])
def test_lengths_are_not_a_sequence(lengths):
    with pytest.raises(InputError, match=r"a sequence and 2 lengths; give a list of the sequences"):
        observations((ROWS[:, 0], lengths))
    assert observations([ROWS[:, 0], np.array([2.0, 4.0])])[1].lengths == [6, 2]  # a list is of sequences


def test_columns_of_an_array_have_numbers_from_1():
    reader, found, _ = observations(ROWS, columns=2)
    assert reader.names == ("2",)
    np.testing.assert_array_equal(found.X, ROWS[:, 1:])
    with pytest.raises(InputError, match=r"has no column 'b'; .* they go by number, 1 to 2"):
        observations(ROWS, columns="b")


def test_missing_values_are_refused_as_in_a_file():
    for rows in (ROWS, pd.DataFrame(ROWS, columns=["a", "b"]), ROWS.tolist(), [ROWS, ROWS]):
        with pytest.raises(InputError, match=r"are missing, and data\.missing is refuse"):
            observations(rows, missing="refuse")
    with pytest.raises(InputError, match="column 2 of the train data has no value at all"):
        observations(ROWS * [1, np.nan])


def test_a_list_of_series_is_a_list_of_sequences():
    series = [np.array([1.0, 2.0, 3.0]), np.array([4.0, 5.0])]
    for rows in (series, [one[:, None] for one in series], [one[:, None].tolist() for one in series]):
        found = observations(rows)[1]
        assert found.lengths == [3, 2] and found.X.tolist() == [[1], [2], [3], [4], [5]]
    assert observations([pd.Series(one) for one in series])[1].lengths == [3, 2]
    alike = observations([np.array([1.0, 2.0]), np.array([3.0, 4.0])])[1]
    assert alike.lengths == [2, 2] and alike.X.tolist() == [[1], [2], [3], [4]]
    rows = observations([[1.0, 2.0], [3.0, None]])[1]  # as JSON has them
    assert rows.lengths == [2] and rows.X[0].tolist() == [1, 2] and np.isnan(rows.X[1, 1])
    assert observations([1.0, 2.0, 3.0])[1].X.tolist() == [[1], [2], [3]]


def test_a_padded_array_ends_with_rows_of_nan():
    padded = np.array([[[1.0], [2.0]], [[3.0], [np.nan]]])
    found = observations(padded)[1]
    assert found.lengths == [2, 1] and found.X.tolist() == [[1], [2], [3]]


def test_validation_data_may_be_a_file_or_in_memory(tmp_path):
    pd.DataFrame(ROWS).to_csv(tmp_path / "valid.csv", index=False, header=False)
    settings = {"model": {"n_init": 1, "n_iter": 3}}
    _, of_both = elman.train(
        elman.HMMConfig(data={"valid": str(tmp_path / "valid.csv")}, **settings), ROWS, progress=False
    )
    _, in_memory = elman.train(elman.HMMConfig(**settings), {"train": ROWS, "valid": ROWS}, progress=False)
    assert of_both == in_memory and "valid" in of_both[-1]


def test_texts_in_memory_are_read_as_files_are(tmp_path):
    for name, text in (("1.txt", "To be, or"), ("2.txt", "not to be")):
        (tmp_path / name).write_text(text)
    files = HMMDataConfig(train=[str(tmp_path / "1.txt"), str(tmp_path / "2.txt")], read="letters")
    reader, wanted, _ = open_observations(files)
    same, found, _ = observations(["To be, or", "not to be"], read="letters")
    assert same == reader and found.lengths == wanted.lengths and (found.X == wanted.X).all()
    with pytest.raises(InputError, match=r"data\.read is letters: data are a text, or a list of texts; not a ndarray"):
        observations(ROWS, read="letters")


def test_a_model_finds_its_columns_in_a_frame_by_name():
    frame = pd.DataFrame(ROWS, columns=["a", "b"])
    config = elman.HMMConfig(data={"columns": "b"}, model={"n_init": 1, "n_iter": 3})
    model, _ = elman.train(config, frame, progress=False)
    wanted = [*respond(model, "predict", data=frame[["b"]])]
    assert [*respond(model, "predict", data=frame[["b", "a"]])] == wanted
    with pytest.raises(InputError, match="has no column 'b'"):
        [*respond(model, "predict", data=frame[["a"]])]


@pytest.mark.parametrize(
    "rows, message",
    [
        ([["x", "y"]], "has text"),
        (np.zeros((2, 2, 2, 2)), "has the shape"),
        (np.zeros((3, 0)), "has the shape"),
        ("1,2", "is a text, and data.read is columns"),
        ([np.zeros((2, 1)), np.zeros((2, 2))], "all need as many"),
        ({"a": [1, 2], "b": [1]}, "columns of different lengths"),
        ({"a": ["x", "2"]}, "has 'x' in column a, which is not a number"),
        (np.zeros((0, 2)), "observation"),
        (np.array([1.0, np.inf]), "infinities"),
    ],
)
def test_what_is_not_observations_is_refused(rows, message):
    with pytest.raises(InputError, match=message):
        observations(rows)
