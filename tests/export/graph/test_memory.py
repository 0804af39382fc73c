"""Decoders as graphs whose memory is an input: what they give and where they are then, beside `Bound.scan`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import elman
from elman import Residual, Stack
from elman import state as states
from elman.compose.attention import Additive, Bound, Covering, Decoder, Fixed, Layers, Luong
from elman.errors import InputError
from elman.onnx import Session, State

onnx = pytest.importorskip("onnx")
D, M, H = 3, 5, 4
SIZES = torch.tensor([6, 1, 0, 4, 3])  # of the memory
LENGTHS = torch.tensor([7, 0, 5, 1, 7])  # of x

DECODERS: dict[str, Callable[[], Decoder]] = {
    "additive gru": lambda: Additive(elman.cell("gru", D + M, H), M),
    "additive lstm": lambda: Additive(elman.cell("lstm", D + M, H), M, size=6, attention_size=7),
    "additive lru": lambda: Additive(elman.cell("lru", D + M, H), M),
    "additive block": lambda: Additive(Residual(Stack(elman.Norm(D + M), elman.cell("gru", D + M, D + M))), M),
    "dot": lambda: Luong(elman.cell("gru", D, M), M, score="dot"),
    "general": lambda: Luong(elman.cell("lstm", D, H), M, size=6),
    "general lru": lambda: Luong(elman.cell("lru", D, H), M),
    "fed dot": lambda: Luong(elman.cell("mgu", D + M, M), M, score="dot", feeding=True),
    "fed general": lambda: Luong(elman.cell("lstm", D + 6, H), M, feeding=True, size=6),
    "fixed": lambda: Fixed(elman.cell("gru", D + M, H), M),
    "fixed loop": lambda: Fixed(elman.cell("mgu", D + M, H), M),
    "layers": lambda: Layers(Additive(elman.cell("gru", D + M, H), M), elman.cell("lstm", H, 3)),
    "layers on fed": lambda: Layers(Luong(elman.cell("gru", D + H, H), M, feeding=True), elman.cell("lru", H, 3)),
}


def bound(name: str, dtype: torch.dtype = torch.float32) -> Bound:
    torch.manual_seed(1)
    decoder = DECODERS[name]().to(dtype).eval()
    with torch.no_grad():
        return decoder.given(torch.randn(len(SIZES), 6, M, dtype=dtype), SIZES)


def memory_of(core: Bound, session: Session) -> dict[str, np.ndarray]:
    """What the core holds, with rubbish where nothing is to be seen."""
    beyond = torch.arange(6) >= core.held.lengths[:, None]
    found = {
        "memory.keys": core.held.keys.masked_fill(beyond[..., None], float("nan")).numpy(),
        "memory.values": core.held.values.masked_fill(beyond[..., None], float("nan")).numpy(),
        "memory.lengths": core.held.lengths.numpy(),
    }
    return {name: found[name] for name in [*session.about["memory"], "memory.lengths"]}


def close(found: tuple[np.ndarray, State], wanted: tuple[torch.Tensor, states.State], tolerance: float = 1e-5) -> None:
    leaves = [torch.view_as_real(leaf) if leaf.is_complex() else leaf for leaf in states.leaves(wanted[1])]
    for array, tensor in zip([found[0], *found[1].values()], [wanted[0], *leaves], strict=True):
        assert array.shape == tuple(tensor.shape) and array.dtype == tensor.numpy().dtype
        assert np.abs(array - tensor.numpy()).max(initial=0) < tolerance  # no, of NaN


@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_reads_the_memory_that_it_is_given(name: str, tmp_path: Path) -> None:
    core, x = bound(name), torch.randn(5, 7, D)
    reset = torch.rand(5, 7) < 0.3
    [path] = elman.export.onnx(core, tmp_path / "plain.onnx")
    [other] = elman.export.onnx(core, tmp_path / "reset.onnx", with_reset=True)
    session, episodes = Session(path), Session(other)
    memory = memory_of(core, session)
    with torch.no_grad():
        first = core.scan(torch.randn(5, 2, D))[1]
        wanted = core.scan(x, first, lengths=LENGTHS)
        wanted_reset = core.scan(x, first, lengths=LENGTHS, reset=reset)
    leaves = [torch.view_as_real(leaf) if leaf.is_complex() else leaf for leaf in states.leaves(first)]
    names = [leaf["name"] for leaf in session.about["state"]]
    state = State(dict(zip(names, (leaf.numpy() for leaf in leaves), strict=True)), session.fingerprint)
    rubbish = np.where(np.arange(7)[:, None] < LENGTHS.numpy()[:, None, None], x.numpy(), np.float32(np.nan))
    whole = session.scan(rubbish, state, lengths=LENGTHS.numpy(), memory=memory)
    close(whole, wanted)
    close(episodes.scan(rubbish, state, lengths=LENGTHS.numpy(), memory=memory, reset=reset.numpy()), wanted_reset)
    with torch.no_grad():
        wanted = core.scan(x)
    after, ys = session.init_state(5), []
    for t in range(7):
        y, after = session.step(x[:, t].numpy(), after, memory=memory)
        ys.append(y)
    close((np.stack(ys, 1), after), wanted)


@pytest.mark.parametrize("name", ["additive gru", "general", "fed dot"])
def test_where_nothing_is_to_be_seen_the_context_is_zero(name: str, tmp_path: Path) -> None:
    """Of a memory of no places, as of rows of length 0; and without rows."""
    core, x = bound(name), torch.randn(2, 3, D)
    session = Session(elman.export.onnx(core, tmp_path / "a.onnx")[0])
    with torch.no_grad():
        wanted = core.decoder.given(torch.zeros(2, 1, M), torch.tensor([0, 0])).scan(x)

    def nothing(rows: int) -> dict[str, np.ndarray]:
        arrays = {key: np.zeros((rows, 0, width), np.float32) for key, width in session.about["memory"].items()}
        return {**arrays, "memory.lengths": np.zeros(rows, np.int64)}

    close(session.scan(x.numpy(), memory=nothing(2)), wanted)
    assert session.scan(x[:0].numpy(), memory=nothing(0))[0].shape == (0, 3, wanted[0].shape[2])


def test_in_float64_it_is_as_close_as_that(tmp_path: Path) -> None:
    core, x = bound("additive gru", torch.float64), torch.randn(5, 4, D, dtype=torch.float64)
    session = Session(elman.export.onnx(core, tmp_path / "a.onnx")[0])
    with torch.no_grad():
        close(session.scan(x.numpy(), memory=memory_of(core, session)), core.scan(x), 1e-12)


def test_the_reference_evaluator_attends_to_the_same(tmp_path: Path) -> None:
    from onnx.reference import ReferenceEvaluator

    core, x = bound("additive gru"), np.random.default_rng(0).normal(size=(5, 4, D)).astype(np.float32)
    [path] = elman.export.onnx(core, tmp_path / "a.onnx")
    session = Session(path)
    memory = memory_of(core, session)
    feeds = {"x": x, "lengths": np.full(5, 4), **session.init_state(5), **memory}
    y, *after = ReferenceEvaluator(str(path)).run(None, feeds)
    wanted, last = session.scan(x, memory=memory)
    assert np.abs(y - wanted).max() < 1e-5 and np.abs(after[0] - last["state.h"]).max() < 1e-5


def test_what_changes_with_the_memory_is_no_state_of_a_file(tmp_path: Path) -> None:
    core = bound("general")
    with pytest.raises(InputError, match="Covering cannot be exported: its state grows with the memory"):
        elman.export.onnx(Covering(core.decoder, core.held), tmp_path / "a.onnx")
    with pytest.raises(InputError, match="attention to more than one memory"):
        elman.export.onnx(Stack(bound("fixed"), Luong(elman.cell("gru", H, H), M).given(torch.ones(5, 1, M))),
                          tmp_path / "a.onnx")  # fmt: skip
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: {}, "the memory has nothing; this model reads memory.keys, memory.values, memory.lengths"),
        (lambda m: m | {"memory.keys": m["memory.keys"][:4]}, r"memory.keys is float32\[4, 6, 4\]; for 5 rows of x it"),
        (lambda m: m | {"memory.keys": m["memory.keys"][:, :5]}, "with one S for all that the memory has"),
        (lambda m: m | {"memory.values": m["memory.keys"]}, r"memory.values is .*numbers \(5, S, 5\)"),
        (lambda m: m | {"memory.lengths": np.full(5, 7)}, r"memory.lengths is .*5 whole numbers from 0 to 6"),
        (lambda m: State(m, "0" * 64), "the memory is of another model"),
    ],
)  # fmt: skip
def test_a_memory_that_does_not_fit_is_refused(change: Callable[[dict], object], message: str, tmp_path: Path) -> None:
    core = bound("additive gru")
    session = Session(elman.export.onnx(core, tmp_path / "a.onnx")[0])
    with pytest.raises(InputError, match=message):
        session.scan(np.zeros((5, 2, D), np.float32), memory=change(memory_of(core, session)))
    plain = Session(elman.export.onnx(elman.cell("gru", D, H), tmp_path / "b.onnx")[0])
    with pytest.raises(InputError, match="this model reads none"):
        plain.scan(np.zeros((5, 2, D), np.float32), memory=memory_of(core, session))
