"""The task forecast: what follows series."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from elman.core import Options
from elman.errors import InputError
from elman.options import positive
from elman.run.estimators.trained import Trained
from elman.scikit import RandomState
from elman.tasks.forecast.config import (
    ForecastConfig,
    ForecastDataConfig,
    ForecastModelConfig,
    ForecastOptim,
    ForecastTraining,
)
from elman.tasks.forecast.model import Forecaster
from elman.tasks.forecast.state import Forecast

Frame = object  # a pandas or polars frame, or a mapping of columns by name


class SeriesForecaster(Trained[Forecaster]):
    """What follows one series or many, as distributions.

    >>> y = [t % 4 for t in range(80)]
    >>> model = SeriesForecaster(horizon=4, seasonality=4, kind="seasonal_naive").fit(y)
    >>> model.predict(3).round().tolist()
    [[0.0, 1.0, 2.0]]
    """

    horizon: int
    samples: int

    def __init__(
        self,
        horizon: int = 24,
        *,
        seasonality: int = 0,
        frequency: str = "auto",
        kind: str = "network",
        order: int = 24,
        cell: str = "lstm",
        size: int = 64,
        layers: int = 1,
        block: str = "auto",
        options: Options | None = None,
        residual_layers: bool = False,
        norm: str | None = None,
        dropout: float = 0.0,
        input_dropout: float = 0.0,
        readout_dropout: float = 0.1,
        readout: str = "student_t",
        lags: Sequence[int] | None = None,
        scale: str = "auto",
        residual: str = "auto",
        calendar: bool = True,
        embedding_size: int = 0,
        id: str = "unique_id",
        time: str = "ds",
        target: str = "y",
        static: Sequence[str] | None = None,
        past: Sequence[str] | None = None,
        future: Sequence[str] | None = None,
        gaps: str = "error",
        valid_windows: int = 0,
        samples: int = 100,
        batch_size: int = 32,
        window: int = 64,
        steps: int = 1000,
        evaluate_every: int = 100,
        average: int = 5,
        learning_rate: float = 0.002,
        weight_decay: float = 0.05,
        random_state: RandomState = None,
        verbose: bool = False,
    ) -> None:
        self._store(locals())

    def fit(self, y: ArrayLike | Frame) -> Self:
        """Fit to the numbers (T,) of one series, a Series of pandas by its times; or to a frame, or a mapping of
        columns, with a row for each series and time: unique_id, ds, y and covariates. One series needs no
        unique_id."""
        lr = positive("learning_rate", self.learning_rate)
        config = ForecastConfig(
            data=self._section(ForecastDataConfig), model=self._section(ForecastModelConfig),
            optim=self._section(ForecastOptim, lr=lr), training=self._section(ForecastTraining), seed=self._seed(),
        )  # fmt: skip
        frame = isinstance(y, Mapping) or hasattr(y, "columns")
        times = getattr(getattr(y, "index", None), "inferred_type", "")  # of a Series of pandas
        if not frame and times in ("datetime64", "period"):
            y, frame = cast(Any, y).rename(self.target).rename_axis(self.time).reset_index(), True
        self._train(config, {"train": y if frame else self._columns(np.asarray(y))})
        return self

    def forecast(
        self, horizon: int | None = None, quantiles: Sequence[float] = (0.1, 0.5, 0.9), *, future: Frame | None = None
    ) -> Forecast:
        """All that is said of the next steps; its `to_frame` gives a frame of pandas or polars.

        `future` has the future covariates of the horizon, where there are some.
        """
        model = self._predictor
        return model.forecast(model.state, horizon, quantiles=quantiles, samples=self.samples, future=future)

    def predict(self, horizon: int | None = None, *, future: Frame | None = None) -> NDArray[np.float64]:
        """The mean of each of the next steps (series, horizon), in the order of `names`; with several targets (series,
        horizon, targets)."""
        mean = self.forecast(horizon, (), future=future).mean
        return mean[..., 0] if mean.shape[-1] == 1 else mean

    def predict_quantiles(
        self, horizon: int | None = None, quantiles: Sequence[float] = (0.1, 0.5, 0.9), *, future: Frame | None = None
    ) -> NDArray[np.float64]:
        """Quantiles (series, horizon, levels) of these steps; of several targets (series, horizon, targets, levels)."""
        levels = self.forecast(horizon, quantiles, future=future).quantiles
        return levels[..., 0, :] if levels.shape[-2] == 1 else levels

    @property
    def names(self) -> list[str]:
        """The series, in the order of the data."""
        return [*self._predictor.state.names]

    def _columns(self, numbers: NDArray[np.generic]) -> dict[str, list[object]]:
        if numbers.ndim != 1 or numbers.dtype.kind not in "iuf":
            raise InputError(
                f"y is {numbers.dtype}{list(numbers.shape)}; it must be the numbers (T,) of one series, a frame or a "
                "mapping with the columns unique_id, ds and y"
            )
        return {self.time: [*range(len(numbers))], self.target: numbers.tolist()}
