"""Pictures of forecasts: what came last, medians and bands between quantiles. They need the extra [plot]."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from elman.tasks.forecast.state import Forecast
from elman.tasks.plots import save

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FANS = 12  # series that fit one picture


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
