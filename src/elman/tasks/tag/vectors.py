"""Word vectors as GloVe, word2vec and fastText write them as text: a word and its numbers a line, plain or .gz."""

from __future__ import annotations

from collections.abc import Iterator, Set

import numpy as np
from numpy.typing import NDArray

from elman.data.text import open_text
from elman.data.vocabulary import rejoin
from elman.errors import FileError

Vector = NDArray[np.float32]


def read_vectors(name: str, wanted: Set[str], width: int) -> dict[str, Vector]:
    """The vectors of the words that are wanted, each of `width` numbers. Of a word that comes twice, the first."""
    vectors: dict[str, Vector] = {}
    number = 0
    for number, line in enumerate(_lines(name), 1):
        word, *numbers = line.rstrip().split(" ")
        if number == 1 and len(numbers) == 1 and word.isdecimal() and numbers[0].isdecimal():
            continue  # how many words of how many numbers: word2vec and fastText
        if not numbers and not word:
            continue
        # A word may have spaces in it, as a few of GloVe's do.
        word, numbers = " ".join([word, *numbers[: max(0, len(numbers) - width)]]), numbers[-width:]
        if len(numbers) != width:
            raise FileError(
                f"line {number} of {name} has {len(numbers)} numbers; model.embedding_size is {width}. "
                "Set it to the width of the vectors, or correct the file."
            )
        try:
            vector = np.array(numbers, np.float32)
        except ValueError as error:
            raise FileError(f"line {number} of {name} is not a word and {width} numbers: {error}") from error
        if word in wanted and word not in vectors:
            vectors[word] = vector
    if not number:
        raise FileError(f"{name} is empty: there is nothing to read in it")
    return vectors


def _lines(name: str) -> Iterator[str]:
    pieces = (piece for _, piece in open_text([name], "replace").pieces("reading the vectors"))
    for piece in rejoin(pieces, lambda text: text.rfind("\n") + 1):
        yield from piece.removesuffix("\n").split("\n")
