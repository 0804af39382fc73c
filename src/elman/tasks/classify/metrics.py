"""How good predicted labels are. Every number is computed from all rows at once, so batches do not matter."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from elman.files.config import Json
from elman.training.scores import Scores


def of_classes(log_p: Tensor, y: Tensor, names: Sequence[str]) -> Scores:
    """One class a row: log_p (N, C) float64, y (N,). The row of `confusion` is the true class, the column the guess."""
    C = len(names)
    guess = log_p.argmax(-1)
    confusion = torch.bincount(y * C + guess, minlength=C * C).reshape(C, C)
    numbers = {
        "accuracy": float((guess == y).double().mean()),
        "macro_f1": macro_f1(confusion),
        "log_loss": float(-log_p.gather(1, y[:, None]).mean()),
        "rows": len(y),
    }
    details: dict[str, Json] = {"classes": list(names), "confusion": confusion.tolist()}
    return Scores(numbers, "accuracy", larger_is_better=True, secondary=("log_loss", "macro_f1"), details=details)


def macro_f1(confusion: Tensor) -> float:
    """The mean over classes of the harmonic mean of precision and recall; of a class in neither place, zero.

    >>> macro_f1(torch.tensor([[2, 0], [1, 1]])) == (0.8 + 2 / 3) / 2
    True
    """
    right = confusion.diagonal().double()
    both = (confusion.sum(0) + confusion.sum(1)).double()
    present = both > 0
    scores = 2 * right[present] / both[present]
    return float(scores.mean()) if len(scores) else 0.0


def of_several(logits: Tensor, y: Tensor, names: Sequence[str]) -> Scores:
    """Any number of classes a row: logits (N, C) float64, y (N, C) of zeros and ones.

    `accuracy` counts rows with every class right; `confusion` has [true, guess] counts, two by two, for each class.
    """
    guess, truth = logits > 0, y > 0.5
    tables = [_two_by_two(t, g) for t, g in zip(truth.T, guess.T, strict=True)]
    f1 = [2 * t[1][1] / max(1, 2 * t[1][1] + t[0][1] + t[1][0]) for t in tables]
    right, wrong = sum(t[1][1] for t in tables), sum(t[0][1] + t[1][0] for t in tables)
    loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, y.double(), reduction="none").sum(-1)
    numbers = {
        "accuracy": float((guess == truth).all(-1).double().mean()),
        "macro_f1": sum(f1) / len(f1),
        "micro_f1": 2 * right / max(1, 2 * right + wrong),
        "log_loss": float(loss.mean()),
        "rows": len(y),
    }
    details: dict[str, Json] = {"classes": list(names), "confusion": [[list(row) for row in t] for t in tables]}
    return Scores(numbers, "micro_f1", larger_is_better=True, secondary=("accuracy", "log_loss"), details=details)


def _two_by_two(truth: Tensor, guess: Tensor) -> list[list[int]]:
    return [[int((a & b).sum()) for b in (~guess, guess)] for a in (~truth, truth)]


def of_numbers(mean: Tensor, width: Tensor, y: Tensor) -> Scores:
    """A number a row: predicted mean and standard deviation (N,), and y (N,), all float64 and in the labels' units."""
    error = mean - y
    variance = float((y - y.mean()).square().mean())
    numbers = {
        "mse": float(error.square().mean()),
        "mae": float(error.abs().mean()),
        "r2": 1 - float(error.square().mean()) / variance if variance else 0.0,
        "width": float(width.mean()),
        "rows": len(y),
    }
    return Scores(numbers, "mse", secondary=("r2", "width"))
