"""Forecasting: from series to distributions of what follows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from elman import state as states
from elman.compose import Parallel
from elman.data import Batch, Batches
from elman.data.names import file_list, names_of
from elman.data.splits import draw, split_summary
from elman.errors import InputError
from elman.lens import Sample
from elman.model import SequenceModel
from elman.nn.distributions import Distribution, Numeric
from elman.options import choice, whole
from elman.state import State
from elman.tasks import network
from elman.tasks.forecast import metrics, plots, requests
from elman.tasks.forecast import network as forecast_network
from elman.tasks.forecast.config import (
    ForecastConfig,
    ForecastDataConfig,
    ForecastModelConfig,
    check,
    dtype_of,
    resolve_by_data,
    resolve_defaults,
    warmup_steps,
)
from elman.tasks.forecast.data import PanelReader, Series, fingerprint
from elman.tasks.forecast.inputs import PanelInputs, SeriesStreams
from elman.tasks.forecast.metrics import Origins, PreviewData
from elman.tasks.forecast.model import Forecaster
from elman.tasks.forecast.network import ForecastNetwork
from elman.tasks.forecast.readout import Rescaled
from elman.tasks.forecast.serving import ServedSeries
from elman.tasks.forecast.state import take
from elman.tasks.request import Request
from elman.tasks.serving import Served
from elman.tasks.task import Data, Evaluation, Inspection, InspectRequest, Response, Task
from elman.training.loss import Loss
from elman.training.record import Preview


class Part(NamedTuple):
    """What a model is scored on: series, and the rows before them."""

    history: Sequence[Series]
    series: Sequence[Series]
    windows: int  # from how many origins; 0 for as many as there are
    samples: int


class SeriesData(Data):
    """Series, and what of them is trained on."""

    unit = "rows"

    def __init__(
        self, config: ForecastConfig, reader: PanelReader, series: Sequence[Series], valid: Sequence[Series],
        test: Sequence[Series], saved: PanelInputs | None = None,
    ) -> None:  # fmt: skip
        data = config.data
        self.config, self.series, model = config, series, resolve_defaults(config.model)
        names = tuple(one.name for one in series)
        self.inputs = PanelInputs(
            reader, names, model.calendar, model.embedding_size > 0,
            each=saved.each if saved else True, dtype=saved.dtype if saved else dtype_of(model),
        )  # fmt: skip
        check_values(model, [*series, *valid, *test])
        found = {"train": series, "valid": valid, "test": test}
        self.fingerprint = {f"data.{name}": fingerprint(part) for name, part in found.items()}
        H, held = data.horizon, (0 if test else data.test_windows) * data.horizon
        whole_rows = [one for one in series if len(one.y) >= held + data.valid_windows * H + 2]
        long_enough = {one.name for one in whole_rows}
        if reader.format != "arrays" and not whole_rows:
            longest = max(len(one.y) for one in series)
            raise InputError(
                f"the longest series has {longest} rows; {data.valid_windows} windows of {H} to validate on"
                f"{f' and {data.test_windows} to test on' if held else ''} leave nothing to train on. Give more rows, "
                "a smaller data.horizon or fewer data.valid_windows."
            )
        self.arrays = reader.format == "arrays"
        if self.arrays:
            self._split_arrays(series, valid, test)
            return
        self.fed = [one.cut(0, len(one.y) - held) if one.name in long_enough else one for one in series]
        seen = [one for one in self.fed if one.name in long_enough]
        cut = data.valid_windows * H
        self.valid = Part(
            [one.cut(0, len(one.y) - cut) for one in seen], [one.cut(len(one.y) - cut) for one in seen],
            data.valid_windows, data.samples,
        )  # fmt: skip
        self.train = [one.cut(0, len(one.y) - cut) if one.name in long_enough else one for one in self.fed]
        if test:
            self.test = Part(self.fed, test, 0, data.samples)
        elif held:
            self.test = Part(seen, [one.cut(len(one.y) - held) for one in whole_rows], data.test_windows, data.samples)

    def _split_arrays(self, series: Sequence[Series], valid: Sequence[Series], test: Sequence[Series]) -> None:
        """Sequences are independent: some of them are validated on, the same for every seed."""
        self.train, drawn = draw(series, 0 if valid else max(1, len(series) // 10))
        self.fed, self.valid = self.train, Part([], valid or drawn, 0, 0)
        self.test = Part([], test, 0, 0) if test else None

    def batches(self, rank: int, world: int) -> Batches:
        data, model = self.config.data, resolve_defaults(self.config.model)
        return SeriesStreams(
            self.inputs, self.train, data.batch_size, data.window, self.config.seed, segment=data.segment,
            warmup=data.warmup, skip=warmup_steps(model, model.season or data.seasonality), rank=rank, world=world,
        )  # fmt: skip

    def summary(self) -> list[str]:
        rows = [sum(len(one.y) for one in part.series) if part else 0 for part in (self.valid, self.test)]
        trained = sum(len(one.y) for one in self.train)
        data, coarse = self.config.data, coarsest(self.series) if self.inputs.dtype == "float32" else ""
        return [
            f"data: {file_list(data.train)}: {len(self.series):,} series, {split_summary('rows', trained, *rows)}",
            f"frequency {self.inputs.reader.frequency}, horizon {data.horizon}, seasonality {data.seasonality}, "
            f"{data.valid_windows} windows to validate on",
            *([coarse] if coarse else []),
        ]


def coarsest(series: Sequence[Series]) -> str:
    """A warning of the first series whose changes float32 hardly sees; nothing where there is none."""
    for one in series:
        changes = np.abs(np.diff(one.y, axis=0))
        changes = changes[changes > 0]  # and not NaN
        size, change = np.nanmax(np.abs(one.y), initial=0), np.median(changes) if len(changes) else np.inf
        if change < size * 2.0**-20:
            return (
                f"warning: series {one.name!r} is about {size:.3g} and changes by about {change:.3g}; a network "
                "computes in float32, which has seven digits. Give it without its level, or take --model.kind linear."
            )
    return ""


def check_values(config: ForecastModelConfig, series: Sequence[Series]) -> None:
    """Raise an InputError at a series that has no value, or one that the read-out cannot predict."""
    limits = {"numbers": (None, ""), "counts": (np.inf, "counts, 0, 1, 2 ..."), "bits": (2, "0 and 1")}
    limits["classes"] = config.classes, f"classes, 0 to {config.classes - 1}"
    limit, what = limits[config.predicts]
    for one in series:
        y = one.y[~np.isnan(one.y)]
        if not len(y):
            raise InputError(f"series {one.name!r} has no value at all: all are missing. Leave it out.")
        wrong = np.zeros(len(y), bool) if limit is None else (y < 0) | (y != np.round(y)) | (y >= limit)
        if wrong.any():
            raise InputError(
                f"series {one.name!r} has the value {y[np.argmax(wrong)]:g}, and model.readout is "
                f"{config.readout}, which predicts {what}. Choose another read-out, or correct the value."
            )


class ForecastTask(Task[ForecastConfig, SeriesData, Forecaster]):
    Config, Model = ForecastConfig, Forecaster
    title = "a forecaster of series"
    reads_columns = True

    def fits(self, config: ForecastConfig) -> bool:
        return config.model.kind != "network"

    @property
    def requests(self) -> dict[str, tuple[type[Request], Response]]:
        return {
            "predict": (requests.Predict, requests.predict),
            "evaluate": (requests.Evaluate, requests.evaluate),
            "inspect": (InspectRequest, self.inspector(_read)),
        }

    def open(self, config: ForecastConfig, saved: Forecaster | None) -> SeriesData:
        return self.open_in_memory(config, saved, {})

    def open_in_memory(self, config: ForecastConfig, saved: Forecaster | None, parts: dict[str, Any]) -> SeriesData:
        data = config.data
        for name in ("horizon", "samples", "batch_size", "window"):
            whole(f"data.{name}", getattr(data, name))
        for name in ("seasonality", "valid_windows", "test_windows", "warmup"):
            whole(f"data.{name}", getattr(data, name), least=0)
        whole("data.segment", data.segment, least=-1)
        choice("data.errors", data.errors, ("strict", "replace"))
        check(config.model)
        rows, tested = parts.get("train", names_of(data.train)), bool(data.test) or "test" in parts
        held = data.valid_windows + (0 if tested else data.test_windows)
        reader, series = _reader(data).fit(rows, data.frequency, held * data.horizon)
        config = resolve_by_data(config, reader, series, tested=tested, seasonality=saved.seasonality if saved else 0)
        more = config.data.valid_windows - data.valid_windows
        if more and reader.covariates:  # rows that are scored, which is known only now, do not say how large these are
            reader, series = _reader(data).fit(rows, data.frequency, (held + more) * data.horizon)
        if (data.valid or "valid" in parts) and reader.format != "arrays":
            raise InputError(
                "data.valid is for arrays; series are validated on their own last rows, data.valid_windows of them"
            )
        valid, test = (
            reader(parts.get(name, names_of(getattr(data, name)))) if name in parts or getattr(data, name) else []
            for name in ("valid", "test")
        )
        return SeriesData(config, reader, series, valid, test, saved.inputs if saved else None)

    def build(self, config: ForecastConfig, data: SeriesData) -> Forecaster:
        config = data.config  # with what was left open
        model, seasonality = resolve_defaults(config.model), config.data.seasonality
        if model.kind == "network":
            network.resolve_defaults(model)  # warns of a dropout that does nothing
        parts = model, data.inputs, config.data.horizon, seasonality
        return Forecaster(Forecaster.network(*parts), *parts)

    def finish(self, predictor: Forecaster, data: SeriesData) -> Forecaster:
        """With the state after the last rows that were trained on, from which forecasts start."""
        return predictor.at(predictor.read(data.fed, predictor.init_state(data.fed)))

    def unfinished(self, predictor: Forecaster) -> Forecaster:
        return predictor.at(None)

    def loss(self, model: nn.Module, batch: Batch, state: State | None) -> Loss:
        assert isinstance(model, ForecastNetwork)
        return forecast_network.loss(model, batch, state)

    def fit(self, predictor: Forecaster, config: ForecastConfig, data: SeriesData) -> list[dict[str, float]]:
        linear = predictor.config.kind == "linear"
        return forecast_network.fit(predictor.model, predictor.inputs, data.train, predictor.seasonality, linear=linear)

    def evaluate(self, predictor: Forecaster, part: Part) -> Evaluation:
        state = predictor.init_state(part.history or part.series)
        if predictor.inputs.reader.format == "arrays":
            return Evaluation(metrics.likelihood(predictor, part.series, state))
        state = predictor.read(part.history, state)
        places, series = predictor.following(part.series, state)
        origins = Origins(part.windows, 0, part.samples, 0)
        scores, preview = metrics.score(predictor, series, take(state, places), origins)
        return Evaluation(scores, lambda run, step: _preview(preview))

    def inspect_inputs(self, predictor: Forecaster, part: Part, rows: int, steps: int) -> Inspection:
        """The last `steps` rows of some series, what is scored and what came before it, read from nothing on.

        The lens is pointed at the cells: what stands before them, lags and scales, has nothing to learn.
        """
        if predictor.config.kind != "network":
            raise InputError(f"model.kind is {predictor.config.kind}, which has no cells to inspect; a network has")
        before = {one.name: one for one in part.history}
        some = [joined(before.get(one.name), one) for one in part.series[:rows]]
        found = predictor.inputs.batch([one.cut(max(0, len(one.y) - steps)) for one in some])
        lengths = torch.tensor([min(steps, len(one.y)) for one in some])
        names = [[f"{value:.3g} " for value in row[:n, 0]] for row, n in zip(found.x, lengths, strict=True)]
        counted = torch.from_numpy(found.counted)
        # In the first rows nothing says yet how large the values are.
        counted &= counted.cumsum(1) > warmup_steps(predictor.config, predictor.config.season or predictor.seasonality)
        cells, readout = predictor.model.cells, predictor.model.readout
        with torch.no_grad():
            x, _ = predictor.model.preprocessor.scan(predictor.model.embed(torch.from_numpy(found.x)), lengths=lengths)
        y: tuple[Tensor, ...] = (torch.from_numpy(found.y), counted)
        if isinstance(readout, Rescaled):
            # Reference and scale are units, not inputs: on the way from zero to x a scale of zero would end in NaN.
            units = x[..., -2 * readout.size :].clone()
            x = torch.cat([x[..., : -2 * readout.size], torch.zeros_like(units)], -1)
            y, cells, readout = (*y, units), Parallel(*[*cells.cores][:-1]), readout.readout
        model = SequenceModel(nn.Identity(), cells, readout)
        return Inspection(model, Sample(x, y, lengths, names=names, log_prob=_log_prob))

    def serve(self, predictor: Forecaster) -> Served:
        return ServedSeries(predictor)

    def closing(self, lines: Sequence[Mapping[str, float]]) -> str:
        """How the best model stands beside the seasonal naive forecast."""
        scored = [line for line in lines if "valid" in line and "mase" in line and "naive_mase" in line]
        if not scored:
            return ""
        best = min(scored, key=lambda line: line["valid"])
        said = f"mase of the best on the validation windows {best['mase']:.4f}, of the seasonal naive forecast "
        if best["mase"] <= best["naive_mase"]:
            return f"{said}{best['naive_mase']:.4f}"
        return (
            f"{said}{best['naive_mase']:.4f}: the model is worse than that, which costs nothing. More steps may help, "
            "or another data.seasonality; else take --model.kind seasonal_naive or linear."
        )


def _preview(data: PreviewData) -> Preview:
    """Some of the forecasts that were scored last, as fans, or as a table where there is no matplotlib."""
    picture = plots.fans(data.forecast, data.recent, data.truth)
    return Preview("" if picture else "".join(data.forecast.lines()).rstrip(), picture)


def _log_prob(predicted: Distribution, y: State, lengths: Tensor) -> Tensor:
    values, counted, *units = states.leaves(y)
    said = cast(Numeric, predicted)  # as the read-outs of forecasts are
    if units:
        reference, scale = units[0].chunk(2, -1)
        said = said.rescaled(reference, torch.where(scale > 0, scale, 1.0))  # in the padding it is zero
    return forecast_network.log_prob(said, values, counted)


def _read(predictor: Forecaster, request: InspectRequest) -> Part:
    return Part([], predictor.series_of(requests.rows_of(request.data)), 0, 0)


def joined(before: Series | None, one: Series) -> Series:
    """A series with the rows before it."""
    if before is None:
        return one
    y, past, future = (np.concatenate(pair) for pair in zip(before[2:5], one[2:5], strict=True))
    return Series(one.name, before.start, y, past, future, one.static)


def _reader(data: ForecastDataConfig) -> PanelReader:
    return PanelReader(
        data.format, data.id, data.time, tuple(names_of(data.target)), tuple(data.static), tuple(data.past),
        tuple(data.future), data.gaps, errors=data.errors,
    )  # fmt: skip
