"""g2p_en, which pronounces English words that are in no dictionary, on Elman: the same phonemes, many words at once.

    pip install --no-deps g2p_en
    python recipes/g2p.py                     all figures of docs/results/g2p-en.md
    python recipes/g2p.py activationist       the phonemes of some words

A GRU reads the letters, and its last state is where a second GRU starts, which writes phonemes until it writes the end:

    h = GRU(letters + </s>)          then, from <s>:          h = GRU(E[phoneme], h), the most probable of V h + c

Here both are streams whose rows are words: what several words begin with is read once, a row that has read its last
letter waits, and the writer continues from the reader's state, a value. The products with letters and phonemes are made
once for each symbol. Their package does both for one word at a time, in numpy, and downloads two data sets of NLTK when
it is imported; the weights are in a file, which needs neither. Nothing else is theirs.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn

import elman
from elman.errors import ElmanError, FileError
from elman.nn.embed import Embedding
from elman.nn.readout import Softmax

LETTERS = ["<pad>", "<unk>", "</s>", *"abcdefghijklmnopqrstuvwxyz"]
PHONEMES = [
    "<pad>", "<unk>", "<s>", "</s>", "AA0", "AA1", "AA2", "AE0", "AE1", "AE2", "AH0", "AH1", "AH2", "AO0", "AO1", "AO2",
    "AW0", "AW1", "AW2", "AY0", "AY1", "AY2", "B", "CH", "D", "DH", "EH0", "EH1", "EH2", "ER0", "ER1", "ER2", "EY0",
    "EY1", "EY2", "F", "G", "HH", "IH0", "IH1", "IH2", "IY0", "IY1", "IY2", "JH", "K", "L", "M", "N", "NG", "OW0",
    "OW1", "OW2", "OY0", "OY1", "OY2", "P", "R", "S", "SH", "T", "TH", "UH0", "UH1", "UH2", "UW", "UW0", "UW1", "UW2",
    "V", "W", "Y", "Z", "ZH",
]  # fmt: skip
START, END, LONGEST = 2, 3, 20  # symbols of PHONEMES; and how many are written at most
NAMES = np.array(PHONEMES, object)
UNKNOWN, END_OF_WORD = re.compile("[^a-z]"), "{"  # "{" is sorted behind the letters
SYMBOLS = np.ones(128, np.int64)  # of LETTERS, by what a word is spelled with here; "?" is <unk>
SYMBOLS[[ord(END_OF_WORD), *map(ord, LETTERS[3:])]] = range(2, len(LETTERS))
Weights = Mapping[str, np.ndarray]


class Pronouncer:
    """Words in, phonemes out."""

    def __init__(self, weights: Weights) -> None:
        readout = Softmax(weights["fc_w"].shape[1], len(PHONEMES))
        _copy(readout.linear.weight, weights["fc_w"])
        _copy(readout.linear.bias, weights["fc_b"])
        reader = elman.SequenceModel(_embedding(weights["enc_emb"]), _gru(weights, "enc"), nn.Identity())
        writer = elman.SequenceModel(_embedding(weights["dec_emb"]), _gru(weights, "dec"), readout)
        self._reader, self._writer = elman.Stream(reader.eval(), 1), elman.Stream(writer.eval(), 1)

    def predict(self, words: Sequence[str], together: int = 4096) -> list[list[str]]:
        """The phonemes of each word. A letter that is none of a to z is <unk>."""
        spelled = [UNKNOWN.sub("?", word) + END_OF_WORD for word in words]
        order = sorted(set(spelled))  # words that begin alike stand beside each other
        phonemes: dict[str, list[str]] = {}
        for at in range(0, len(order), together):
            some = order[at : at + together]
            phonemes |= zip(some, self._write(self._read(some)), strict=True)
        return [[*phonemes[word]] for word in spelled]

    def _read(self, words: Sequence[str]) -> elman.State:
        """The state after each of the words, which are sorted and different.

        What several begin with is read once, in the row of the first of them. Where they part, each of the others
        continues from its state: a value, which is copied to the row of its own.
        """
        stream, lengths = self._reader.share(len(words)), np.array([len(word) for word in words])
        inside = np.arange(lengths.max()) < lengths[:, None]
        symbols = np.zeros(inside.shape, np.int64)
        symbols[inside] = SYMBOLS[np.frombuffer("".join(words).encode("ascii"), np.uint8)]
        new = np.ones(inside.shape, bool)  # where a word has begun to differ from the one above it
        new[1:] = np.logical_or.accumulate(symbols[1:] != symbols[:-1], 1)
        before = np.zeros(len(words), np.int64)  # the row that has read what each begins with
        for t in range(symbols.shape[1]):
            rows = np.flatnonzero(new[:, t] & inside[:, t])
            forks = rows[before[rows] != rows]
            if len(forks):
                stream.put(forks, stream.take(before[forks]))
            stream.step(torch.from_numpy(symbols[rows, t]), rows)
            before = np.maximum.accumulate(np.where(new[:, t], np.arange(len(words)), 0))
        return stream.state

    def _write(self, state: elman.State) -> list[list[str]]:
        """The most probable phoneme at each step, from each row of a state, until it is the end."""
        rows = np.arange(len(elman.state.leaves(state)[0]))
        stream = self._writer.share(len(rows))
        stream.state = state
        written = np.full((len(rows), LONGEST + 1), END)
        last = np.full(len(rows), START)
        for t in range(LONGEST):
            last = stream.logits(last, rows).argmax(1)
            rows, last = rows[last != END], last[last != END]
            written[rows, t] = last
        ends = (written == END).argmax(1).tolist()
        return [names[:end] for names, end in zip(NAMES[written].tolist(), ends, strict=True)]


def _gru(weights: Weights, part: str) -> elman.Stack:
    """The GRU, which their names give in PyTorch's layout."""
    size, width = weights[f"{part}_w_ih"].shape
    gru = nn.GRU(width, size // 3, batch_first=True)
    for name in ("w_ih", "w_hh", "b_ih", "b_hh"):
        _copy(getattr(gru, f"{name.replace('w_', 'weight_').replace('b_', 'bias_')}_l0"), weights[f"{part}_{name}"])
    return elman.from_torch(gru).eval()


def _embedding(table: np.ndarray) -> Embedding:
    embed = Embedding(*table.shape)
    _copy(embed.weight, table)
    return embed.eval()


def _copy(parameter: Tensor, values: np.ndarray) -> None:
    with torch.no_grad():
        parameter.copy_(torch.from_numpy(values))


def package_file(name: str) -> Path:
    """A file of the installed package, which is not imported."""
    spec = importlib.util.find_spec("g2p_en")
    if spec is None or not spec.submodule_search_locations:
        raise FileError("g2p_en is not installed: pip install --no-deps g2p_en")
    return Path(spec.submodule_search_locations[0]) / name


def load() -> Pronouncer:
    """With the weights of the installed package, an .npz of plain arrays."""
    with np.load(package_file("checkpoint20.npz"), allow_pickle=False) as weights:
        return Pronouncer(dict(weights))


# Their own network, called without the data that their package downloads.


def theirs() -> Callable[[str], list[str]]:
    """`G2p.predict` of g2p_en, its imports of NLTK and inflect replaced by empty ones: the network needs neither."""
    empty = {name: mock.MagicMock() for name in ("nltk", "nltk.corpus", "nltk.tokenize", "inflect")}
    empty["nltk.corpus"].cmudict.dict.return_value = {}
    with mock.patch.dict(sys.modules, empty):
        from g2p_en import G2p

        predict: Callable[[str], list[str]] = G2p().predict
    return predict


# The figures.

BEGIN = [
    *"bcdfghjklmnprstvwyz",
    "bl",
    "br",
    "ch",
    "fl",
    "gr",
    "kl",
    "ph",
    "qu",
    "sc",
    "sh",
    "sm",
    "sp",
    "str",
    "th",
    "wh",
]
MIDDLE = [*"aeiouy", "ai", "au", "ea", "ee", "ei", "ie", "io", "oa", "oo", "ou", "oi"]
LAST = [
    *"bdfglmnprstxz",
    "ck",
    "ll",
    "nd",
    "nt",
    "rk",
    "st",
    "tch",
    "th",
    "ble",
    "tion",
    "ing",
    "ness",
    "er",
    "ly",
    "ed",
]


def made_words(count: int, seed: int = 0) -> list[str]:
    """Words that are in no dictionary, of one to five syllables; one in ten of letters by chance."""
    random = np.random.default_rng(seed)
    words: set[str] = set()
    while len(words) < count:
        if random.random() < 0.1:
            words.add("".join(random.choice(LETTERS[3:], random.integers(1, 16))))
            continue
        syllables = [random.choice(BEGIN) + random.choice(MIDDLE) for _ in range(random.integers(1, 6))]
        words.add("".join(syllables) + (random.choice(LAST) if random.random() < 0.7 else ""))
    return sorted(words)


def figures(count: int) -> None:
    pronouncer, predict, words = load(), theirs(), made_words(count)
    start = time.perf_counter()
    expected = [predict(word) for word in words]
    seconds = time.perf_counter() - start
    length = np.mean([len(phonemes) for phonemes in expected])
    print(f"{count} words, {length:.1f} phonemes each; g2p_en: {seconds / count * 1e6:.0f} us a word")
    found = pronouncer.predict(words)
    same = sum(a == b for a, b in zip(found, expected, strict=True))
    print(f"equal phonemes: {same} of {count}")
    for threads in (1, 2):
        torch.set_num_threads(threads)
        ours = min(_timed(lambda: pronouncer.predict(words)) for _ in range(5))
        print(f"Elman, {threads} threads: {ours / count * 1e6:.1f} us a word, {seconds / ours:.0f} times as fast")
    torch.set_num_threads(1)
    ours = min(_timed(lambda: [pronouncer.predict([word]) for word in words[:500]]) for _ in range(3)) / 500
    print(f"Elman, a word at a time: {ours * 1e6:.0f} us a word, {seconds / count / ours:.1f} times as fast")


def _timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="words to pronounce")
    parser.add_argument("--count", type=int, default=20_000, help="of made-up words")
    flags = parser.parse_args()
    if not flags.words:
        return figures(flags.count)
    for word, phonemes in zip(flags.words, load().predict([word.lower() for word in flags.words]), strict=True):
        print(f"{word}  {' '.join(phonemes)}")


if __name__ == "__main__":
    try:
        main()
    except ElmanError as error:
        sys.exit(f"g2p: error: {error}")
