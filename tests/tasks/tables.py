"""One entry for every task: a small run of it, what is asked of its model, and what it refuses.

The data, and models that were trained on them, are in tests/versions. `test_every_task.py` holds every task to the same
promises by this table; a task that has no entry fails there.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from elman.tasks import TASKS
from elman.tasks.request import Files
from elman.tasks.translate.model import Search

THERE = Path(__file__).parents[1] / "versions" / "867694c"
RUNS = THERE / "runs"


def path(name: str) -> str:
    return str(THERE / "data" / name)


def files(*names: str) -> Files:
    return Files(path(name) for name in names)


@dataclass(frozen=True)
class File:
    """A file that a test is to write: what is in it, and its name, whose ending may matter."""

    content: bytes
    name: str = "train.txt"


@dataclass(frozen=True)
class Entry:
    """What the tests need to know of a task.

    Args:
        settings: a run of some steps, by section
        requests: keyword arguments of every verb that it answers
        predict: the file that `elman predict` is given
        variants: changes of the settings under which a run that was stopped must end in the same bytes too
        outputs: what a model computes in batches of a size, to the bit; None where no verb has a size
        bad: by name, settings (or files) that are refused, and what the message says
    """

    settings: dict[str, dict[str, Any]]
    requests: dict[str, dict[str, Any]]
    predict: Files | None = None
    variants: tuple[dict[str, dict[str, Any]], ...] = ({},)
    outputs: Callable[[Any, int], Any] | None = None
    bad: dict[str, tuple[dict[str, Any], str]] = field(default_factory=dict)


SHORT = {
    "optim": {"lr": 0.02, "warmup": 2},
    "training": {"steps": 9, "log_every": 2, "evaluate_every": 4},
}


def merged(*settings: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    names = {name for one in settings for name in one}
    return {name: {k: v for one in settings for k, v in one.get(name, {}).items()} for name in sorted(names)}


def with_files(settings: dict[str, dict[str, Any]], folder: Path) -> dict[str, dict[str, Any]]:
    """Settings with the names of files, which are written."""
    named = {}
    for key, value in settings["data"].items():
        if isinstance(value, File):
            (folder / value.name).write_bytes(value.content)
        named[key] = str(folder / value.name) if isinstance(value, File) else value
    return {**settings, "data": named}


def config(name: str, out: Path, changes: dict[str, dict[str, Any]], **more: Any) -> Any:
    """The config of a task's small run; what it reads is written beside it."""
    return TASKS[name].Config(**with_files(merged(TABLE[name].settings, changes), out.parent), out=str(out), **more)


def flags(settings: dict[str, Any], before: str = "") -> list[str]:
    """Settings or keyword arguments as they are typed."""
    words = []
    for name, value in settings.items():
        if isinstance(value, dict):
            words += flags(value, f"{before}{name}.")
        elif value is True and not before:
            words.append(f"--{name}")
        else:
            words += [f"--{before}{name}", value if isinstance(value, str) else json.dumps(value)]
    return words


def bytes_of_npz(**arrays: np.ndarray) -> bytes:
    from io import BytesIO

    file = BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


BARS = bytes_of_npz(images=np.repeat(np.array([[[0, 200], [0, 200]], [[200, 200], [0, 0]]], np.uint8), 20, 0))
BITS = bytes_of_npz(images=np.random.default_rng(0).integers(0, 2, (24, 5, 5), np.uint8))
TALL = bytes_of_npz(images=np.zeros((9, 3, 2), np.uint8))
TEXT = {"train": path("text.txt"), "window": 8, "batch_size": 4}
SERIES = {"train": path("series.csv"), "horizon": 3, "seasonality": 7, "window": 16, "batch_size": 2}
PAIRS = {
    "source": path("source.txt"), "target": path("target.txt"), "valid_source": path("source.txt"),
    "valid_target": path("target.txt"), "batch_tokens": 128,
}  # fmt: skip


def pairs(source: bytes, target: bytes, **more: Any) -> dict[str, Any]:
    """Both sides of some pairs, which are also those to validate with, so that chance puts none aside."""
    named = {"source": File(source, "s"), "target": File(target, "t")}
    return {"data": {**named, "valid_source": named["source"], "valid_target": named["target"], **more}}


def rows(text: str) -> dict[str, Any]:
    return {"data": {"train": File(b"unique_id,ds,y\n" + text.encode(), "train.csv")}}


def train(content: bytes, name: str = "train.txt", **more: Any) -> dict[str, Any]:
    return {"data": {"train": File(content, name), **more}}


def _tagged(model: Any, size: int) -> Any:
    sentences = model.reader([path("tagged.txt")])
    return model.tag_all(sentences, size), model.marginals(sentences, size), model.evaluate(sentences, size)


def _classified(model: Any, size: int) -> Any:
    return model.evaluate(model.examples(model.reader([path("texts.tsv")])), batch_size=size)


def _labelled(model: Any, size: int) -> Any:
    trees = model.reader([path("trees.txt")])
    return [output.tolist() for output in model.outputs(trees, size)], model.evaluate(trees, size)


def _translated(model: Any, size: int) -> Any:
    search = Search(num_beams=3, min_ratio=1.0)  # a model that has learnt little would write nothing
    return model.translations(["the cat sat", "a", "", "the dog ran home"], search, batch_size=size)


TABLE = {
    "lm": Entry(
        settings=merged(SHORT, {
            "data": TEXT, "model": {"size": 8, "layers": 2, "dropout": 0.2, "readout_dropout": 0.1},
            "preview": {"tokens": 5},
        }),
        requests={
            "generate": {"prompt": "the ", "max_new_tokens": 9}, "evaluate": {"data": files("text.txt")},
            "inspect": {"data": files("text.txt")},
        },
        variants=(
            {"optim": {"schedule": "plateau", "patience": 0}},
            {"optim": {"name": "sgd", "schedule": "plateau", "patience": 0}, "model": {"learn_initial_state": True}},
        ),
        bad={
            "an empty file": (train(b""), "empty"),
            "not UTF-8": (train(b"a\xff"), "is not UTF-8"),
            "a missing file": ({"data": {"train": "none.txt"}}, r"none\.txt"),
            "an unknown cell": ({"model": {"cell": "gruu"}}, "unknown cell 'gruu'"),
            "an unknown block": ({"model": {"block": "papers"}}, r"model\.block is 'papers'"),
            "tied and adaptive": ({"model": {"tied": True, "cutoffs": [2]}}, "exclude each other"),
        },
    ),
    "markov": Entry(
        settings={"data": TEXT, "model": {"order": 2}, "preview": {"tokens": 5}},
        requests={"generate": {"prompt": "the ", "seed": 3}, "evaluate": {"data": files("text.txt")}},
        bad={
            "an empty file": (train(b""), "empty"),
            "too high an order": ({"model": {"order": 50}}, "64 bits"),
        },
    ),
    "tag": Entry(
        settings=merged(SHORT, {
            "data": {"train": path("tagged.txt"), "valid": path("tagged.txt"), "batch_size": 8},
            "model": {"size": 8, "embedding_size": 8, "char_size": 4, "char_embedding_size": 4, "case_size": 2},
        }),
        requests={
            "predict": {"data": [["the", "cat"], ["a", "dog", "ran"]], "probabilities": True},
            "evaluate": {"data": files("tagged.txt"), "strict": True}, "inspect": {"data": files("tagged.txt")},
        },
        predict=files("tagged.txt"),
        variants=(
            {},
            {"data": {"train": "synthetic:copy,T=5,tokens=2,vocabulary=3,n=20", "valid": ""}},
            {"model": {"crf": False, "feedback": True, "feedback_sampled": 0.3, "cell": "gru"}},
        ),
        outputs=_tagged,
        bad={
            "an empty file": (train(b""), "empty"),
            "one sentence": (train(b"a X\nb Y\n", valid=""), "1 sentences to train on, too few"),
            "ragged columns": (train(b"a X\n\nb Y\nc\n"), "line 4 of .* has 1 columns"),
            "one tag": (train(b"a X\n\nb X\n\nc X\n\n", valid=""), "only one tag, X"),
            "not UTF-8": (train(b"a\xff X\n\nb Y\n"), "is not UTF-8"),
            "feedback and a CRF": ({"model": {"feedback": True}}, r"--model\.crf false"),
        },
    ),
    "classify": Entry(
        settings=merged(SHORT, {
            "data": {"train": path("texts.tsv"), "batch_size": 16}, "model": {"size": 8, "embedding_size": 5},
        }),
        requests={
            "predict": {"data": ["the cat", "a dog ran"], "probabilities": True},
            "evaluate": {"data": files("texts.tsv")}, "inspect": {"data": files("texts.tsv")},
        },
        predict=files("texts.tsv"),
        variants=(
            {}, {"data": {"train": "synthetic:parity,T=5,n=20"}}, {"data": {"train": "synthetic:adding,T=6,n=20"}},
        ),
        outputs=_classified,
        bad={
            "an empty file": (train(b"", "train.tsv"), r"train\.tsv"),
            "a header alone": (train(b"text\tlabel\n", "train.tsv"), "there is no row in .*train.tsv"),
            "one row": (train(b"text\tlabel\na\tx\n", "train.tsv"), "too few"),
            "ragged columns": (
                train(b"text\tlabel\na\tx\nb\n", "train.tsv"), "line 3 of .* has 1 values; the first line has 2",
            ),
            "no such column": (train(b"words\tlabel\na\tx\n", "train.tsv"), "no column 'text'.*'words'"),
            "no label": (train(b"text\tlabel\na\tx\nb\t\n", "train.tsv"), "line 3 of .* has no label"),
            "one class": (train(b"text\tlabel\n" + b"a\tx\n" * 9, "train.tsv"), "of the class 'x'"),
            "a class with one member": (
                train(b"text\tlabel\n" + b"a\tx\n" * 40 + b"b\ty\n", "train.tsv"), "'y' has one member, line 42",
            ),
            "not UTF-8": (train(b"text\tlabel\n" + b"a\xff\tx\n" * 9, "train.tsv"), "is not UTF-8"),
            "not JSON": (train(b'{"text": "a", "label": "x"}\n{oh\n', "train.jsonl"), "line 2 of"),
            "no label in lines": (train(b"a b\nc d\n"), "line 1 of .* has no label"),
            "a missing value": (
                train(b"@classLabel true a b\n@data\n1,2:a\n1,?:b\n", "train.ts"), "line 4 of .*step 1",
            ),
            "not numbers": (train(b"@data\n1,2:a\n1,z:b\n", "train.ts"), "line 3 of .*not a number"),
            "copying": ({"data": {"train": "synthetic:copy,T=9"}}, "for the task tag"),
        },
    ),
    "forecast": Entry(
        settings=merged(SHORT, {
            "data": {**SERIES, "samples": 20},
            "model": {"size": 6, "layers": 1, "residual": "seasonal", "readout": "gaussian"},
        }),
        requests={
            "predict": {"data": [{"unique_id": "a", "ds": "2024-03-31", "y": 9.5}], "samples": 5},
            "evaluate": {"data": files("series.csv"), "from_start": True, "samples": 5},
            "inspect": {"data": files("series.csv")},
        },
        predict=files("series.csv"),
        variants=(
            {}, *(
                {"model": {"feedback": "sample", "sampled": 0.5, "cell": cell, "readout": "student_t"}}
                for cell in ("jordan", "elman")
            ),
        ),
        bad={
            "a horizon of 0": ({"data": {"horizon": 0}}, r"data\.horizon is 0"),
            "too long a horizon": ({"data": {"horizon": 100}}, "leave nothing to train on"),
            "negative counts": (
                {**rows("a,1,-5\na,2,6\na,3,7\na,4,7\na,5,7\n"), "model": {"readout": "poisson", "residual": "none"}},
                "which predicts counts",
            ),
            "a frequency that does not fit": ({"data": {"frequency": "W"}}, "does not fit the frequency W"),
            "an unknown frequency": ({"data": {"frequency": "fortnight"}}, r"data\.frequency is 'fortnight'"),
            "an unknown column": ({"data": {"past": ["wind"]}}, "no column 'wind'"),
            "a count of a difference": ({"model": {"readout": "poisson"}}, r"model\.residual is seasonal"),
            "one observation": (rows("a,1,5\n"), "no series has two times"),
            "all missing": (rows("a,1,\na,2,\na,3,\n"), "all are missing"),
            "infinite": (rows("a,1,5\na,2,inf\na,3,1\n"), "infinite value"),
            "a time twice": (rows("a,1,5\na,1,6\na,2,7\n"), "has the time 1 twice"),
            "a gap": (rows("a,1,5\na,2,6\na,4,7\na,5,1\n"), "no row for 3"),
            "not a number": (rows("a,1,5\na,2,six\n"), "not a number"),
            "not a time": (rows("a,1,5\na,soon,6\n"), "'soon'"),
            "nothing": (rows(""), "there is no row in the data"),
        },
    ),
    "translate": Entry(
        settings=merged(SHORT, {
            "data": PAIRS, "model": {"size": 12, "embedding_size": 6}, "training": {"average": 2},
            "sampling": {"schedule": "linear", "batches": 10, "least": 0.2},
        }),
        requests={
            "predict": {"data": ["the cat sat", "a mat"], "num_beams": 2, "min_ratio": 1.0},
            "evaluate": {"data": files("source.txt", "target.txt")},
            "inspect": {"data": files("source.txt", "target.txt")},
        },
        predict=files("source.txt"),
        variants=({}, {"sampling": {"schedule": "none"}}),
        outputs=_translated,
        bad={
            "a line alone": (pairs(b"a\nb\n", b"a\n"), "line 2 has no counterpart"),
            "an empty line": (pairs(b"a\n\nb\nc\n", b"a\nb\nc\nd\n"), "line 2 of .* has an empty source"),
            "too long": (pairs(b"a\nb b b\nc\nd\n", b"a\nb\nc\nd\n", max_length=2), "line 2 of .* has 3 symbols"),
            "nothing left": (pairs(b"\n\n\n\n", b"a\nb\nc\nd\n", drop=True), "is empty"),
            "empty targets": (pairs(b"a\na\na\na\n", b"\n\n\n\n"), "is empty"),
            "one side only": ({"data": {"target": ""}}, "one side only"),
            "unknown symbols": ({"data": {"vocabulary": "syllable"}}, "unknown vocabulary"),
            "a missing file": ({"data": {"source": "none.txt"}}, r"none\.txt"),
            "feeding nothing": ({"model": {"attention": "none", "feeding": True}}, "feeding is for"),
            "two contexts": ({"model": {"context": "every"}}, "without attention"),
            "other sizes": ({"model": {"attention": "dot"}}, "must be equal"),
            "not joint": ({"model": {"tied": "all"}}, "joint"),
            "unknown attention": ({"model": {"attention": "hard"}}, "attention is 'hard'"),
        },
    ),
    "hmm": Entry(
        settings={
            "data": {"train": path("readings.csv"), "valid": path("readings.csv")},
            "model": {"n_components": 2, "n_iter": 30, "n_init": 2},
        },
        requests={
            "predict": {"data": [[0.1], [5.2], [None]], "posteriors": True},
            "evaluate": {"data": files("readings.csv")}, "generate": {"observations": 5},
            "inspect": {"data": files("readings.csv")},
        },
        predict=files("readings.csv"),
        variants=({}, {"model": {"method": "adam", "learning_rate": 0.2}}),
        bad={
            "no state": ({"model": {"n_components": 0}}, "n_components is 0"),
            "unknown emissions": ({"model": {"emission": "gausian"}}, "Did you mean 'gaussian'"),
            "an unknown structure": ({"model": {"structure": "ring"}}, "unknown structure 'ring'"),
            "an unknown method": ({"model": {"method": "newton"}}, "unknown method 'newton'"),
            "an unknown option": ({"model": {"options": {"n_mixx": 2}}}, "no parameter 'n_mixx'"),
            "not numbers": (train(b"value\n1\nx\n", "train.csv"), "line 3"),
        },
    ),
    "tree": Entry(
        settings={
            "data": {"train": path("trees.txt"), "batch_size": 8},
            "model": {"size": 8, "embedding_size": 6, "embedding_dropout": 0.1, "readout_dropout": 0.1},
            "optim": {"name": "adagrad", "lr": 0.1, "embedding_lr": 0.5, "warmup": 0, "schedule": "constant"},
            "training": SHORT["training"],
        },
        requests={
            "predict": {"data": ["(2 (2 a) (2 film))", "(3 (2 very) (2 good))"]},
            "evaluate": {"data": files("trees.txt")}, "inspect": {"data": files("trees.txt")},
        },
        predict=files("trees.txt"),
        variants=({}, {"data": {"target": "roots"}}, {"data": {"target": "number"}}),
        outputs=_labelled,
        bad={
            "an empty file": (train(b""), "is empty"),
            "an open bracket": (train(b"(3 (2 a) (4 b)\n"), "line 1, column 1 of .* never closed"),
            "no label": (train(b"(3 (a) (4 b))\n(1 c)\n(2 d)"), "line 1, column 4 of .* no label"),
            "one label": (train(b"(3 a)\n(3 b)\n(3 c)\n"), "one label only, 3"),
            "three children": (train(b"(3 (2 a) (2 b) (1 c))\n" * 30), "3 children; BinaryTreeLSTM takes 2"),
            "an unknown target": ({"data": {"target": "leaves"}}, "target"),
            "labels that are not numbers": (
                train(b"(two (2 a) (4 b))\n" * 9, target="number"), "not a finite number",
            ),
        },
    ),
    "image": Entry(
        settings=merged(SHORT, {
            "data": {"train": path("images.npz"), "batch_size": 9, "binarise": "sampled"},
            "model": {"size": 4, "kernel": 3},
        }),
        requests={
            "generate": {"count": 2}, "evaluate": {"data": files("images.npz")},
            "inspect": {"data": files("images.npz")},
        },
        variants=({}, {"data": {"binarise": "none"}}, train(BITS, "bits.npz", binarise="fixed")),
        outputs=lambda model, size: model.log_prob(model.reader([path("images.npz")]), size).tolist(),
        bad={
            "an unknown binarisation": ({"data": {"binarise": "some"}}, r"data\.binarise is 'some'"),
            "not bits": (train(BARS, "train.npz", binarise="fixed"), "every value is 0 or 1"),
            "too bright": (train(BARS, "train.npz", white=100.0), "has the value 200"),
            "part of a level": (train(BARS, "train.npz", white=200.5, binarise="none"), "it is a whole number"),
            "two sizes": ({"data": {"valid": File(TALL, "valid.npz")}}, "they need one"),
            "a missing file": ({"data": {"train": "none.npz"}}, "there is no file"),
            "too many levels": (
                {"model": {"readout": "binary"}, "data": {"binarise": "none"}},
                "readout is binary, and the images have 256 levels",
            ),
        },
    ),
}  # fmt: skip
