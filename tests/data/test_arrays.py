"""Arrays in files: told apart by what they hold, cut to whole lengths."""

import numpy as np
import pytest

from elman.data.arrays import read_array, read_sequences
from elman.errors import InputError
from elman.tasks.classify.data import Reader

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
        read_sequences(str(tmp_path / "b.npz"))


def test_lengths_of_a_mat_file_may_be_whole_floats(tmp_path):
    from scipy.io import savemat

    for lengths, good in ([2.0, 3.0], True), ([2.5, 3.0], False):
        savemat(tmp_path / "a.mat", {"x": np.ones((2, 4)), "lengths": np.array(lengths)})
        if good:
            assert [len(row) for row in read_sequences(str(tmp_path / "a.mat"))] == [2, 3]
        else:
            with pytest.raises(InputError, match="they must be 2 whole numbers"):
                read_sequences(str(tmp_path / "a.mat"))


def test_a_key_names_one_of_several_arrays_unless_a_file_is_called_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez("a.npz", x=np.ones(3), y=np.zeros(2))
    assert read_array("a.npz:y", lambda key, array: True)[0].tolist() == [0, 0]
    assert read_array("a.npz", lambda key, array: len(array) == 3)[0].tolist() == [1, 1, 1]
    for name in ("a.npz", "a.npz:z"):
        with pytest.raises(InputError, match=r"a\.npz has the arrays x, y; name one of them as a\.npz:KEY"):
            read_array(name, lambda key, array: True)
    np.savez("other.npz", x=np.full(1, 7.0))
    (tmp_path / "other.npz").rename(tmp_path / "a.npz:y")
    assert read_array("a.npz:y", lambda key, array: True)[0].tolist() == [7]


def test_lengths_fit_their_rows(tmp_path):
    for lengths in ([4, 5], [-1, 2], [1, 2, 3]):
        np.savez(tmp_path / "a.npz", x=np.ones((2, 4)), lengths=lengths)
        with pytest.raises(InputError, match=r"a\.npz has 2 rows of 4 steps and \d lengths from -?\d to \d; each row"):
            read_sequences(str(tmp_path / "a.npz"))
