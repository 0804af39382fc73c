"""Take a model elsewhere: files that other programs run, with the state as an input and an output.

A target is a function of a module, or of a predictor with its vocabulary and all else that its task needs, and a path:

    onnx    one graph, for every runtime of ONNX, or one for each part of a translator
    c       a folder with one file of C99 that steps the model to the bits of a Stream, and a check of that
    wasm    the same as WebAssembly, and a class of JavaScript around it
    html    one page with a language model in it: type, see it continue, fork, go back

It writes nothing unless it can write everything, replaces nothing, and returns the paths of what it has written. Its
keywords are the options of `elman export --to NAME`; what they mean stands once, in `ExportRequest`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from elman.errors import InputError, UnknownNameError
from elman.export.c import write_c, write_html, write_wasm
from elman.export.graph import onnx
from elman.kernels.builder import WEIGHTS
from elman.tasks import open_model
from elman.tasks.predictor import AnyPredictor
from elman.tasks.request import Request, option
from elman.tasks.text.generation import STORED

__all__ = ["TARGETS", "ExportRequest", "onnx", "write"]

Source = nn.Module | AnyPredictor

TARGETS: dict[str, Callable[..., list[Path]]] = {  # f(source, path, **options)
    "onnx": onnx,
    "c": write_c,
    "wasm": write_wasm,
    "html": write_html,
}


@dataclass(frozen=True)
class ExportRequest(Request):
    """The options of all targets: a function in TARGETS has those that its signature names, and refuses the others."""

    pack_state: bool = option(False, "the whole state as one tensor", group="--to onnx")
    with_reset: bool = option(False, "a further input: where an episode begins", group="--to onnx")
    opset: int | None = option(
        None, "the version of ONNX's operations; by default the newest that ONNX Runtime runs", least=1,
        group="--to onnx",
    )  # fmt: skip
    for_onnxruntime: bool = option(
        False, "matrix states by an operation that ONNX Runtime alone has, com.microsoft LinearAttention: faster",
        group="--to onnx",
    )  # fmt: skip
    name: str = option("model", "what functions and files are called by", group="--to c, wasm")
    weights: str | None = option(None, STORED, choices=WEIGHTS, group="--to c, wasm, html")


def write(source: str | Path | Source, to: str, path: str | Path, **options: Any) -> list[Path]:
    """Export a run, a saved model, a predictor or a module: the paths of what was written.

    >>> import tempfile
    >>> [file.name for file in write(elman.cell("gru", 3, 4), "onnx", tempfile.mkdtemp() + "/gru.onnx")]
    ['gru.onnx']
    """
    if to not in TARGETS:
        raise UnknownNameError("target", to, TARGETS)
    chosen = _options(to, vars(ExportRequest(**options)))
    opened = open_model(source)[1] if isinstance(source, str | Path) else source
    return TARGETS[to](opened, Path(path).expanduser(), **chosen)


def _options(to: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a target; what it does not have must be as it is by default."""
    own = [name for name in inspect.signature(TARGETS[to]).parameters if name in given]
    for named in ExportRequest.options():
        if named.name not in own and given[named.name] != named.default:
            raise InputError(f"{named.name} is not an option of {to}, which has {', '.join(own) or 'none'}")
    return {name: given[name] for name in own}
