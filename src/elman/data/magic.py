"""What a file is that is not text, by the bytes it begins with."""

from __future__ import annotations

from elman.errors import FileError

# How it begins, what it is, what to do about it.
MAGIC = (
    (b"\x1f\x8b", "compressed by gzip", "name it so that it ends in .gz, or unpack it: gunzip"),
    (b"PK\x03\x04", "a zip archive (.zip, .docx, .xlsx, .npz and others are)", "unpack it, and name the files in it"),
    (tuple(b"BZh%d1AY&SY" % level for level in range(1, 10)), "compressed by bzip2", "unpack it: bunzip2"),
    (b"\xfd7zXZ\x00", "compressed by xz", "unpack it: unxz"),
    (b"\x28\xb5\x2f\xfd", "compressed by zstd", "unpack it: unzstd"),
    (b"\x89PNG\r\n", "a PNG image", "name a file of text"),
    (b"\xff\xd8\xff", "a JPEG image", "name a file of text"),
    ((b"GIF87a", b"GIF89a"), "a GIF image", "name a file of text"),
    (b"%PDF-", "a PDF document", "take the text out of it: pdftotext"),
    (
        b"SQLite format 3\x00",
        "a SQLite database",
        "write its rows as text, in the CSV mode of sqlite3",
    ),
    (b"PAR1\x15", "a Parquet file", "name it so that it ends in .parquet where those are read, or write it as CSV"),
    (b"\x7fELF", "a program", "name a file of text"),
    (b"\x93NUMPY", "an array of Numpy", "write its numbers as CSV, or as .npz where those are read"),
)


def refuse_binary(name: str, head: bytes) -> None:
    """Raise a FileError that says what a file is, if its first bytes are those of no text.

    >>> refuse_binary("notes.txt", b"To be or not to be")
    """
    for begins, what, remedy in MAGIC:
        if head.startswith(begins):
            raise FileError(f"{name} is not text: by its first bytes it is {what}; {remedy}")
