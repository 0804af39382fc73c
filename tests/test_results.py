"""recipes/results.json and its page agree, every recipe has a row, and a row can be run whole."""

from __future__ import annotations

import json
import math
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from recipes import results

ROOT = Path(__file__).parent.parent
STORED = results.read(results.STORE)
ROWS = {row["name"]: row for row in STORED["rows"]}
KEYS = {
    "name", "title", "task", "data", "commands", "runs", "runs_are", "metric", "larger", "score", "values", "extras",
    "commit", "date", "machine", "threads", "minutes", "memory", "published", "aim",
}  # fmt: skip


def test_the_page_is_as_the_results_have_it() -> None:
    """`make results` writes it; every task, how rows were measured and where data come from are on it."""
    page = results.PAGE.read_text()
    assert results.written(page, STORED) == page
    requests = [word for request in results.BLOCK.findall(page) for word in request[1].split()]
    assert sorted(requests) == sorted({"aims", "measured", "data", *(row["task"] for row in ROWS.values())})


def test_every_recipe_has_a_row() -> None:
    commands = " ".join(command for row in ROWS.values() for command in row["commands"])
    named = set(re.findall(r"--config recipes/(\S+)\.yaml", commands))
    assert named == {path.stem for path in (ROOT / "recipes").glob("*.yaml")}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_a_row_is_whole(row: dict[str, Any]) -> None:
    assert row.keys() - {"others", "tried"} == KEYS and len(ROWS) == len(STORED["rows"])
    assert bool(row.get("tried")) == (row["aim"] is not None)
    assert row["data"] in STORED["data"]
    assert all(shlex.split(command)[0] == "elman" for command in row["commands"])
    assert ("{run}" in row["commands"][0]) == (len(row["runs"]) > 1)
    assert bool(row["values"]) == bool(row["commit"]) == bool(row["date"])
    for other in row["published"]:
        assert other.keys() == {"what", "value", "source", "checked"} and other["source"]


TINY = """
task: classify
data: {train: "synthetic:adding,T=8", test: "synthetic:adding,T=8,n=20,seed=7", batch_size: 4}
model: {cell: gru, size: 4, bidirectional: false}
training: {steps: 3, evaluate_every: 3}
threads: 1
"""
ROW: dict[str, Any] = {
    "name": "tiny", "title": "two numbers of eight", "task": "classify", "data": "tiny",
    "commands": [
        "elman train --config tiny.yaml --seed {run} --out runs/tiny-{run}",
        "elman evaluate runs/tiny-{run} synthetic:adding,T=8,n=20,seed=7 --json",
    ],
    "runs": [0, 1], "runs_are": "seed", "metric": "mean squared error", "larger": False,
    "score": {"run": "runs/tiny-{run}", "part": "test", "name": "test", "digits": 6},
    "values": {}, "extras": {}, "commit": "", "date": "", "machine": "", "threads": None, "minutes": None,
    "memory": None, "published": [{"what": "nothing", "value": "1", "source": "somebody 1990", "checked": False}],
    "aim": 0.1,
}  # fmt: skip


def test_an_aim_that_is_not_reached_says_so() -> None:
    """A mean that is worse; the same number has reached it."""

    def table(larger: bool, aim: float, values: dict[str, float]) -> str:
        row = ROW | {"larger": larger, "aim": aim, "values": values, "tried": "more units"}
        return results.aims_table({"rows": [row, ROW | {"name": "other", "aim": None}]})

    values = {"0": 0.4, "1": 0.5}
    assert "**missed** | more units" in table(True, 0.46, values) and "other" not in table(True, 0.46, values)
    assert "missed" not in table(True, 0.45, values) and "missed" not in table(False, 0.45, values)
    assert "missed" in table(False, 0.44, values) and "missed" in table(False, 0.44, {})


def test_what_is_not_known_of_a_run_says_so() -> None:
    row = ROW | {"values": {"0": 0.5}, "commit": "abc", "date": "2026-01-01", "machine": "m", "threads": 1}
    assert "| 1 | not noted | not noted | abc |" in results.measured_table({"rows": [row]})
    assert "| 1 | busy | 300 | abc |" in results.measured_table({"rows": [row | {"memory": 300}]})
    assert "| 1 | 2.5 | 300 | abc |" in results.measured_table({"rows": [row | {"minutes": 2.5, "memory": 300}]})


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Of one row, whose data are in tmp_path/data/tiny."""
    (tmp_path / "data" / "tiny").mkdir(parents=True)
    (tmp_path / "data" / "tiny" / "tiny.yaml").write_text(TINY)
    data = {"tiny": {"title": "a config", "files": ["tiny.yaml"], "source": "example.org", "licence": "MIT"}}
    path = tmp_path / "results.json"
    results.write(path, {"data": data, "rows": [json.loads(json.dumps(ROW))]})
    return path


def measure(store: Path) -> dict[str, Any]:
    results.measure("tiny", store.parent / "data", store, store.parent / "work")
    return results.read(store)["rows"][0]


@pytest.mark.slow
def test_a_row_runs_from_end_to_end(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is stored is what the run directories say and what the last command printed."""
    monkeypatch.setattr(results, "OTHERS", math.inf)
    stored = results.read(store)
    stored["rows"][0]["score"] = {"name": "mse", "digits": 6}
    results.write(store, stored)
    row = measure(store)
    assert row["values"].keys() == {"0", "1"} and row["values"]["0"] != row["values"]["1"]
    for run, value in row["values"].items():
        lines = (tmp_path / "work" / "tiny" / "runs" / f"tiny-{run}" / "metrics.jsonl").read_text().splitlines()
        assert json.loads(lines[-1])["test"] == pytest.approx(value, abs=1e-6)
    assert row["threads"] == 1 and row["minutes"] > 0 and 50 < row["memory"] < 5000
    assert re.fullmatch(r"[0-9a-f]{7,}\+?", row["commit"]) and row["machine"].endswith("cores")
    page = tmp_path / "page.md"
    asked = ("<!-- results classify -->", "old", "<!-- end of results -->", "<!-- results measured -->")
    page.write_text("\n".join([*asked, "<!-- end of results -->", ""]))
    results.write_page(store, page)
    mean = sum(row["values"].values()) / 2
    assert f"**{mean:.6f}** (seeds 0, 1:" in page.read_text() and "old" not in page.read_text()
    assert "nothing 1 (somebody 1990, from memory)" in page.read_text()


USAGE = results.Usage(wall=60.0, processor=50.0, memory=100.0)


@pytest.mark.parametrize(("worked", "minutes"), [(101.0, 1.0), (112.0, 1.0), (1000.0, None)])
def test_no_time_is_stored_of_a_busy_machine(
    store: Path, monkeypatch: pytest.MonkeyPatch, worked: float, minutes: float | None
) -> None:
    """Two runs of 50 seconds of the processor in 120: all else that worked meanwhile are others."""
    clock, cores = iter([0.0, 120.0]), iter([0.0, worked])
    monkeypatch.setattr(results.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(results, "busy_seconds", lambda: next(cores))
    monkeypatch.setattr(results, "run_commands", lambda commands, run, place: ("", USAGE))
    monkeypatch.setattr(results, "score", lambda rule, run, place, output: 0.5 + run)
    row = measure(store)
    assert row["minutes"] == minutes and row["values"] == {"0": 0.5, "1": 1.5} and row["memory"] == 100


def test_what_commands_took_is_added_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory of the largest; the output of the last."""
    ran = iter([("first", results.Usage(60.0, 50.0, 300.0)), ("last", results.Usage(6.0, 5.0, 100.0))])
    commands: list[list[str]] = []
    monkeypatch.setattr(results, "run_one", lambda command, place: commands.append(command) or next(ran))
    asked = ["elman train --seed {run} --model.options '{}'", "elman evaluate"]
    assert results.run_commands(asked, 7, tmp_path) == ("last", (66.0, 55.0, 300.0))
    assert commands[0][1:] == ["-m", "elman", "train", "--seed", "7", "--model.options", "{}"]


@pytest.mark.parametrize(("runs", "extras"), [([0], {"bleu": 2.5}), ([0, 1], {})])
def test_other_scores_are_kept_of_a_single_run(
    store: Path, monkeypatch: pytest.MonkeyPatch, runs: list[int], extras: dict[str, float]
) -> None:
    """Beside a mean they would be those of the last run."""
    stored = results.read(store)
    stored["rows"][0] |= {"runs": runs, "others": {"bleu": {"name": "bleu"}}}
    results.write(store, stored)
    monkeypatch.setattr(results, "run_commands", lambda commands, run, place: ("", USAGE))
    monkeypatch.setattr(results, "score", lambda rule, run, place, output: 2.5 if rule == {"name": "bleu"} else 0.5)
    assert measure(store)["extras"] == extras


def test_data_may_lie_in_the_folder_itself(store: Path, tmp_path: Path) -> None:
    results.prepare(ROW, results.read(store)["data"], tmp_path / "data" / "tiny", tmp_path / "work")
    assert (tmp_path / "work" / "tiny" / "tiny.yaml").read_text() == TINY


def test_a_row_that_was_stored_meanwhile_stays(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(commands: list[str], run: int, place: Path) -> tuple[str, results.Usage]:
        others = results.read(store)
        results.write(store, {**others, "rows": [*others["rows"][:1], {"name": "other"}]})
        return "", USAGE

    monkeypatch.setattr(results, "run_commands", run)
    monkeypatch.setattr(results, "score", lambda rule, run, place, output: 0.5)
    assert measure(store)["values"] and results.read(store)["rows"][1] == {"name": "other"}


def test_one_that_is_stopped_says_so(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(results, "measure", stop)
    assert results.main(["chunks"]) == 130
    assert capfd.readouterr().err == "results: stopped; nothing of chunks is stored\n"


def test_where_nobody_knows_what_ran_no_time_is_stored(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "busy_seconds", lambda: math.inf)
    monkeypatch.setattr(results, "run_commands", lambda commands, run, place: ("", USAGE))
    monkeypatch.setattr(results, "score", lambda rule, run, place, output: 0.5)
    assert measure(store)["minutes"] is None


def test_what_was_stolen_counts_and_waiting_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stat").write_text("cpu  1 20 300 4000 50000 600000 7000000 80000000 9 9\ncpu0 1 1\n")
    monkeypatch.setattr(results, "Path", lambda name: tmp_path / Path(name).name)
    assert results.busy_seconds() == 87600321 / results.TICKS


def test_the_machine_counts_what_works() -> None:
    before = results.busy_seconds()
    sum(i * i for i in range(2_000_000))
    assert results.busy_seconds() > before


def test_missing_data_are_named_with_where_they_come_from(store: Path, tmp_path: Path) -> None:
    (tmp_path / "data" / "tiny" / "tiny.yaml").unlink()
    with pytest.raises(results.Refused, match=r"has tiny\.yaml: a config, from example\.org\. .*DATA=folder"):
        measure(store)


def test_other_mistakes_are_said_in_a_line(store: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(results.Refused, match="there is no row 'chunk'; there are tiny"):
        results.measure("chunk", store.parent, store, store.parent / "work")
    assert results.main(["no-such-row"]) == 2
    assert re.fullmatch(r"results: error: there is no row 'no-such-row'; there are .*\n", capfd.readouterr().err)


def test_a_command_that_fails_stores_nothing(store: Path) -> None:
    stored = results.read(store)
    stored["rows"][0]["commands"] = ["elman no-such-verb"]
    results.write(store, stored)
    with pytest.raises(results.Refused, match="elman no-such-verb failed"):
        measure(store)
    assert results.read(store) == stored


@pytest.mark.parametrize(
    ("rule", "value"),
    [
        ({"part": "test", "name": "test"}, 2.0),
        ({"part": "test", "name": "f1", "scale": 100}, 50.0),
        ({"part": "test", "name": "test", "exp": True}, math.exp(2.0)),
        ({"part": "valid", "name": "valid", "best": "least"}, 1.0),
        ({"part": "valid", "name": "valid", "best": "most"}, 4.0),
        ({"part": "valid", "name": "valid"}, 3.0),
    ],
)
def test_a_score_is_read_from_metrics(tmp_path: Path, rule: dict[str, Any], value: float) -> None:
    (tmp_path / "runs" / "a-7").mkdir(parents=True)
    lines = [{"valid": 4.0}, {"valid": 1.0}, {"loss": 9.0}, {"valid": 3.0}, {"test": 2.0, "f1": 0.5}]
    (tmp_path / "runs" / "a-7" / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert results.score({"run": "runs/a-{run}", **rule}, 7, tmp_path, "") == pytest.approx(value)


def test_a_score_may_be_what_the_last_command_printed(tmp_path: Path) -> None:
    assert results.score({"name": "bleu"}, 0, tmp_path, '{"bleu": 34.5}') == 34.5


def test_make_refuses_a_variable_that_it_does_not_know() -> None:
    """NAM=chunks would otherwise write the page alone, in silence."""
    refused = subprocess.run(["make", "-n", "results", "NAM=chunks"], cwd=ROOT, capture_output=True, text=True)
    assert refused.returncode == 2 and "`make results` takes NAME and DATA, not NAM" in refused.stderr
    taken = subprocess.run(
        ["make", "-n", "results", "NAME=a", "DATA=my folder"], cwd=ROOT, capture_output=True, text=True
    )
    assert "-m recipes.results a --data 'my folder'\n" in taken.stdout, taken.stderr
