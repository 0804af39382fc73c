"""Every reader of every task, by one table: the same file in every dress is read alike, or refused in clear words."""

import gzip
import io
import re
import struct
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest

from elman.errors import FileError, InputError
from elman.tasks.classify.data import Reader
from elman.tasks.forecast.data import PanelReader
from elman.tasks.hmm import data as hmm
from elman.tasks.image.data import read_images
from elman.tasks.tag.data import TagReader
from elman.tasks.tag.vectors import read_vectors
from elman.tasks.text.data import TextDataConfig, split_texts
from elman.tasks.translate.data import PairReader
from elman.tasks.tree.data import TreeReader


class Case(NamedTuple):
    """How a file is called, what is in it, and what a task reads of it, places aside."""

    name: str
    content: str
    read: Callable[[str], object]


def language(name):
    """As a language model reads, which has a train, a valid and a test part."""
    texts = split_texts(TextDataConfig(train=name))
    found = "".join(piece for text in texts for _, piece in text.pieces())
    if not found:
        raise InputError(f"{name} is empty")  # open_splits says so, see test_run.py
    return found


def observations(**settings):
    return lambda name: hmm.Reader(**settings)([name]).X.tolist()


def rows(**settings):
    def read(name):
        found = Reader(**settings)([name], labelled=settings["format"] != "lines")
        return [(row.input if isinstance(row.input, str) else row.input.tolist(), row.labels) for row in found]

    return read


def sentences(**settings):
    def read(name):
        found = TagReader(**settings)([name], tagged=settings["format"] != "text")
        return [(list(row.words), list(row.tags)) for row in found]

    return read


def pairs(**settings):
    def read(name):
        target = [name] if settings["format"] == "text" else []
        return [(pair.source, pair.target) for pair in PairReader(**settings)([name], target)]

    return read


def trees(**settings):
    return lambda name: [(list(tree.words), list(tree.labels)) for tree in TreeReader(**settings)([name])]


def series(**settings):
    return lambda name: [(one.name, one.start, one.y.tolist()) for one in PanelReader(**settings).fit(name)[1]]


def vectors(name):
    return {word: vector.tolist() for word, vector in read_vectors(name, {"é", "of"}, 2).items()}


CONLLU = "1\té\té\tX\t_\t_\t0\troot\t_\t_\n2\tb\tb\tY\t_\t_\t1\tdet\t_\t_\n"
TEXTS = {
    "lm": Case("a.txt", "é b\nc\n" * 9, language),
    "hmm columns": Case("a.csv", "é,y\n1,2\n3,\n", observations()),
    "hmm spaces": Case("a.txt", "é y\n1 2\n3 4\n", observations()),
    "hmm letters": Case("a.txt", "é b\nc\n", observations(read="letters", names=tuple("bcé"), unit="lines")),
    "classify csv": Case("a.csv", 'text,label\n"é, b",x\nc,y\n', rows(format="table")),
    "classify tsv": Case("a.tsv", 'text\tlabel\n"é\tx\nc\ty\n', rows(format="table")),
    "classify jsonl": Case("a.jsonl", '{"text": "é", "label": "x"}\n{"text": "b", "label": 2}\n', rows(format="jsonl")),
    "classify fasttext": Case("a.txt", "__label__x é b\n__label__y c\n", rows(format="fasttext")),
    "classify lines": Case("a.txt", "é b\n\nc\n", rows(format="lines")),
    "classify ts": Case("a.ts", "@classLabel true é y\n@data\n1,2:é\n3,4:y\n", rows(format="ts")),
    "tag columns": Case("a.txt", "é X\nb Y\n\nc X\n", sentences(format="columns")),
    "tag conllu": Case("a.conllu", CONLLU, sentences(format="conllu")),
    "tag jsonl": Case("a.jsonl", '{"tokens": ["é", "b"], "tags": ["X", "Y"]}\n', sentences(format="jsonl")),
    "tag text": Case("a.txt", "é b\nc\n", sentences(format="text")),
    "tag vectors": Case("a.vec", "é 1 2\nof 3 4\n", vectors),
    "translate text": Case("a.txt", "é b\n\nc\n", pairs(format="text")),
    "translate tsv": Case("a.tsv", "é\tb\nc\td\n", pairs(format="tsv")),
    "translate jsonl": Case("a.jsonl", '{"source": "é", "target": "b"}\n', pairs(format="jsonl")),
    "tree brackets": Case("a.txt", "(3 (2 é)\n(4 b))\n", trees(format="brackets")),
    "tree conllu": Case("a.conllu", CONLLU, trees(format="auto")),
    "forecast long": Case("a.csv", "ds,y,é\n1,2,\n2,?,0\n3,5,1\n", series(target=("y", "é"))),
    "forecast wide": Case("a.csv", "V1,V2,V3\né,2,3\nb,4,\n", series()),
}
X = np.arange(12.0).reshape(2, 3, 2)


def npz(**arrays):
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def mat():
    from scipy.io import savemat

    file = io.BytesIO()
    savemat(file, {"x": X})
    return file.getvalue()


PIXELS = np.arange(18, dtype=np.uint8).reshape(2, 3, 3)
IDX = bytes([0, 0, 8, 3]) + struct.pack(">3i", *PIXELS.shape) + PIXELS.tobytes()
ARRAYS = {
    "classify npz": Case("a.npz", npz(x=X, y=[0, 1]), rows(format="npz")),
    "classify idx": Case("a-idx3-ubyte", IDX, lambda name: Reader("idx")([name], labelled=False)[1].input.tolist()),
    "forecast npz": Case("a.npz", npz(x=X), series(format="arrays")),
    "forecast mat": Case("a.mat", mat(), series(format="arrays")),
    "image npz": Case("a.npz", npz(x=PIXELS), lambda name: read_images([name]).values.tolist()),
    "image idx": Case("a.idx", IDX, lambda name: read_images([name]).values.tolist()),
}

every_text = pytest.mark.parametrize("case", TEXTS.values(), ids=TEXTS.keys())
every_array = pytest.mark.parametrize("case", ARRAYS.values(), ids=ARRAYS.keys())
every_file = pytest.mark.parametrize("case", [*TEXTS.values(), *ARRAYS.values()], ids=[*TEXTS, *ARRAYS])


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def same(found, wanted):
    np.testing.assert_equal(found, wanted)  # NaN is NaN, here
    assert found


@every_text
def test_a_mark_in_front_and_line_ends_of_windows_change_nothing(tmp_path, case):
    wanted = case.read(write(tmp_path / case.name, case.content))
    for content in ("\ufeff" + case.content, case.content.replace("\n", "\r\n")):
        same(case.read(write(tmp_path / case.name, content)), wanted)
    if case.read is not language:  # to which the end of the last line is a character
        same(case.read(write(tmp_path / case.name, case.content.rstrip())), wanted)


@every_file
def test_what_is_compressed_is_read(tmp_path, case):
    wanted = case.read(write(tmp_path / case.name, case.content))
    content = case.content if isinstance(case.content, bytes) else case.content.encode()
    name = write(tmp_path / f"{case.name}.gz", gzip.compress(content))
    same(case.read(name), wanted)


@every_text
def test_what_is_compressed_without_saying_so_is_named(tmp_path, case):
    with pytest.raises(FileError, match=r"compressed by gzip; name it so that it ends in \.gz"):
        case.read(write(tmp_path / case.name, gzip.compress(case.content.encode())))


@every_text
def test_invalid_utf8_says_where(tmp_path, case):
    content = case.content.encode().replace("é".encode(), b"\xe9", 1)
    if case.read is vectors:  # of millions of words of the web, a few are damaged
        assert case.read(write(tmp_path / case.name, content)) == {"of": [3, 4]}
        return
    with pytest.raises(FileError, match=rf"is not UTF-8: byte {content.index(0xE9)} .*--data\.errors replace"):
        case.read(write(tmp_path / case.name, content))


@every_file
def test_an_empty_file_is_called_empty(tmp_path, case):
    with pytest.raises((InputError, FileError), match=rf"{re.escape(case.name)} is empty"):
        case.read(write(tmp_path / case.name, ""))


@pytest.mark.parametrize("kind", sorted(TEXTS.keys() - {"lm", "tag vectors"}))
def test_a_file_of_empty_lines_is_called_empty(tmp_path, kind):
    """But to a language model, line ends are text."""
    with pytest.raises(InputError, match=rf"{re.escape(TEXTS[kind].name)} is empty"):
        TEXTS[kind].read(write(tmp_path / TEXTS[kind].name, "\n \n\n"))


@every_file
def test_what_is_not_there_is_named(tmp_path, case):
    (tmp_path / case.name).symlink_to(tmp_path / "gone")
    with pytest.raises(FileError, match=rf"{case.name} is a link to .*gone, which is not there"):
        case.read(str(tmp_path / case.name))
    with pytest.raises(FileError, match=rf"there is no file (or folder )?.*none{case.name}"):
        case.read(str(tmp_path / f"none{case.name}"))


@every_text
def test_a_folder_is_the_files_in_it(tmp_path, case):
    if case.read is vectors:
        return
    wanted = case.read(write(tmp_path / case.name, case.content))
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(InputError, match="there is no text in"):
        case.read(str(folder))
    write(folder / case.name, case.content)
    same(case.read(str(folder)), wanted)


@every_array
def test_a_folder_is_not_an_array(tmp_path, case):
    (tmp_path / case.name).mkdir()
    with pytest.raises(FileError, match=rf"{case.name} is a folder; name the files in it"):
        case.read(str(tmp_path / case.name))


def test_parquet_says_what_it_cannot_read(tmp_path):
    frame = pd.DataFrame({"ds": [1, 2, 3], "y": [1.0, 2.0, 4.0]})
    frame.to_parquet(tmp_path / "a.parquet")
    assert series()(str(tmp_path / "a.parquet")) == [("series", 1, [[1], [2], [4]])]
    (tmp_path / "link.parquet").symlink_to(tmp_path / "gone")
    (tmp_path / "folder.parquet").mkdir()
    frame.to_parquet(tmp_path / "folder.parquet" / "part-0.parquet")
    assert series()(str(tmp_path / "folder.parquet")) == series()(str(tmp_path / "a.parquet"))
    write(tmp_path / "empty.parquet", "")
    write(tmp_path / "text.parquet", "ds,y\n1,2\n")
    for name, message in {
        "link": "is a link to", "empty": "is empty", "text": "cannot read", "none": "no file",
    }.items():  # fmt: skip
        with pytest.raises(FileError, match=message):
            series()(str(tmp_path / f"{name}.parquet"))
