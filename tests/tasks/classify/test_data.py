import gzip
import json
import math
import struct

import numpy as np
import pytest
import torch

from elman.errors import ElmanError, FileError, InputError
from elman.tasks.classify.data import Reader, Row, fingerprint
from elman.tasks.classify.inputs import Labels, SeriesInputs, TextInputs


def read(tmp_path, name, content, **settings):
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return [(row.input, row.labels) for row in Reader(**settings)([str(tmp_path / name)])]


def test_texts_of_every_format_are_the_same_rows(tmp_path):
    wanted = [('a "b" c', ("x",)), ("d, e", ("y",))]
    assert read(tmp_path, "a.tsv", 'text\tother\tlabel\na "b" c\t1\tx\nd, e\t2\ty\n') == wanted
    assert read(tmp_path, "a.csv", '\ufefflabel,text\r\nx,"a ""b"" c"\r\ny,"d, e"\r\n') == wanted
    lines = "".join(json.dumps({"t": text, "y": label[0]}) + "\n" for text, label in wanted)
    assert read(tmp_path, "a.jsonl", lines, text="t", label="y") == wanted
    assert read(tmp_path, "a.txt", '__label__x a "b" c\n__label__y d, e\n') == wanted
    assert read(tmp_path, "a.tsv.gz", gzip.compress(b'text\tlabel\na "b" c\tx\nd, e\ty\n')) == wanted
    for name, text in (("r.x", 'a "b" c\n'), ("r.y", "d, e\n")):
        (tmp_path / name).write_text(text)
    files = Reader()([str(tmp_path / "r.x"), str(tmp_path / "r.y")])
    assert [(row.input, row.labels) for row in files] == wanted


def test_a_column_of_texts_alone_is_a_table(tmp_path):
    for name, content in (("a.tsv", 'text\nd, "e; f\n'), ("a.csv", 'text\n"d, ""e; f"\n')):
        (tmp_path / name).write_text(content)
        assert [row.input for row in Reader()([str(tmp_path / name)], labelled=False)] == ['d, "e; f']


def test_several_labels(tmp_path):
    assert read(tmp_path, "a.tsv", "text\tlabel\nt\tx|y\n") == [("t", ("x", "y"))]
    assert read(tmp_path, "a.txt", "__label__x __label__y t\n") == [("t", ("x", "y"))]
    assert read(tmp_path, "a.jsonl", '{"text": "t", "label": ["x", "y"]}\n') == [("t", ("x", "y"))]


def test_series(tmp_path):
    found = read(tmp_path, "a.ts", "# about\n@classLabel true a b\n@data\n1,2,3:4,5,6:a\n7:8:b\n")
    np.testing.assert_array_equal(found[0][0], [[1, 4], [2, 5], [3, 6]])
    np.testing.assert_array_equal(found[1][0], [[7, 8]])
    assert [labels for _, labels in found] == [("a",), ("b",)]
    x = np.arange(12.0).reshape(2, 3, 2)
    np.savez(tmp_path / "a.npz", x=x, lengths=[3, 1], y=["p", "q"])
    rows = Reader()([str(tmp_path / "a.npz")])
    np.testing.assert_array_equal(rows[1].input, x[1, :1])
    assert [row.labels for row in rows] == [("p",), ("q",)]


def idx(path, array):
    path.write_bytes(struct.pack(f">BBBB{array.ndim}i", 0, 0, 8, array.ndim, *array.shape) + array.tobytes())
    return str(path)


def test_images_are_sequences_of_pixels(tmp_path):
    images = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    files = [
        idx(tmp_path / "t10k-images-idx3-ubyte", images),
        idx(tmp_path / "l-idx1-ubyte", np.array([7, 3], np.uint8)),
    ]
    rows = Reader()(files)
    assert rows[0].input[:, 0].tolist() == list(range(12)) and [row.labels for row in rows] == [(7,), (3,)]
    first, again = (Reader(permute=0)(files) for _ in range(2))
    assert first[0].input[:, 0].tolist() == again[0].input[:, 0].tolist() != list(range(12))
    assert (first[1].input - first[0].input == 12).all()  # one order for all
    (tmp_path / "t10k-images-idx3-ubyte").write_bytes((tmp_path / "t10k-images-idx3-ubyte").read_bytes()[:-1])
    with pytest.raises(FileError, match="truncated"):
        Reader()(files)


def test_bad_files_name_the_place(tmp_path):
    np.savez(tmp_path / "nan.npz", x=np.array([[1.0, np.nan]]), y=[0])
    np.savez(tmp_path / "short.npz", x=np.ones((2, 2)), y=[0])
    np.savez(tmp_path / "object.npz", x=np.array([{}], dtype=object))
    for name, message in (
        ("nan.npz", "row 0 of .*step 1"), ("short.npz", "2 rows of x and 1 of y"), ("object.npz", "cannot read"),
        ("none.tsv", "there is no file"),
    ):  # fmt: skip
        with pytest.raises(ElmanError, match=message):
            Reader()([str(tmp_path / name)])
    with pytest.raises(InputError, match="dimensions of"):
        read(tmp_path, "a.ts", "@data\n1,2:4:a\n")
    with pytest.raises(InputError, match="different kinds"):
        Reader()(["a.tsv", "b.npz"])
    with pytest.raises(InputError, match=r"data\.format"):
        Reader(format="xml")(["a.tsv"])


def test_numbers_are_of_order_one_and_labels_are_in_order():
    rows = [Row(np.array([[1.0, 5.0], [3.0, 5.0]]), ("10",), "a"), Row(np.array([[5.0, 5.0]]), ("2",), "b")]
    inputs = SeriesInputs.fit(rows)
    x = torch.cat(list(inputs.all(rows)))
    assert x.mean(0).tolist() == pytest.approx([0, 0], abs=1e-6)
    assert x[:, 0].std(correction=0).item() == pytest.approx(1)
    assert x[:, 1].tolist() == [0, 0, 0]  # a constant stays one
    assert Labels.fit(rows * 2, "class").names == ("2", "10")
    number = Labels.fit(rows, "number")
    assert (number.mean, number.scale) == (6, 4)
    with pytest.raises(InputError, match="reads 2"):
        inputs(np.ones((3, 1)), "here")
    texts = TextInputs.fit([Row("A b", ("x",), "")], "word", 1, 0, True)
    assert texts("a B c", "").tolist() == [2, 3, 1]


def test_fingerprints_tell_rows_apart():
    rows = [Row("a", ("x",), ""), Row("b", ("y",), "")]
    assert fingerprint(rows) != fingerprint(rows[::-1]) != fingerprint([Row("ab", ("x",), "")])
    assert fingerprint(rows) == fingerprint([row._replace(where="elsewhere") for row in rows])
    # of the numbers that a file has, as of the texts that earlier versions made of them: their runs go on
    assert fingerprint([Row("a", (1,), "")]) == fingerprint([Row("a", ("1",), "")])


def test_numbers_without_labels_are_named(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.ones((4, 3)))
    images = idx(tmp_path / "t10k-images-idx3-ubyte", np.zeros((2, 3, 4), np.uint8))
    (tmp_path / "a.ts").write_text("@classLabel false\n@data\n1,2,3\n4,5,6\n")
    for name, message in ((tmp_path / "a.npz", "array y"), (images, "file of labels"), (tmp_path / "a.ts", "@class")):
        with pytest.raises(InputError, match=f"there is no label in .*{message}"):
            Reader()([str(name)])
        assert len(Reader()([str(name)], labelled=False)) > 1


def test_labels_that_differ_in_spaces_alone_are_refused():
    rows = [Row("a", (label,), "") for label in ("pos", "neg", "pos ", "pos ", "pos", "neg")]
    for kind in ("class", "classes"):
        with pytest.raises(InputError, match=r"labels 'pos' and 'pos ' differ only in spaces.*write both alike"):
            Labels.fit(rows, kind)


@pytest.mark.parametrize("given", [(2, 10), ("2", "10"), (2.5, 10.0), (True, False), (2, "x")])
def test_labels_come_back_as_they_were(given):
    rows = [Row(np.ones((2, 1)), (label,), "") for label in given * 2]
    labels = Labels.fit(rows, "class")
    expected = tuple(map(str, given)) if len({type(label) for label in given}) > 1 else given
    assert sorted(labels.answers) == sorted(expected) and {*map(type, labels.answers)} == {*map(type, expected)}
    assert [labels.answers[i] for i in labels.targets(rows).tolist()] == [*expected * 2]
    assert Labels("class", ("1", "2")).answers == ("1", "2")  # of a model that was saved before this was noted


def test_a_label_that_is_missing_is_no_class(tmp_path):
    name, x = str(tmp_path / "a.npz"), np.ones((6, 4))
    np.savez(name, x=x, y=np.array([0.0, 1.0, math.nan] * 2))
    with pytest.raises(InputError, match=r"row 2 of .* has the label nan, which is not a class"):
        Labels.fit(Reader()([name]), "class")
    with pytest.raises(InputError, match="has the label nan, which is not a class"):
        Labels.fit([Row("a", ("x", math.nan), "here"), Row("b", ("x",), "there")], "classes")
    for wrong in (math.nan, 2.0, -1.0):
        np.savez(name, x=x, y=np.array([[0.0, 1.0], [1.0, wrong]] * 3))
        with pytest.raises(InputError, match=rf"row 1 of y of .* has {wrong}; y \(N, C\) must be zeros and ones"):
            Reader()([name])


def test_a_fingerprint_is_of_inputs_and_labels_in_their_order():
    rows = [Row("ab", ("x",), ""), Row("c", ("y",), "")]
    others = [
        [rows[1], rows[0]], [rows[0], rows[1]._replace(labels=("x",))], [rows[0], rows[1]._replace(labels=("y", "x"))],
        [rows[0], rows[1]._replace(input="d")], [Row("a", ("x",), ""), Row("bc", ("y",), "")], rows[:1],
        [rows[0]._replace(input=np.zeros(2)), rows[1]],
    ]  # fmt: skip
    assert len({fingerprint(each) for each in (rows, *others)}) == 1 + len(others)
    assert fingerprint([row._replace(where="elsewhere", number=9) for row in rows]) == fingerprint(rows)
