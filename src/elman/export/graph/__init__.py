"""ONNX: a module, or a model, as a graph whose state goes in and comes out.

    x, lengths, state.PATH ... (and reset)  ->  y, next.PATH ...

x (B, T, D), or the numbers of symbols (B, T), with any B and T; lengths (B,); y is zero past them, as in `Core.scan`.
One step is described as it is to a stream (kernels/builder.py), recorded (recorder.py) and laid out over time
(loops.py): only what waits for the state is in a loop.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import nn

from elman import __version__
from elman import state as states
from elman.core import Core
from elman.errors import FileError, InputError, MissingExtraError
from elman.files import artifact
from elman.model import SequenceModel
from elman.onnx import FORMAT, KEY
from elman.options import ending, whole
from elman.tasks.hmm.predictor import HiddenMarkovPredictor
from elman.tasks.predictor import Predictor


def onnx(
    source: object,
    path: str | Path,
    *,
    pack_state: bool = False,
    with_reset: bool = False,
    opset: int | None = None,
) -> list[Path]:
    """Write a core, a model or a predictor as ONNX; `ExportRequest` says what the options are.

    >>> import tempfile
    >>> import numpy as np
    >>> [file] = onnx(elman.cell("gru", 3, 4), tempfile.mkdtemp() + "/gru.onnx")
    >>> session = elman.onnx.Session(file)
    >>> y, state = session.scan(np.zeros((1, 5, 3), np.float32), session.init_state(1))
    >>> y.shape, list(state)
    ((1, 5, 4), ['state.h'])
    """
    out = Path(path)
    _check_path(out)
    try:
        import onnx as package

        from elman.export.graph import model
    except ImportError as error:
        raise MissingExtraError("onnx", "onnx") from error
    newest = package.defs.onnx_opset_version()
    version = model.NEWEST if opset is None else whole("opset", opset, least=model.LEAST, most=newest)
    options = model.Options(pack_state, with_reset, version)
    made, about = model.graph(*_parts(source), options)
    noted = {"format": FORMAT, "elman": __version__, "onnx": package.__version__, **_identity(source), **about}
    package.helper.set_model_props(made, {KEY: json.dumps(noted, ensure_ascii=False)})
    package.checker.check_model(made, full_check=True)
    data = made.SerializeToString()
    try:
        artifact.replace(out, lambda new: _write(new, data))
    except OSError as error:
        raise FileError(f"cannot write {out}: {error}. Free some space, or choose another file.") from error
    return [out]


def _write(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def _check_path(path: Path) -> None:
    ending("the path", str(path), (".onnx",))
    if path.exists():
        raise InputError(f"{path} exists; choose another name, or delete it")
    if not path.parent.is_dir():
        raise InputError(f"there is no folder {path.parent}; make it first")


def _parts(source: object) -> tuple[Core, nn.Module | None, nn.Module | None]:
    """The core, and the embedding and the read-out of a model."""
    module = source
    if isinstance(source, Predictor):
        module = source.module() if isinstance(source, HiddenMarkovPredictor) else source.model
    if isinstance(module, Core):
        return module, None, None
    if isinstance(module, SequenceModel):
        return module.core, module.embed, module.readout
    raise InputError(
        f"a {type(module).__name__} cannot be exported to ONNX; a Core can, and a SequenceModel: an embedding, a core "
        "and a read-out"
    )


def _identity(source: object) -> dict[str, Any]:
    """What the file says of where it comes from."""
    if isinstance(source, Predictor):
        return {"task": source.task, "fingerprint": source.fingerprint, "model": source.content()}
    assert isinstance(source, nn.Module)
    return {"task": "", "fingerprint": states.fingerprint(source), "model": None}
