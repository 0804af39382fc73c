import gzip
import json

import numpy as np
import pytest

from elman.errors import ElmanError, FileError, InputError
from elman.tasks.tag.data import TagReader, fingerprint
from elman.tasks.tag.vectors import read_vectors
from elman.tasks.tree.data import TreeReader

COLUMNS = "He PRP B-NP\nreckons VBZ B-VP\n\n\nthe DT B-NP\n"
CONLLU = """# sent_id = 1
1-2\tDu\t_\t_\t_\t_\t_\t_\t_\t_
1\tDe\tde\tADP\t_\t_\t0\troot\t_\t_
2\tle\tle\tDET\t_\t_\t1\tdet\t_\t_
2.1\tx\tx\tX\t_\t_\t_\t_\t_\t_

"""


def read(tmp_path, name, content, tagged=True, **settings):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return TagReader(**settings)([str(path)], tagged=tagged)


def pairs(sentences):
    return [(list(s.words), list(s.tags)) for s in sentences]


def test_columns(tmp_path):
    wanted = [(["He", "reckons"], ["B-NP", "B-VP"]), (["the"], ["B-NP"])]
    assert pairs(read(tmp_path, "a.txt", COLUMNS)) == wanted
    assert pairs(read(tmp_path, "a.txt.gz", gzip.compress(COLUMNS.encode()))) == wanted
    assert pairs(read(tmp_path, "a.txt", COLUMNS.replace("\n", "\r\n").replace(" ", "\t"))) == wanted
    found = read(tmp_path, "a.txt", COLUMNS, features=[1], tag=2)
    assert found[0].features == [["PRP", "VBZ"]] and found[1].where.startswith("line 5 of") and found[1].number == 1
    assert pairs(read(tmp_path, "a.txt", COLUMNS, word=1, tag="0"))[0] == (["PRP", "VBZ"], ["He", "reckons"])
    named = "# global.columns = WORD POS CHUNK\n" + COLUMNS
    assert pairs(read(tmp_path, "b.txt", named, word="word", tag="chunk")) == wanted
    assert found[0].lines == ["He PRP B-NP", "reckons VBZ B-VP"]


def test_conllu_leaves_out_what_is_not_a_word(tmp_path):
    assert pairs(read(tmp_path, "a.conllu", CONLLU)) == [(["De", "le"], ["ADP", "DET"])]
    assert pairs(read(tmp_path, "a.conllu", CONLLU, tag="deprel")) == [(["De", "le"], ["root", "det"])]


def test_json_lines_and_text(tmp_path):
    line = json.dumps({"tokens": ["a", "b"], "tags": ["X", "Y"]}) + "\n"
    assert pairs(read(tmp_path, "a.jsonl", line)) == [(["a", "b"], ["X", "Y"])]
    assert pairs(read(tmp_path, "a.txt", "He reckons\n\nthe\n", tagged=False, format="text"))[1] == (["the"], [])
    assert pairs(read(tmp_path, "a.txt", "He\nreckons\n", tagged=False)) == [(["He", "reckons"], [])]


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("a.txt", "", "empty"),
        ("a.txt", "a X\nb\n", "line 2 of .* has 1 columns; those before it have 2"),
        ("a.txt", "a\nb\n", "line 1 of .* has one column"),
        ("a.txt", b"a\xff X\n", "not UTF-8"),
        ("a.conllu", "1\ta\n", "line 1 of .* has 2 columns; CoNLL-U has 10"),
        ("a.jsonl", '{"tokens": ["a"], "tags": []}\n', "1 tokens and 0 of"),
        ("a.jsonl", '{"tokens": ["a"]}\n', "line 1 of .*'tags'"),
    ],
)
def test_bad_files_name_the_line(tmp_path, name, content, message):
    with pytest.raises(ElmanError, match=message):
        read(tmp_path, name, content)


def test_columns_that_are_not_there(tmp_path):
    with pytest.raises(InputError, match="no column 'upos'"):
        read(tmp_path, "a.txt", COLUMNS, tag="upos")
    with pytest.raises(InputError, match="there is no number 7"):
        read(tmp_path, "a.txt", COLUMNS, features=[7])


def test_fingerprints_tell_sentences_apart(tmp_path):
    one, other = read(tmp_path, "a.txt", COLUMNS), read(tmp_path, "b.txt", COLUMNS.replace("\n\n\n", "\n"))
    assert fingerprint(one) != fingerprint(other)


def test_vectors(tmp_path):
    glove, word2vec = tmp_path / "a.txt", tmp_path / "b.vec.gz"
    glove.write_text("the 1 2\n. . 5 6\nof 3 4\nthe 9 9\n")
    word2vec.write_bytes(gzip.compress(b"2 2\nthe 1 2\nof 3 4\n"))
    for path in (glove, word2vec):
        found = read_vectors(str(path), {"the", "of", "no"}, 2)
        assert found.keys() == {"the", "of"}
        np.testing.assert_array_equal(found["the"], [1, 2])
    np.testing.assert_array_equal(read_vectors(str(glove), {". ."}, 2)[". ."], [5, 6])
    glove.write_text("the 1 2\nof 3\n")
    with pytest.raises(FileError, match=r"line 2 of .* 1 numbers; model\.embedding_size is 2"):
        read_vectors(str(glove), set(), 2)
    glove.write_text("the 1 2\nof 3 x\n")
    with pytest.raises(FileError, match="line 2 of"):
        read_vectors(str(glove), set(), 2)


UD = """# sent_id = 1
# text = vamonos ahora
1-2\tvamonos\t_\t_\t_\t_\t_\t_\t_\tSpaceAfter=No
1\tvamos\tir\tVERB\t_\tMood=Imp\t0\troot\t_\t_
2\tnos\tnosotros\tPRON\t_\t_\t1\tobj\t_\t_
2.1\tya\tya\tADV\t_\t_\t_\t_\t1:advmod\t_
3\tahora\tahora\tADV\t_\t_\t1\tadvmod\t_\t_

"""


def test_conllu_is_known_by_its_content(tmp_path):
    for name in ("dev.txt", "dev", "dev.conllu", "dev.txt.gz"):
        path = tmp_path / name
        path.write_bytes(gzip.compress(UD.encode()) if name.endswith("gz") else b"\xef\xbb\xbf" + UD.encode())
        for tagged in (True, False):
            (sentence,) = TagReader()([str(path)], tagged=tagged)
            assert sentence.words == ["vamos", "nos", "ahora"]
        assert TreeReader()([str(path)])[0].labels == ["root", "obj", "advmod"]
    ten = "1\tHe\tx\tx\tx\tx\tx\tx\tx\tB-NP\n"  # columns of one's own
    (tmp_path / "own.txt").write_text(ten)
    assert TagReader(word=1)([str(tmp_path / "own.txt")])[0].tags == ["B-NP"]
    (tmp_path / "json").write_text('{"tokens": ["He"], "tags": ["B-NP"]}\n')
    assert TagReader()([str(tmp_path / "json")])[0].words == ["He"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("The cat sat on the mat .\nHe ran .\n", [["The", "cat", "sat", "on", "the", "mat", "."], ["He", "ran", "."]]),
        ("The cat sat\n", [["The", "cat", "sat"]]),
        ("The cat sat\n\nHe ran off\n", [["The", "cat", "sat"], ["He", "ran", "off"]]),
        ("The\ncat\n\nHe\n", [["The", "cat"], ["He"]]),  # one word a line
        ("The\tDT\ncat\tNN\n", [["The", "cat"]]),
        ("The DT B-NP\ncat NN I-NP\n", [["The", "cat"]]),  # its tags are known
    ],
)
def test_plain_text_is_told_from_columns(tmp_path, content, words):
    (tmp_path / "raw.txt").write_text(content)
    found = TagReader()([str(tmp_path / "raw.txt")], tagged=False, known={"NP", "O"})
    assert [list(sentence.words) for sentence in found] == words


def test_what_may_be_text_or_columns_is_asked_for(tmp_path):
    (tmp_path / "raw.txt").write_text("The cat sat\nHe ran off\n")
    with pytest.raises(InputError, match=r"raw\.txt may be plain text.*--format text or --format columns"):
        TagReader()([str(tmp_path / "raw.txt")], tagged=False, known={"NP", "O"})
    assert len(TagReader("columns")([str(tmp_path / "raw.txt")], tagged=False)) == 1
    assert len(TagReader("text")([str(tmp_path / "raw.txt")], tagged=False)) == 2
    assert len(TagReader(features=[1])([str(tmp_path / "raw.txt")], tagged=False)) == 1  # text has no other columns
