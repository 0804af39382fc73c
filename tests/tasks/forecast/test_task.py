"""Forecasters: from a file to forecasts, and what must not depend on how it was done."""

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from panels import LENGTHS, SEASON, config_in, cut, driven, panel, values, write

from elman import kernels, laws
from elman import state as states
from elman.cli import main
from elman.data import Position
from elman.errors import InputError
from elman.kernels.builder import Unstreamable
from elman.run import load, train
from elman.tasks.forecast import metrics, network
from elman.tasks.forecast.model import Forecaster
from elman.tasks.forecast.task import ForecastTask
from elman.training.optim import OptimConfig

exact = pytest.mark.skipif(kernels.active() != "native", reason="bits are a promise of the native kernels")


@pytest.fixture
def config(tmp_path):
    return config_in(tmp_path)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("forecast")
    return folder, *train(config_in(folder, training={"steps": 60, "evaluate_every": 30}))


@pytest.mark.slow
def test_a_file_becomes_forecasts(trained, capsys):
    folder, model, history = trained
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
    folder, model, _ = trained
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


@exact
def test_row_by_row_is_one_scan_bit_for_bit(trained):
    model, series = load(trained[0] / "run"), panel()
    state = model.read_from_start(series)
    whole, moved = model.forecast(state, 4), model.read_from_start([one.cut(0, 7) for one in series])
    for (rows,) in zip(cut(series, *range(7, 31)), strict=True):
        moved = model.update(moved, rows)
    assert all(torch.equal(a, b) for a, b in zip(states.leaves(moved), states.leaves(state), strict=True))
    again = model.forecast(moved, 4)
    np.testing.assert_array_equal(again.paths, whole.paths)
    np.testing.assert_array_equal(again.quantiles, whole.quantiles)


@exact
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


@exact
def test_paths_do_not_depend_on_their_company(trained, monkeypatch):
    _, model, _ = trained
    state = model.read_from_start(panel())
    whole = model.forecast(state, 6, samples=8)
    np.testing.assert_array_equal(model.forecast(state, 6, samples=8, series=["y"]).paths[0], whole.paths[1])
    np.testing.assert_array_equal(model.forecast(state, 6, samples=3).paths, whole.paths[:, :3])
    assert not np.array_equal(model.forecast(state, 6, samples=8, seed=1).paths, whole.paths)

    def refuse(_):
        raise Unstreamable("step by step, then")

    monkeypatch.setattr("elman.decoding.paths.NativePaths", refuse)
    np.testing.assert_array_equal(model.forecast(state, 6, samples=8).paths, whole.paths)
    monkeypatch.setattr("elman.decoding.paths.PATHS", 8)
    np.testing.assert_array_equal(model.forecast(state, 6, samples=8).paths, whole.paths)
    assert not np.array_equal(model.forecast(state, 6, samples=8, seed=1).paths, whole.paths)


def test_nothing_after_the_origin_is_used(trained):
    """All that comes after an origin is changed: what was predicted before it stays."""
    _, model, _ = trained
    series = panel()
    changed = [one._replace(y=np.where(np.arange(30)[:, None] >= 20, -7e4, one.y)) for one in series]
    _, first, _ = model.score(series, model.init_state(series))
    _, second, _ = model.score(changed, model.init_state(changed))
    assert torch.equal(first[:, :20], second[:, :20]) and not torch.equal(first[:, 20], second[:, 20])
    for one, other in zip(series, changed, strict=True):  # nor does what is said of the value at the origin know it
        said, after = (
            model.model.scan(torch.from_numpy(model.inputs.rows(rows).x)[None])[0].mean[0] for rows in (one, other)
        )
        assert torch.equal(said[:21], after[:21]) and not torch.equal(said[21], after[21])


@exact
def test_numbers_do_not_depend_on_the_batch(trained, monkeypatch):
    _, model, _ = trained
    series = panel(n=40)
    history, rest = cut(series, 0, 25, 40)

    def scores():
        return metrics.evaluate(model, rest, model.read(history, model.init_state(history)), samples=10)

    whole = scores()
    for name, size in (
        ("tasks.forecast.model.EACH", 1),
        ("tasks.forecast.model.CHUNK", 20),
        ("decoding.paths.PATHS", 1),
    ):
        monkeypatch.setattr(f"elman.{name}", size)
        assert scores() == whole


@exact
def test_one_pass_over_origins_is_each_origin_alone(trained):
    _, model, _ = trained
    series = panel(n=40)
    history, rest = cut(series, 0, 25, 40)
    rolling = metrics.evaluate(model, rest, model.read(history, model.init_state(history)), samples=10)
    nats = []
    for origin in (25, 30, 35):
        before, after = [one.cut(0, origin) for one in series], [one.cut(origin, origin + 5) for one in series]
        alone = metrics.evaluate(model, after, model.read(before, model.init_state(before)), samples=10)
        nats.append(alone.numbers["nats"])
    assert rolling.numbers["windows"] == 3 and metrics.backtest(model, series, windows=3, samples=10) == rolling
    with pytest.raises(InputError, match="45 are scored"):
        metrics.backtest(model, series, windows=9)
    assert rolling.numbers["nats"] == pytest.approx(np.mean(nats), rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["seasonal_naive", "linear"])
def test_baselines_are_fitted_under_the_same_verbs(tmp_path, kind, capsys):
    config = config_in(tmp_path, model={"kind": kind, "order": 5})
    model, history = train(config)
    assert history[-1]["mase"] < 2
    if kind == "seasonal_naive":
        found = model.forecast(model.state, 9, samples=400)
        one = values("a", LENGTHS["a"])[-SEASON:]
        np.testing.assert_allclose(found.quantiles[0, 0, 0, 1], one[0], rtol=1e-5)
        np.testing.assert_allclose(found.mean[0, :, 0], np.resize(one, 9), rtol=0.2)
    assert main(["predict", config.out, "--horizon", "2"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1 + 2 * len(LENGTHS)


def test_an_unknown_series_is_named(trained, tmp_path, capsys):
    new = write(tmp_path / "new.csv", {"e": 3})
    assert main(["predict", str(trained[0] / "run"), new]) == 2
    assert "no state of series 'e'" in capsys.readouterr().err
    assert main(["predict", str(trained[0] / "run"), new, "--from_start"]) == 0


@pytest.mark.slow
def test_constant_and_short_series_are_forecast(tmp_path):
    text = "unique_id,ds,y\n" + "".join(f"zero,{t},0\nfive,{t},5\n" for t in range(40)) + "short,0,3\n"
    (tmp_path / "flat.csv").write_text(text)
    model, history = train(config_in(tmp_path, data={"train": str(tmp_path / "flat.csv")}))
    assert np.isfinite(model.forecast(model.state, 3).quantiles).all() and np.isfinite(history[-1]["nats"])
    assert "mase" not in history[-1] and "NaN" not in (tmp_path / "run" / "metrics.jsonl").read_text()


def test_a_fan_chart_and_paths_are_new_files(trained, tmp_path, capsys):
    run, plot, paths = str(trained[0] / "run"), tmp_path / "fan.png", tmp_path / "paths.npz"
    command = ["predict", run, "--samples", "7", "--series", "b", "--plot", str(plot), "--paths", str(paths)]
    assert main(command) == 0
    assert plot.read_bytes().startswith(b"\x89PNG")
    found = np.load(paths)
    assert found["paths"].shape == (1, 7, 5, 1) and found["names"].tolist() == ["b"]
    assert main(command) == 2
    assert "not overwritten" in capsys.readouterr().err


FORMATS = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF", "jpg": b"\xff\xd8", "JPEG": b"\xff\xd8"}


@pytest.mark.parametrize("ending", FORMATS)
def test_a_fan_chart_has_the_format_of_its_ending(trained, tmp_path, ending):
    plot = tmp_path / f"fan.{ending}"
    assert main(["predict", str(trained[0] / "run"), "--samples", "7", "--plot", str(plot)]) == 0
    assert plot.read_bytes().startswith(FORMATS[ending])


@pytest.mark.parametrize(
    ("flag", "name", "say"),
    [
        ("--plot", "fan.xyz", "must be a file that ends with .png or .svg or .pdf or .jpg or .jpeg"),
        ("--plot", "fan", "must be a file that ends with .png or"),
        ("--paths", "paths.csv", "must be a file that ends with .npz"),
        ("--out", "f.parquet", "lines of text are written, not .parquet"),
        ("--out", "f.JSON", "lines of text are written, not .json"),
    ],
)
def test_an_ending_that_is_not_what_is_written_is_refused_before_any_work(
    trained, tmp_path, capsys, monkeypatch, flag, name, say
):
    monkeypatch.setattr(Forecaster, "forecast", lambda *_, **__: pytest.fail("it was computed"))
    monkeypatch.chdir(tmp_path)
    assert main(["predict", str(trained[0] / "run"), flag, name]) == 2
    said = capsys.readouterr()
    assert say in said.err and repr(name) in said.err and not said.out and not list(tmp_path.iterdir())


def test_sample_quantiles_come_near_the_exact_ones(trained):
    """One step ahead both are there."""
    model = load(trained[0] / "run")
    found = model.forecast(model.state, 1, samples=4000)
    samples = np.quantile(found.paths[:, :, 0, 0], (0.1, 0.5, 0.9), axis=1).T
    width = found.quantiles[:, 0, 0, 2] - found.quantiles[:, 0, 0, 0]
    assert (np.abs(samples - found.quantiles[:, 0, 0]) < 0.06 * width[:, None]).all()


def test_samples_are_inputs_of_the_next_step_only(trained, tmp_path):
    """With a model that always reads its own draws, targets before the last one do not matter to its terms."""
    task_config = config_in(tmp_path, model={"feedback": "sample", "sampled": 0.999999})
    task = ForecastTask()
    data = task.open(task_config, None)
    model = task.build(task_config, data).model
    batch = data.batches(0, 1).batch(Position())
    torch.manual_seed(0)
    own = network._with_own_values(model, batch, None, batch.y[1])
    counted = batch.y[1][:, :-1, 0] & ~batch.reset[:, 1:]
    changed = (own != batch.x).any(-1)
    assert torch.equal(changed[:, 1:], counted) and not changed[:, 0].any()
    assert torch.equal(own[..., 1:], batch.x[..., 1:])  # the flag and all else stay


def test_without_feedback_values_are_independent_given_the_inputs(tmp_path):
    """What came before does not reach what is predicted."""
    extra = {"hour": lambda name, t: t % SEASON}
    data = {"train": write(tmp_path / "hours.csv", {"a": 60}, extra=extra), "future": ["hour"]}
    model, _ = train(config_in(tmp_path, data=data, model={"feedback": "none", "residual": "none"}))
    state = model.read_from_start(data["train"])
    future = write(tmp_path / "future.csv", {"a": 5}, 60, extra)
    before = model.forecast(state, 5, future=future)
    other = model.inputs.reader(data["train"])
    other = [one._replace(y=one.y * 100 + 3) for one in other]
    after = model.forecast(model.read_from_start(other), 5, future=future)
    np.testing.assert_array_equal(after.paths, before.paths)


def counts(name, n):
    return np.random.default_rng(ord(name)).poisson(3 + 2 * (np.arange(n) % SEASON)).astype(int)


READOUTS = {
    "poisson": {"readout": "poisson"},
    "negative_binomial": {"readout": "negative_binomial"},
    "bernoulli": {"readout": "bernoulli"},
    "categorical": {"readout": "categorical", "classes": 3},
    "quantiles": {"readout": "quantiles"},
    "student_t": {"readout": "student_t", "embedding_size": 2, "layers": 2, "dropout": 0.1, "input_dropout": 0.1},
}


@pytest.mark.slow
@exact
@pytest.mark.parametrize("name", READOUTS)
def test_every_readout_trains_is_saved_and_goes_on(tmp_path, name):
    fold = {"bernoulli": 2, "categorical": 3}.get(name, 10**9)
    rows = "".join(f"{s},{t},{y % fold}\n" for s in "ab" for t, y in enumerate(counts(s, 60)))
    (tmp_path / "counts.csv").write_text("unique_id,ds,y\n" + rows)
    data = {"train": str(tmp_path / "counts.csv")}
    model, history = train(config_in(tmp_path, data=data, model={"residual": "none", **READOUTS[name]}))
    assert np.isfinite(history[-1]["nats"])
    found = model.forecast(model.state, 4, samples=30)
    assert np.isfinite(found.paths).all() and (np.diff(found.quantiles, axis=-1) >= 0).all()
    if name not in ("quantiles", "student_t"):
        assert (found.paths == np.round(found.paths)).all() and found.paths.min() >= 0
    whole = model.inputs.reader(data["train"])
    state = model.update(model.read_from_start([one.cut(0, 50) for one in whole]), [one.cut(50) for one in whole])
    np.testing.assert_array_equal(model.forecast(state, 4, samples=30).paths, found.paths)
    model.save(tmp_path / "copy")
    copy = load(tmp_path / "copy")
    np.testing.assert_array_equal(copy.forecast(copy.state, 4, samples=30).paths, found.paths)


@pytest.mark.slow
def test_covariates_are_used_and_end_where_the_future_begins(tmp_path, capsys):
    whole = driven(tmp_path)
    rows = Path(whole).read_text().splitlines()
    (tmp_path / "past.csv").write_text("\n".join(rows[:381]) + "\n")
    (tmp_path / "next.csv").write_text("\n".join([rows[0], *rows[381:]]) + "\n")
    data = {"train": str(tmp_path / "past.csv"), "seasonality": 1, "window": 20, "segment": 60, "warmup": 5}
    data |= {"past": ["load"], "future": ["switch"], "batch_size": 4}
    model = {"residual": "none", "scale": "mean", "size": 12, "readout": "gaussian", "log_scale": False}
    config = config_in(tmp_path, data=data, model=model, training={"steps": 250, "evaluate_every": 125})
    predictor, _ = train(replace(config, optim=OptimConfig(lr=0.02, warmup=5)))
    found = predictor.forecast(predictor.state, 2, future=str(tmp_path / "next.csv"))
    truth = [float(row.split(",")[1]) for row in rows[381:383]]
    spread = found.quantiles[0, :, 0, 2] - found.quantiles[0, :, 0, 0]
    assert abs(found.quantiles[0, 0, 0, 1] - truth[0]) < 2 and spread[0] < spread[1]  # then the load is not known
    assert abs(found.quantiles[0, 1, 0, 1] - truth[1]) < 9
    assert main(["predict", config.out, "--horizon", "3"]) == 2
    assert "no value of switch at 380" in capsys.readouterr().err
    assert main(["predict", config.out, "--horizon", "3", "--future", str(tmp_path / "next.csv")]) == 0
    assert main(["evaluate", config.out, str(tmp_path / "next.csv"), "--rolling", "2", "--stride", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.split("\n", 4)[4])["windows"] == 2


def test_missing_values_have_no_term_and_leave_no_trace(trained):
    """Whatever stands where a value is missing, only what is there is judged; forecasts go on through it."""
    model = load(trained[0] / "run")
    series = panel()
    holes = [one._replace(y=np.where((np.arange(30) % 7 == 3)[:, None], np.nan, one.y)) for one in series]
    _, nats, known = model.score(holes, model.init_state(holes))
    assert known.sum() == 3 * 26 and not nats[~known].any() and nats[known].isfinite().all()
    assert np.isfinite(model.forecast(model.read_from_start(holes), 3).quantiles).all()


def test_music_is_judged_by_nats(tmp_path, capsys):
    g = np.random.default_rng(0)
    x = (g.random((20, 15, 4)) < 0.3).astype(float)
    np.savez(tmp_path / "music.npz", x=x, lengths=g.integers(1, 16, 20))
    data = {"train": str(tmp_path / "music.npz"), "test": str(tmp_path / "music.npz")}
    model = {"readout": "bernoulli", "residual": "none"}
    predictor, history = train(
        config_in(tmp_path, data=data, model=model, training={"steps": 40, "evaluate_every": 40})
    )
    assert history[-1]["test"] < 4 * np.log(2)  # better than coins
    assert main(["evaluate", str(tmp_path / "run"), str(tmp_path / "music.npz"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["nats"] == history[-1]["test"] and found["series"] == 20
    assert predictor.forecast(predictor.state, 2, samples=5).paths.shape[1:] == (5, 2, 4)
