"""The files of a forecaster: its network, how it reads, and the state of each series."""

from __future__ import annotations

from dataclasses import asdict

from elman.files import artifact
from elman.files.config import Json
from elman.tasks import network
from elman.tasks.forecast.calendar import Frequency
from elman.tasks.forecast.covariates import Covariate
from elman.tasks.forecast.data import PanelReader
from elman.tasks.forecast.inputs import PanelInputs
from elman.tasks.forecast.network import ForecastModelConfig, Widths

STATE = "series.safetensors"


def content(config: ForecastModelConfig, inputs: PanelInputs, horizon: int, seasonality: int) -> dict[str, Json]:
    """What stands in model.json."""
    return {
        "config": asdict(config),
        "inputs": {**asdict(inputs), "reader": asdict(inputs.reader)},
        "horizon": horizon,
        "seasonality": seasonality,
    }


def parts(found: artifact.Content) -> tuple[ForecastModelConfig, PanelInputs, int, int]:
    """What `content` wrote."""
    config, inputs = ForecastModelConfig(**network.stored(found["config"])), _inputs(found["inputs"])
    return config, inputs, int(found["horizon"]), int(found["seasonality"])


def widths(inputs: PanelInputs) -> Widths:
    """What a network reads of these inputs."""
    return Widths(inputs.targets, inputs.others, len(inputs.names), inputs.flags)


def _inputs(given: artifact.Content) -> PanelInputs:
    reader = dict(given["reader"])
    covariates = {
        name: Covariate(**{**value, "categories": tuple(value["categories"])})
        for name, value in reader["covariates"].items()
    }
    lists = {name: tuple(reader[name]) for name in ("target", "static", "past", "future")}
    frequency = Frequency(**{"zone": None, **reader["frequency"]})  # at first it was not kept
    known = {**reader, **lists, "covariates": covariates, "frequency": frequency}
    # At first one flag stood for all targets, and all was float32.
    how = {"each": len(lists["target"]) == 1, "dtype": "float32", **given}
    names = ("calendar", "numbered", "each", "dtype")
    return PanelInputs(PanelReader(**known), tuple(given["names"]), **{name: how[name] for name in names})
