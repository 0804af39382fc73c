"""The verbs on hidden Markov models, as a person types them."""

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest

import elman
from elman.cli import main
from elman.data import open_text
from elman.hmm import GaussianHMM, PoissonHMM
from elman.tasks.text import markov

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    state = (np.arange(120) // 15) % 2
    rows = [f"{a:.4f},{b:.4f}" for a, b in rng.normal(5.0 * state[:, None], 1.0, (120, 2))]
    (tmp_path / "a.csv").write_text("\n".join(["x,y", *rows[:60], "", *rows[60:]]) + "\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ELMAN_CACHE", str(tmp_path / "cache"))
    return tmp_path


TRAIN = ("train", "--task", "hmm", "--data.train", "a.csv", "--model.n_init", "1", "--out", "run")


def test_the_verbs_together(here, capfd):
    assert main(["init", "hmm"]) == 0
    config = capfd.readouterr().out
    lines = [line for line in config.splitlines() if not line.strip().startswith("#")]
    assert len(lines) * 2 - config.count("\n") == 0  # every line has its comment
    Path("run.yaml").write_text(config)
    assert main(["train", "--config", "run.yaml", "--data.train", "a.csv", "--out", "run"]) == 0
    out, err = capfd.readouterr()
    assert "means" in out and "x" in out and "state 1" in out and "log-likelihood" in err

    assert main(["evaluate", "run", "a.csv", "--json"]) == 0
    score = json.loads(capfd.readouterr().out)
    model = elman.load("run")
    assert isinstance(model, GaussianHMM)
    found = model.reader_(["a.csv"])
    assert score["log_likelihood"] == model.score(found.X, [60, 60])
    assert (score["observations"], score["sequences"], score["unknown"]) == (120, 2, 0)
    assert score["bic"] == model.bic(found.X, [60, 60]) and score["aic"] == model.aic(found.X, [60, 60])
    assert main(["evaluate", "run", "a.csv"]) == 0
    assert "log likelihood" in capfd.readouterr().out

    assert main(["predict", "run", "a.csv"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines[0] == "sequence,step,state" and lines[61].startswith("1,0,")
    assert [int(line.split(",")[2]) for line in lines[1:]] == model.predict(found.X, [60, 60]).tolist()
    assert main(["predict", "run", "a.csv", "--posteriors", "--out", "states.csv"]) == 0
    posteriors = np.loadtxt("states.csv", delimiter=",", skiprows=1)
    np.testing.assert_allclose(posteriors[:, 3:], model.predict_proba(found.X, [60, 60]), atol=1e-5)

    assert main(["generate", "run", "--observations", "5", "--seed", "3"]) == 0
    drawn = capfd.readouterr().out
    assert drawn.splitlines()[0] == "x,y" and len(drawn.splitlines()) == 6
    assert main(["generate", "run", "--observations", "5", "--seed", "3", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["text"] == drawn.rstrip("\n")

    assert main(["train", "--out", "run", "--resume", "auto"]) == 0  # done: it has its own config, and its table
    assert "means" in capfd.readouterr().out


def test_a_warning_is_one_line(capfd):
    assert main([*TRAIN, "--model.n_iter", "1"]) == 0
    err = capfd.readouterr().err
    assert "elman: warning: EM stopped after n_iter = 1" in err and "FitWarning" not in err


def test_predict_passes_a_date_through_and_columns_go_by_name_or_number(capfd):
    lines = Path("a.csv").read_text().splitlines()
    dated = ["state,day,x,y"] + [f'old,"May {i}, 1990",{line}' if line else "" for i, line in enumerate(lines[1:])]
    Path("dated.csv").write_text("\n".join(dated))
    data = ("--data.train", "dated.csv", "--model.n_init", "1")
    for given in ("x", "3", "[3]", '["x"]'):
        out = f"run-{given.strip('[]').strip(chr(34))}-{len(given)}"
        assert main(["train", "--task", "hmm", *data, "--data.columns", given, "--out", out]) == 0
        assert elman.load(out).reader_.names == ("x",)
    capfd.readouterr()
    assert main(["predict", "run-x-1", "dated.csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capfd.readouterr().out)))
    assert list(rows[0]) == ["sequence", "step", "state", "state of the file", "day", "y"]
    assert rows[3]["day"] == "May 3, 1990" and rows[3]["y"] == lines[4].split(",")[1]
    assert main(["train", "--task", "hmm", "--data.train", "a.csv", "--data.columns", "z", "--out", "none"]) == 2
    assert "no column 'z'; it has x, y" in capfd.readouterr().err


def test_an_estimator_saved_from_python_serves_the_verbs(capfd):
    elman.hmm.save(PoissonHMM(2, random_state=0).fit(np.array([[1], [0], [9], [11]] * 5)), "model")
    Path("n.txt").write_text("1\n12\n")
    assert main(["predict", "model", "n.txt"]) == 0
    states = [line.split(",")[2] for line in capfd.readouterr().out.splitlines()[1:]]
    assert sorted(states) == ["0", "1"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data.train", "none.csv"], "no file or folder none.csv"),
        (["--data.train", "empty.csv"], "empty.csv is empty"),
        (["--data.train", "ragged.csv"], "line 2 of ragged.csv has 1 values"),
        (["--data.train", "words.csv"], "which is not a number"),
        (["--data.train", "holes.csv", "--data.missing", "refuse"], "1 values in holes.csv are missing"),
        (["--data.train", "infinite.csv"], "infinities"),
        (["--data.train", "latin.csv"], "not UTF-8"),
        (["--data.train", "latin.csv", "--data.read", "letters", "--model.emission", "categorical"], "not UTF-8"),
        (["--data.read", "letters"], "--model.emission categorical"),
        (["--model.emission", "poisson"], "not counts"),
        (["--model.emission", "gauss"], "unknown emission 'gauss'"),
        (["--model.n_components", "500"], "too few"),
        (["--model.options", "{covariance_typ: full}"], "no parameter 'covariance_typ'"),
        (["--model.n_component", "3"], "model.n_components"),
        (["--task", "hm"], "Did you mean 'hmm'"),
        (["--out", "full"], "exists; a run is never overwritten"),
        (["--out", "a.csv"], "exists; a run is never overwritten"),
        (["--resume", "perhaps"], "unknown way to resume"),
        (["--seed", "-1"], "seed is -1"),
    ],
)
def test_bad_input_is_one_clear_line_and_leaves_nothing(here, capfd, arguments, message):
    (here / "empty.csv").write_bytes(b"")
    (here / "ragged.csv").write_text("1,2\n3\n")
    (here / "words.csv").write_text("x,y\n1,2\n3,four\n")
    (here / "holes.csv").write_text("1,2\n3,\n5,6\n")
    (here / "infinite.csv").write_text("1,2\n3,inf\n5,6\n")
    (here / "latin.csv").write_bytes("1,2\n3,é\n".encode("latin-1"))
    (here / "full").mkdir()
    (here / "full" / "precious").write_text("x")
    assert main([*TRAIN, *arguments]) == 2
    captured = capfd.readouterr()
    assert message in captured.err and "Traceback" not in captured.err and captured.out == ""
    assert not (here / "run").exists() and [p.name for p in (here / "full").iterdir()] == ["precious"]


def test_using_a_run_wrongly_is_one_clear_line(here, capfd):
    assert main([*TRAIN]) == 0
    elman.train(markov.MarkovConfig(model=markov.MarkovModelConfig(order=1), out="lm"))
    (here / "three.csv").write_text("1,2,3\n")
    (here / "states.csv").write_text("")
    (here / "broken").mkdir()
    (here / "broken" / "model.json").write_text("{")
    capfd.readouterr()
    for arguments, message in (
        (["evaluate", "run", "three.csv"], "3 features"),
        (["predict", "run", "none.csv"], "no file or folder none.csv"),
        (["predict", "run", "a.csv", "--out", "states.csv"], "states.csv exists"),
        (["predict", "run", "a.csv", "--out", "no/where.csv"], "cannot write"),
        (["predict", "run", "a.csv", "--out", "a.csv/below.csv"], "cannot write"),
        (["predict", "run", "three.csv", "--out", "new.csv"], "3 features"),
        (["predict", "lm", "a.csv"], "use `elman generate`, `elman evaluate`"),
        (["predict", "nothing", "a.csv"], "no folder nothing"),
        (["evaluate", "broken", "a.csv"], "truncated"),
        (["generate", "run", "--observations", "0"], "at least 1"),
        (["train", "--out", "run", "--resume", "auto", "--seed", "1"], "seed = 0, not 1"),
    ):
        assert main(arguments) == 2, arguments
        captured = capfd.readouterr()
        assert message in captured.err and "Traceback" not in captured.err and captured.out == "", arguments
    assert not list(here.glob("new.csv*")), "part of a file was left behind"


@pytest.mark.slow
def test_two_states_find_the_vowels(capfd):
    """The recipe on a tenth of its text, from one start, for time."""
    Path("some.txt").write_text("".join(piece for _, piece in open_text(["embedded"]).cut(0, 50_000).pieces()))
    recipe = ["train", "--config", str(ROOT / "recipes" / "hmm-vowels.yaml"), "--out", "vowels"]
    assert main([*recipe, "--data.train", "some.txt", "--model.n_init", "1", "--model.tol", "0.1"]) == 0
    rows = [line.split() for line in capfd.readouterr().out.replace("' '", "'_'").splitlines()]
    sources = {row[0].strip("'"): row[2] for row in rows if len(row) == 5 and row[0][0] == "'"}
    assert len(sources) == 27
    of_vowels = {sources[letter] for letter in "aeiou"}
    assert len(of_vowels) == 1
    assert not of_vowels & {sources[letter] for letter in "bcdfghjklmnpqrstvwxz"}
