"""elman inspect, from runs of each task that answers it to JSON and pages; and what it says when it cannot."""

import json
import math
from pathlib import Path

import pytest

import elman
from elman.cli import main
from elman.errors import InputError, UnknownNameError

SMALL = [
    "--model.size", "6", "--training.steps", "4", "--training.evaluate_every", "2", "--threads", "1",
]  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run of each task, tiny."""
    folder = tmp_path_factory.mktemp("runs")
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("ELMAN_CACHE", str(folder / "cache"))
    (folder / "book.txt").write_text('Once (12) upon a time "there" was\na cat. ' * 60)
    readings = (f"{math.sin(t) + 5 * (t // 20 % 2):.3f},{math.cos(t):.3f}" for t in range(120))
    (folder / "readings.csv").write_text("x,y\n" + "\n".join(readings))
    (folder / "train.txt").write_text("He B-NP\nsees B-VP\na B-NP\ncat I-NP\n\n" * 20)
    (folder / "pairs.tsv").write_text("a b c\tc b a\nb <b>\t<b> b\n" * 20)
    (folder / "reviews.tsv").write_text("text\tlabel\n" + "fine film <b>\tgood\ndull film\tbad\n" * 20)
    text = ["--data.train", "book.txt", "--data.batch_size", "2", "--data.window", "16", "--preview.tokens", "0"]
    commands = {
        "lm": [*SMALL, *text, "--training.lens", "true", "--training.log_every", "1"],
        "lstm": [*SMALL, *text, "--model.cell", "lstm"],
        "tag": [*SMALL, "--task", "tag", "--data.train", "train.txt", "--model.char_size", "0"],
        "classify": [*SMALL, "--task", "classify", "--data.train", "reviews.tsv", "--model.bidirectional", "false"],
        "translate": [*SMALL, "--task", "translate", "--data.source", "pairs.tsv", "--training.lens", "true"],
        "hmm": ["--task", "hmm", "--data.train", "readings.csv", "--model.n_iter", "3", "--model.n_init", "1"],
        "markov": ["--task", "markov", "--data.train", "book.txt", "--model.order", "2"],
    }
    for name, command in commands.items():
        assert main(["train", *command, "--out", name]) == 0, name
    yield folder
    monkeypatch.undo()


def answer(capfd, *arguments):
    capfd.readouterr()
    code = main(["inspect", *arguments])
    return code, *capfd.readouterr()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "layers", "panel"), [
    ("lm", 2, None), ("tag", 2, "CRF marginals"), ("classify", 1, None), ("translate", 1, "Alignment"),
    ("hmm", 1, "Posterior and Viterbi path"),
])  # fmt: skip
def test_every_task_without_naming_data(runs, capfd, name, layers, panel):
    code, out, err = answer(capfd, name, "--json", "--rows", "6", "--steps", "40", "--out", f"{name}.html")
    assert code == 0, err
    content = json.loads(out)
    assert content["format"] == "elman-lens-1" and len(content["reach"]) == layers and len(content["verdict"]) == 5
    assert content["config"]["task"] == ("hmm" if name == "hmm" else name) and content["names"]
    assert [part["title"] for part in content["panels"]] == ([panel] if panel else [])
    for part in content["panels"]:
        assert len(part["path"]) == len(part["values"][0])
        sums = [sum(column) for column in zip(*part["values"], strict=True)]
        assert sums == pytest.approx([1.0] * len(part["path"]), abs=1e-5)  # of numbers with six digits
    assert (runs / f"{name}.html").stat().st_size < 500_000


@pytest.mark.slow
def test_named_data_another_run_and_fresh_weights_side_by_side(runs, capfd):
    code, out, err = answer(
        capfd, "lm", "book.txt", "--against", "lstm", "--at", "init", "--json", "--rows", "4", "--steps", "30"
    )
    assert code == 0, err
    here, other, fresh = json.loads(out)
    assert [part["title"] for part in (here, other, fresh)] == ["lm", "lstm", "lm at init"]
    assert {gate["gate"] for gate in other["gates"]} == {"i", "f", "o"}
    assert fresh["reach"][0]["raw"] != here["reach"][0]["raw"] and fresh["names"] == here["names"]
    assert here["command"].startswith("elman inspect lm book.txt")


@pytest.mark.parametrize("name", ["lm", "tag", "classify"])
def test_python_makes_the_page_that_the_command_makes(runs, capfd, name):
    arguments = [name, "--rows", "4", "--steps", "30", "--at", "init", "--out", f"{name}-command.html"]
    code, _, err = answer(capfd, *arguments)
    assert code == 0, err
    command = f"elman inspect {' '.join(arguments)}"
    report, fresh = (elman.inspect(name, rows=4, steps=30, at_init=at, command=command) for at in (False, True))
    report.save(f"{name}-python.html", [fresh])
    assert (runs / f"{name}-python.html").read_bytes() == (runs / f"{name}-command.html").read_bytes()
    assert report.config["task"] == name and report.training


def test_a_model_in_memory_gives_the_page_of_the_same_model_saved(runs, capfd):
    text, data = Path("book.txt").read_text(), {"batch_size": 2, "window": 8}
    config = elman.LMConfig(data=data, model={"size": 6}, training={"steps": 2, "evaluate_every": 2})
    model, _ = elman.train(config, text, progress=False)
    model.save(runs / "saved")
    arguments = ["saved", "book.txt", "--rows", "4", "--steps", "30", "--out", "saved-command.html"]
    code, _, err = answer(capfd, *arguments)
    assert code == 0, err
    command = f"elman inspect {' '.join(arguments)}"
    report = elman.inspect(model, text, rows=4, steps=30, command=command, title="saved")
    report.save("saved-python.html")
    assert (runs / "saved-python.html").read_bytes() == (runs / "saved-command.html").read_bytes()
    assert elman.inspect(model, text, rows=4, at_init=True).title == "lm in memory at init"
    with pytest.raises(InputError, match="a model in memory has no run whose data could be read: give data"):
        elman.inspect(model)


def test_python_inspects_files_texts_and_rows(runs):
    file, text = (elman.inspect("lm", data, rows=4) for data in (Path("book.txt"), Path("book.txt").read_text()))
    assert file.to_json() == text.to_json() and file.command == ""
    with pytest.raises(UnknownNameError, match="unknown verb 'inspect'"):
        elman.inspect("markov")


def test_a_translator_beside_its_fresh_decoder(runs, capfd):
    code, out, err = answer(capfd, "translate", "pairs.tsv", "--at", "init", "--json", "--rows", "2")
    assert code == 0, err
    here, fresh = json.loads(out)
    assert here["reach"][0]["layer"] == fresh["reach"][0]["layer"] == "0 additive"
    assert fresh["reach"][0]["raw"] != here["reach"][0]["raw"] and {g["gate"] for g in here["gates"]} == {"r", "z"}
    assert here["panels"][0]["columns"][-1] == "" and here["panels"][0]["rows"] == ["0 a", "1 b", "2 c"]
    lines = [json.loads(line) for line in (runs / "translate" / "metrics.jsonl").open()]
    assert any("lens_0_additive_z_saturation" in line for line in lines)


def test_an_option_before_the_run_is_not_taken_for_it(runs, capfd):
    code, out, err = answer(capfd, "--against", "lstm", "lm", "--json", "--rows", "2", "--steps", "12")
    assert code == 0, err
    here, other = json.loads(out)
    assert (here["title"], here["reach"][0]["layer"]) == ("lm", "0 gru")
    assert (other["title"], other["reach"][0]["layer"]) == ("lstm", "0 lstm")


def test_the_terminal_has_the_verdict_and_a_table(runs, capfd):
    code, out, err = answer(capfd, "lm", "book.txt", "--rows", "4", "--steps", "30", "--out", "page.html")
    assert code == 0, err
    assert "0 gru" in out and "half-life" in out and "The gradient" in out and "emedy" in out
    code, _, err = answer(capfd, "lm", "book.txt", "--out", "page.png")
    assert code == 2 and "--out is 'page.png'; it must be a file that ends with .html or .htm" in err
    code, _, err = answer(capfd, "lm", "book.txt", "--out", "page.html")
    assert code == 2 and "pass --force" in err


def test_what_was_noted_while_training_is_on_the_page(runs, capfd):
    lines = [json.loads(line) for line in (runs / "lm" / "metrics.jsonl").open()]
    noted = [line for line in lines if "lens_0_gru_horizon" in line]
    assert [line["step"] for line in noted] == [2, 4] and all("lens_1_gru_z_saturation" in line for line in noted)
    ratios = [line["update_ratio"] for line in lines if "valid" in line]
    assert len(ratios) == 2 and all(0 < ratio < 1 for ratio in ratios)
    _, out, _ = answer(capfd, "lm", "--json", "--rows", "2", "--steps", "20")
    assert len(json.loads(out)["training"]) == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["markov", "book.txt"], "`elman inspect` does not support"),
        (["lm", "--against", "markov"], "`elman inspect` does not support"),
        (["lm/best"], "names no data: elman inspect lm/best DATA"),
        (["lm", "missing.txt"], "missing.txt"),
        (["lm", "--rows", "0"], "rows is 0"),
    ],
)
def test_bad_input(runs, capfd, arguments, match):
    code, _, err = answer(capfd, *arguments)
    assert code == 2 and match in err


def test_data_that_cannot_be_read_any_more(runs, capfd):
    (runs / "book.txt").rename(runs / "gone.txt")
    try:
        code, _, err = answer(capfd, "lm")
    finally:
        (runs / "gone.txt").rename(runs / "book.txt")
    assert code == 2 and "cannot be read any more" in err and "elman inspect lm DATA" in err


def test_a_run_that_is_still_training_is_looked_at_as_far_as_it_has_come(runs, capfd):
    from elman.training.lock import lock

    with lock(runs / "lm"):
        code, out, err = answer(capfd, "lm", "--json", "--rows", "2", "--steps", "10")
    assert code == 0 and json.loads(out)["reach"], err
