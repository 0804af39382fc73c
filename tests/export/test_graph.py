"""Models of every task as ONNX, beside what they compute in Torch; and what is refused, with nothing written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import elman
from elman import state as states
from elman.core import Core
from elman.errors import InputError
from elman.onnx import Session
from elman.tasks.tag.data import Sentence
from elman.tasks.tag.lexicon import Written, collate
from elman.tasks.tag.word_features import Characters, SentenceEmbedding, WordEmbedding

onnx = pytest.importorskip("onnx")
RUNS = Path(__file__).parent.parent / "versions" / "867694c" / "runs"


def exported(source: object, folder: Path, **options: object) -> Session:
    [path] = elman.export.write(source, "onnx", folder / "model.onnx", **options)
    onnx.checker.check_model(str(path), full_check=True)
    return Session(path)


def test_a_language_model_generates_the_same_text(tmp_path: Path) -> None:
    lm = elman.load(RUNS / "lm")
    session = exported(RUNS / "lm", tmp_path)
    state, own = session.init_state(1), lm.model.init_state(1)
    symbols = [int(symbol) for symbol in lm.vocabulary.encode("the ")]
    assert session.about["outputs"] == {"logits": lm.vocabulary.size}
    assert session.fingerprint == lm.fingerprint and session.about["model"]["vocabulary"] == lm.vocabulary.to_json()
    for i in range(40):
        with torch.no_grad():
            predicted, own = lm.model.step(torch.tensor(symbols[i : i + 1]), own)
        y, state = session.step([symbols[i]], state)
        assert np.allclose(y - y.max(), (predicted.logits - predicted.logits.max()).numpy(), atol=1e-5)
        if i + 1 == len(symbols):
            symbols.append(int(y.argmax()))
            assert symbols[-1] == int(predicted.mode)


def test_a_classifier_gives_the_same_logits(tmp_path: Path) -> None:
    classifier = elman.load(RUNS / "classify")
    session = exported(classifier, tmp_path)
    x = torch.randint(0, session.about["inputs"][0]["symbols"], (3, 7))
    lengths = torch.tensor([7, 1, 4])
    with torch.no_grad():
        wanted = classifier.model.scan(x, lengths=lengths)[0].logits.numpy()
    y, _ = session.scan(x.numpy(), lengths=lengths.numpy())
    assert np.allclose(y[np.arange(3), lengths - 1], wanted, atol=1e-5)


def test_a_tagger_finds_the_same_tags(tmp_path: Path) -> None:
    tagger = elman.load(RUNS / "tag")
    session = exported(tagger, tmp_path)
    sentences = [Sentence(["He", "sees", "a", "cat"]), Sentence(["Odd"]), Sentence(["the", "4", "Cats"])]
    x, lengths = collate([tagger.lexicon.written(sentence) for sentence in sentences])
    names = [each["name"] for each in session.about["inputs"]]
    parts = {"x": x.words, "case": x.case, "features": x.features, "characters": x.characters, "sizes": x.sizes}
    y, _ = session.scan({name: parts[name].numpy() for name in names}, lengths=lengths.numpy())
    with torch.no_grad():
        chain = tagger.model.scan(x, lengths=lengths)[0]
    for row, length in enumerate(lengths.tolist()):
        assert np.allclose(y[row, :length], chain.emissions[row, :length].numpy(), atol=1e-5)
    assert session.best_path(y, lengths.numpy()).tolist() == chain.best_path().tolist()


def test_features_of_words_have_symbols_of_their_own(tmp_path: Path) -> None:
    """Two columns of 3 and 9 symbols beside words, case and characters."""
    torch.manual_seed(0)
    features, characters = [elman.Embedding(3, 2), elman.Embedding(9, 2)], Characters(6, "gru", 4, 3)
    embed = SentenceEmbedding(WordEmbedding(5, 2), elman.Embedding(4, 2), features, characters)
    model = elman.SequenceModel(embed, elman.cell("gru", embed.output_size, 4), elman.Softmax(4, 3)).eval()
    session = exported(model, tmp_path)
    assert [each["symbols"] for each in session.about["inputs"][:3]] == [5, 4, [3, 9]]
    x = Written(
        torch.tensor([[1, 4], [2, 0]]), torch.tensor([[0, 3], [1, 1]]),
        torch.tensor([[[2, 8], [0, 5]], [[1, 3], [0, 0]]]),
        torch.randint(0, 6, (2, 2, 4)), torch.tensor([[4, 1], [0, 2]]),
    )  # fmt: skip
    names = {"words": "x"}
    given = {names.get(name, name): part.numpy() for name, part in x._asdict().items()}
    with torch.no_grad():
        wanted = model.scan(x)[0].logits.numpy()
    assert np.abs(session.scan(given)[0] - wanted).max() < 1e-5
    with pytest.raises(InputError, match=r"features is .* symbols, whole numbers \(B, T, 2\) from 0 to 2 or 8"):
        session.scan({**given, "features": given["features"][..., ::-1]})


def test_a_forecaster_gives_the_parameters_of_its_distribution(tmp_path: Path) -> None:
    model = elman.load(RUNS / "forecast").model
    session = exported(model, tmp_path)
    x = torch.rand(2, 30, session.about["inputs"][0]["shape"][0]) + 1
    with torch.no_grad():
        wanted, after = model.scan(x)
    y, state = session.scan(x.numpy())
    found = session.parts(y)
    for name, part in found.items():
        assert np.allclose(part, getattr(wanted, name).numpy(), rtol=1e-5, atol=1e-5), name
    for leaf, (name, array) in zip(states.leaves(after), state.items(), strict=True):
        assert np.allclose(array, leaf.numpy(), atol=1e-5), name


@pytest.mark.parametrize("name", ["GaussianHMM", "CategoricalHMM", "BernoulliHMM", "PoissonHMM"])
def test_a_hidden_markov_model_filters(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    X = torch.randint(0, 2, (200, 1 if name == "CategoricalHMM" else 2)).double().numpy()
    model = getattr(elman.hmm, name)(n_components=2, n_iter=3, tol=1e9, random_state=0).fit(X)
    session = exported(model, tmp_path)
    x = X[None, :50, 0].astype(np.int64) if name == "CategoricalHMM" else X[None, :50]
    y, state = session.scan(x)
    with torch.no_grad():
        wanted, last = model.module().scan(torch.from_numpy(X[None, :50]))
    assert list(session.parts(y)) == ["p"] and np.allclose(y, wanted.p.numpy(), atol=1e-9)
    assert np.allclose(state["state.p"], last.p.numpy(), atol=1e-9)


@pytest.mark.parametrize("name", ["BernoulliHMM", "PoissonHMM"])
def test_an_emission_that_is_certain_is_refused(name: str, tmp_path: Path) -> None:
    """0 times the logarithm of 0 would make what is not a number of every sequence."""
    X = np.stack([np.zeros(50), np.arange(50) % 2], 1)
    model = getattr(elman.hmm, name)(n_components=1, n_iter=5, tol=1e9, random_state=0).fit(X)
    with pytest.raises(InputError, match="an emission with a probability or a rate of zero"):
        exported(model, tmp_path)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("kind", ["full", "tied", "diag", "spherical"])
def test_every_kind_of_covariance(kind: str, tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(300, 3)) + np.arange(300)[:, None] % 2
    model = elman.hmm.GaussianHMM(n_components=2, covariance_type=kind, n_iter=3, tol=1e9, random_state=0).fit(X)
    y, _ = exported(model, tmp_path).scan(X[None, :40])
    with torch.no_grad():
        assert np.allclose(y, model.module().scan(torch.from_numpy(X[None, :40]))[0].p.numpy(), atol=1e-9)


def test_one_tensor_holds_the_whole_state(tmp_path: Path) -> None:
    core = elman.Stack(elman.cell("lru", 3, 4), elman.cell("mamba2", 4, 4), elman.Pool("mean", 4))
    session = exported(core, tmp_path, pack_state=True)
    x = torch.randn(2, 6, 3)
    with torch.no_grad():
        wanted, last = core.scan(x)
    first, state = session.scan(x[:, :2].numpy())
    second, state = session.scan(x[:, 2:].numpy(), state)
    assert [path.name for path in onnx.load(tmp_path / "model.onnx").graph.input] == ["x", "lengths", "state"]
    assert np.allclose(np.concatenate([first, second], 1), wanted.numpy(), atol=1e-5)
    flat = [states.leaves(last)[0]]
    assert np.allclose(state["state"][:, :8], torch.view_as_real(flat[0]).flatten(1).numpy(), atol=1e-5)
    assert state["state"].dtype == np.float64  # as wide as the sums of the pool


@pytest.mark.parametrize("pack_state", [False, True])
def test_a_session_begins_where_the_core_does(pack_state: bool, tmp_path: Path) -> None:
    """At numbers that were learned, and at infinities, which are words in JSON."""
    torch.manual_seed(0)
    learned = elman.LearnedStart(elman.Stack(elman.cell("lstm", 3, 4), elman.cell("lru", 4, 4)))
    nn.init.normal_(learned.initial_state)
    core = elman.Stack(learned, elman.cell("mlstm", 4, 4), elman.Pool("max", 4))
    session = exported(core, tmp_path, pack_state=pack_state)
    wanted = [torch.view_as_real(v) if v.is_complex() else v for v in states.leaves(states.detach(core.init_state(2)))]
    if pack_state:
        wanted = [torch.cat([leaf.flatten(1) for leaf in wanted], 1)]
    found = list(session.init_state(2).values())
    assert any(bool(leaf.isinf().any()) for leaf in wanted)
    for leaf, array in zip(wanted, found, strict=True):
        assert np.array_equal(array, leaf.numpy()) and array.dtype == leaf.numpy().dtype


@pytest.mark.parametrize("cell", ["elman", "gru", "lstm", "minlstm", "mamba", "mlstm"])
def test_models_in_float64_have_what_onnx_runtime_has_in_float64(cell: str, tmp_path: Path) -> None:
    """It has neither Softplus in float64 nor the nodes RNN, GRU and LSTM."""
    torch.manual_seed(0)
    core = elman.cell(cell, 3, 4).double()
    x = 30 * torch.randn(2, 5, 3, dtype=torch.float64)
    y, state = exported(core, tmp_path).scan(x.numpy(), lengths=[5, 2])
    with torch.no_grad():
        wanted, last = core.scan(x, lengths=torch.tensor([5, 2]))
    assert np.allclose(y, wanted.numpy(), rtol=1e-9, atol=1e-9)
    for found, leaf in zip(state.values(), states.leaves(last), strict=True):
        assert np.allclose(found, leaf.numpy(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("cell", ["elman", "gru", "lstm"])
def test_time_and_batch_are_free(cell: str, tmp_path: Path) -> None:
    """Torch's exporters froze both for nn.RNN, unrolled (pytorch 189225)."""
    session = exported(elman.cell(cell, 3, 4), tmp_path)
    graph = onnx.load(tmp_path / "model.onnx").graph
    assert [d.dim_param for d in graph.input[0].type.tensor_type.shape.dim[:2]] == ["batch", "time"]
    branches = {each.name: each.g for node in graph.node for each in node.attribute}
    assert sum(node.op_type in ("RNN", "GRU", "LSTM") for node in branches["then_branch"].node) == 1
    for shape in ((1, 1, 3), (5, 17, 3), (2, 0, 3), (0, 4, 3)):
        assert session.scan(np.zeros(shape, np.float32))[0].shape == (*shape[:2], 4)


@pytest.mark.parametrize("reset_after", [True, False])
def test_the_reset_gate_acts_where_it_does_in_torch(reset_after: bool, tmp_path: Path) -> None:
    """Torch's exporter wrote a GRU whose reset gate acts on h (pytorch 191855); with biases, the two differ."""
    torch.manual_seed(0)
    core = elman.cell("gru", 3, 4, reset_after=reset_after)
    for p in core.parameters():
        nn.init.normal_(p)
    session, x = exported(core, tmp_path), torch.randn(2, 9, 3)
    with torch.no_grad():
        wanted = core.scan(x)[0].numpy()
    assert np.abs(session.scan(x.numpy())[0] - wanted).max() < 1e-5
    if reset_after:
        gru = nn.GRU(3, 4, batch_first=True)
        other = exported(elman.from_torch(gru), tmp_path.joinpath("torch").mkdir() or tmp_path / "torch")
        assert np.abs(other.scan(x.numpy())[0] - gru(x)[0].detach().numpy()).max() < 1e-5


@pytest.mark.parametrize(
    "name", ["elman", "gru", "lstm", "mgu", "mingru", "lru", "s4d", "gated_deltanet", "mamba", "mamba3"]
)
def test_the_reference_evaluator_computes_the_same(name: str, tmp_path: Path) -> None:
    """The standard's own implementation, in NumPy: of nodes, of loops, of norms and of matrices."""
    from onnx.reference import ReferenceEvaluator

    torch.manual_seed(0)
    session = exported(elman.Stack(elman.cell(name, 3, 4), elman.Norm(4)), tmp_path)
    x, state = np.random.default_rng(0).normal(size=(2, 5, 3)).astype(np.float32), session.init_state(2)
    feeds = {"x": x, "lengths": np.array([5, 5]), **state}
    y, *after = ReferenceEvaluator(str(tmp_path / "model.onnx")).run(None, feeds)
    wanted, last = session.scan(x, state)
    assert np.abs(y - wanted).max() < 1e-5
    for own, array in zip(after, last.values(), strict=True):
        assert np.abs(own - array).max() < 1e-5


class Odd(Core):
    """A core whose step no builder can describe."""

    def __init__(self) -> None:
        super().__init__(3, 3)

    def init_state(self, batch_size: int) -> tuple[()]:
        return ()

    def step(self, x: torch.Tensor, state: tuple[()]) -> tuple[torch.Tensor, tuple[()]]:
        return x.sort(-1).values, ()


@pytest.mark.parametrize(
    ("source", "name", "options", "message"),
    [
        (Odd(), "a.onnx", {}, "Odd cannot be exported: Odd does not describe its step"),
        (elman.Pool("attention", 3), "a.onnx", {}, "Pool cannot be exported: Attention does not describe its step"),
        (nn.Linear(3, 3), "a.onnx", {}, "a Linear cannot be exported to ONNX; a Core can"),
        (elman.cell("gru", 3, 3), "a.onnx", {"opset": 999}, "opset is 999; it must be a whole number of at least 18"),
        (elman.cell("gru", 3, 3), "a.onnx", {"opset": 7}, "opset is 7; it must be a whole number of at least 18"),
        (elman.cell("gru", 3, 3), "a.txt", {}, "must be a file that ends with .onnx"),
        (elman.cell("gru", 3, 3), "nowhere/a.onnx", {}, "there is no folder"),
        (elman.cell("gru", 3, 3), "there.onnx", {}, "exists; choose another name"),
        (
            elman.cell("gla", 3, 3), "a.onnx", {"with_reset": True, "for_onnxruntime": True},
            "with_reset and for_onnxruntime exclude each other",
        ),
        (elman.Dense(3, 3), "a.onnx", {"pack_state": True}, "this core remembers nothing"),
        (elman.Reverse(elman.cell("gru", 3, 3)), "a.onnx", {"pack_state": True}, "reads the future"),
        (elman.Zoneout(elman.cell("s4d", 3, 3), 0.1), "a.onnx", {}, "a leaf of complex numbers"),
        (elman.cell("gru", 3, 3).bfloat16(), "a.onnx", {}, "convert it with core.float()"),
    ],
)  # fmt: skip
def test_what_cannot_be_exported_says_so_in_a_line_and_writes_nothing(
    source: nn.Module, name: str, options: dict, message: str, tmp_path: Path
) -> None:
    (tmp_path / "there.onnx").write_text("something else")
    with pytest.raises(InputError) as raised:
        elman.export.onnx(source, tmp_path / name, **options)
    assert message in str(raised.value) and "\n" not in str(raised.value)
    assert [path.name for path in tmp_path.iterdir()] == ["there.onnx"]
    assert (tmp_path / "there.onnx").read_text() == "something else"


def test_targets_refuse_options_of_others(tmp_path: Path) -> None:
    core = elman.cell("gru", 3, 3)
    with pytest.raises(elman.ElmanError, match="unknown target 'onxx'"):
        elman.export.write(core, "onxx", tmp_path / "a")
    for to, option in (("onnx", {"weights": "int8"}), ("onnx", {"name": "gru"}), ("c", {"pack_state": True})):
        with pytest.raises(InputError, match=f"{next(iter(option))} is not an option of {to}, which has"):
            elman.export.write(core, to, tmp_path / "a.onnx", **option)
    assert not [*tmp_path.iterdir()]


def test_the_default_opset_is_the_newest_that_onnx_runtime_runs(tmp_path: Path) -> None:
    """When a newer ONNX Runtime is pinned, this says to raise NEWEST."""
    core = elman.cell("mgu", 3, 4)
    exported(core, tmp_path)
    newest = {each.domain: each.version for each in onnx.load(tmp_path / "model.onnx").opset_import}[""]
    [path] = elman.export.onnx(core, tmp_path / "newer.onnx", opset=newest + 1)
    with pytest.raises(elman.ElmanError, match="cannot be opened by ONNX Runtime"):
        Session(path)
