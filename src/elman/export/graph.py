"""ONNX: a module, or a model, as a graph whose state goes in and comes out."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from elman.errors import InputError
from elman.tasks.predictor import AnyPredictor


def onnx(
    source: nn.Module | AnyPredictor,
    path: str | Path,
    *,
    pack_state: bool = False,
    with_reset: bool = False,
    opset: int | None = None,
) -> list[Path]:
    """Write the ONNX file of a core, a model or a predictor."""
    raise InputError("ONNX is not exported yet")
