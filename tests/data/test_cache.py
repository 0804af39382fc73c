import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elman.data import open_text
from elman.data import text as texts
from elman.data.cache import encode
from elman.data.vocabulary import Bytes, Characters, Words
from elman.errors import FileError


@pytest.fixture
def text(tmp_path):
    (tmp_path / "a.txt").write_text("one two\n\nthree")
    (tmp_path / "b.txt").write_text("four")
    return open_text([str(tmp_path / "a.txt"), str(tmp_path / "b.txt")])


def test_units(text, tmp_path):
    vocabulary = Characters.fit((p for _, p in text.pieces()), 1, 0)

    def sequences(unit):
        encoded = encode(text, vocabulary, unit, tmp_path / unit)
        ids = encoded.ids.tolist()
        assert ids[0] == 0
        cuts = [i for i, symbol in enumerate(ids) if symbol == 0] + [len(ids)]
        return (
            [vocabulary.decode(ids[a + 1 : b]) for a, b in pairwise(cuts)],
            encoded.characters,
            encoded.tokens,
        )

    assert sequences("text") == (["one two\n\nthreefour"], 18, 18)
    assert sequences("lines") == (["one two", "three", "four", ""], 19, 19)
    assert sequences("documents") == (["one two\n\nthree", "four", ""], 20, 20)


def test_encoded_once(text, tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    first = encode(text, Bytes(), "text", folder)
    monkeypatch.setattr(Bytes, "encode", lambda *_: pytest.fail("encoded again"))
    again = encode(text, Bytes(), "text", folder)
    np.testing.assert_array_equal(first.ids, again.ids)
    assert isinstance(again.ids, np.memmap)


def test_another_vocabulary_is_another_file(text, tmp_path):
    folder = tmp_path / "cache"
    encode(text, Bytes(), "text", folder)
    words = encode(text, Words(["one"]), "text", folder)
    assert (words.tokens, words.unknown) == (5, 4)  # one, two, two line breaks, threefour


def test_a_truncated_cache_is_noticed(text, tmp_path):
    folder = tmp_path / "cache"
    encode(text, Bytes(), "text", folder)
    (path,) = folder.glob("*.bin")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(FileError, match="truncated"):
        encode(text, Bytes(), "text", folder)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.lists(st.text("ab \n", max_size=30), min_size=1, max_size=3), st.sampled_from(["lines", "documents"]))
def test_units_are_what_they_are_in_however_many_pieces_they_are_read(files, unit):
    folder = Path(tempfile.mkdtemp())
    for number, content in enumerate(files):
        (folder / f"{number}").write_text(content)
    vocabulary = Words.fit(["a b aa ab ba bb"], 1, 0)
    wanted = [0]
    for content in files:
        for part in content.split("\n") if unit == "lines" else [content]:
            wanted += [*vocabulary.encode(part), 0] if part else []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(texts, "CHUNK", 3)
        encoded = encode(open_text([str(folder)]), vocabulary, unit, folder / "cache")
    assert encoded.ids.tolist() == wanted


def test_a_document_is_never_held_whole(tmp_path, monkeypatch):
    (tmp_path / "long.txt").write_text("one two three " * 1000)
    monkeypatch.setattr(texts, "CHUNK", 64)
    seen = []
    monkeypatch.setattr(Words, "encode", lambda self, text: seen.append(text) or np.array([1]))
    for unit in ("text", "lines", "documents"):
        encode(open_text([str(tmp_path / "long.txt")]), Words([]), unit, tmp_path / "cache")
    assert max(map(len, seen)) < 100 and len("".join(seen)) == 3 * 14_000


def test_vocabularies_of_one_kind_and_size_are_told_apart_too(text, tmp_path):
    folder = tmp_path / "cache"
    one, two = (encode(text, Words([word]), "text", folder).ids.tolist() for word in ("one", "two"))
    assert one == [0, 2, 1, 1, 1, 1] and two == [0, 1, 2, 1, 1, 1]
