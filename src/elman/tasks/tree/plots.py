"""A tree, each node coloured by the label that a model gives it. Pictures need the extra [plot]."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from elman.tables import caption, drawing, paragraph
from elman.tasks.plots import save
from elman.tasks.tree.data import LabelledTree
from elman.tasks.tree.model import TreeLabeller
from elman.training.record import Preview

MOST = 6  # trees in one picture
SHOWN = 300  # nodes that a notebook draws
ACROSS, UP = 62, 44  # between two words, and between two heights, in a notebook
WHITE = (1.0, 1.0, 1.0, 1.0)


def places(tree: LabelledTree) -> tuple[list[float], list[float]]:
    """Where the nodes are: a word at its place in the sentence, any other node over the middle of its children;
    upwards by height."""
    parents, heights = tree.shape.parents.tolist(), tree.shape.heights.tolist()
    words = tree.shape.reads.cumsum() - 1
    x = [float(place) for place in words]
    children: list[list[int]] = [[] for _ in parents]
    for node, parent in enumerate(parents):
        if parent >= 0:
            children[parent].append(node)
    for node in sorted(range(len(parents)), key=heights.__getitem__):
        if children[node] and not tree.words[node]:
            x[node] = sum(x[child] for child in children[node]) / len(children[node])
    return x, [float(height) for height in heights]


def html(tree: LabelledTree) -> str:
    """A tree for a notebook, drawn without matplotlib: the labels of its nodes over its words."""
    if len(tree.words) > SHOWN:
        return paragraph(f"a tree of {len(tree.words)} nodes, {tree.height + 1} high: too many to draw here")
    x, y = places(tree)
    at = [(ACROSS * (a + 0.7), UP * (tree.height - b) + 16) for a, b in zip(x, y, strict=True)]
    edges = [_edge(*at[node], *at[parent]) for node, parent in enumerate(tree.shape.parents.tolist()) if parent >= 0]
    dots = [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="2.5"/>' for a, b in at]
    labels = [caption(a, b - 6, text, most=12) for (a, b), text in zip(at, tree.labels, strict=True) if text]
    words = [caption(a, b + 15, text, most=12) for (a, b), text in zip(at, tree.words, strict=True) if text]
    return drawing(ACROSS * (max(x) + 1.4), UP * tree.height + 40, [*edges, *dots, *labels, *words])


def _edge(x1: float, y1: float, x2: float, y2: float) -> str:
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="currentColor" opacity="0.4"/>'


def draw(path: Path, predictor: TreeLabeller, trees: Sequence[LabelledTree]) -> None:
    """Draw the first few trees to a new file."""
    from matplotlib.figure import Figure

    some = trees[:MOST]
    most = max(len(tree.words) for tree in some)
    figure = Figure(figsize=(min(40, max(6, 0.45 * (most + 1) / 2)), 3.2 * len(some)), layout="constrained")
    for axis, tree in zip(figure.subplots(len(some), 1, squeeze=False)[:, 0], some, strict=True):
        _one(axis, predictor, tree)
    save(path, figure, dpi=100)


def preview(predictor: TreeLabeller, tree: LabelledTree) -> Preview:
    """The picture of one tree; none without matplotlib, which a run does not need."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return Preview()
    figure = Figure(figsize=(min(40, max(6, 0.45 * (len(tree.words) + 1) / 2)), 3.2), layout="constrained")
    _one(figure.subplots(1, 1), predictor, tree)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=80, metadata={"Software": None})
    return Preview(picture=picture.getvalue())


def readable_on(colour: tuple[float, float, float, float]) -> str:
    """Black or white, whichever has more contrast with a colour, by the luminance that WCAG 2 defines.

    >>> readable_on((0.65, 0.0, 0.15, 1.0)), readable_on(WHITE)
    ('white', 'black')
    """
    r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour[:3])
    return "white" if 0.2126 * r + 0.7152 * g + 0.0722 * b < 0.179 else "black"


def _one(axis: Any, predictor: TreeLabeller, tree: LabelledTree) -> None:
    from matplotlib import colormaps

    (labels,) = predictor.labels([tree])
    if predictor.lexicon.target != "nodes":  # the root alone is coloured
        labels = [labels[0] if parent < 0 else "" for parent in tree.shape.parents.tolist()]
    names = predictor.lexicon.labels
    colours = {name: colormaps["RdYlGn"](i / max(1, len(names) - 1)) for i, name in enumerate(names)}
    x, y = places(tree)
    for node, parent in enumerate(tree.shape.parents.tolist()):
        if parent >= 0:
            axis.plot([x[node], x[parent]], [y[node], y[parent]], color="0.75", linewidth=0.8, zorder=1)
    axis.scatter(x, y, s=160, c=[colours.get(label, WHITE) for label in labels], edgecolors="0.4", zorder=2)
    for node, label in enumerate(labels):
        ink = readable_on(colours.get(label, WHITE))
        axis.text(x[node], y[node], label[:6], ha="center", va="center", fontsize=7, color=ink, zorder=3)
        if tree.words[node]:
            axis.text(x[node], y[node] - 0.45, tree.words[node], ha="center", va="top", rotation=60, fontsize=7)
    axis.set_axis_off()
    axis.margins(0.02, 0.25)
