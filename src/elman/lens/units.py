"""Which units follow something: how well each number of the state alone predicts where a property holds.

    AUC[i] = P(s_i > s_i')        s where the property holds, s' where it does not; ties count one half

1/2 is chance; 1, or 0 with the sign turned, is a unit that predicts it without an error. Numbers (position, steps since
a newline) count as true above their median. Properties of text are read from the inputs' names; labels are the user's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

OPEN, CLOSE = "([{<", ")]}>"
MOST = 8192  # steps that are compared


@dataclass(frozen=True)
class Follower:
    """The units of a layer that follow a property best, best first."""

    layer: str
    label: str
    units: list[int]
    auc: list[float]  # of each, above or below one half


def properties(names: Sequence[Sequence[str]], T: int) -> dict[str, Tensor]:
    """Properties after each input (B, T), by name, read from the text of the inputs.

    >>> properties([['a', '"', 'b', '"']], 4)["inside quotes"].tolist()
    [[0.0, 1.0, 1.0, 0.0]]
    """
    values = {"position": torch.arange(T).float().expand(len(names), T).clone()}
    if not any(letter.isalpha() for row in names for name in row for letter in name):
        return values  # numbers have no quotes
    rows = [_row(row) for row in names]
    for label in rows[0] if rows else ():
        values[label] = torch.stack([torch.tensor((row[label] + [0.0] * T)[:T]) for row in rows])
    return values


def _row(names: Sequence[str]) -> dict[str, list[float]]:
    labels = ("inside quotes", "in brackets", "since the last newline", "digits", "capitals", "spaces")
    columns: dict[str, list[float]] = {label: [] for label in labels}
    quoted, depth, since = False, 0, 0
    for name in names:
        for letter in name:
            quoted = letter == "“" or (quoted != (letter == '"') and letter != "”")
            depth = max(0, depth + (letter in OPEN) - (letter in CLOSE))
            since = 0 if letter == "\n" else since + 1
        values = (quoted, depth > 0, since, any(map(str.isdigit, name)), name[:1].isupper(), name.isspace())
        for label, value in zip(labels, values, strict=True):
            columns[label].append(float(value))
    return columns


def units(layer: str, values: Tensor, labels: dict[str, Tensor], inside: Tensor, best: int = 5) -> list[Follower]:
    """The best followers of each label (B, T) among the units values (B, T, N), where `inside` (B, T)."""
    every = torch.arange(int(inside.sum()))
    some = every[:: max(1, len(every) // MOST)]
    v = values[inside][some]
    ranks = _ranks(v) if labels else v
    rows = []
    for label, where in labels.items():
        w = where[inside][some]
        there = w > w.median() if len(w.unique()) > 2 else w > 0.5
        if 0 < int(there.sum()) < len(there):
            auc = _auc(ranks, there)
            chosen = (auc - 0.5).abs().argsort(descending=True)[:best]
            rows.append(Follower(layer, label, chosen.tolist(), auc[chosen].tolist()))
    return rows


def _ranks(v: Tensor) -> Tensor:
    """The rank of each number in its column (M, N), from 1; equal numbers share the mean of theirs."""
    forward = _places(v)
    backward = _places(v.flip(0)).flip(0)  # equal ones in the opposite order
    return (forward + backward) / 2 + 1


def _places(v: Tensor) -> Tensor:
    order = v.argsort(stable=True, dim=0)
    places = torch.empty_like(order)
    return places.scatter_(0, order, torch.arange(len(v))[:, None].expand_as(order)).double()


def _auc(ranks: Tensor, there: Tensor) -> Tensor:
    n, m = int(there.sum()), int((~there).sum())
    return (ranks[there].sum(0) - n * (n + 1) / 2) / (n * m)
