"""What of some rows is trained on, what is validated on and what is tested on."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TypeVar

import torch

from elman.data.names import Names, names_of
from elman.errors import InputError
from elman.options import whole

R = TypeVar("R")
Split = tuple[float, float, float]


@dataclass(frozen=True)
class SplitConfig:
    """Which files, and which part of them.

    Args:
        train: files, one name or a list
        valid: the same for validation; empty for a part of train
        test: the same for the final test; empty for a part of train
        split: the fractions of train for training, validation and test, split at random
        folds: split train into so many folds, by the number of a row in its file, and test on one; 0 for none
        fold: which fold to test on: the rows whose number modulo folds is this
    """

    train: Names = ""
    valid: Names = ""
    test: Names = ""
    split: Split = (0.9, 0.1, 0.0)
    folds: int = 0
    fold: int = 0


def read_parts(
    config: SplitConfig,
    read: Callable[[Sequence[str]], list[R]],
    number: Callable[[R], int],
    what: str,
    in_memory: Mapping[str, list[R]] | None = None,
) -> tuple[list[R], list[R], list[R]]:
    """The rows to train on, to validate on and to test on; `what` they are called. Those `in_memory` are not read.

    What has no file of its own is drawn from the training rows, the same rows for every seed of a run. With `folds`,
    rows whose `number` in their file leaves the remainder `fold` are for the test.
    """

    def rows_of(part: str) -> list[R]:
        if not in_memory or part not in in_memory:
            return read(names_of(getattr(config, part)))
        if not in_memory[part]:
            raise InputError(f"there are no {what} in data[{part!r}]; give some, or leave it out")
        return in_memory[part]

    rows = rows_of("train")
    _check_folds(config)
    _, valid, test = fractions(config.split, bool(config.valid), bool(config.test or config.folds))
    if not valid and not config.valid:
        raise InputError("there is nothing to validate on: give data.valid, or a larger second part in data.split")
    tests = rows_of("test") if config.test else []
    if config.folds:
        tests = [row for row in rows if number(row) % config.folds == config.fold]
        rows = [row for row in rows if number(row) % config.folds != config.fold]
    tested, validated = round(len(rows) * test), round(len(rows) * valid)
    if valid:
        validated = max(1, validated)  # there must be something to choose the best by
    if tested + validated >= len(rows):
        raise InputError(
            f"there are {len(rows)} {what} to train on, too few to validate on some of them: give more, or data.valid"
        )
    train, drawn_tests, drawn = draw(rows, tested, validated)
    return train, rows_of("valid") if config.valid else drawn, tests or drawn_tests


def draw(rows: Sequence[R], *counts: int) -> list[list[R]]:
    """The rows that are left, then as many as each count says, drawn by chance, always the same; all in their order.

    >>> [len(part) for part in draw(range(10), 1, 2)]
    [7, 1, 2]
    """
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0)).tolist()
    ends = [0, *accumulate(counts)]
    places = [order[ends[-1] :], *(order[a:b] for a, b in pairwise(ends))]
    return [[rows[i] for i in sorted(part)] for part in places]


def fractions(split: Split, valid: bool, test: bool) -> Split:
    """What part of the training data is trained on, validated on and tested on: nothing for what has files of its own.

    >>> fractions((0.8, 0.1, 0.1), valid=True, test=False)
    (0.9, 0.0, 0.1)
    """
    if len(split) != 3 or min(split) < 0 or abs(sum(split) - 1) > 1e-9 or split[0] == 0:
        raise InputError(f"data.split is {split}; it must be three fractions (train, valid, test) that add up to 1")
    validated, tested = 0.0 if valid else split[1], 0.0 if test else split[2]
    return 1 - validated - tested, validated, tested


def _check_folds(config: SplitConfig) -> None:
    if whole("data.folds", config.folds, least=0) == 1:
        raise InputError("data.folds is 1; it must be 0 for none, or at least 2")
    if config.folds and config.test:
        raise InputError("data.folds and data.test exclude each other: the test rows come from one of them")
    if config.folds:
        whole("data.fold", config.fold, least=0, most=config.folds - 1)


def split_summary(what: str, train: int, valid: int, test: int) -> str:
    """How many there are for what.

    >>> split_summary("rows", 90, 10, 0)
    '90 rows to train on, 10 to validate, 0 to test'
    """
    return f"{train:,} {what} to train on, {valid:,} to validate, {test:,} to test"


def fingerprint(contents: Iterable[bytes]) -> str:
    """sha256 of what rows hold, in order."""
    total = hashlib.sha256()
    for content in contents:
        total.update(content)
    return total.hexdigest()


def first_rows(rows: list[R], size: Callable[[R], int], count: int) -> list[R]:
    """Rows from the start, as many as have `count` units, one at least; all where they have no more.

    >>> first_rows(["to be", "or not", "to be"], lambda text: len(text.split()), 4)
    ['to be', 'or not']
    """
    ends = [*accumulate(map(size, rows))]
    return rows if not rows or count >= ends[-1] else rows[: max(1, bisect_right(ends, count))]
