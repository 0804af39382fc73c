"""What the data section of a config says, and the texts it names."""

from dataclasses import replace

import pytest

from elman.data import text
from elman.data.vocabulary import from_json
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


def words(config, tmp_path, text, **parts):
    (tmp_path / "a.txt").write_text(text)
    return replace(config, vocabulary="word", **parts)


def test_a_text_is_split_by_numbers_of_words(config, tmp_path):
    """No word is cut, wherever lines end."""
    text = "to be or not\nto be , that is\nthe question : whether"
    by_words = words(config, tmp_path, text, split=(5.0, 3.0, 5.0), line_breaks=False)
    spaced = [" ".join(part.split()) for part in contents(by_words)]
    assert spaced == ["to be or not to", "be , that", "is the question : whether"]
    assert "".join(contents(by_words)) == text
    assert [part.tokens for part in open_splits(by_words)[1:]] == [5, 3, 5]
    with_breaks = words(config, tmp_path, text, split=(5.0, 3.0, 7.0))
    assert [part.tokens for part in open_splits(with_breaks)[1:]] == [5, 3, 7]
    assert contents(with_breaks)[0] == "to be or not\n"


def test_a_text_is_split_by_numbers_of_characters(config):
    assert [len(part) for part in contents(replace(config, split=(70.0, 25.0, 5.0)))] == [70, 25, 5]


def test_words_across_pieces_of_a_file_are_counted_once(config, tmp_path, monkeypatch):
    monkeypatch.setattr(text, "CHUNK", 7)
    by_words = words(config, tmp_path, "alpha beta gamma delta epsilon", split=(2.0, 2.0, 1.0), line_breaks=False)
    assert [part.split() for part in contents(by_words)] == [["alpha", "beta"], ["gamma", "delta"], ["epsilon"]]


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"split": (2.0, 1.0, 1.0)}, r"adds up to 4; the text has 5 words\."),
        ({"split": (0.0, 4.0, 1.0)}, "the first above 0"),
        ({"split": (3.0, 1.0, 1.0), "line_breaks": True}, "the text has 6 words and lines"),
        ({"split": (3.0, 1.0, 1.0), "valid": "b.txt"}, "without data.valid"),
        ({"split": (3.0, 1.0, 1.0), "vocabulary": "byte", "line_breaks": True}, "vocabulary char or word"),
        ({"vocabulary": "char"}, "line_breaks is false with vocabulary char"),
    ],
)
def test_what_a_split_by_words_refuses(config, tmp_path, parts, message):
    by_words = words(config, tmp_path, "to be or\nnot be", line_breaks=False)
    with pytest.raises(InputError, match=message):
        open_splits(replace(by_words, **parts))


def test_symbols_of_all_parts_are_counted_where_that_is_asked_for(config, tmp_path):
    """A word at the end of a part and one at the start of the next are two words."""
    text = "a a d d b c c b b e"  # in the training part (6 words), b and c occur once
    few = words(config, tmp_path, text, split=(6.0, 2.0, 2.0), line_breaks=False, min_count=2)
    assert open_splits(few).vocabulary.names == ("a", "d")
    splits = open_splits(replace(few, count_all=True))
    assert splits.vocabulary.names == ("b", "a", "c", "d") and splits.test.unknown == 1


def test_words_of_two_files_are_not_one_word(config, tmp_path):
    (tmp_path / "b.txt").write_text("be not")
    both = words(config, tmp_path, "to be or to", split=(0.9, 0.1, 0.0), valid=str(tmp_path / "b.txt"), count_all=True)
    assert set(open_splits(both).vocabulary.names) == {"to", "be", "or", "not"}


def test_a_model_keeps_that_line_breaks_are_spaces(config, tmp_path):
    few = words(config, tmp_path, "to be\nor not to be\n" * 9, split=(0.8, 0.1, 0.1), line_breaks=False)
    vocabulary = open_splits(few).vocabulary
    assert "\n" not in vocabulary.names and "\n" in open_splits(replace(few, line_breaks=True)).vocabulary.names
    again = from_json(vocabulary.to_json())
    assert again.encode("to\n\nbe").tolist() == [vocabulary.names.index(word) + 2 for word in ("to", "be")]
    assert again.encode_known("to\nbe").size == 2


def test_unknown_names(config):
    for parts in ({"errors": "ignore"}, {"unit": "page"}, {"vocabulary": "letters"}):
        with pytest.raises(UnknownNameError):
            open_splits(replace(config, **parts))
