"""What a notebook shows of each object: small, escaped, without colours of its own; and one display of progress."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import elman
from elman import progress
from elman.lens import inspect
from elman.tables import Table
from elman.tasks.forecast.state import Forecast
from elman.tasks.translate.model import Alignment
from elman.tasks.tree.data import LabelledTree
from elman.tasks.tree.forest import shape
from elman.training.scores import Scores

RUNS = Path(__file__).parent / "versions" / "867694c" / "runs"
EVIL = "<script>alert(1)</script>&\"'"
MOST = 200_000  # bytes


def forecast(B: int = 2, H: int = 5) -> Forecast:
    mean = np.arange(B * H, dtype=np.float64).reshape(B, H, 1)
    quantiles = mean[..., None] + np.array([-1.0, 0.0, 1.0])
    times = [[f"2020-01-{t + 1:02}{EVIL}" for t in range(H)]] * B
    return Forecast([f"{EVIL}{i}" for i in range(B)], times, ["y"], mean, (0.1, 0.5, 0.9), quantiles, mean[:, None])


def tree(words: int) -> LabelledTree:
    parents = [words] * words + [-1]
    return LabelledTree(shape(parents), [*[EVIL] * words, ""], [*[EVIL] * words, EVIL])


OBJECTS: dict[str, Callable[[], Any]] = {
    "table": lambda: Table(EVIL, [EVIL], [[EVIL * 500]] * 500),
    "scores": lambda: Scores({EVIL: 0.25, "accuracy": 0.5}, "accuracy", remark=EVIL),
    "report": lambda: inspect(elman.cell("gru", 3, 4), torch.randn(2, 9, 3), title=EVIL),
    "forecast": forecast,
    "long forecast": lambda: forecast(60, 3000),
    "alignment": lambda: Alignment([EVIL, "b"], [EVIL, "</s>"], [[0.25, 0.75], [1.0, 0.0]]),
    "long alignment": lambda: Alignment([EVIL * 9] * 900, [EVIL * 9] * 900, [[0.5] * 900] * 900),
    "tree": lambda: tree(3),
    "wide tree": lambda: tree(250),
    "huge tree": lambda: tree(5000),
    **{f"model {name}": (lambda name=name: elman.load(RUNS / name)) for name in ("lm", "tag", "translate", "tree")},
}


class Balanced(HTMLParser):
    """Raises where a tag is closed that was not opened last, and notes what there is."""

    def __init__(self) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.tags: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)
        self.stack.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def read(html: str) -> Balanced:
    page = Balanced()
    page.feed(html)
    page.close()
    assert not page.stack
    return page


@pytest.mark.parametrize("name", OBJECTS)
def test_what_is_shown_is_small_harmless_and_readable_in_any_theme(name: str) -> None:
    html = OBJECTS[name]()._repr_html_()
    page = read(html)
    assert page.tags and page.tags.isdisjoint({"script", "style", "link", "img", "iframe"})
    assert len(html.encode()) < MOST
    assert not re.search(r"#[0-9a-f]{3,6}\b|black|white", html)  # a colour that one of the themes has as its background
    assert "http" not in html.replace("http://www.w3.org/2000/svg", "")
    if name != "huge tree" and not name.startswith("model"):  # those have no text of ours
        assert "<script>" in page.text


def test_tables_say_what_they_leave_out() -> None:
    page = read(Table("many", ["a"], [[str(i)] for i in range(100)])._repr_html_())
    assert "59" in page.text and "99" not in page.text and "and 40 more rows" in page.text


def test_scores_are_those_that_the_command_prints() -> None:
    text = read(Scores({"nats_per_token": 1.5}, "nats_per_token", remark="of 8 tokens")._repr_html_()).text
    assert "nats per token" in text and "1.5" in text and "(of 8 tokens)" in text


def test_a_report_has_its_verdict_and_its_table() -> None:
    report = inspect(elman.cell("gru", 3, 4), torch.randn(2, 9, 3), title="a GRU")
    text = read(report._repr_html_()).text
    assert all(sentence in text for sentence in report.verdict) and "half-life" in text and "a GRU" in text


def test_a_forecast_is_drawn_to_scale() -> None:
    """The means of the first series rise from 0 to 4, their band from -1 to 5: the ends are those of the drawing."""
    html = forecast()._repr_html_()
    first = html.partition("</svg>")[0]
    band = re.search(r'<polygon points="([^"]*)"', first)
    assert band is not None
    points = [tuple(map(float, point.split(","))) for point in band[1].split()]
    heights = [y for _, y in points]
    assert len(points) == 10 and points[0][0] == 0 and max(heights) == heights[0] and min(heights) == heights[5]
    assert read(first + "</svg></div>").text.endswith("5-1") and html.count("<svg") == 2
    assert "q0.9" in read(html).text and "mean" in read(html).text


def test_an_alignment_shows_its_weights() -> None:
    html = Alignment(["a", "b"], ["c", "</s>"], [[0.25, 0.75], [1.0, 0.0]])._repr_html_()
    assert re.findall(r"rgba\(127, 127, 127, ([\d.]+)\)", html) == ["0.25", "0.75", "1.00", "0.00"]
    assert read(html).text == "abc0.250.75</s>1.000.00"


def test_a_translator_aligns_what_it_translates() -> None:
    translator = elman.load(RUNS / "translate")
    if translator.config.attention == "none":
        pytest.fail("the model of this version has attention no more: choose another")
    text = "a b"
    found = translator.align(text, num_beams=2)
    (best, *_), *_ = translator.translations([text], elman.tasks.translate.model.Search(num_beams=2))
    assert found.weights == translator.alignment(text, best.tokens)
    assert len(found.weights) == len(found.target) and all(len(row) == len(found.source) for row in found.weights)


def test_a_tree_has_its_words_and_labels() -> None:
    tree = LabelledTree(shape([2, 2, -1]), ["not", "bad", ""], ["-", "-", "+"])
    html = tree._repr_html_()
    assert html.count("<line") == 2 and html.count("<circle") == 3 and read(html).text == "--+notbad"


def test_a_model_says_what_it_is() -> None:
    model = elman.load(RUNS / "lm")
    text = read(model._repr_html_()).text
    assert f"{model.parameter_count:,}" in text and model.config.cell in text


# Progress


class Display:
    """What a cell shows."""

    def __init__(self) -> None:
        self.cell = 1
        self.shown: list[list[str]] = []  # the contents of each display, one after the other

    def display(self, content: dict[str, str], raw: bool, display_id: bool) -> SimpleNamespace:
        assert raw and display_id
        history = [content["text/plain"]]
        self.shown.append(history)
        return SimpleNamespace(update=lambda content, raw: history.append(content["text/plain"]))


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Display:
    """IPython as a kernel has it, and its standard error."""
    fake, ipython, displays = Display(), ModuleType("IPython"), ModuleType("IPython.display")
    ipython.get_ipython = lambda: SimpleNamespace(execution_count=fake.cell)  # type: ignore[attr-defined]
    displays.display = fake.display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", displays)
    stream = type("OutStream", (), {"__module__": "ipykernel.iostream", "write": None, "isatty": lambda self: False})
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=stream()))
    monkeypatch.setattr(progress, "_cell", progress._Cell())
    return fake


def test_a_cell_has_one_display(notebook: Display) -> None:
    progress.say("training")
    for step in range(5):
        progress.show(f"step {step}")
    progress.say("valid 2.0")
    progress.show("step 9")
    progress.clear()
    notebook.cell = 2
    progress.say("another cell")
    first, second = notebook.shown
    assert first[1] == "training\nstep 0" and first[-2:] == ["training\nvalid 2.0\nstep 9", "training\nvalid 2.0"]
    assert second == ["another cell"]


def test_a_display_does_not_grow(notebook: Display) -> None:
    for i in range(1000):
        progress.say(f"line {i}")
    (shown,) = notebook.shown
    assert shown[-1].splitlines() == [f"line {i}" for i in range(980, 1000)]


def test_nothing_is_shown_if_nothing_is_to_be(notebook: Display) -> None:
    with progress.quiet():
        progress.say("training")
        progress.show("step 1")
    assert notebook.shown == []


def test_a_front_end_that_fails_does_not_end_the_work(notebook: Display, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["IPython"], "get_ipython", lambda: None)
    progress.say("training")


def test_a_training_floods_no_cell(notebook: Display) -> None:
    settings = {"model": {"size": 4}, "data": {"batch_size": 4}, "training": {"steps": 6, "evaluate_every": 2}}
    elman.train(elman.LMConfig(**settings), "to be or not to be, " * 99)
    (shown,) = notebook.shown
    assert "step 6  valid" in shown[-1] and "step 2  valid" in shown[-1]
