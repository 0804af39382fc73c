"""Translators as two graphs: what the encoder gives, and what the decoder makes of it, beside Torch."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

import elman
from elman import state as states
from elman.data.vocabulary import BOUNDARY
from elman.errors import FileError, InputError
from elman.onnx import Session, Translator
from elman.tasks.translate.data import Pair, Vocabularies, fit
from elman.tasks.translate.model import Search, TranslateModelConfig, build
from elman.tasks.translate.seq2seq import EncoderDecoder

onnx = pytest.importorskip("onnx")
RUN = Path(__file__).parent.parent.parent / "versions" / "867694c" / "runs" / "translate"
SOURCES = torch.tensor([[2, 4, 3, 5, 2], [3, 0, 0, 0, 0], [0, 0, 0, 0, 0], [5, 5, 4, 0, 0]])
SIZES = torch.tensor([5, 1, 0, 3])
TARGETS = torch.tensor([[0, 3, 2, 4], [0, 5, 5, 1], [0, 1, 2, 3], [0, 2, 2, 2]])

NETWORKS = {
    "no attention": {"attention": "none"},
    "context at every step": {"attention": "none", "context": "every", "cell": "lstm"},
    "additive": {"attention": "additive", "layers": 2},
    "additive lstm": {"cell": "lstm", "attention_size": 3, "learn_initial_state": True},
    "dot": {"attention": "dot", "size": 8, "bidirectional": False},
    "general": {"attention": "general", "cell": "mgu"},
    "fed": {"attention": "general", "feeding": True, "decoder_layers": 2},
    "diagonal": {"attention": "general", "cell": "lru", "bidirectional": False},
    "matrices": {"attention": "none", "cell": "mlstm"},
    "tied blocks": {"attention": "dot", "cell": "mingru", "block": "residual", "bidirectional": False, "tied": "target",
                    "embedding_size": 6},
}  # fmt: skip


def network(**settings: object) -> EncoderDecoder:
    torch.manual_seed(0)
    pairs = [Pair("abcd", "abcd", "")]
    config = TranslateModelConfig(**{"size": 6, "embedding_size": 5, "layers": 1, **settings})
    model = build(config, Vocabularies(*fit(pairs, "char", True, 1, 0))).eval()
    for p in model.bridge.parameters():
        torch.nn.init.normal_(p)
    return model


def close(array: np.ndarray, wanted: torch.Tensor) -> None:
    tensor = (torch.view_as_real(wanted) if wanted.is_complex() else wanted).numpy()
    assert array.shape == tensor.shape and array.dtype == tensor.dtype
    assert np.abs(array - tensor).max(initial=0) < 1e-5  # no, of NaN


@pytest.mark.parametrize("name", NETWORKS)
def test_both_graphs_compute_what_the_network_does(name: str, tmp_path: Path) -> None:
    model = network(**NETWORKS[name])
    paths = elman.export.onnx(model, tmp_path / "a.onnx")
    assert [path.name for path in paths] == ["a.encoder.onnx", "a.decoder.onnx"]
    translator = Translator(*paths)
    memory, state = translator.encode(SOURCES.numpy(), SIZES.numpy())
    lengths = torch.tensor([4, 2, 3, 0])
    with torch.no_grad():
        decoder, first = model.given(SOURCES, SIZES)
        wanted, last = decoder.scan(TARGETS, first, lengths=lengths)
        held = decoder.core.held if hasattr(decoder.core, "held") else None
    for array, leaf in zip(state.values(), states.leaves(first), strict=True):
        close(array, leaf)
    for key, array in memory.items():
        close(array, getattr(held, key.removeprefix("memory.")))
    assert (held is None) == (not memory)
    y, after = translator.decoder.scan(TARGETS.numpy(), state, lengths=lengths.numpy(), memory=memory)
    for row, length in enumerate(lengths.tolist()):
        close(y[row, :length], wanted.logits[row, :length])
    for array, leaf in zip(after.values(), states.leaves(last), strict=True):
        close(array, leaf)
    empty, begun = translator.encode(SOURCES[:, :0].numpy())  # sources of nothing at all
    for array, row in zip(begun.values(), state.values(), strict=True):
        assert np.abs(array[2] - row[2]).max() < 1e-6
    assert not memory or empty["memory.values"].shape[::2] == memory["memory.values"].shape[::2]


@pytest.mark.parametrize("trained", [True, False])
def test_it_writes_the_translations_of_the_run(trained: bool, tmp_path: Path) -> None:
    """And of the same with weights by chance, which says more than it was trained to."""
    own = elman.load(RUN)
    torch.manual_seed(1)
    for p in [] if trained else own.model.parameters():
        torch.nn.init.normal_(p)
    translator = Translator(*elman.export.write(RUN if trained else own, "onnx", tmp_path / "book.onnx"))
    about = translator.about
    assert about["fingerprint"] == own.fingerprint and about["model"]["symbols"] == own.symbols.to_json()
    assert translator.decoder.about["banned"] == [own.symbols.target.unknown]
    lines = (RUN.parent.parent / "data" / "source.txt").read_text().splitlines()[:20]
    texts = [*lines, "", *(f"{a} {b}" for a, b in pairwise(lines))]
    sources = [own.symbols.source.encode(text).tolist() for text in texts]
    wanted = [row[0].tokens for row in own.translations(texts, Search())]
    assert translator.translate(sources) == wanted
    assert translator.translate(sources[3:4]) == wanted[3:4] and not translator.translate([])
    assert trained or len({tuple(row) for row in wanted}) > 10
    short = [row[0].tokens for row in own.translations(texts, Search(max_ratio=0.0))]
    assert translator.translate(sources, max_ratio=0.0) == short
    assert list(translator.decoder.about["outputs"]) == ["logits"]


def test_the_state_in_one_tensor(tmp_path: Path) -> None:
    model = network(cell="lstm", layers=2)
    packed, plain = (
        Translator(*elman.export.onnx(model, tmp_path / f"{pack}.onnx", pack_state=pack)) for pack in (True, False)
    )
    assert list(packed.encode([[2, 3]])[1]) == ["state"]
    rows = SOURCES[[0, 3], :3].tolist()
    assert packed.translate(rows) == plain.translate(rows)


def test_rows_of_a_memory_follow_those_of_the_state(tmp_path: Path) -> None:
    translator = Translator(*elman.export.onnx(network(), tmp_path / "a.onnx"))
    memory, state = translator.encode(SOURCES.numpy(), SIZES.numpy())
    decoder, start = translator.decoder, np.full(4, BOUNDARY)
    y, _ = decoder.step(start, state, memory=memory)
    forked, _ = decoder.step(start.repeat(2), decoder.repeat(state, 2), memory=decoder.repeat(memory, 2))
    taken, _ = decoder.step(start[:2], decoder.take(state, [3, 0]), memory=decoder.take(memory, [3, 0]))
    assert np.abs(forked[1::2] - y).max() < 1e-6 and np.abs(taken - y[[3, 0]]).max() < 1e-6


def test_files_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    encoder, decoder = elman.export.onnx(network(), tmp_path / "a.onnx")
    other, _ = elman.export.onnx(network(size=7), tmp_path / "b.onnx")
    with pytest.raises(InputError, match="are of two translators; name two files of one export"):
        Translator(other, decoder)
    with pytest.raises(InputError, match="is not the encoder of a translator; name the encoder, and then the decoder"):
        Translator(decoder, decoder)
    with pytest.raises(InputError, match="is the encoder of a translator: open it with its decoder"):
        Session(encoder)
    with pytest.raises(FileError, match="there is no file"):
        Translator(encoder, tmp_path / "none.onnx")
    with pytest.raises(InputError, match=r"x is int64\[1, 1\]; this model reads symbols"):
        Translator(encoder, decoder).translate([[99]])


def test_a_translator_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = network()
    with pytest.raises(InputError, match="with_reset is not for translators"):
        elman.export.onnx(model, tmp_path / "a.onnx", with_reset=True)
    (tmp_path / "a.decoder.onnx").write_text("something else")
    with pytest.raises(InputError, match=r"a.decoder.onnx exists; choose another name"):
        elman.export.onnx(model, tmp_path / "a.onnx")
    (tmp_path / "a.decoder.onnx").unlink()

    write = Path.write_bytes

    def fails(path: Path, data: bytes) -> int:
        if "decoder" in path.name:
            raise OSError("no space")
        return write(path, data)

    monkeypatch.setattr(Path, "write_bytes", fails)
    with pytest.raises(FileError, match=r"cannot write .*a.decoder.onnx: no space"):
        elman.export.onnx(model, tmp_path / "a.onnx")
    assert not list(tmp_path.iterdir())
