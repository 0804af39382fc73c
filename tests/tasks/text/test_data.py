"""What the data section of a config says, and the texts it names."""

from dataclasses import replace

import pytest

from elman.data import text
from elman.errors import InputError, UnknownNameError
from elman.tasks.text.data import TextDataConfig, open_splits, split_texts


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.setenv("ELMAN_CACHE", str(tmp_path / "cache"))
    (tmp_path / "a.txt").write_text("abcdefghij" * 10)
    (tmp_path / "b.txt").write_text("jihg")
    return TextDataConfig(train=str(tmp_path / "a.txt"), split=(0.8, 0.1, 0.1))


def contents(config):
    return ["".join(piece for _, piece in part.pieces()) for part in split_texts(config)]


def test_a_text_is_split_by_position(config, tmp_path):
    train, valid, test = contents(config)
    assert train + valid + test == "abcdefghij" * 10 and (len(train), len(valid), len(test)) == (80, 10, 10)
    train, valid, test = contents(replace(config, valid=str(tmp_path / "b.txt")))
    assert (len(train), valid, len(test)) == (90, "jihg", 10)


def test_the_vocabulary_is_that_of_the_training_part(config, tmp_path):
    (tmp_path / "a.txt").write_text("ab" * 40 + "z" * 20)
    splits = open_splits(config)
    assert splits.vocabulary.decode(range(2, splits.vocabulary.size)) == "ab"
    assert splits.valid.unknown == splits.valid.tokens == 10
    assert open_splits(config, splits.vocabulary).vocabulary is splits.vocabulary


def test_a_text_is_read_once_to_be_known_and_not_again_when_it_is_cached(config, monkeypatch):
    reads, original = [], text._file_chunks
    monkeypatch.setattr(text, "_file_chunks", lambda path: reads.append(path) or original(path))
    vocabulary = open_splits(config).vocabulary
    del reads[:]
    open_splits(config, vocabulary)
    assert len(reads) == 1


def test_other_texts_have_other_names(config, tmp_path):
    names = [part.name for part in open_splits(config)[1:]]
    assert len(set(names)) == 3
    (tmp_path / "a.txt").write_text("abcdefghij" * 9 + "abcdefghii")
    assert all(a != b.name for a, b in zip(names, open_splits(config)[1:], strict=True))


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"split": (0.5, 0.5)}, "three fractions"), ({"split": (1.2, -0.1, -0.1)}, "three fractions"),
        ({"split": (0.0, 0.5, 0.5)}, "three fractions"), ({"batch_size": 0}, r"data\.batch_size is 0"),
        ({"window": 0}, r"data\.window is 0"), ({"min_count": 0}, r"data\.min_count is 0"),
    ],
)  # fmt: skip
def test_settings_out_of_range(config, parts, message):
    with pytest.raises(InputError, match=message):
        open_splits(replace(config, **parts))


def test_unknown_names(config):
    for parts in ({"errors": "ignore"}, {"unit": "page"}, {"vocabulary": "letters"}):
        with pytest.raises(UnknownNameError):
            open_splits(replace(config, **parts))
