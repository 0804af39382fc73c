"""A search: the same trials however often it was stopped, each a run; the best of them is found and goes on."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

import elman
from elman import run
from elman.cli import main
from elman.errors import InputError, MissingExtraError, TrainingError
from elman.run import search as searching
from elman.run.search import search
from elman.training.lock import lock

TEXT = "the cat sat on the mat; the dog sat on the log. " * 40
SPACE = {"optim.lr": "log(1e-3, 1e-1)", "model.cell": ["gru", "mingru"]}
CONFIG = elman.LMConfig(
    data={"batch_size": 2, "window": 8}, model={"size": 8}, optim={"warmup": 0},
    training={"steps": 12, "evaluate_every": 2, "log_every": 2},
)  # fmt: skip
SETTINGS = {"trials": 6, "factor": 2, "progress": False}


def contents(folder: Path) -> dict[str, bytes]:
    """The files of the runs of a search that have no clock in them, and its own."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink()]
    kept = [path for path in files if path.name not in ("timings.jsonl", "search.db", "config.yaml", "best.yaml")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in kept}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A search that nobody stopped."""
    folder = tmp_path_factory.mktemp("whole") / "search"
    return folder, search(CONFIG, SPACE, TEXT, out=folder, **SETTINGS)


def test_better_runs_go_on_for_longer(whole):
    folder, found = whole
    assert sorted(one.number for one in found.trials) == [*range(6)]
    # 6 trials, halved twice; rungs at a quarter, a half and all of 12 steps, each at the evaluation that follows
    assert [one.steps for one in found.trials] == [12, 6, 6, 4, 4, 4]
    assert [one.status for one in found.trials] == [
        "finished", *["stopped at rung 2 of 3"] * 2, *["stopped at rung 1 of 3"] * 3,
    ]  # fmt: skip
    by_rung = [[one.score for one in found.trials if one.steps == steps] for steps in (6, 4)]
    assert all(scores == sorted(scores) for scores in by_rung)
    first = {
        one.number: min(line["valid"] for line in run.read_metrics(Path(one.folder)) if "valid" in line and
                        line["step"] <= 4) for one in found.trials
    }  # fmt: skip
    kept = {one.number for one in found.trials if one.steps > 4}
    assert max(first[n] for n in kept) <= min(first[n] for n in {*first} - kept)
    assert (folder / "search.png").read_bytes().startswith(b"\x89PNG")


def test_a_trial_is_a_run_like_any_other(whole, tmp_path, capsys):
    """The best is what its config gives when it is trained at once: a rung is a pause, and no more."""
    folder, found = whole
    best = found.trials[0]
    alone = replace(found.best, out=str(tmp_path / "alone"))
    elman.train(alone, TEXT, progress=False)
    for name in ("metrics.jsonl", "best/model.safetensors", "last/optimiser.safetensors"):
        assert (Path(best.folder) / name).read_bytes() == (tmp_path / "alone" / name).read_bytes(), name
    assert found.best.optim.lr == best.values["optim.lr"] and found.best.model.cell == best.values["model.cell"]
    assert main(["compare", *map(str, sorted((folder / "trials").iterdir())), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["best"] for row in rows] == sorted(one.score for one in found.trials)
    assert {"optim.lr", "model.cell"} <= {*rows[0]["settings"]}


@pytest.mark.parametrize("calls", [1, 3, 7, 8])
def test_stopped_anywhere_it_comes_to_the_same_end(whole, tmp_path, monkeypatch, calls):
    """Ctrl-C in the middle of a training, and in between; twice."""
    folder, out, seen = whole[0], tmp_path / "search", []
    train = run.train

    def interrupted(settings, data, callback, **others):
        seen.append(settings.out)
        if len(seen) in (calls, calls + 2):

            def stop(step, scores):
                raise KeyboardInterrupt

            return train(settings, data, stop, **others)
        return train(settings, data, callback, **others)

    monkeypatch.setattr(run, "train", interrupted)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            search(CONFIG, SPACE, TEXT, out=out, resume="auto", **SETTINGS)
    found = search(CONFIG, SPACE, TEXT, out=out, resume="auto", **SETTINGS)
    assert contents(out) == contents(folder)
    assert [replace(one, folder="") for one in found.trials] == [replace(one, folder="") for one in whole[1].trials]
    again = search(CONFIG, SPACE, TEXT, out=out, resume="auto", **SETTINGS)
    assert again == found and contents(out) == contents(folder)  # over: nothing changes


def test_stopped_after_the_last_step_it_is_tested_all_the_same(whole, tmp_path, monkeypatch):
    train, out = run.train, tmp_path / "search"

    def interrupted(settings, data, callback, **others):
        def stop(step, scores):
            if step == CONFIG.training.steps:
                raise KeyboardInterrupt
            callback(step, scores)

        return train(settings, data, stop, **others)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(run, "train", interrupted)
        search(CONFIG, SPACE, TEXT, out=out, **SETTINGS)
    search(CONFIG, SPACE, TEXT, out=out, resume="auto", **SETTINGS)
    assert contents(out) == contents(whole[0])


@pytest.mark.slow
def test_killed_it_continues_from_the_command_line_alone(tmp_path):
    """kill -9 in the middle; then --resume auto, and no other word. best.yaml is a config."""
    (tmp_path / "text.txt").write_text(TEXT)
    settings = [
        "--data.train", "text.txt", "--data.batch_size", "2", "--data.window", "8", "--model.size", "8",
        "--training.steps", "12", "--training.evaluate_every", "2", "--optim.warmup", "0", "--trials", "4", "--factor",
        "2", "--set", "optim.lr=log(1e-3,1e-1)", "model.cell=choice(gru,mingru)",
    ]  # fmt: skip
    command = [sys.executable, "-m", "elman"]
    killed = subprocess.Popen([*command, "search", *settings, "--out", "killed"], cwd=tmp_path, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 120
    while not (tmp_path / "killed/trials/002/last").exists() and time.monotonic() < deadline:
        time.sleep(0.005)
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL
    there = [*command, "search", "--out", "killed", "--resume", "auto", "--json"]
    done = subprocess.run(there, cwd=tmp_path, capture_output=True, text=True, check=True)
    other = [*command, "search", *settings, "--out", "other", "--json"]
    wanted = subprocess.run(other, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert contents(tmp_path / "killed") == contents(tmp_path / "other")
    assert json.loads(done.stdout) == json.loads(wanted.stdout.replace("other/", "killed/"))
    assert "Try: elman train --config killed/best.yaml" in done.stderr and "left" in wanted.stderr
    subprocess.run([*command, "train", "--config", "killed/best.yaml"], cwd=tmp_path, check=True, capture_output=True)
    assert (tmp_path / "killed" / "best" / "best").exists()


def test_random_search_trains_all_of_them(tmp_path):
    found = search(CONFIG, SPACE, TEXT, out=tmp_path / "s", trials=3, method="random", progress=False)
    assert [(one.steps, one.status) for one in found.trials] == [(12, "finished")] * 3
    assert [one.score for one in found.trials] == sorted(one.score for one in found.trials)
    with_more = search(
        replace(CONFIG, seed=0), SPACE, TEXT, out=tmp_path / "more", trials=4, method="random", progress=False
    )
    drawn = {one.number: one.values for one in with_more.trials}
    assert all(drawn[one.number] == one.values for one in found.trials)  # they do not depend on how many there are
    space = searching.open_space(CONFIG, SPACE)
    other = [searching._values(space, params) for params in searching._draw(space, 3, 1)]
    assert other != [drawn[n] for n in range(3)]  # but on the seed
    values = [one.values["optim.lr"] for one in with_more.trials]
    assert len({*values}) == 4 and all(1e-3 <= value <= 1e-1 for value in values)


def test_where_more_is_better_the_largest_go_on(tmp_path):
    """Accuracy: some rates are too small to learn anything by."""
    rows, file = [f"{'ab'[label == 'x']} day\t{label}" for label in "xyyxyxxy" * 8], tmp_path / "rows.tsv"
    file.write_text("\n".join(["text\tlabel", *rows, ""]))
    config = elman.ClassifyConfig(
        data={"train": str(file), "valid": str(file), "batch_size": 8}, model={"size": 8}, optim={"warmup": 0},
        training={"steps": 24, "evaluate_every": 1},
    )  # fmt: skip
    found = search(config, {"optim.lr": [1e-9, 0.01]}, out=tmp_path / "s", trials=6, factor=2, progress=False)
    assert found.larger_is_better and {one.values["optim.lr"] for one in found.trials} == {1e-9, 0.01}
    noted = {one.number: [(line["step"], line["valid"]) for line in run.read_metrics(Path(one.folder)) if "valid" in
                          line] for one in found.trials}  # fmt: skip
    assert all(one.score == max(score for _, score in noted[one.number]) for one in found.trials)
    assert len({score for _, score in noted[found.trials[0].number]}) > 1  # the best is not all there is
    assert found.trials[0].values["optim.lr"] == 0.01 and found.trials[0].score > found.trials[-1].score
    first = {number: max(score for step, score in lines if step <= 6) for number, lines in noted.items()}
    kept = {one.number for one in found.trials if one.steps > 6}
    assert 0 < len(kept) < 6 and min(first[n] for n in kept) >= max(first[n] for n in {*first} - kept)


def test_the_records_say_how_each_trial_has_ended(whole):
    import optuna

    folder, found = whole
    records = optuna.load_study(study_name="elman", storage=f"sqlite:///{folder / 'search.db'}").trials
    ends = {"finished": "COMPLETE"}
    assert {one.number: one.state.name for one in records} == {
        one.number: ends.get(one.status, "PRUNED") for one in found.trials
    }
    assert records[found.trials[0].number].value == found.trials[0].score


def test_two_at_once_in_one_folder(tmp_path):
    with lock(tmp_path / "s"), pytest.raises(InputError, match="is being written by process"):
        search(CONFIG, SPACE, TEXT, out=tmp_path / "s", **SETTINGS)


def test_what_is_fitted_in_one_go(tmp_path):
    space = {"model.order": "uniform(1, 4)"}
    data = {"train": TEXT, "valid": TEXT[:400]}
    found = search(elman.MarkovConfig(), space, data, out=tmp_path / "s", trials=3, progress=False)
    assert [one.status for one in found.trials] == ["finished"] * 3
    orders = {one.number: one.values["model.order"] for one in found.trials}
    assert {*orders.values()} <= {1, 2, 3, 4}
    again = search(elman.MarkovConfig(), space, data, out=tmp_path / "s", trials=3, resume="auto", progress=False)
    assert again == found


def test_a_trial_that_fails_is_the_last(tmp_path, monkeypatch):
    train = run.train

    def fails(settings, *others, **more):
        if settings.out.endswith("001"):
            raise TrainingError("the loss of step 2 is nan (learning rate 1). Try a smaller one")
        return train(settings, *others, **more)

    monkeypatch.setattr(run, "train", fails)
    found = search(CONFIG, SPACE, TEXT, out=tmp_path / "s", trials=3, method="random", progress=False)
    last = found.trials[-1]
    assert (last.number, last.score, last.status) == (1, None, "failed: the loss of step 2 is nan (learning rate 1)")
    assert found.table().rows[-1][:2] == ["1", "-"]


def test_a_trial_that_fails_late_is_not_the_best(tmp_path, monkeypatch):
    """Its scores were the best until then."""
    settings = {"trials": 3, "method": "random", "progress": False}
    number, train = search(CONFIG, SPACE, TEXT, out=tmp_path / "a", **settings).trials[0].number, run.train

    def fails(config, *others, **more):
        train(config, *others, **more)
        if config.out.endswith(f"{number:03d}"):
            raise TrainingError("the loss of step 12 is nan")

    monkeypatch.setattr(run, "train", fails)
    found = search(CONFIG, SPACE, TEXT, out=tmp_path / "b", **settings)
    last = found.trials[-1]
    assert (last.number, last.status) == (number, "failed: the loss of step 12 is nan")
    assert last.score < found.trials[0].score and found.best.optim.lr == found.trials[0].values["optim.lr"]


def test_what_is_refused_before_anything_is_trained(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(run, "train", lambda *_, **__: pytest.fail("it trains"))
    out = tmp_path / "s"
    for space, options, message in (
        ({"model.cell": ["gru", "gruu"]}, {}, r"trial \d \(model.cell=gruu\) cannot be trained: unknown cell 'gruu'"),
        ({"optim.lr": "uniform(-2, -1)"}, {}, r"trial 0 \(optim.lr=-1.\d+\) cannot be trained: optim.lr is"),
        ({"optim.lr": "log(0, 1)"}, {}, "the logarithm needs"),
        (SPACE, {"trials": 0}, "trials is 0; it must be a whole number of at least 1"),
        (SPACE, {"method": "grid"}, "method is 'grid'"),
        (SPACE, {"resume": "yes"}, "resume is 'yes'"),
    ):
        with pytest.raises(InputError, match=message):
            search(CONFIG, space, TEXT, out=out, **{"progress": False, **options})
        assert not out.exists()
    with pytest.raises(InputError, match="needs a folder"):
        search(CONFIG, SPACE, TEXT)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"exists, and is not a search: it has notes\.txt"):
        search(CONFIG, SPACE, TEXT, out=tmp_path / "full")
    for words, message in (
        ([], "there is no space to search"),
        (["--set", "optim.lr"], "it must be a setting, = and what to try"),
        (["--resume", "auto", "--out", str(tmp_path / "none")], "there is no search in"),
        (["--set", "optim.lr=log(1e-3,1e-1)", "--set", "optim.lr=choice(1,2)"], "--set names optim.lr twice"),
        (["--set", "optim.lr=log(1e-3,1e-1)", "--optim.lr=0.1"], "optim.lr is searched, and --optim.lr gives it one"),
        (["--set", "optim.lr=log(1e-3,1e-1)", "--optim.lrr", "1"], "Did you mean 'optim.lr'"),
    ):
        assert main(["search", "--data.train", "embedded", *words]) == 2
        assert message in capsys.readouterr().err


def test_another_search_in_the_same_folder(whole):
    folder, found = whole
    with pytest.raises(InputError, match="a search is never overwritten"):
        search(CONFIG, SPACE, TEXT, out=folder, **SETTINGS)
    for changed, message in (
        ({"trials": 7}, "was started with trials = 6, not 7"),
        ({"factor": 3}, "was started with factor = 2, not 3"),
    ):
        with pytest.raises(InputError, match=message):
            search(CONFIG, SPACE, TEXT, out=folder, resume="auto", **{**SETTINGS, **changed})
    with pytest.raises(InputError, match="was started with seed = 0, not 1"):
        search(replace(CONFIG, seed=1), SPACE, TEXT, out=folder, resume="auto", **SETTINGS)
    with pytest.raises(InputError, match=r"was started with space\.model\.cell"):
        search(CONFIG, {"optim.lr": SPACE["optim.lr"]}, TEXT, out=folder, resume="auto", **SETTINGS)


def test_without_optuna(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(MissingExtraError, match=r"needs optuna, .* pip install 'elman\[search\]'"):
        search(CONFIG, SPACE, TEXT, out=tmp_path / "s")
    assert not (tmp_path / "s").exists()


def test_help_teaches_the_syntax(capsys):
    assert main(["search", "--help"]) == 0
    said = capsys.readouterr().out
    assert all(word in said for word in ("log(1e-4, 1e-2)", "choice(gru, lstm)", "--trials", "--factor", "best.yaml"))
