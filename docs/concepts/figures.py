"""How the figures of these pages look: no background and an ink in the middle, readable on light and dark pages."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#7d8590"  # axes and text: a contrast of about 4 with white and with the dark pages
BLUE, ORANGE, GREEN, RED, PURPLE = COLOURS = ("#3b82c4", "#d9771e", "#2e9e5b", "#d64550", "#9a6fd0")


def canvas(
    columns: int = 1, *, width: float = 6.5, height: float = 3.6, sharey: bool = False
) -> tuple[Figure, list[Axes]]:
    """A figure with a row of plots. Text becomes paths, and the same figure the same bytes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    names = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    plt.rcParams.update({name: INK for name in names})
    plt.rcParams.update({"svg.hashsalt": "elman", "font.size": 9, "legend.frameon": False, "axes.titlesize": 9})
    plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False})
    plt.rcParams["axes.prop_cycle"] = plt.cycler(color=COLOURS)
    figure, axes = plt.subplots(1, columns, figsize=(width, height), sharey=sharey, squeeze=False)
    return figure, list(axes[0])


def save(figure: Figure, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, transparent=True, metadata={"Date": None})
