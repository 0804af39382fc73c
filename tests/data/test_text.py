import bz2
import gzip
import io
import lzma
import os
import sys
import threading
from types import SimpleNamespace

import pytest

from elman.data import text as texts
from elman.data.text import open_text
from elman.errors import FileError, InputError


def whole(text):
    return "".join(piece for _, piece in text.pieces())


def test_files_folders_and_gz_are_read_in_order(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "b.txt").write_text("bé\n")
    (tmp_path / "folder" / "a.txt").write_text("a\n")
    (tmp_path / "folder" / ".hidden").write_text("no")
    with gzip.open(tmp_path / "c.gz", "wt", encoding="utf-8") as file:
        file.write("ç\n")
    assert whole(open_text([str(tmp_path / "c.gz"), str(tmp_path / "folder")])) == "ç\na\nbé\n"


def test_standard_input_can_be_read_twice(monkeypatch):
    texts._standard_input.cache_clear()
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO("héllo".encode())))
    text = open_text(["-"])
    assert whole(text) == whole(text) == "héllo"
    texts._standard_input.cache_clear()


@pytest.mark.parametrize("chunk", [1, 2, 3, 1 << 20])
def test_characters_across_chunks_and_cuts_by_position(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(texts, "CHUNK", chunk)
    content = "añb€c𝄞d" * 3
    (tmp_path / "t").write_text(content)
    text = open_text([str(tmp_path / "t")])
    assert whole(text) == content
    assert text.measure()[1] == len(content)
    for start in range(0, len(content), 4):
        assert whole(text.cut(start, start + 5)) == content[start : start + 5]


@pytest.mark.parametrize("chunk", [1, 2, 5, 1 << 20])
def test_invalid_utf8_says_where(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(texts, "CHUNK", chunk)
    path = tmp_path / "bad.txt"
    path.write_bytes("é\nab\xe9".encode() + b"\nx\xff y")
    where = path.read_bytes().index(b"\xff")
    with pytest.raises(
        FileError, match=rf"bad\.txt is not UTF-8: byte {where} \(line 3\) is 0xff.*--data\.errors replace.*byte"
    ):
        whole(open_text([str(path)]))
    assert whole(open_text([str(path)], "replace")).endswith("x� y")


def test_a_character_that_the_file_cuts_off_says_where(tmp_path):
    (tmp_path / "t").write_bytes(b"ab\xe2\x82")
    with pytest.raises(FileError, match="byte 2 "):
        whole(open_text([str(tmp_path / "t")]))


def test_the_fingerprint_sees_text_and_files_but_not_names(tmp_path):
    for name, content in (("a", "xy"), ("b", "xy"), ("c", "x"), ("d", "y")):
        (tmp_path / name).write_text(content)

    def mark(*names):
        return open_text([str(tmp_path / n) for n in names]).measure()[0]

    assert mark("a") == mark("b") != mark("c")
    assert mark("c", "d") != mark("a")


def test_what_is_not_there(tmp_path):
    with pytest.raises(FileError, match="no file or folder"):
        open_text([str(tmp_path / "none")])
    with pytest.raises(FileError, match="no file or folder"):
        open_text(["x" * 300])  # longer than any name may be
    with pytest.raises(InputError, match="empty"):
        open_text([""])  # not the folder that one happens to be in
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no text"):
        open_text([str(tmp_path / "empty")])
    (tmp_path / "not.gz").write_text("plain")
    with pytest.raises(FileError, match="cannot read"):
        whole(open_text([str(tmp_path / "not.gz")]))


def test_a_pipe_is_read_once_and_its_text_again_and_again(tmp_path):
    """As in `elman train --data.train <(zcat *.gz)`."""
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=lambda: (tmp_path / "pipe").write_text("from a pipe\n"))
    writer.start()
    text = open_text([str(tmp_path / "pipe")])
    writer.join()
    assert whole(text) == whole(text) == "from a pipe\n"


@pytest.mark.slow
def test_embedded_texts_are_there():
    assert "statement" in whole(open_text(["embedded"]))
    assert next(iter(open_text(["embedded:stdlib"]).pieces()))[1]
    with pytest.raises(KeyError, match="stdlib, topics"):
        open_text(["embedded:nothing"])


def test_names_with_wildcards(tmp_path):
    for name in ("b.txt", "a.txt", "c.md"):
        (tmp_path / name).write_text(name)
    assert [source.name for source in open_text([f"{tmp_path}/*.txt"]).sources] == [
        f"{tmp_path}/a.txt", f"{tmp_path}/b.txt",
    ]  # fmt: skip
    with pytest.raises(FileError, match=r"no file matches .*/\*\.csv"):
        open_text([f"{tmp_path}/*.csv"])
    (tmp_path / "d[1].txt").write_text("x")
    assert open_text([f"{tmp_path}/d[1].txt"]).measure()[1] == 1  # a name that is there is that name


def test_a_mark_in_front_and_line_ends_of_windows_are_no_text(tmp_path, monkeypatch):
    monkeypatch.setattr(texts, "CHUNK", 4)  # so that a line end is cut in two
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfab\r\ncd\rx\r\r\n\xc3\xa9\r")
    assert whole(open_text([str(tmp_path / "a.txt")])) == "ab\ncd\rx\r\né\r"
    kept = open_text([str(tmp_path / "a.txt")], "surrogateescape")  # for a byte vocabulary
    assert whole(kept) == "ab\r\ncd\rx\r\r\né\r"
    (tmp_path / "bad.txt").write_bytes(b"\xef\xbb\xbfab\r\n\xff")
    with pytest.raises(FileError, match=r"byte 7 \(line 2\) is 0xff"):
        whole(open_text([str(tmp_path / "bad.txt")]))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_utf_16_is_named(tmp_path, encoding):
    (tmp_path / "a.txt").write_bytes("the cat sat on the mat".encode(encoding))
    for errors in ("strict", "replace"):
        with pytest.raises(FileError, match=r"a\.txt is not UTF-8 but seems to be UTF-16.*iconv"):
            whole(open_text([str(tmp_path / "a.txt")], errors))
    assert whole(open_text([str(tmp_path / "a.txt")], "surrogateescape"))


def test_a_link_that_leads_nowhere_is_named(tmp_path):
    (tmp_path / "a.txt").symlink_to(tmp_path / "gone.txt")
    with pytest.raises(FileError, match=r"a\.txt is a link to .*gone\.txt, which is not there"):
        open_text([str(tmp_path / "a.txt")])
    with pytest.raises(FileError, match="is a link to"):
        open_text([str(tmp_path / "*.txt")])


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (gzip.compress(b"to be", mtime=0), r"compressed by gzip; name it so that it ends in \.gz"),
        (b"PK\x03\x04\x14\x00", "a zip archive"),
        (b"\x89PNG\r\n\x1a\n\x00\x00", "a PNG image"),
        (b"%PDF-1.7\n%\xe2\xe3", "a PDF document"),
        (b"SQLite format 3\x00\x10\x00", "a SQLite database"),
        (bz2.compress(b"to be"), "compressed by bzip2"),
        (lzma.compress(b"to be"), "compressed by xz"),
        (b"\x7fELF\x02\x01", "a program"),
        ("\ufeffto be".encode("utf-16-le"), "seems to be UTF-16"),
        ("\ufeffto be".encode("utf-16-be"), "seems to be UTF-16"),
    ],
)
def test_what_is_not_text_is_called_what_it_is(tmp_path, content, what):
    (tmp_path / "a.txt").write_bytes(content)
    for errors in ("strict", "replace"):
        with pytest.raises(FileError, match=rf"a\.txt is not .*{what}"):
            list(open_text([str(tmp_path / "a.txt")], errors).pieces())
    assert list(open_text([str(tmp_path / "a.txt")], "surrogateescape").pieces())  # bytes are read as they are


def test_words_that_only_look_like_another_format_are_text(tmp_path):
    for words in ("PKD was an author", "BZh is no word", "GIF8 is one", "%PD"):
        (tmp_path / "a.txt").write_text(words)
        assert "".join(piece for _, piece in open_text([str(tmp_path / "a.txt")]).pieces()) == words
