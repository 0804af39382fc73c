"""ONNX: a module, or a model, as a graph whose state goes in and comes out.

    x, lengths, state.PATH ... (and reset)  ->  y, next.PATH ...

x (B, T, D), or the numbers of symbols (B, T), with any B and T; lengths (B,); y is zero past them, as in `Core.scan`.
One step is described as it is to a stream (kernels/builder.py), recorded (recorder.py) and laid out over time
(loops.py): only what waits for the state is in a loop. A translator is two graphs: what the encoder puts out is what
the decoder reads.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from elman import __version__
from elman import state as states
from elman.compose.attention import Decoder
from elman.core import Core
from elman.errors import FileError, InputError, MissingExtraError
from elman.files import artifact
from elman.model import SequenceModel
from elman.onnx import FORMAT, KEY
from elman.options import ending, whole
from elman.tasks.hmm.predictor import HiddenMarkovPredictor
from elman.tasks.predictor import Predictor
from elman.tasks.translate.model import Translator
from elman.tasks.translate.seq2seq import EncoderDecoder

if TYPE_CHECKING:
    from onnx import ModelProto

    from elman.export.graph import model

PARTS = ("encoder", "decoder")  # of a translator: book.onnx is book.encoder.onnx and book.decoder.onnx


def onnx(
    source: object,
    path: str | Path,
    *,
    pack_state: bool = False,
    with_reset: bool = False,
    opset: int | None = None,
    for_onnxruntime: bool = False,
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
    ending("the path", str(out), (".onnx",))
    network = source.model if isinstance(source, Translator) else source
    names = [f"{out.stem}.{part}.onnx" for part in PARTS] if isinstance(network, EncoderDecoder) else [out.name]
    paths = [out.with_name(name) for name in names]
    for each in paths:
        _check_free(each)
    try:
        import onnx as package

        from elman.export.graph import model
    except ImportError as error:
        raise MissingExtraError("onnx", "onnx") from error
    newest = package.defs.onnx_opset_version()
    version = model.NEWEST if opset is None else whole("opset", opset, least=model.LEAST, most=newest)
    if with_reset and for_onnxruntime:
        raise InputError("with_reset and for_onnxruntime exclude each other: its operation knows no resets; choose one")
    options = model.Options(pack_state, with_reset, version, for_onnxruntime)
    if isinstance(network, EncoderDecoder):
        graphs = _translator(network, options)
    else:
        graphs = [model.graph(*_parts(source), options)]
    noted = {"format": FORMAT, "elman": __version__, "onnx": package.__version__, **_identity(source)}
    if isinstance(source, Translator):
        noted["banned"] = list(source.banned_symbols)
    files = {}
    for each, (made, about) in zip(paths, graphs, strict=True):
        package.helper.set_model_props(made, {KEY: json.dumps({**noted, **about}, ensure_ascii=False)})
        package.checker.check_model(made, full_check=True)
        files[each] = made.SerializeToString()
    _write(files)
    return paths


def _write(files: dict[Path, bytes]) -> None:
    """All of them, or none."""
    written: list[Path] = []
    for path, data in files.items():
        try:
            artifact.replace(path, lambda new, data=data: new.write_bytes(data))  # type: ignore[misc]
        except OSError as error:
            for each in written:
                each.unlink()
            raise FileError(f"cannot write {path}: {error}. Free some space, or choose another file.") from error
        written.append(path)


def _check_free(path: Path) -> None:
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
        f"a {type(module).__name__} cannot be exported to ONNX; a Core can, a SequenceModel (an embedding, a core and "
        "a read-out), an EncoderDecoder, and a decoder with a memory: decoder.given(memory)"
    )


def _translator(network: EncoderDecoder, options: model.Options) -> list[tuple[ModelProto, dict[str, Any]]]:
    """The graphs of both parts, in their order."""
    from elman.export.graph import encoder, model

    if options.with_reset:
        raise InputError("with_reset is not for translators: each begins with its source, and a reset would forget it")
    core = network.decoder
    if isinstance(core, Decoder):  # the graph reads whatever memory it is given
        core = core.given(torch.zeros(1, 1, core.memory_size))
    made, about = model.graph(core, network.target, network.readout, options)
    return [encoder.graph(network, about, options), (made, {"part": "decoder", **about})]


def _identity(source: object) -> dict[str, Any]:
    """What the file says of where it comes from."""
    if isinstance(source, Predictor):
        return {"task": source.task, "fingerprint": source.fingerprint, "model": source.content()}
    assert isinstance(source, nn.Module)
    return {"task": "", "fingerprint": states.fingerprint(source), "model": None}
