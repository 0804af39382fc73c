"""Runs side by side, by what they have written: trained here once, and then changed by hand."""

import json
import shutil

import pytest

from elman.cli import main
from elman.cli.compare import compare

TEXT = "the cat sat on the mat; the dog sat on the log. " * 40


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    here = tmp_path_factory.mktemp("runs")
    (here / "text.txt").write_text(TEXT)
    common = ["--data.train", str(here / "text.txt"), "--preview.tokens", "0"]
    small = ["--data.batch_size", "2", "--data.window", "8", "--model.layers", "1", "--training.evaluate_every", "4"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ELMAN_CACHE", str(here / "cache"))
        for name, options in (("b", ["--training.steps", "60"]), ("a", ["--training.steps", "4"])):
            assert main(["train", "--out", str(here / name), "--model.size", "8", *common, *small, *options]) == 0
        assert main(["train", "--task", "markov", "--out", str(here / "m"), *common]) == 0
    return here


@pytest.mark.slow
def test_the_best_of_each_task_comes_first_with_what_differs(runs, capfd):
    assert main(["compare", *(str(runs / name) for name in "amb"), "--json"]) == 0
    rows = json.loads(capfd.readouterr().out)
    assert [row["run"] for row in rows] == [str(runs / name) for name in "bam"]
    assert [row["task"] for row in rows] == ["lm", "lm", "markov"]
    assert [row["settings"] for row in rows] == [{"training.steps": 60}, {"training.steps": 4}, {}]
    lines = [json.loads(line) for line in (runs / "b" / "metrics.jsonl").open()]
    assert rows[0]["best"] == min(line["valid"] for line in lines if "valid" in line) < rows[1]["best"]
    assert rows[0]["test"] == lines[-1]["test"] and rows[0]["score"] == "nats_per_token"
    assert all(row["status"] == "finished" and row["seconds"] >= 0 for row in rows)
    assert main(["compare", str(runs / "a"), str(runs / "b")]) == 0
    out = capfd.readouterr().out.splitlines()
    assert out[1].split()[:4] == ["run", "task", "score", "best"] and "training.steps=60" in out[2]


def test_a_score_that_is_better_when_larger_sorts_the_other_way(runs, tmp_path):
    for name, accuracies in (("a", (0.1, 0.2)), ("b", (0.9, 0.3))):
        shutil.copytree(runs / name, tmp_path / name)
        path = tmp_path / name / "last" / "training.json"
        content = json.loads(path.read_text())
        content["advance"]["larger_is_better"] = True
        path.write_text(json.dumps(content))
        (path.parent / "checksums.json").unlink()
        lines = (json.dumps({"step": i, "valid": value}) for i, value in enumerate(accuracies))
        (tmp_path / name / "metrics.jsonl").write_text("\n".join(lines))
    rows = compare([tmp_path / "a", tmp_path / "b"])
    assert [row.best for row in rows] == [0.9, 0.2] and all(row.larger_is_better for row in rows)


def test_what_is_unfinished_broken_or_not_there_is_listed_as_such(runs, tmp_path, capfd):
    for name in ("unfinished", "broken", "begun"):
        shutil.copytree(runs / "a", tmp_path / name)
    metrics = tmp_path / "unfinished" / "metrics.jsonl"
    metrics.write_text('{"step": 2, "valid": 3.0}\n')
    (tmp_path / "broken" / "config.yaml").write_text("model: {")
    shutil.rmtree(tmp_path / "begun" / "last")
    (tmp_path / "begun" / "metrics.jsonl").write_text("")
    timings = tmp_path / "unfinished" / "timings.jsonl"
    timings.write_text("".join(f'{{"step": 1, "seconds": {s}}}\n' for s in (1.0, 4.0, 2.0, 3.0)))  # resumed once
    names = ["broken", "begun", "unfinished"]
    rows = {row.run.rpartition("/")[2]: row for row in compare([tmp_path / name for name in names])}
    assert list(rows)[2] == "broken" and {*rows} == {*names}
    assert rows["unfinished"].status == "unfinished, step 2 of 4" and rows["unfinished"].seconds == 7.0
    assert rows["begun"].status == "unfinished, step 0 of 4" and rows["begun"].best is None
    assert rows["broken"].status.startswith("broken: cannot read the config")
    assert main(["compare", str(tmp_path / "begun"), str(tmp_path / "none")]) == 2
    assert f"there is no folder {tmp_path / 'none'}" in capfd.readouterr().err


@pytest.mark.slow
def test_a_baseline_that_is_fitted_is_finished_and_what_has_no_score_is_last(runs, tmp_path):
    rows = (f"{name},{t},{t % 5}" for name in "ab" for t in range(40))
    (tmp_path / "series.csv").write_text("unique_id,ds,y\n" + "\n".join(rows))
    data = ["--data.train", str(tmp_path / "series.csv"), "--data.horizon", "4"]
    fit = ["train", "--task", "forecast", "--model.kind", "seasonal_naive", *data]
    assert main([*fit, "--out", str(tmp_path / "naive")]) == 0
    (row,) = compare([tmp_path / "naive"])
    assert row.status == "finished" and row.best is not None
    shutil.copytree(tmp_path / "naive", tmp_path / "a")  # begun, and no more: it has no score yet, nor its name
    shutil.rmtree(tmp_path / "a" / "best")
    (tmp_path / "a" / "metrics.jsonl").write_text("")
    rows = compare([tmp_path / "a", tmp_path / "naive"])
    assert [row.run.rpartition("/")[2] for row in rows] == ["naive", "a"]
    assert rows[1].status.startswith("unfinished") and rows[1].score == ""


def test_a_run_that_ended_early_is_finished(runs, tmp_path):
    shutil.copytree(runs / "b", tmp_path / "b")
    folder = tmp_path / "b"
    config = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(config.replace("patience: 0", "patience: 3").replace("steps: 60", "steps: 90"))
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").open()]
    (folder / "metrics.jsonl").write_text("\n".join(json.dumps(line) for line in lines if "test" not in line))
    for bad, status in ((2, "unfinished, step 60 of 90"), (3, "finished, step 60 of 90: it stopped early")):
        path = folder / "last" / "training.json"
        content = json.loads(path.read_text())
        content["advance"]["bad"] = bad
        path.write_text(json.dumps(content))
        (path.parent / "checksums.json").unlink(missing_ok=True)
        assert compare([folder])[0].status == status
