"""The picture of a search: the score of each trial, and against each setting that was searched. It needs [plot]."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elman.errors import FileError
from elman.progress import say
from elman.run.space import Choice, Space
from elman.tasks.plots import PICTURES

if TYPE_CHECKING:
    from elman.run.search import SearchResult

ACROSS = 4  # panels in a row


def draw(path: Path, found: SearchResult, space: Space) -> None:
    """Write the picture; without matplotlib, which a search does not need, say what would draw it."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import FormatStrFormatter, LogLocator, NullLocator
    except ImportError:
        say("no picture is drawn: that needs matplotlib, pip install 'elman[plot]'")
        return
    count = 1 + len(space)
    rows = -(-count // ACROSS)
    figure = Figure(figsize=(3.6 * min(count, ACROSS), 3.2 * rows), layout="constrained")
    axes = figure.subplots(rows, min(count, ACROSS), squeeze=False).ravel()
    trials = [one for one in found.trials if one.score is not None]
    _panel(axes[0], [one.number for one in trials], found)
    axes[0].set(xlabel="trial", ylabel=found.score)
    for axis, (name, part) in zip(axes[1:], space.items(), strict=False):
        if isinstance(part, Choice):
            names = [json.dumps(value).strip('"') for value in part.values]
            _panel(axis, [part.values.index(one.values[name]) for one in trials], found)
            axis.set_xticks(range(len(names)), names)
        else:
            _panel(axis, [one.values[name] for one in trials], found)
            if part.log:
                axis.set_xscale("log")
                axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
                axis.xaxis.set_major_formatter(FormatStrFormatter("%g"))
                axis.xaxis.set_minor_locator(NullLocator())
        axis.set_xlabel(name)
    for axis in axes[count:]:
        axis.remove()
    try:
        figure.savefig(path, dpi=100, **PICTURES[path.suffix])
    except OSError as error:
        raise FileError(f"cannot write {path}: {error}") from error


def _panel(axis: Any, xs: list[Any], found: SearchResult) -> None:
    """A point for each trial with a score: filled if it was trained whole, larger if it is the best."""
    trials = [one for one in found.trials if one.score is not None]
    for x, one in zip(xs, trials, strict=True):
        whole, best = one.status == "finished", one is found.trials[0]
        axis.plot(x, one.score, "*" if best else "o", color="C3" if best else "C0", markersize=12 if best else 5,
                  fillstyle="full" if whole else "none")  # fmt: skip
