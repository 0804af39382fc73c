"""Settings that are chosen by the data, where a config leaves them open: the season, what is predicted, and on what it
is judged. A run that names them gets what it names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from elman.tasks.forecast.data import PanelReader, Series
from elman.tasks.forecast.network import ForecastModelConfig, free, lags_of
from elman.tasks.forecast.season import WEEK, find_season, has_weeks

if TYPE_CHECKING:
    from elman.tasks.forecast.task import ForecastConfig, ForecastDataConfig

WINDOWS = 20  # to validate on, at most
FORECASTS = 2000  # in one evaluation, or about


def resolve(
    config: ForecastConfig, reader: PanelReader, series: Sequence[Series], *, tested: bool, seasonality: int = 0
) -> ForecastConfig:
    """The config with what it leaves open; `tested` are other rows, `seasonality` that of a model that goes on."""
    data, model = config.data, config.model
    long = reader.format != "arrays"
    lengths = [len(one.y) for one in series]
    typical = int(np.median(lengths))
    windows = data.valid_windows or (_windows(typical, data.horizon, len(series)) if long else 1)
    held = (windows + (0 if tested else data.test_windows)) * data.horizon
    assert reader.frequency is not None
    season = data.seasonality or seasonality or (find_season(reader.frequency, series, held) if long else 1)
    own = model.season or season
    model = resolve_model(model, own, weeks=long and own % 24 == 0 and has_weeks(own, series, held), scaled=long)
    data = replace(data, seasonality=season, valid_windows=windows)
    return replace(config, data=_cut(data, model, lengths), model=model)


def resolve_model(
    model: ForecastModelConfig, season: int, *, weeks: bool = False, scaled: bool = True
) -> ForecastModelConfig:
    """What is predicted, and the lags that are read; `weeks` of days that differ.

    >>> found = resolve_model(ForecastModelConfig(), 24, weeks=True)
    >>> found.residual, found.lags
    ('seasonal', [1, 2, 24, 25, 168, 169])
    >>> resolve_model(ForecastModelConfig(residual="none"), 24).lags
    []
    """
    if model.residual != "auto":
        return model
    fits = scaled and free(model) and model.feedback != "none"
    if model.kind != "network" or not fits or model.readout == "gaussian":
        # A gaussian of fresh weights may be so narrow that a difference far out costs 1e20 nats, and ends the training.
        return replace(model, residual="none")
    lags = model.lags or [1, 2, *((season, season + 1) if season > 1 else ())]
    if not model.lags and weeks:
        lags = [*lags, WEEK * season, WEEK * season + 1]
    return replace(model, residual="seasonal" if season > 1 else "last", lags=sorted({*lags}))


def _windows(rows: int, horizon: int, series: int) -> int:
    """How many horizons are validated on: one is chance, and more than a fifth of the rows are missed in training."""
    return int(np.clip(rows // (5 * horizon), 1, min(WINDOWS, max(1, FORECASTS // series))))


def _cut(data: ForecastDataConfig, model: ForecastModelConfig, lengths: Sequence[int]) -> ForecastDataConfig:
    """Long series are cut where there are not enough of them to fill a batch."""
    if data.segment >= 0:
        return data
    season = model.season or data.seasonality
    segment = max(4 * data.window, -(-sum(lengths) // data.batch_size))
    if len(lengths) >= data.batch_size or max(lengths) <= segment:
        return replace(data, segment=0)
    longest = max([season, *lags_of(model, season)])
    return replace(data, segment=segment, warmup=data.warmup or max(data.window, longest + season))
