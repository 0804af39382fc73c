"""LinearAttention of the standard, through the standard's own implementation: ONNX Runtime does not run it yet.

That of ONNX Runtime keeps the laws in test_onnx_laws.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import elman
from elman import state as states
from elman.cells import CELLS
from elman.cells.matrix import Matrix, Terms
from elman.cells.past import Past
from elman.core import Core
from elman.export.graph.linear_attention import MICROSOFT, SINCE
from elman.laws.sequence import draw
from elman.onnx import Session

onnx = pytest.importorskip("onnx")


class Steps(Matrix[tuple[Tensor]]):
    """How many inputs there were, times x: the rule `linear`, with a key and a value that are always the same."""

    def __init__(self) -> None:
        super().__init__(4, 4, heads=4, key_size=1, value_size=1)

    def init_state(self, batch_size: int) -> tuple[Tensor]:
        return (self.zeros(batch_size, 4, 1, 1),)

    def terms(self, x: Tensor, past: Past) -> Terms:
        return Terms(x, torch.ones_like(x), torch.ones_like(x))

    def read(self, s: Tensor, terms: Terms) -> Tensor:
        return s


CORES: dict[str, Callable[[], Core]] = {
    f"{name}-{i}": lambda kind=kind, options=options: kind(4, 4, **options)
    for name, kind in CELLS.items()
    if issubclass(kind, Matrix) and name != "rwkv7"
    for i, options in enumerate(kind.variants)
}
RULES = {"gla-0": "gated", "retnet-0": "gated", "deltanet-0": "delta", "kda-0": "gated_delta"}


def nodes(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """Those of its branches and bodies too."""
    inner = [each.g for node in graph.node for each in node.attribute if each.HasField("g")]
    return [*graph.node, *(node for each in inner for node in nodes(each))]


@pytest.mark.parametrize("name", CORES)
def test_the_standard_operation_computes_the_same(name: str, tmp_path: Path) -> None:
    from onnx.reference import ReferenceEvaluator

    torch.manual_seed(0)
    core = CORES[name]().eval()
    [path] = elman.export.onnx(core, tmp_path / "a.onnx", opset=SINCE)
    model = onnx.load(path)
    found = [node for node in nodes(model.graph) if node.op_type == "LinearAttention"]
    assert found and {(each.domain, each.version) for each in model.opset_import} == {("", SINCE)}
    if name in RULES:
        assert {each.s.decode() for each in found[0].attribute if each.name == "update_rule"} == {RULES[name]}
    sample = draw(core, torch.float32, seed=0, batch_size=4, time=5)
    x, lengths = sample.x.numpy().copy(), sample.lengths.numpy()
    with torch.no_grad():
        wanted, last = core.scan(sample.x, sample.state, lengths=sample.lengths)
    x[np.arange(5) >= lengths[:, None]] = np.nan  # what is past the lengths has no influence
    names = [each.name for each in model.graph.input[2:]]
    state = dict(zip(names, map(array, states.leaves(sample.state)), strict=True))
    y, *after = ReferenceEvaluator(model).run(None, {"x": x, "lengths": lengths, **state})
    assert np.abs(y - wanted.numpy()).max() < 1e-5
    for own, leaf in zip(after, states.leaves(last), strict=True):
        assert np.abs(own - array(leaf)).max(initial=0) < 1e-5


def array(leaf: Tensor) -> np.ndarray:
    return (torch.view_as_real(leaf) if leaf.is_complex() else leaf).numpy()


def test_what_is_written_may_be_constant(tmp_path: Path) -> None:
    core, x = Steps(), np.ones((2, 3, 4), np.float32)
    [path] = elman.export.onnx(core, tmp_path / "a.onnx", for_onnxruntime=True)
    y, state = Session(path).scan(x, lengths=[3, 1])
    assert y[..., 0].tolist() == [[1, 2, 3], [1, 0, 0]] and state["state.0"].ravel().tolist() == [3] * 4 + [1] * 4


@pytest.mark.parametrize(
    ("core", "options"),
    [
        (lambda: elman.cell("rwkv7", 4, 4), {}),  # a correction of another kind
        (lambda: elman.cell("gla", 4, 4).double(), {}),  # ONNX Runtime has it in float32
        (lambda: elman.cell("gru", 4, 4), {}),
        (lambda: elman.cell("gla", 4, 4), {"for_onnxruntime": False}),
        (lambda: elman.cell("gla", 4, 4), {"for_onnxruntime": False, "with_reset": True, "opset": SINCE}),
    ],
)
def test_everything_else_is_written_as_before(core: Callable[[], Core], options: dict, tmp_path: Path) -> None:
    [path] = elman.export.onnx(core(), tmp_path / "a.onnx", **{"for_onnxruntime": True, **options})
    model = onnx.load(path)
    assert MICROSOFT not in {each.domain for each in model.opset_import}
    assert "LinearAttention" not in {node.op_type for node in nodes(model.graph)}
