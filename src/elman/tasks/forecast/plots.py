"""Pictures of forecasts: what came last, medians and bands between quantiles. They need the extra [plot]."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from elman.tables import Table, caption, drawing
from elman.tasks.forecast.state import Forecast
from elman.tasks.plots import save

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FANS = 12  # series that fit one picture
SHOWN, POINTS = 4, 200  # series that a notebook draws, and steps of each
WIDTH, HEIGHT, TOP, RIGHT = 640, 150, 18, 70  # of a drawing, with room for its title and its numbers


def fan(path: Path, forecast: Forecast, recent: NDArray[np.float64]) -> None:
    """Draw the first few series of a forecast to a new file."""
    save(path, _draw(forecast, recent), dpi=80)


def fans(forecast: Forecast, recent: NDArray[np.float64], truth: NDArray[np.float64] | None = None) -> bytes:
    """The first few series of a forecast, as PNG, and what came, if that is known (B, H, C). Nothing without
    matplotlib."""
    picture = io.BytesIO()
    try:
        figure = _draw(forecast, recent, truth)
    except ImportError:
        return b""
    figure.savefig(picture, format="png", dpi=80, metadata={"Software": None})
    return picture.getvalue()


def _draw(forecast: Forecast, recent: NDArray[np.float64], truth: NDArray[np.float64] | None = None) -> Figure:
    """What came last, medians, bands between quantiles, and the truth: `recent` (B, m, C) are the values before the
    origin; of several targets the first is drawn."""
    from matplotlib.figure import Figure

    number = min(FANS, len(forecast.names))
    figure = Figure(figsize=(8, 2.2 * number), layout="constrained")
    for i, axis in enumerate(figure.subplots(number, 1, squeeze=False)[:, 0]):
        before, ahead = np.arange(-recent.shape[1] + 1, 1), np.arange(1, forecast.mean.shape[1] + 1)
        axis.plot(before, recent[i, :, 0], color="black", linewidth=1)
        quantiles = forecast.quantiles[i, :, 0]
        for low in range(len(forecast.levels) // 2):
            axis.fill_between(ahead, quantiles[:, low], quantiles[:, -1 - low], color="C0", alpha=0.2, linewidth=0)
        axis.plot(ahead, np.median(forecast.paths[i, :, :, 0], axis=0), color="C0")
        if truth is not None:
            axis.plot(ahead, truth[i, :, 0], color="black", linewidth=1)
        axis.axvline(0.5, color="0.7", linewidth=0.8)
        axis.set_title(f"{forecast.names[i]}, from {forecast.times[i][0]}", fontsize="small", loc="left")
    return figure


def html(forecast: Forecast) -> str:
    """The first few series of a forecast, drawn without matplotlib, and its numbers, for a notebook."""
    fans = "".join(_fan(forecast, i) for i in range(min(SHOWN, len(forecast.names))))
    header, *rows = csv.reader(forecast._replace(id="series", time="time").lines())
    return f"<div>{fans}{Table(f'{len(forecast.names)} series', header, rows)._repr_html_()}</div>"


def _fan(forecast: Forecast, i: int) -> str:
    """Means, and bands between quantiles; of several targets the first."""
    H = forecast.mean.shape[1]
    steps = np.unique(np.linspace(0, H - 1, min(H, POINTS)).round().astype(np.int64))
    means, quantiles = forecast.mean[i, steps, 0], forecast.quantiles[i, steps, 0]
    every = np.concatenate([means, quantiles.ravel()])
    low, high = (float(every.min()), float(every.max())) if np.isfinite(every).all() else (0.0, 0.0)
    x = steps / max(1, H - 1) * (WIDTH - RIGHT)

    def down(values: NDArray[np.float64]) -> NDArray[np.float64]:
        share = (values - low) / (high - low) if high > low else np.full_like(values, 0.5)
        return TOP + (1 - share) * (HEIGHT - TOP - 6)

    bands = [
        _shape("polygon", [*x, *x[::-1]], [*down(quantiles[:, q]), *down(quantiles[::-1, -1 - q])], 'opacity="0.2"')
        for q in range(len(forecast.levels) // 2)
    ]
    line = _shape("polyline", list(x), list(down(means)), 'fill="none" stroke="currentColor" stroke-width="1.5"')
    title = caption(0, 12, f"{forecast.names[i]}, from {forecast.times[i][0]}", "start", 90)
    numbers = [caption(WIDTH, TOP + 8, f"{high:.4g}", "end"), caption(WIDTH, HEIGHT - 4, f"{low:.4g}", "end")]
    return drawing(WIDTH, HEIGHT, [title, *bands, line, *numbers])


def _shape(kind: str, x: Sequence[float], y: Sequence[float], style: str) -> str:
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))
    return f'<{kind} points="{points}" {style}/>'
