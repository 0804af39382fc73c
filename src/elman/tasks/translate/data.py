"""Sentence pairs: two parallel files, a table of two columns (.tsv), or JSON lines with `source` and `target`.

Every line is a pair, so an empty line counts. A pair that cannot be trained on (an empty side, more than max_length
symbols) is an error that names its line, or is left out where that is asked for.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from elman.data import splits
from elman.data import vocabulary as vocabularies
from elman.data.batches import Batch, padded
from elman.data.cache import Ids, encode_lines
from elman.data.records import json_fields, text_field
from elman.data.synthetic import SyntheticRow
from elman.data.text import read_lines
from elman.data.vocabulary import BOUNDARY, Vocabulary
from elman.errors import InputError
from elman.files.config import Json
from elman.options import choice, whole

FORMATS = ("auto", "text", "tsv", "jsonl")
ENDINGS = {".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl"}


class Pair(NamedTuple):
    """A sentence, its translation (None where there is none), and where they are."""

    source: str
    target: str | None
    where: str


@dataclass(frozen=True)
class PairReader:
    """How pairs are read, as the data section of a config says it (`TranslateDataConfig`)."""

    format: str = "auto"
    errors: str = "strict"

    def __call__(self, source: Sequence[str], target: Sequence[str] = (), *, paired: bool = True) -> list[Pair]:
        """The pairs of some files; without `paired`, the sources alone."""
        choice("data.format", self.format, FORMATS)
        return list(self._pairs(source, target, paired))

    def _pairs(self, source: Sequence[str], target: Sequence[str], paired: bool) -> Iterator[Pair]:
        files = list(read_lines(source, self.errors))
        formats = {self._format(name, bool(target) or not paired) for name, _ in files}
        if target and formats != {"text"}:
            raise InputError(f"{files[0][0]} has both sides of its pairs; leave data.target, {target[0]}, out")
        if target:
            yield from _parallel(files, list(read_lines(target, self.errors)))
            return
        for name, lines in files:
            format = self._format(name, not paired)
            for number, line in enumerate(lines, 1):
                yield _pair(format, line, f"line {number} of {name}", paired)

    def _format(self, name: str, alone: bool) -> str:
        """What a file is; one side of parallel files, or a file of sources `alone`, is text unless its name says."""
        if self.format != "auto":
            return self.format
        format = ENDINGS.get(Path(name.removesuffix(".gz")).suffix.lower(), "text")
        if format == "text" and not alone:
            raise InputError(f"{name} is read as plain text, which has one side only: name the other, data.target too")
        return format


def _parallel(source: list[tuple[str, list[str]]], target: list[tuple[str, list[str]]]) -> Iterator[Pair]:
    if len(source) != len(target):
        raise InputError(f"there are {len(source)} files of sources and {len(target)} of targets; each needs its own")
    for (name, sources), (other, targets) in zip(source, target, strict=True):
        if len(sources) != len(targets):
            short = min(len(sources), len(targets)) + 1
            raise InputError(
                f"{name} has {len(sources)} lines, {other} has {len(targets)}: line {short} has no counterpart. Line i "
                "of the one must translate line i of the other."
            )
        for number, (a, b) in enumerate(zip(sources, targets, strict=True), 1):
            yield Pair(a, b, f"line {number} of {name}")


def _pair(format: str, line: str, where: str, paired: bool) -> Pair:
    if format == "text":
        return Pair(line, None, where)
    if format == "tsv":
        cells = line.split("\t")
        if paired and len(cells) < 2:
            raise InputError(f"{where} has no tab; a line is a source, a tab and its target")
        return Pair(cells[0], cells[1] if paired else None, where)
    fields = ("source", "target") if paired else ("source",)
    content = json_fields(line, where, fields)
    source, *target = (text_field(content, field, where) for field in fields)
    return Pair(source, target[0] if paired else None, where)


def synthetic_pairs(rows: Sequence[SyntheticRow]) -> list[Pair]:
    """Pairs of synthetic rows of words."""
    return [Pair(" ".join(row.input), " ".join(row.label), f"row {i}") for i, row in enumerate(rows, 1)]


def fingerprint(pairs: Iterable[Pair]) -> str:
    """sha256 of both sides, in order."""
    return splits.fingerprint(json.dumps([pair.source, pair.target]).encode() for pair in pairs)


class Vocabularies(NamedTuple):
    """The symbols of both sides; one and the same where they are joint."""

    source: Vocabulary
    target: Vocabulary

    def to_json(self) -> list[Json]:
        """Each side, or both at once where they are joint."""
        return [side.to_json() for side in (self[:1] if self.source is self.target else self)]


def fit(pairs: Sequence[Pair], kind: str, joint: bool, min_count: int, size: int) -> Vocabularies:
    """What the pairs need."""
    made = vocabularies.kind(kind)
    between = {"char": "", "word": " "}.get(kind, "\n")  # no symbol of its own: a line has none
    sides = [[f"{pair.source}{between}" for pair in pairs], [f"{pair.target}{between}" for pair in pairs]]
    if joint:
        both = made.fit((line for side in sides for line in side), min_count, size)
        return Vocabularies(both, both)
    return Vocabularies(*(made.fit(iter(side), min_count, size) for side in sides))


class Encoded(NamedTuple):
    """The symbols of pairs, each side a row of its own."""

    source: list[Ids]
    target: list[Ids]


def encode(pairs: Sequence[Pair], symbols: Vocabularies) -> Encoded:
    """From the cache, memory-mapped, if they are there."""
    targets = [pair.target or "" for pair in pairs]
    return Encoded(encode_lines([pair.source for pair in pairs], symbols.source), encode_lines(targets, symbols.target))


def unknown_rates(rows: Encoded, symbols: Vocabularies) -> tuple[float, float]:
    """The share of the symbols of each side that its vocabulary lacks: of sources, and of targets."""
    rates = []
    for side, own in zip(rows, symbols, strict=True):
        lacking = 0 if own.unknown is None else sum(int((ids == own.unknown).sum()) for ids in side)
        rates.append(lacking / max(1, sum(len(ids) for ids in side)))
    return rates[0], rates[1]


def spelt_rates(source: float, target: float) -> str:
    """What to say of unknown symbols, if there are any.

    >>> spelt_rates(0.0213, 0.0), spelt_rates(0.0, 0.0)
    ('unknown: 2.13% of the source, 0.00% of the target', '')
    """
    return f"unknown: {source:.2%} of the source, {target:.2%} of the target" if source or target else ""


def encode_now(pairs: Sequence[Pair], symbols: Vocabularies) -> Encoded:
    """Without the cache: of pairs that are synthetic, and read once."""
    source = [symbols.source.encode(pair.source) for pair in pairs]
    return Encoded(source, [symbols.target.encode(pair.target or "") for pair in pairs])  # type: ignore[arg-type]


def usable(pairs: Sequence[Pair], symbols: Vocabularies, max_length: int, drop: bool) -> tuple[list[Pair], Encoded]:
    """The pairs that can be trained on, and their symbols; an InputError at another, unless it is dropped."""
    whole("data.max_length", max_length)
    rows = encode(pairs, symbols)
    good = []
    for i, pair in enumerate(pairs):
        why = _trouble(pair, len(rows.source[i]), len(rows.target[i]), max_length)
        if why and not drop:
            raise InputError(f"{pair.where} {why}; to leave such pairs out: --data.drop true")
        if not why:
            good.append(i)
    if not good:
        raise InputError("no pair is left to train on: all have an empty side or are longer than data.max_length")
    return [pairs[i] for i in good], Encoded([rows.source[i] for i in good], [rows.target[i] for i in good])


def _trouble(pair: Pair, source: int, target: int, most: int) -> str:
    if not source or not target:
        return f"has an empty {'target' if source else 'source'}"
    longest = max(source, target)
    return f"has {longest} symbols, more than data.max_length, {most}" if longest > most else ""


class Pairs(NamedTuple):
    """What a model of pairs reads, as tensors. The target begins with the boundary, and lacks its last symbol."""

    source: Tensor  # (B, S)
    sizes: Tensor  # (B,): how long each source is
    target: Tensor  # (B, T)
    draws: Tensor  # (B, 2): the seed and the number of what each row draws
    truth: Tensor  # (B,): how often the previous symbol is the true one


def batch_of(rows: Sequence[tuple[Ids, Ids]], draws: Tensor | None = None, truth: float = 1.0) -> Batch:
    """Pairs of symbols side by side; the targets end with the boundary.

    >>> batch = batch_of([(np.array([5, 6]), np.array([7]))])
    >>> batch.x.target.tolist(), batch.y.tolist()
    ([[0, 7]], [[7, 0]])
    """
    source, sizes = padded([_tensor(ids) for ids, _ in rows])
    end = torch.tensor([BOUNDARY])
    y, lengths = padded([torch.cat([_tensor(ids), end]) for _, ids in rows])
    target, _ = padded([torch.cat([end, _tensor(ids)]) for _, ids in rows])
    reset = torch.zeros_like(y, dtype=torch.bool)
    draws = torch.zeros(len(rows), 2, dtype=torch.int64) if draws is None else draws
    return Batch(Pairs(source, sizes, target, draws, torch.full((len(rows),), truth)), y, reset, lengths)


def _tensor(ids: Ids) -> Tensor:
    return torch.from_numpy(np.asarray(ids, np.int64))
