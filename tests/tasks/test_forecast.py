"""Forecasters: from a file to forecasts, and what must not depend on how it was done."""

import csv
import io
import json
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from interrupting import same_files, train_stopping_at

from elman import laws
from elman import state as states
from elman.cli import main
from elman.data.panel import Series
from elman.errors import InputError
from elman.run import load, train
from elman.tasks.forecast import DataConfig, RunConfig
from elman.tasks.forecast_network import ModelConfig
from elman.training.loop import TrainingConfig
from elman.training.optim import OptimConfig

SEASON = 4


def values(name, n, start=0):
    """A season, a level and some noise; each series has its own size."""
    g = np.random.default_rng([len(name), ord(name[-1])])
    size = 10.0 ** (ord(name[-1]) % 4)
    wave = np.array([1.0, 3.0, 2.0, 5.0])[np.arange(start + n) % SEASON]
    return (size * (wave + 0.1 * g.normal(size=start + n)))[start:]


def write(path, lengths, start=0, extra=None):
    """Series as long rows; `extra` has functions of name and time by column."""
    extra = extra or {}
    rows = ["unique_id,ds,y" + "".join(f",{name}" for name in extra)]
    for name, n in lengths.items():
        for t, y in zip(range(start, start + n), values(name, n, start), strict=True):
            stamp = np.datetime64("2024-01-01T00") + np.timedelta64(t, "h")
            more = "".join(f",{f(name, t)}" for f in extra.values())
            rows.append(f'"{name}",{str(stamp).replace("T", " ")}:00,{y:.6g}{more}')
    path.write_text("\n".join(rows) + "\n")
    return str(path)


LENGTHS = {"a": 60, "b": 44, "c": 90, "series, d": 31}


def config_in(folder, **changes):
    data = {"train": write(folder / "train.csv", LENGTHS), "horizon": 5, "seasonality": SEASON, "samples": 20}
    data |= {"batch_size": 2, "window": 12}
    model = {"size": 6, "residual": "seasonal", "readout": "gaussian"}
    config = RunConfig(
        data=DataConfig(**{**data, **changes.pop("data", {})}),
        model=ModelConfig(**{**model, **changes.pop("model", {})}),
        optim=OptimConfig(lr=0.01, warmup=2),
        training=TrainingConfig(**{"steps": 12, "log_every": 2, "evaluate_every": 5, **changes.pop("training", {})}),
        out=str(folder / "run"),
    )
    return replace(config, **changes)


@pytest.fixture
def config(tmp_path):
    return config_in(tmp_path)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("forecast")
    return folder, *train(config_in(folder, training={"steps": 60, "evaluate_every": 30}))


def test_a_file_becomes_forecasts(trained, capsys):
    folder, face, history = trained
    assert history[-1]["mase"] < 3 and np.isfinite(history[-1]["nats"])
    run = str(folder / "run")
    assert main(["predict", run, "--horizon", "3", "--quantiles", "0.1,0.5,0.9"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert list(rows[0]) == ["unique_id", "ds", "mean", "q0.1", "q0.5", "q0.9"] and len(rows) == 3 * len(LENGTHS)
    assert (
        rows[0]["unique_id"] == "a" and rows[0]["ds"] == "2024-01-03 12:00:00" and rows[-1]["unique_id"] == "series, d"
    )
    assert all(float(row["q0.1"]) <= float(row["q0.5"]) <= float(row["q0.9"]) for row in rows)
    for name in "ac":  # the season is found
        mine = [float(row["q0.5"]) for row in rows if row["unique_id"] == name]
        np.testing.assert_allclose(mine, values(name, 3, LENGTHS[name]), rtol=0.4)


def test_evaluation_goes_on_from_the_training_series(trained, capsys, tmp_path):
    folder, face, _ = trained
    test = tmp_path / "test.csv"
    rows = []
    for name, n in LENGTHS.items():
        part = write(tmp_path / "part.csv", {name: 15}, n)
        rows += Path(part).read_text().splitlines()[1:]
    test.write_text("unique_id,ds,y\n" + "\n".join(rows) + "\n")
    assert main(["evaluate", str(folder / "run"), str(test), "--rolling", "3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    wanted = {"mase", "smape", "nd", "wql", "crps", "coverage", "nats", "series", "windows", "seasonality"}
    assert wanted <= set(found) and found["windows"] == 3 and found["series"] == 4 and found["seasonality"] == SEASON
    assert main(["evaluate", str(folder / "run"), str(test), "--rolling", "4"]) == 2
    assert "enough for 3" in capsys.readouterr().err


def test_the_whole_model_keeps_the_laws(trained):
    report = laws.check(trained[1].model.core)
    assert report, report


def cut(series, *places):
    return [[one.cut(a, b) for one in series] for a, b in pairwise(places)]


def panel(names="xyz", n=30, past=0):
    g = np.random.default_rng(1)
    return [
        Series(name, 5, values(name, n)[:, None], g.normal(size=(n, past)), np.zeros((n, 0)), np.zeros(0))
        for name in names
    ]


def test_row_by_row_is_one_scan_bit_for_bit(trained):
    _, face, _ = trained
    face = load(trained[0] / "run")
    series = panel()
    face.read_from_start(series)
    whole, state = face.forecast(4), face.state
    face.read_from_start([one.cut(0, 7) for one in series])
    for (rows,) in zip(cut(series, *range(7, 31)), strict=True):
        face.update(rows)
    assert all(torch.equal(a, b) for a, b in zip(states.leaves(face.state), states.leaves(state), strict=True))
    again = face.forecast(4)
    np.testing.assert_array_equal(again.paths, whole.paths)
    np.testing.assert_array_equal(again.quantiles, whole.quantiles)


def test_a_saved_state_goes_on(trained, tmp_path, capsys):
    """Through the command line: today's state, then tomorrow's rows only; and all at once from the start."""
    run = str(trained[0] / "run")
    today, tomorrow = str(tmp_path / "today.safetensors"), str(tmp_path / "tomorrow.safetensors")
    assert main(["predict", run, "--save_state", today]) == 0
    new = write(tmp_path / "new.csv", {"a": 2}, LENGTHS["a"])
    assert main(["predict", run, new, "--state", today, "--save_state", tomorrow, "--series", "a"]) == 0
    found = capsys.readouterr().out.splitlines()
    whole = write(tmp_path / "whole.csv", {"a": LENGTHS["a"] + 2})
    assert main(["predict", run, whole, "--from_start"]) == 0
    assert capsys.readouterr().out.splitlines() == found[-6:]
    assert main(["predict", run, new, "--state", tomorrow]) == 2
    assert "read that already" in capsys.readouterr().err
    assert main(["predict", run, "--save_state", today]) == 2
    assert "--force" in capsys.readouterr().err


def test_paths_do_not_depend_on_their_company(trained, monkeypatch):
    _, face, _ = trained
    face.read_from_start(panel())
    whole = face.forecast(6, samples=8)
    np.testing.assert_array_equal(face.forecast(6, samples=8, series=["y"]).paths[0], whole.paths[1])
    np.testing.assert_array_equal(face.forecast(6, samples=3).paths, whole.paths[:, :3])
    monkeypatch.setattr("elman.tasks.forecaster.PATHS", 8)
    np.testing.assert_array_equal(face.forecast(6, samples=8).paths, whole.paths)
    assert not np.array_equal(face.forecast(6, samples=8, seed=1).paths, whole.paths)


def test_nothing_after_the_origin_is_used(trained):
    """All that comes after an origin is changed: what was predicted before it stays."""
    _, face, _ = trained
    series = panel()
    changed = [one._replace(y=np.where(np.arange(30)[:, None] >= 20, -7e4, one.y)) for one in series]
    _, first, _ = face.scored(series, face.init_state(series))
    _, second, _ = face.scored(changed, face.init_state(changed))
    assert torch.equal(first[:, :20], second[:, :20]) and not torch.equal(first[:, 20], second[:, 20])


def test_numbers_do_not_depend_on_the_batch(trained, monkeypatch):
    _, face, _ = trained
    series = panel(n=40)
    history, rest = cut(series, 0, 25, 40)

    def scores():
        return face.evaluate(rest, face.read(history, face.init_state(history)), samples=10)

    whole = scores()
    for name, size in (("EACH", 1), ("CHUNK", 20), ("PATHS", 1)):
        monkeypatch.setattr(f"elman.tasks.forecaster.{name}", size)
        assert scores() == whole


def test_one_pass_over_origins_is_each_origin_alone(trained):
    _, face, _ = trained
    series = panel(n=40)
    history, rest = cut(series, 0, 25, 40)
    rolling = face.evaluate(rest, face.read(history, face.init_state(history)), samples=10)
    nats = []
    for origin in (25, 30, 35):
        before, after = [one.cut(0, origin) for one in series], [one.cut(origin, origin + 5) for one in series]
        alone = face.evaluate(after, face.read(before, face.init_state(before)), samples=10)
        nats.append(alone.numbers["nats"])
    assert rolling.numbers["windows"] == 3
    assert rolling.numbers["nats"] == pytest.approx(np.mean(nats), rel=1e-12)


def test_a_killed_run_ends_in_the_same_bytes(config, monkeypatch, tmp_path):
    train(config)
    whole = tmp_path / "whole"
    shutil.move(config.out, whole)
    train_stopping_at((3, 8), replace(config, resume="auto"), monkeypatch)
    assert same_files(whole, config.out)
    assert (whole / "best/series.safetensors").read_bytes() == (
        Path(config.out) / "best/series.safetensors"
    ).read_bytes()


@pytest.mark.parametrize("kind", ["seasonal_naive", "linear"])
def test_baselines_are_fitted_under_the_same_verbs(tmp_path, kind, capsys):
    config = config_in(tmp_path, model={"kind": kind, "order": 5})
    face, history = train(config)
    assert history[-1]["mase"] < 2
    if kind == "seasonal_naive":
        found = face.forecast(9, samples=400)
        one = values("a", LENGTHS["a"])[-SEASON:]
        np.testing.assert_allclose(found.quantiles[0, 0, 0, 1], one[0], rtol=1e-5)
        np.testing.assert_allclose(found.mean[0, :, 0], np.resize(one, 9), rtol=0.2)
    assert main(["predict", config.out, "--horizon", "2"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1 + 2 * len(LENGTHS)


BAD = {
    "a horizon of 0": ({"data": {"horizon": 0}}, "data.horizon is 0"),
    "too long a horizon": ({"data": {"horizon": 100}}, "leave nothing to train on"),
    "negative counts": ({"model": {"readout": "poisson", "residual": "none"}}, "which predicts counts"),
    "a frequency that does not fit": ({"data": {"frequency": "D"}}, "does not fit the frequency D"),
    "an unknown frequency": ({"data": {"frequency": "fortnight"}}, "data.frequency is 'fortnight'"),
    "an unknown column": ({"data": {"past": ["wind"]}}, "no column 'wind'"),
    "a count of a difference": ({"model": {"readout": "poisson"}}, "model.residual is seasonal"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_settings_are_named(tmp_path, name):
    changes, message = BAD[name]
    with pytest.raises(InputError, match=message):
        train(config_in(tmp_path, **changes))


ROWS = {
    "one observation": ("a,1,5\n", "no series has two times"),
    "all missing": ("a,1,\na,2,\na,3,\n", "all are missing"),
    "infinite": ("a,1,5\na,2,inf\na,3,1\n", "infinite value"),
    "a time twice": ("a,1,5\na,1,6\na,2,7\n", "has the time 1 twice"),
    "a gap": ("a,1,5\na,2,6\na,4,7\na,5,1\n", "no row for 3"),
    "not a number": ("a,1,5\na,2,six\n", "not a number"),
    "not a time": ("a,1,5\na,soon,6\n", "'soon'"),
    "nothing": ("", "the file is empty"),
}


@pytest.mark.parametrize("name", ROWS)
def test_bad_rows_are_named(tmp_path, name):
    rows, message = ROWS[name]
    (tmp_path / "bad.csv").write_text("unique_id,ds,y\n" + rows)
    with pytest.raises(InputError, match=message):
        train(config_in(tmp_path, data={"train": str(tmp_path / "bad.csv")}))


def test_an_unknown_series_is_named(trained, tmp_path, capsys):
    new = write(tmp_path / "new.csv", {"e": 3})
    assert main(["predict", str(trained[0] / "run"), new]) == 2
    assert "no state of series 'e'" in capsys.readouterr().err
    assert main(["predict", str(trained[0] / "run"), new, "--from_start"]) == 0


def test_constant_and_short_series_are_forecast(tmp_path):
    text = "unique_id,ds,y\n" + "".join(f"zero,{t},0\nfive,{t},5\n" for t in range(40)) + "short,0,3\n"
    (tmp_path / "flat.csv").write_text(text)
    face, history = train(config_in(tmp_path, data={"train": str(tmp_path / "flat.csv")}))
    assert np.isfinite(face.forecast(3).quantiles).all() and np.isfinite(history[-1]["nats"])
