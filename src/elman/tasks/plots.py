"""Pictures: of a run, how its validation went and which classes were taken for which; an alignment; a grid of images.

They need the extra [plot].
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from elman.errors import FileError, InputError, MissingExtraError
from elman.training.record import Preview, read_metrics
from elman.training.scores import Scores

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The endings that a picture may have, and what is left out of each so that the same picture has the same bytes.
PICTURES: dict[str, dict[str, Any]] = {
    ".png": {"metadata": {"Software": None}}, ".svg": {"metadata": {"Date": None}},
    ".pdf": {"metadata": {"CreationDate": None}}, ".jpg": {}, ".jpeg": {},
}  # fmt: skip
NAMED = 30  # classes whose names fit beside a matrix


class Results(NamedTuple):
    """What an evaluation found: scores and, where answers are classes, how often each was taken for which."""

    scores: Scores
    names: Sequence[str] = ()
    confusion: Sequence[Sequence[int]] = ()  # a row for each true class, a column for each answer


def preview(run: Path, step: int, results: Results) -> Preview:
    """The picture after `step` steps, of the metrics in the run directory and what was just found; none without
    matplotlib, which a run does not need."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return Preview()
    figure = Figure(figsize=(10, 4.5) if results.confusion else (5, 4.5), layout="constrained")
    axes = figure.subplots(1, 2 if results.confusion else 1, squeeze=False)[0]
    _curve(axes[0], run, step, results.scores)
    if results.confusion:
        _matrix(axes[1], results.confusion, results.names)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=80, metadata={"Software": None})
    return Preview(picture=picture.getvalue())


def _curve(axis: Any, run: Path, step: int, scores: Scores) -> None:
    lines = read_metrics(run)
    points = [(int(line["step"]), line["valid"]) for line in lines if "valid" in line and line["step"] < step]
    points.append((step, scores.value))
    axis.plot(*zip(*points, strict=True), "o-", color="C0")
    axis.set(xlabel="step", ylabel=f"validation {scores.primary.replace('_', ' ')}")
    losses = [(int(line["step"]), line["loss"]) for line in lines if "loss" in line]
    if losses:
        other = axis.twinx()
        other.plot(*zip(*losses, strict=True), color="0.7", linewidth=0.8)
        other.set_ylabel("training loss", color="0.5")


def _matrix(axis: Any, confusion: Sequence[Sequence[int]], names: Sequence[str]) -> None:
    shares = [[n / max(1, sum(row)) for n in row] for row in confusion]
    axis.imshow(shares, vmin=0, vmax=1, cmap="Blues")
    axis.set(xlabel="predicted", ylabel="true")
    if len(names) <= NAMED:
        axis.set_xticks(range(len(names)), names, rotation=90)
        axis.set_yticks(range(len(names)), names)
    if len(names) <= NAMED // 2:
        for i, row in enumerate(confusion):
            for j, n in enumerate(row):
                axis.text(j, i, str(n), ha="center", va="center", color="white" if shares[i][j] > 0.5 else "black")


def alignment(source: Sequence[str], target: Sequence[str], weights: Sequence[Sequence[float]]) -> bytes:
    """A heat map of where each symbol of the target (rows) looks in the source (columns), as PNG; nothing without
    matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return b""
    figure = Figure(figsize=(2 + 0.35 * len(source), 1.5 + 0.35 * len(target)), layout="constrained")
    axis = figure.subplots()
    axis.imshow(weights, vmin=0, vmax=1, cmap="Greys", aspect="auto")
    axis.set_xticks(range(len(source)), source, rotation=90)
    axis.set_yticks(range(len(target)), target)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=80, metadata={"Software": None})
    return picture.getvalue()


def grid(images: NDArray[np.int64], white: int) -> bytes:
    """Images (N, R, C) of levels 0 to `white`, side by side in a square, as PNG; nothing without matplotlib."""
    try:
        from matplotlib.image import imsave
    except ImportError:
        return b""
    N, R, C = images.shape
    across = max(1, math.ceil(math.sqrt(N)))
    down = max(1, math.ceil(N / across))
    sheet = np.full((down * (R + 1) + 1, across * (C + 1) + 1), 0.4)  # a grey line between any two
    for i, image in enumerate(images):
        y, x = (i // across) * (R + 1) + 1, (i % across) * (C + 1) + 1
        sheet[y : y + R, x : x + C] = image / white
    larger = max(1, 400 // max(sheet.shape))
    picture = io.BytesIO()
    pixels = np.repeat(np.repeat(sheet, larger, 0), larger, 1)
    imsave(picture, pixels, cmap="gray", vmin=0, vmax=1, format="png", metadata={"Software": "elman"})
    return picture.getvalue()


def check_plot() -> None:
    """Raise an error that says what to install where there is nothing to draw pictures with."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("matplotlib", "plot") from error


def check_new(path: str) -> None:
    """Raise an error if no picture can be drawn to a new file of this name."""
    check_plot()
    if Path(path).exists():
        raise InputError(f"{path} exists; it is not overwritten. Choose another name.")


def save(path: Path, figure: Figure, dpi: int) -> None:
    """Write a picture in the format that the ending of its file says."""
    ending, picture = path.suffix.lower(), io.BytesIO()
    figure.savefig(picture, format=ending[1:], dpi=dpi, **PICTURES[ending])
    try:
        path.write_bytes(picture.getvalue())
    except OSError as error:
        raise FileError(f"cannot write {path}: {error}") from error
