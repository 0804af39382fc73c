"""The files of a forecaster: its network, how it reads, and the state of each series."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import torch

from elman import artifact
from elman.config import Json
from elman.data.calendar import Frequency
from elman.data.covariates import Covariate
from elman.data.panel import PanelReader
from elman.data.panel_inputs import PanelInputs
from elman.errors import FileError
from elman.model import SequenceModel
from elman.tasks import files, network
from elman.tasks.forecast_network import ModelConfig, Widths, build

STATE = "series.safetensors"


def content(config: ModelConfig, inputs: PanelInputs, horizon: int, seasonality: int) -> dict[str, Json]:
    """What stands in model.json."""
    return {
        "config": asdict(config),
        "inputs": {**asdict(inputs), "reader": asdict(inputs.reader)},
        "horizon": horizon,
        "seasonality": seasonality,
    }


def read(folder: Path) -> tuple[SequenceModel, ModelConfig, PanelInputs, int, int]:
    """The network of a folder with its weights, and what else `content` wrote."""
    found = artifact.read_model_json(folder)
    try:
        config, inputs = ModelConfig(**network.stored(found["config"])), _inputs(found["inputs"])
        horizon, seasonality = int(found["horizon"]), int(found["seasonality"])
    except (KeyError, TypeError, ValueError) as error:
        raise FileError(f"{folder / 'model.json'} is not a model that this version knows: {error}") from error
    model = build(config, widths(inputs), seasonality).to(getattr(torch, inputs.dtype))
    files.restore(model, folder)
    return model.eval(), config, inputs, horizon, seasonality


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
