"""A session of an exported file: what it gives, what it refuses, and that it needs no Torch."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import elman
from elman.errors import FileError, InputError
from elman.onnx import Session
from elman.tasks.translate.seq2seq import EncoderDecoder

pytest.importorskip("onnxruntime")


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two models of one shape."""
    folder = tmp_path_factory.mktemp("onnx")
    torch.manual_seed(0)
    return [elman.export.onnx(elman.cell("lstm", 3, 4), folder / f"{name}.onnx")[0] for name in "ab"]


@pytest.fixture(scope="module")
def session(paths: list[Path]) -> Session:
    return Session(paths[0])


def test_rows_are_taken_and_repeated(session: Session) -> None:
    x = np.random.default_rng(0).normal(size=(3, 5, 3)).astype(np.float32)
    y, state = session.scan(x)
    forked, after = session.step(np.zeros((4, 3), np.float32), session.take(state, [2, 0, 2, 2]))
    assert np.array_equal(forked[0], forked[2]) and np.array_equal(after["state.h"][0], forked[0])
    twice = session.repeat(state, 2)
    assert twice["state.c"].shape == (6, 4) and np.array_equal(twice["state.c"][::2], state["state.c"])


def wrong_name(session: Session) -> object:
    state = session.init_state(1)
    return elman.onnx.State({"state.h": state["state.h"], "state.d": state["state.c"]}, state.fingerprint)


X = np.zeros((1, 2, 3), np.float32)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: s.scan(X[0]), r"x is float32\[2, 3\]; this model reads numbers \(B, T, 3\), features last"),
        (lambda s: s.scan(X.astype(np.int64)), "x is int64"),
        (lambda s: s.scan(X, s.init_state(2)), r"state.h is float32\[2, 4\]; for 1 rows of x it must be"),
        (lambda s: s.scan(X, wrong_name(s)), "the state has state.h, state.d; this model needs state.h, state.c"),
        (lambda s: s.scan(X, {}), "the state is a dict; pass what init_state, step or scan returned"),
        (lambda s: s.scan(X, lengths=[3]), r"lengths is \[3\]; it must be 1 whole numbers from 0 to 2"),
        (lambda s: s.scan(X, reset=np.ones((1, 2), bool)), "export the model again with --with_reset"),
        (lambda s: s.take(s.init_state(2), [True, False]), "take names rows by their numbers"),
        (lambda s: s.init_state(-1), "batch_size is -1"),
        (lambda s: s.scan(X * np.nan), r"x\[0, 0, 0\] is nan; this model reads finite float32 alone"),
        (lambda s: s.step(np.full((1, 3), 1e39), s.init_state(1)), r"x\[0, 0, 0\] is inf"),
    ],
)  # fmt: skip
def test_wrong_wiring_is_refused_in_a_sentence(session: Session, call: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call(session)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Session:
    """A model of five symbols, whose file has resets."""
    torch.manual_seed(0)
    net = elman.SequenceModel(elman.Embedding(5, 3), elman.cell("lstm", 3, 4), elman.Softmax(4, 5))
    return Session(elman.export.onnx(net, tmp_path_factory.mktemp("onnx") / "a.onnx", with_reset=True)[0])


def wider(session: Session) -> object:
    state = session.init_state(1)
    return elman.onnx.State({name: leaf.astype(np.float64) for name, leaf in state.items()}, state.fingerprint)


SYMBOLS = np.array([[0, 4]])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: s.scan(SYMBOLS + 1), r"x is int64\[1, 2\]; this model reads symbols, .* from 0 to 4"),
        (lambda s: s.scan(SYMBOLS - 1), "from 0 to 4"),
        (lambda s: s.scan(SYMBOLS.astype(np.float32)), "from 0 to 4"),
        (lambda s: s.scan(SYMBOLS, lengths=[-1]), r"lengths is \[-1\]"),
        (lambda s: s.scan(SYMBOLS, lengths=[1.0]), r"lengths is \[1.0\]"),
        (lambda s: s.scan(SYMBOLS, reset=[[0, 1]]), r"reset is int64\[1, 2\]; it must be bool\[1, 2\]"),
        (lambda s: s.scan(SYMBOLS, reset=[True, False]), r"reset is bool\[2\]"),
        (lambda s: s.scan(SYMBOLS, wider(s)), r"state.h is float64\[1, 4\]; .* must be float32"),
    ],
)  # fmt: skip
def test_wrong_symbols_lengths_and_resets_are_refused(reader: Session, call: object, message: str) -> None:
    assert reader.scan(SYMBOLS)[0].shape == (1, 2, 5) and reader.scan(np.zeros((0, 2), np.int64))[0].shape == (0, 2, 5)
    with pytest.raises(InputError, match=message):
        call(reader)


def test_features_of_another_width_are_refused(session: Session) -> None:
    with pytest.raises(InputError, match=r"x is float32\[1, 2, 4\]; this model reads numbers \(B, T, 3\)"):
        session.scan(np.zeros((1, 2, 4), np.float32))


def test_a_file_of_another_format_is_refused(paths: list[Path], tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    made = onnx.load(paths[0])
    [about] = (each for each in made.metadata_props if each.key == "elman")
    about.value = about.value.replace("elman-onnx-1", "elman-onnx-2")
    onnx.save(made, tmp_path / "later.onnx")
    with pytest.raises(FileError, match="has the format 'elman-onnx-2'; this version reads 'elman-onnx-1'"):
        Session(tmp_path / "later.onnx")


def test_the_best_path_is_the_best_of_all(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every path tried, of rows of each length; what begins and ends it counts too."""
    draw = np.random.default_rng(0)
    chain = {name: draw.normal(size=n).tolist() for name, n in (("start", 3), ("stop", 3), ("transition", (3, 3)))}
    start, stop, S = (np.array(chain[name]) for name in ("start", "stop", "transition"))
    monkeypatch.setitem(session.about, "chain", chain)
    y, lengths = draw.normal(size=(40, 4, 3)), np.arange(40) % 5
    for row, n, found in zip(y, lengths, session.best_path(y, lengths), strict=True):

        def score(path: tuple[int, ...], row: np.ndarray = row) -> float:
            pairs = sum(S[a, b] for a, b in itertools.pairwise(path))
            return float(start[path[0]] + row[range(len(path)), path].sum() + pairs + stop[path[-1]])

        wanted = max(itertools.product(range(3), repeat=int(n)), key=score) if n else ()
        assert found.tolist() == [*wanted, *[-1] * (4 - n)]


def test_a_state_of_another_model_is_refused(paths: list[Path], session: Session) -> None:
    with pytest.raises(InputError, match="the state is of another model"):
        session.scan(X, Session(paths[1]).init_state(1))


def test_other_files_are_refused(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    with pytest.raises(FileError, match="there is no file"):
        Session(tmp_path / "none.onnx")
    (tmp_path / "text.onnx").write_text("text")
    with pytest.raises(FileError, match="cannot be opened by ONNX Runtime"):
        Session(tmp_path / "text.onnx")
    info = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Abs", ["x"], ["y"])], "g", [info("x", 1, [1])], [info("y", 1, [1])]
    )
    opset = [onnx.helper.make_opsetid("", 18)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=10), tmp_path / "foreign.onnx")
    with pytest.raises(FileError, match="not a file that elman export wrote"):
        Session(tmp_path / "foreign.onnx")


def test_what_reads_the_future_has_no_state(tmp_path: Path) -> None:
    both = elman.Bidirectional(elman.cell("gru", 3, 4), elman.cell("gru", 3, 4))
    session = Session(elman.export.onnx(both, tmp_path / "both.onnx")[0])
    assert session.scan(X)[0].shape == (1, 2, 8) and not session.scan(X)[1]
    with pytest.raises(InputError, match="reads the future, so it has no step"):
        session.step(X[:, 0], session.scan(X)[1])
    with pytest.raises(InputError, match="reads the future, so it has no state"):
        session.scan(X, session.scan(X)[1])


@pytest.mark.slow
def test_it_needs_no_torch(paths: list[Path], tmp_path: Path) -> None:
    source, target = elman.Embedding(5, 3), elman.Embedding(6, 2)
    network = EncoderDecoder(source, elman.cell("gru", 3, 4), target, elman.cell("gru", 2, 4), elman.Softmax(4, 6))
    encoder, decoder = elman.export.onnx(network, tmp_path / "a.onnx")
    script = f"""
import sys
sys.modules["torch"] = sys.modules["safetensors"] = sys.modules["onnx"] = None
import numpy as np, elman
session = elman.onnx.Session({str(paths[0])!r})
y, state = session.step(np.ones((2, 3), np.float32), session.init_state(2))
print(y.shape, session.repeat(session.take(state, [0]), 3))
print(len(elman.onnx.Translator({str(encoder)!r}, {str(decoder)!r}).translate([[1, 2], [3]])))
"""
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout == "(2, 4) State(state.h [3, 4], state.c [3, 4])\n2\n"
