"""Synthetic sequences on which memories are compared. Each batch depends on the seed and its number alone.

adding          T pairs (a number from 0 to 1, a mark); the label is the sum of the two marked numbers, one in
                each half (Hochreiter and Schmidhuber, 1997). Always to answer 1 costs 1/6 in mean squares.
parity          T bits; the label is whether there is an odd number of ones.
copy            `tokens` of `vocabulary` symbols, T blanks, the last of which is a cue, then `tokens` blanks, where
                the symbols are to be said again (Arjovsky et al., 2016). Every step has a tag, blank before the
                answer: without a memory it costs tokens log(vocabulary) / (T + 2 tokens) nats a step.
selective-copy  `tokens` symbols scattered among blanks, T in all, then as many cues, where they are to be said again
                in order (Gu and Dao, 2023). Only the answer has tags. With `least`, the T of a batch lies anywhere
                between the two, each factor of 2 as often as any other.
reverse         `least` to T of `vocabulary` symbols; the target is the same backwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from elman.data.batches import Batch, Position, check_shared
from elman.data.names import Names, names_of
from elman.errors import InputError, UnknownNameError
from elman.options import whole

# And the task of each.
KINDS = {"adding": "classify", "parity": "classify", "copy": "tag", "selective-copy": "tag", "reverse": "translate"}
PREFIX = "synthetic:"
BLANK, CUE, UNTAGGED = "_", "?", ""

R = TypeVar("R")


class SyntheticRow(NamedTuple):
    """An input, and its label; or words, and a tag for each, UNTAGGED where there is none."""

    input: str | NDArray[np.float32] | list[str]
    label: str | list[str]


@dataclass(frozen=True)
class Synthetic:
    """What `synthetic:KIND,T=600` says.

    >>> parse("synthetic:parity,T=5").rows(seed=0, number=0, count=1)[0].label in ("odd", "even")
    True

    Args:
        kind: one of KINDS
        T: how long, at most where lengths differ
        least: how long at least where lengths differ; None for 1 in reverse, for T in selective-copy
        tokens: symbols to remember
        vocabulary: how many different symbols there are
        n: rows to evaluate on
        seed: of the rows to evaluate on
    """

    kind: str
    T: int = 100
    least: int | None = None
    tokens: int = 10
    vocabulary: int = 8
    n: int = 1000
    seed: int = 1

    def rows(self, seed: int, number: int, count: int) -> list[SyntheticRow]:
        """The rows of batch `number`."""
        random = np.random.Generator(np.random.Philox(key=[seed, number]))
        return {
            "adding": self._adding, "parity": self._parity, "copy": self._copy, "selective-copy": self._selective,
            "reverse": self._reverse,
        }[self.kind](random, count)  # fmt: skip

    def part(self, shift: int = 0) -> list[SyntheticRow]:
        """The rows to evaluate on."""
        return self.rows(self.seed + shift, 2**62, self.n)

    def examples(self) -> list[SyntheticRow]:
        """Rows in which every symbol occurs, and numbers are as large as they are: what inputs are fitted to."""
        return self.part(1) if KINDS[self.kind] == "classify" else self.rows(0, 2**62 + 1, 64)

    def _adding(self, random: np.random.Generator, count: int) -> list[SyntheticRow]:
        x = np.zeros((count, self.T, 2), np.float32)
        x[..., 0] = random.random((count, self.T), np.float32)
        half = self.T // 2
        first, second = random.integers(0, half, count), random.integers(half, self.T, count)
        rows = np.arange(count)
        x[rows, first, 1] = x[rows, second, 1] = 1
        sums = x[rows, first, 0].astype(np.float64) + x[rows, second, 0]
        return [SyntheticRow(x[i], repr(float(sums[i]))) for i in range(count)]

    def _parity(self, random: np.random.Generator, count: int) -> list[SyntheticRow]:
        bits = random.integers(0, 2, (count, self.T))
        return [SyntheticRow("".join(map(str, row)), "odd" if row.sum() % 2 else "even") for row in bits]

    def _copy(self, random: np.random.Generator, count: int) -> list[SyntheticRow]:
        symbols = random.integers(0, self.vocabulary, (count, self.tokens)).astype(str)
        wait, again = [BLANK] * (self.T - 1) + [CUE], [BLANK] * self.tokens
        before = [BLANK] * (self.tokens + self.T)
        return [SyntheticRow([*row, *wait, *again], [*before, *row]) for row in symbols.tolist()]

    def _selective(self, random: np.random.Generator, count: int) -> list[SyntheticRow]:
        made = []
        T = self.T if self.least is None else round(self.least * (self.T / self.least) ** random.random())
        for row in random.integers(0, self.vocabulary, (count, self.tokens)).astype(str).tolist():
            words = [BLANK] * T + [CUE] * self.tokens
            for place, symbol in zip(sorted(random.permutation(T)[: self.tokens]), row, strict=True):
                words[place] = symbol
            made.append(SyntheticRow(words, [UNTAGGED] * T + row))
        return made

    def _reverse(self, random: np.random.Generator, count: int) -> list[SyntheticRow]:
        lengths = random.integers(self.least or 1, self.T + 1, count)
        rows = [random.integers(0, self.vocabulary, n).astype(str).tolist() for n in lengths]
        return [SyntheticRow(row, row[::-1]) for row in rows]


def parse(name: str, task: str | None = None) -> Synthetic:
    """What a name such as `synthetic:copy,T=1000,tokens=10` means, for a task that must fit it."""
    kind, *settings = name.removeprefix(PREFIX).split(",")
    if kind not in KINDS:
        raise UnknownNameError("synthetic data", kind, KINDS)
    if task is not None and KINDS[kind] != task:
        raise InputError(f"{PREFIX}{kind} is for the task {KINDS[kind]}: elman train --task {KINDS[kind]}")
    known = {part.name for part in fields(Synthetic)} - {"kind"}
    options: dict[str, int] = {}
    for setting in settings:
        key, _, value = setting.partition("=")
        if key not in known:
            raise UnknownNameError(f"setting of {PREFIX}{kind}", key, sorted(known))
        if not value.isdecimal():
            raise InputError(f"{name} has {key}={value}; it must be a whole number")
        options[key] = int(value)
    made = Synthetic(kind, **options)
    for key, least in (("T", 2), ("tokens", 1), ("vocabulary", 2), ("n", 2), ("seed", 0)):
        whole(f"{key} of {name}", getattr(made, key), least=least)
    shortest = made.T if made.least is None else whole(f"least of {name}", made.least, most=made.T)
    if kind == "selective-copy" and made.tokens > shortest:
        raise InputError(f"{name} has {made.tokens} tokens in {shortest} steps; there must be room for them")
    return made


def is_synthetic(value: Names) -> bool:
    """Whether the one name that is given is of synthetic data.

    >>> is_synthetic("synthetic:adding,T=600"), is_synthetic(["a.tsv"])
    (True, False)
    """
    names = names_of(value)
    synthetic = [name for name in names if name.startswith(PREFIX)]
    if synthetic and len(names) > 1:
        raise InputError(
            f"{synthetic[0]} is synthetic, and cannot be combined with other names; {len(names)} names were given"
        )
    return bool(synthetic)


class SyntheticData(NamedTuple):
    """What is trained on, batch after batch without end; validated on, by default more of the same; and tested on, if
    anything."""

    train: Synthetic
    valid: Synthetic
    test: Synthetic | None

    @staticmethod
    def open(train: Names, valid: Names, test: Names, task: str) -> SyntheticData:
        """Of the names in a config."""
        first = names_of(train)[0]
        for name, given in (("data.valid", valid), ("data.test", test)):
            if given and not is_synthetic(given):
                raise InputError(f"{name} is {given}; where data.train is synthetic it must be too, as {first}")
        others = [parse(names_of(given)[0], task) if given else None for given in (valid, test)]
        source = parse(first, task)
        return SyntheticData(source, others[0] or source, others[1])

    def parts(self, convert: Callable[[Sequence[SyntheticRow]], list[R]]) -> tuple[list[R], list[R], list[R]]:
        """Rows to fit inputs to, to validate on and to test on, as a task has them."""
        test = self.test.part() if self.test else []
        return convert(self.train.examples()), convert(self.valid.part()), convert(test)


class SyntheticBatches:
    """Batches that depend on a seed and their number alone: what process `rank` of `world` trains on.

    `make` makes a batch of this process's rows and the number of the batch.
    """

    def __init__(
        self, source: Synthetic, batch_size: int, seed: int, make: Callable[[list[SyntheticRow], int], Batch],
        rank: int = 0, world: int = 1,
    ) -> None:  # fmt: skip
        self.batch_size = check_shared(batch_size, world)
        self.source, self.seed, self.make, self.rank, self.world = source, seed, make, rank, world

    def batch(self, at: Position) -> Batch:
        rows = self.source.rows(self.seed, at.window, self.batch_size)
        return self.make(rows[self.rank :: self.world], at.window)

    def after(self, at: Position) -> Position:
        return Position(0, at.window + 1)
