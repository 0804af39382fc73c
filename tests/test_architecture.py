"""The layout is the path the data takes: a module imports only from what the layout lists above it."""

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

import elman
from elman import kernels, laws
from elman.cells import CELLS
from elman.core import Core
from elman.trees import TREES

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "elman"

# From top to bottom; a name is a module or a package. `_native` is what csrc/ is compiled to.
LAYOUT = [
    "_native", "errors", "options", "progress", "tables", "files", "state", "lengths", "data",
    "kernels", "core", "cells", "compose", "convert", "random", "nn", "model", "stream", "decoding",
    "lens", "training", "scikit", "tasks", "hmm", "trees", "images", "run", "online", "onnx", "export", "laws", "serve",
    "cli", "__main__",
]  # fmt: skip
# A task imports from those before it.
TASKS = ["text", "tag", "classify", "forecast", "translate", "hmm", "tree", "image"]
# The same of what is in serve/.
SERVE = ["json", "errors", "limits", "store", "engine", "net", "api", "server"]

PUBLIC = [
    "AdaptiveCategorical", "AdaptiveSoftmax", "Bernoulli", "BernoulliHMM", "BernoulliReadout", "Bidirectional",
    "BothEnds", "CELLS", "CRF", "Categorical", "CategoricalHMM", "Classifier", "ClassifyConfig", "ClassifyDataConfig",
    "ClassifyModelConfig", "Columns", "Core", "DecodingConfig", "DeepTransition", "DeltaNet", "Dense", "Distribution",
    "Dropout", "Elman", "ElmanError", "Embedding", "ForecastConfig", "ForecastDataConfig", "ForecastModelConfig",
    "ForecastOptim", "ForecastTraining", "Forecaster", "GLA", "GLU", "GMMHMM", "GRU", "GatedDeltaNet", "Gaussian",
    "GaussianHMM", "GaussianReadout", "HGRN2", "HMM", "HMMConfig", "HMMDataConfig", "HMMModelConfig", "ImageConfig",
    "ImageDataConfig", "ImageModelConfig", "IndRNN", "Jordan", "KDA", "LMConfig", "LMModelConfig", "LRU", "LSTM",
    "Lags", "LanguageModel", "LearnedStart", "LinearChain", "LossConfig", "MGU", "MLSTM", "Mamba", "Mamba2",
    "Mamba3", "MarkovConfig", "MarkovModel", "MarkovModelConfig", "MinGRU", "MinLSTM", "NegativeBinomial",
    "NegativeBinomialReadout", "Norm", "OptimConfig", "Painter", "Parallel", "Poisson", "PoissonHMM", "PoissonReadout",
    "Pool", "Pooled", "PreviewConfig", "QuantileGrid", "QuantileReadout", "RGLRU", "RWKV7", "Rate", "Recompute",
    "Residual", "RetNet", "Reverse", "S4D", "S5", "SLSTM", "SamplingConfig", "Scale", "SequenceClassifier",
    "SequenceModel", "SequenceRegressor", "SequenceTagger", "SeriesForecaster", "Softmax", "Stack", "Stream",
    "StudentT", "StudentTReadout", "TagConfig", "TagDataConfig", "TagModelConfig", "Tagger", "TextDataConfig",
    "TrainingConfig", "TranslateConfig", "TranslateDataConfig", "TranslateModelConfig", "Translator", "TreeConfig",
    "TreeDataConfig", "TreeLabeller", "TreeModelConfig", "WeightDrop", "Window", "Zoneout", "blocks", "cell", "cells",
    "compose", "data", "decoding", "errors", "export", "from_pretrained", "from_torch", "hmm", "images", "inspect",
    "kernels", "laws", "lens", "load", "online", "onnx", "save_bfloat16", "search", "stack", "state",
    "state_from_torch", "state_to_torch", "tasks", "to_torch", "train", "trees",
]  # fmt: skip

MODULES = sorted(SOURCE.rglob("*.py"))


def name_of(path: Path) -> str:
    """elman/cells/lstm.py is elman.cells.lstm; elman/cells/__init__.py is elman.cells."""
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def exists(module: str) -> bool:
    path = SOURCE.parent.joinpath(*module.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists() or module == "elman._native"


def imports(tree: ast.AST) -> Iterator[str]:
    """Every module of ours that is imported anywhere in a file: inside functions and for types too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "elman")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "elman":
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if exists(inner) else str(node.module)


def place(module: str) -> int:
    """Where the layout lists a module, or else its package; elman itself holds only the version, and the names that it
    finds when asked."""
    parts = module.split(".")
    return -1 if len(parts) == 1 else LAYOUT.index(parts[1])


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_follow_the_layout(path: Path) -> None:
    importer = name_of(path)
    if importer == "elman":
        pytest.skip("the public face names everything, and imports it when it is used")
    tree = ast.parse(path.read_text())
    assert not [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.level], "imports are absolute"
    for imported in imports(tree):
        same_package = importer.split(".")[1] == imported.split(".")[1:2][0] if "." in imported else False
        assert same_package or place(imported) < place(importer), (
            f"{importer} imports {imported}, which stands below it"
        )


def task_of(module: str) -> str:
    """Whose package a module of tasks/ is in: elman.tasks.tag.data is of tag; nothing for what all tasks share."""
    parts = module.split(".")
    return parts[2] if parts[1:2] == ["tasks"] and len(parts) > 2 and parts[2] in TASKS else ""


@pytest.mark.parametrize("path", sorted((SOURCE / "tasks").rglob("*.py")), ids=name_of)
def test_a_task_imports_from_tasks_that_are_listed_before_it(path: Path) -> None:
    """What all tasks share imports from none of them; tasks/__init__.py, which has TASKS, from all."""
    importer = name_of(path)
    if importer == "elman.tasks":
        pytest.skip("it lists all tasks")
    own = task_of(importer)
    before = TASKS[: TASKS.index(own) + 1] if own else []
    others = {imported: task_of(imported) for imported in imports(ast.parse(path.read_text()))}
    assert not {name for name, task in others.items() if task and task not in before}


@pytest.mark.parametrize("path", sorted((SOURCE / "serve").rglob("*.py")), ids=name_of)
def test_a_part_of_the_server_imports_from_parts_that_are_listed_before_it(path: Path) -> None:
    importer = name_of(path)
    if importer == "elman.serve":
        pytest.skip("it has no code")
    own = importer.split(".")[2]
    before = SERVE[: SERVE.index(own) + 1]
    parts = {name.split(".")[2] for name in imports(ast.parse(path.read_text())) if name.startswith("elman.serve.")}
    assert not parts - set(before)


def test_the_check_of_tasks_sees_whose_a_module_is() -> None:
    names = ["elman.tasks.tag.data", "elman.tasks.tag", "elman.tasks.plots", "elman.tasks", "elman.cells.gru"]
    assert [task_of(name) for name in names] == ["tag", "tag", "", "", ""]


SCRIPTS = sorted(path for folder in ("bench", "docs", "recipes") for path in (ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_script_imports_names_that_are_there(path: Path) -> None:
    """Nobody runs them in the tests: most need data, other libraries, or an hour."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "elman":
            module = importlib.import_module(str(node.module))
            names = [alias.name for alias in node.names if not exists(f"{node.module}.{alias.name}")]
            assert not [name for name in names if not hasattr(module, name)]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "bench":
            assert not [alias.name for alias in node.names if alias.name not in defined(str(node.module))]


def defined(module: str) -> set[str]:
    """What a module of bench/ defines or has beside it, without importing it: it may need other libraries."""
    path = ROOT.joinpath(*module.split("."))
    beside = {other.stem for other in path.glob("*.py")}
    top = ast.parse((path / "__init__.py" if beside else path.with_suffix(".py")).read_text()).body
    names = {node.name for node in top if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    inner = (name for node in top for name in ast.walk(node))
    stored = {name.id for name in inner if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)}
    return beside | names | stored


def test_the_rooms_are_few() -> None:
    own = [path for path in SOURCE.iterdir() if not path.name.startswith("_")]
    assert len([path for path in own if path.suffix == ".py"]) <= 16
    assert len([path for path in own if path.is_dir()]) <= 16
    assert {path.name for path in (SOURCE / "tasks").iterdir() if path.is_dir()} - {"__pycache__"} == set(TASKS)


def test_the_layout_check_sees_imports_of_every_form() -> None:
    top = "import elman.laws\nfrom elman import cells\nfrom elman.core import Core\n"
    text = f"{top}def f():\n    from elman.state import map"
    assert list(imports(ast.parse(text))) == ["elman.laws", "elman.cells", "elman.core", "elman.state"]


@pytest.mark.slow
def test_only_the_guard_imports_the_native_kernels() -> None:
    for path in MODULES:
        importer = name_of(path)
        for imported in imports(ast.parse(path.read_text())):
            if imported == "elman._native":
                assert importer.startswith("elman.kernels."), importer
            if imported.startswith("elman.kernels.native") and not importer.startswith("elman.kernels.native"):
                assert importer in ("elman.kernels", "elman.kernels.rows", "elman.stream"), importer


def test_no_rooms_for_what_has_no_home() -> None:
    names = {part for path in MODULES for part in path.relative_to(SOURCE).with_suffix("").parts}
    assert not names & {"utils", "util", "helpers", "common", "base", "misc"}


def test_public_names_are_pinned() -> None:
    assert sorted(elman.__all__) == sorted(PUBLIC)
    assert set(dir(elman)) == {*PUBLIC, "__version__"}
    with pytest.raises(AttributeError, match="no attribute 'LSTMM'"):
        elman.LSTMM  # noqa: B018


@pytest.mark.slow
def test_public_names_come_one_by_one_and_without_torch_before() -> None:
    """In a process of its own, where nothing has imported them yet."""
    script = f"""
import sys, elman
assert "torch" not in sys.modules
for name in {PUBLIC}:
    value = getattr(elman, name)
    assert value is not None and vars(elman)[name] is value, name
assert elman.hmm.__name__ == "elman.hmm" and elman.cell is elman.cells.cell and elman.Stack is elman.compose.Stack
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_type_checker_sees_the_public_names() -> None:
    """A stub exports `name as name`, and nothing that it imports otherwise. `make test` runs mypy over it."""
    stub = ast.parse((SOURCE / "__init__.pyi").read_text())
    names = [alias for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert all(alias.asname == alias.name for alias in names) and sorted(alias.name for alias in names) == sorted(
        PUBLIC
    )


def test_nothing_can_run_code_from_a_file() -> None:
    """Of the .pth of others, one place reads tensors, and refuses all else."""
    tensors_alone = 'torch.load(path, map_location="cpu", weights_only=True, mmap=True)'
    forbidden = re.compile(r"\bpickle\b|torch\.load\b|torch\.save\b|\bmarshal\b|\bshelve\b|\bdill\b|\bjoblib\b")
    for path in MODULES:
        text = path.read_text()
        if path.parent.name == "pretrained" and path.name == "source.py":
            text = text.replace(tensors_alone, "", 1)
        assert not forbidden.search(text), f"{path} names a format that can run code"


def test_every_tree_cell_has_its_file_and_its_page() -> None:
    pages = {path.stem for path in (ROOT / "docs" / "reference" / "trees").glob("*.md")}
    assert pages == set(TREES), "one page in docs/reference/trees for each cell in TREES"
    for name, cell in TREES.items():
        assert cell.__module__ == f"elman.tasks.tree.{name}", f"{name} belongs in tasks/tree/{name}.py"


def test_every_cell_has_its_file_and_its_page() -> None:
    pages = {path.stem for path in (ROOT / "docs" / "reference" / "cells").glob("*.md")}
    assert pages == set(CELLS), "one page in docs/reference/cells for each cell in CELLS"
    for name, cell in CELLS.items():
        assert cell.__module__ == f"elman.cells.{name}", f"{name} belongs in cells/{name}.py"


class TallyState(NamedTuple):
    count: Tensor  # (B, H)


class Tally(Core):
    """A toy: it adds up what it reads."""

    variants = ({},)

    def __init__(self, input_size: int, size: int) -> None:
        super().__init__(input_size, size)
        self.U = torch.nn.Parameter(torch.randn(size, input_size))

    def init_state(self, batch_size: int) -> TallyState:
        return TallyState(self.zeros(batch_size, self.output_size))

    def step(self, x: Tensor, state: TallyState) -> tuple[Tensor, TallyState]:
        count = state.count + kernels.linear(x, self.U)
        return count, TallyState(count)


def test_a_cell_is_in_the_table_the_moment_it_is_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Adding a cell: its file (here the class above), CELLS, its page. Nothing else needs to know."""
    monkeypatch.setitem(CELLS, "tally", Tally)
    rows = list(laws.rows(["tally"]))
    assert {row.kernels for row in rows} == set(kernels.available())
    assert {row.law for row in rows if row.kernels == "reference"} >= set(range(1, 8))
    assert all(row.ok for row in rows)
    assert elman.stack("tally", 3, 4, layers=2)(torch.zeros(1, 2, 3))[0].shape == (1, 2, 4)


@pytest.mark.skipif(
    os.environ.get("ELMAN_NATIVE") != "1", reason="asserted where ELMAN_NATIVE=1 asks for native kernels"
)
def test_native_kernels_are_in_use() -> None:
    assert kernels.active() == "native", kernels.why_not_native()
    assert kernels.isa() in kernels.isas()
    before = kernels.calls().get("linear_scan", 0)
    kernels.linear_scan(
        *torch.ones(3, 1, 2, 3).unbind()[:2], torch.ones(1, 3), torch.tensor([2]), torch.zeros(1, 2, dtype=torch.bool)
    )
    assert kernels.calls()["linear_scan"] == before + 1
