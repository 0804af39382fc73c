"""Backtests whose model is fitted again, what is seen while a forecaster trains, and what the lens sees of it."""

import builtins
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from panels import LENGTHS, SEASON, config_in, driven, panel, values, write

from elman import lens
from elman.cli import main
from elman.errors import InputError
from elman.run import train
from elman.tasks.forecast.metrics import SHOWN, backtest
from elman.tasks.forecast.task import ForecastTask


@pytest.fixture(scope="module")
def naive(tmp_path_factory):
    folder = tmp_path_factory.mktemp("naive")
    config = config_in(folder, model={"kind": "linear", "order": 5})
    return config, train(config)[0]


@pytest.mark.slow
def test_a_model_that_is_fitted_again_has_seen_all_rows_before_its_origins(naive, tmp_path):
    config, predictor = naive
    series, seen = panel(n=60), []

    def refit(rows):
        seen.append(rows)
        out = str(tmp_path / str(len(seen)))
        return train(replace(config, out=out), {"train": rows})[0]

    found = backtest(predictor, series, windows=5, samples=10, refit_every=2, refit=refit)
    assert found.numbers["windows"] == 5 and len(seen) == 3
    for number, rows in enumerate(seen):
        n = 60 - 25 + 2 * 5 * number  # five windows of five are judged, and two lie between fits
        assert rows["unique_id"] == [name for name in "xyz" for _ in range(n)] and rows["ds"][0] != rows["ds"][1]
        assert [float(y) for y in rows["y"][:n]] == values("x", 60)[:n].tolist()
    # Each group of origins alone, with the model that it had, gives the same rows.
    terms = 0.0
    for first, count in ((0, 2), (2, 2), (4, 1)):
        model = train(replace(config, out=str(tmp_path / f"again{first}")), {"train": seen[first // 2]})[0]
        end = 60 - 25 + (first + count) * 5
        alone = backtest(model, [one.cut(0, end) for one in series], windows=count, samples=10)
        terms += alone.numbers["nats"] * count
    assert found.numbers["nats"] == pytest.approx(terms / 5, rel=1e-9)
    assert found != backtest(predictor, series, windows=5, samples=10)


def test_how_often_and_how_belong_together(naive):
    _, model = naive
    with pytest.raises(InputError, match="refit_every is 2, and refit is not given"):
        backtest(model, panel(), refit_every=2)
    with pytest.raises(InputError, match="refit_every is 0, and refit is given"):
        backtest(model, panel(), refit=lambda rows: model)
    with pytest.raises(InputError, match="refit_every is -1"):
        backtest(model, panel(), refit_every=-1, refit=lambda rows: model)


def test_a_frame_of_series_is_read_as_the_same_series(tmp_path):
    """Covariates included: numbers to rounding, categories as they are."""
    task = ForecastTask()
    data = {"train": driven(tmp_path, 60), "past": ["load"], "future": ["switch"], "seasonality": 1}
    opened = task.open(config_in(tmp_path, data=data, model={"residual": "none"}), None)
    reader = opened.inputs.reader
    holes = [one._replace(past=np.where(np.arange(60)[:, None] == 7, np.nan, one.past)) for one in opened.series]
    (one,), (again,) = holes, reader(reader.frame(holes))
    assert one.name == again.name and one.start == again.start
    np.testing.assert_array_equal(one.y, again.y)
    np.testing.assert_array_equal(one.future, again.future)
    np.testing.assert_allclose(one.past, again.past, rtol=1e-12, atol=1e-12)


def test_rows_that_are_judged_do_not_say_how_large_covariates_are(tmp_path):
    task = ForecastTask()
    data = {"past": ["load"], "future": ["switch"], "seasonality": 1, "horizon": 5, "test_windows": 2}
    path = driven(tmp_path, 60)
    rows = (tmp_path / "driven.csv").read_text().splitlines()
    changed = [row.replace(row.split(",")[2], "1e6") if i > 60 - 15 else row for i, row in enumerate(rows)]
    (tmp_path / "changed.csv").write_text("\n".join(changed) + "\n")
    first, second = (
        task.open(config_in(tmp_path, data={"train": name, **data}, model={"residual": "none"}), None)
        for name in (path, str(tmp_path / "changed.csv"))
    )
    assert first.inputs == second.inputs
    assert first.inputs.reader.covariates["load"].scale < 2
    np.testing.assert_array_equal(first.train[0].past, second.train[0].past)


def test_one_step_ahead_needs_no_paths(naive):
    _, model = naive
    state = model.read_from_start(panel())
    exact, drawn = model.forecast(state, 1, samples=0), model.forecast(state, 1, samples=20)
    assert exact.paths.shape == (3, 0, 1, 1)
    np.testing.assert_array_equal(exact.quantiles, drawn.quantiles)
    np.testing.assert_array_equal(exact.mean, drawn.mean)
    with pytest.raises(InputError, match="samples is 0"):
        model.forecast(state, 2, samples=0)


@pytest.mark.slow
def test_pictures_are_drawn_while_it_trains(tmp_path):
    config = config_in(tmp_path)
    train(config)
    pictures = sorted((tmp_path / "run" / "previews").iterdir())
    assert [path.name for path in pictures] == ["10.png", "12.png", "5.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in pictures)
    assert (tmp_path / "run" / "samples.txt").read_text() == ""


def test_without_matplotlib_forecasts_are_written_as_text(tmp_path, monkeypatch):
    real = builtins.__import__

    def without(name, *rest):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    train(config_in(tmp_path))
    text = (tmp_path / "run" / "samples.txt").read_text()
    assert not (tmp_path / "run" / "previews").exists()
    header = "unique_id,ds,mean,q0.1,q0.2,q0.3,q0.4,q0.5,q0.6,q0.7,q0.8,q0.9\n"
    assert text.startswith(f"== step 5\n{header}a,2024-01-03 07:00:00,") and text.count("== step") == 3
    assert text.count("\n") == 3 * (3 + 5 * min(SHOWN, len(LENGTHS)))


@pytest.mark.slow
def test_the_lens_looks_at_the_cells(tmp_path, capsys):
    config = config_in(tmp_path, model={"cell": "gru", "layers": 2}, training={"lens": True})
    train(config)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    seen = {name for line in lines for name in line if name.startswith("lens_")}
    assert {"lens_0_gru_horizon", "lens_1_gru_z_saturation"} <= seen and not any("lags" in name for name in seen)
    assert main(["inspect", config.out, "--json", "--rows", "3", "--steps", "40"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert len(content["reach"]) == 2 and content["names"]
    assert main(["inspect", config.out, config.data.train, "--json", "--rows", "2", "--steps", "30"]) == 0
    capsys.readouterr()


def test_what_the_lens_sees_is_what_the_model_says(tmp_path):
    config = config_in(tmp_path)
    task = ForecastTask()
    data = task.open(config, None)
    predictor = task.build(config, data)
    model, sample, _ = task.inspect_inputs(predictor, data.valid, 2, 1000)
    h, _ = model.core.scan(model.embed(sample.x), lengths=sample.lengths)
    terms = sample.log_prob(model.readout(h, sample.lengths), sample.y, sample.lengths)
    series = [one for one in data.series if one.name in "ab"]
    _, nats, known = predictor.score(series, predictor.init_state(series))
    judged = sample.y[1][..., 0]
    assert judged.sum(1).tolist() == [n - (2 * SEASON + 1) for n in (60, 44)]
    torch.testing.assert_close(-terms[judged].double(), nats[judged])
    assert torch.equal(judged & known, judged)


def test_a_baseline_has_nothing_to_look_into(naive, capsys):
    config, _ = naive
    assert main(["inspect", config.out]) == 2
    assert "has no cells" in capsys.readouterr().err


@pytest.mark.parametrize("readout", ["student_t", "gaussian", "negative_binomial"])
def test_integrated_gradients_of_a_forecaster_add_up(tmp_path, readout):
    """From no features to those that are there, in the units of the series; from a scale of zero it would be NaN."""
    torch.manual_seed(0)  # of some weights the path needs more points
    counts = readout == "negative_binomial"
    data = {"train": write(tmp_path / "counts.csv", {"a": 60})}
    if counts:
        lines = [line.rsplit(",", 1) for line in (tmp_path / "counts.csv").read_text().splitlines()]
        rounded = [",".join([head, y if y == "y" else str(round(float(y)))]) for head, y in lines]
        (tmp_path / "counts.csv").write_text("\n".join(rounded) + "\n")
    config = config_in(tmp_path, data=data, model={"readout": readout, "residual": "none" if counts else "seasonal"})
    task = ForecastTask()
    opened = task.open(config, None)
    predictor = task.build(config, opened)
    model, sample, _ = task.inspect_inputs(predictor, opened.valid, 2, 1000)
    found = lens.influence(model, sample, "integrated", window=20)
    assert found.residual < 1e-2 and torch.isfinite(found.values).all() and found.values.abs().max() > 0
    assert not torch.isnan(lens.influence(model, sample, "gradient", window=20).values).any()
