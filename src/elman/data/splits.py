"""What of some rows is trained on, what is validated on and what is tested on."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from elman.data.synthetic import PREFIX, Synthetic, parse
from elman.errors import InputError
from elman.options import whole

R = TypeVar("R")


@dataclass(frozen=True)
class SplitConfig:
    """Which files, and which part of them."""

    train: list[str] | str = ""
    valid: list[str] | str = ""
    test: list[str] | str = ""
    split: tuple[float, float, float] = (0.9, 0.1, 0.0)
    folds: int = 0
    fold: int = 0


def parts(
    config: SplitConfig, read: Callable[[Sequence[str]], list[R]], number: Callable[[R], int], what: str
) -> tuple[list[R], list[R], list[R]]:
    """The rows to train on, to validate on and to test on; `what` they are called.

    What has no file of its own is drawn from the training rows, the same rows for every seed of a run. With `folds`,
    rows whose `number` in their file leaves the remainder `fold` are for the test.
    """
    rows = read(listed(config.train))
    shares = _shares(config)
    test = read(listed(config.test)) if config.test else []
    if config.folds:
        out = [number(row) % config.folds == config.fold for row in rows]
        test = [row for row, held in zip(rows, out, strict=True) if held]
        rows = [row for row, held in zip(rows, out, strict=True) if not held]
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0)).tolist()
    tested, validated = (round(len(rows) * share) for share in (shares[2], shares[1]))
    if shares[1]:
        validated = max(1, validated)  # there must be something to choose the best by
    held = set(order[: tested + validated])
    if len(held) >= len(rows):
        raise InputError(
            f"there are {len(rows)} {what} to train on, too few to validate on some of them: give more, or data.valid"
        )
    test = test or [rows[i] for i in sorted(order[:tested])]
    drawn = [rows[i] for i in sorted(order[tested : tested + validated])]
    valid = read(listed(config.valid)) if config.valid else drawn
    return [row for i, row in enumerate(rows) if i not in held], valid, test


def shown(given: list[str] | str) -> str:
    """The names of files, the first few of many.

    >>> shown(["a", "b", "c", "d"])
    'a, b, c and 1 more'
    """
    names = listed(given)
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def told(what: str, train: int, valid: int, test: int) -> str:
    """How many there are for what.

    >>> told("rows", 90, 10, 0)
    '90 rows to train on, 10 to validate, 0 to test'
    """
    return f"{train:,} {what} to train on, {valid:,} to validate, {test:,} to test"


def is_synthetic(given: list[str] | str) -> bool:
    """Whether the one name that is given is of data that are made up.

    >>> is_synthetic("synthetic:adding,T=600"), is_synthetic(["a.tsv"])
    (True, False)
    """
    names = listed(given)
    made = [name for name in names if name.startswith(PREFIX)]
    if made and len(names) > 1:
        raise InputError(f"{made[0]} is made up, and stands alone; {len(names)} names were given")
    return bool(made)


def synthetic_parts(config: SplitConfig, task: str) -> tuple[Synthetic, Synthetic, Synthetic | None]:
    """What is trained on, validated on (by default more of the same) and tested on, if anything."""
    train = parse(listed(config.train)[0], task)
    others = []
    for name, given in (("data.valid", config.valid), ("data.test", config.test)):
        if given and not is_synthetic(given):
            raise InputError(
                f"{name} is {given}; where data.train is made up it must be too, as {listed(config.train)[0]}"
            )
        others.append(parse(listed(given)[0], task) if given else None)
    return train, others[0] or train, others[1]


def _shares(config: SplitConfig) -> tuple[float, float, float]:
    """What part of the training rows each split is; a split with its own files takes nothing."""
    if len(config.split) != 3 or min(config.split) < 0 or abs(sum(config.split) - 1) > 1e-9 or config.split[0] == 0:
        raise InputError(
            f"data.split is {config.split}; it must be three fractions (train, valid, test) that add up to 1"
        )
    if whole("data.folds", config.folds, least=0) == 1:
        raise InputError("data.folds is 1; it must be 0 for none, or at least 2")
    if config.folds and config.test:
        raise InputError("data.folds and data.test exclude each other: the test rows come from one of them")
    if config.folds:
        whole("data.fold", config.fold, least=0, most=config.folds - 1)
    _, valid, test = config.split
    valid, test = (0.0 if config.valid else valid), (0.0 if config.test or config.folds else test)
    if not valid and not config.valid:
        raise InputError("there is nothing to validate on: give data.valid, or a larger second part in data.split")
    return (1 - valid - test, valid, test)


def listed(given: list[str] | str | os.PathLike[str]) -> list[str]:
    """One name or several, as a list."""
    return [os.fspath(name) for name in ([given] if isinstance(given, str | os.PathLike) else given)]


def refuse_alike(names: Iterable[str], what: str) -> None:
    """Raise an InputError at two names that differ in the spaces around them alone: one class, spelt in two ways.

    >>> refuse_alike(["pos", "neg"], "labels")
    """
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(name.strip(), name)
        if other != name:
            raise InputError(
                f"the {what} {other!r} and {name!r} differ in spaces alone, and would be two classes; write both alike"
            )
