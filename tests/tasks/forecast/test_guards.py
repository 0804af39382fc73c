"""What must not slip in: the future, rows that are judged, another series; and what a stranger gives by mistake."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from panels import LENGTHS, SEASON, config_in, values, write

from elman.cli import main
from elman.data import Position
from elman.errors import InputError
from elman.run import train
from elman.tasks.forecast import network
from elman.tasks.forecast.data import PanelReader
from elman.tasks.forecast.metrics import ForecastErrors, measure, naive
from elman.tasks.forecast.task import ForecastTask

PAST = {"load": lambda name, t: 7 * t % 11 + (0 if name == "a" else 100)}


def with_past(folder, **data):
    data = {"train": write(folder / "past.csv", {"a": 60, "b": 44}, extra=PAST), "past": ["load"], **data}
    return config_in(folder, data=data, model={"readout": "student_t"})


def test_past_covariates_end_with_the_row_before_the_origin(tmp_path):
    """In a window of the training, the last row that sees a past covariate is that of the origin itself: it reads those
    of the row before. Which rows see them is known from the numbers, not from the flags."""
    config = with_past(tmp_path)
    data = ForecastTask().open(config, None)
    batches, columns = data.batches(0, 1), data.inputs.past_columns
    seen = []
    for window in range(5):
        at = Position(0, window)
        batch = batches.batch(at)
        origins = np.random.default_rng((config.seed, 0, window)).integers(0, config.data.window, 2)
        whole = batches.x  # every row with all that is known of it
        for row, origin in zip(batch.x, origins, strict=True):
            for t, x in enumerate(row[: batch.x.shape[1]]):
                hidden = bool((x[columns] == 0).all())
                known = whole[(whole[:, columns.stop :] == x[columns.stop :]).all(1) & (whole[:, 0] == x[0])]
                if len(known) and bool((known[:, columns] != 0).any()):
                    assert hidden == (t > origin), (window, t, origin)
                    seen.append(hidden)
    assert any(seen) and not all(seen)


@pytest.mark.slow
def test_a_forecast_reads_the_past_covariates_of_the_last_row_and_none_after(tmp_path):
    model, _ = train(with_past(tmp_path))
    (a, _b) = model.inputs.reader(str(tmp_path / "past.csv"))
    state = model.read([a.cut(0, 50)], model.init_state([a]))
    x = model._inputs_ahead(state, model._ahead(state, state.names, 4, None))[0]
    columns = model.inputs.past_columns
    scale = model.inputs.reader.covariates["load"]
    wanted = (PAST["load"]("a", 49) - scale.mean) / scale.scale
    np.testing.assert_allclose(x[0, columns], [wanted, 1.0], rtol=1e-5)
    assert (x[1:, columns] == 0).all()


@pytest.mark.parametrize("windows", [1, 0])
@pytest.mark.parametrize("test_windows", [0, 2])
def test_rows_that_are_judged_do_not_say_how_large_covariates_are(tmp_path, windows, test_windows):
    """By either way in: windows that are named, and windows that are chosen when the rows have been counted."""
    config = with_past(tmp_path, valid_windows=windows, test_windows=test_windows)
    data = ForecastTask().open(config, None)
    held = (data.config.data.valid_windows + test_windows) * 5
    assert data.config.data.valid_windows == (windows or 2)
    used = [PAST["load"](name, t) for name, n in (("a", 60), ("b", 44)) for t in range(n - held)]
    found = data.inputs.reader.covariates["load"]
    assert found.mean == pytest.approx(np.mean(used)) and found.scale == pytest.approx(np.std(used))
    fewer = [len(one.y) for one in data.train]
    assert fewer == [60 - held, 44 - held]


def test_scheduled_sampling_stops_at_a_new_series(tmp_path):
    """A value that was drawn for the last row of one series is not the first input of the next."""
    config = config_in(tmp_path, model={"feedback": "sample", "sampled": 0.999999}, data={"window": 40})
    task = ForecastTask()
    data = task.open(config, None)
    model, batches = task.build(config, data).model, data.batches(0, 1)
    at, inside = Position(), 0
    for _ in range(6):
        batch = batches.batch(at)
        torch.manual_seed(0)
        own = network._with_own_values(model, batch, None, batch.y[1])
        changed = (own != batch.x).any(-1)
        begins = batch.reset & (torch.arange(batch.x.shape[1]) > 0)
        counted = batch.y[1][..., 0].roll(1, 1)
        assert not (changed & batch.reset).any()
        assert torch.equal(changed[:, 1:], counted[:, 1:] & ~batch.reset[:, 1:])
        inside += int((begins & counted).sum())  # where a draw was there to be carried over
        at = batches.after(at)
    assert inside > 0


def test_coverage_is_of_the_truths_that_are_there():
    """Of four truths two are there, and one of these is inside; a zero in place of a missing one would be too."""
    truth = np.array([[[0.5], [np.nan], [9.0], [np.nan]]])
    quantiles = np.broadcast_to(np.linspace(-1, 1, 9), (1, 4, 1, 9))
    found = measure(ForecastErrors(truth, np.zeros((1, 3, 4, 1)), quantiles, np.array([1.0]), np.zeros((1, 4, 1))))
    assert found["coverage"] == 0.5


# What a stranger gives


@pytest.mark.parametrize("text", ["", "\n", " \n\n", ",,\n,,\n"])
def test_an_empty_csv_is_called_empty(tmp_path, text):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(InputError, match=r"t\.csv is empty"):
        PanelReader().fit(str(tmp_path / "t.csv"))


def test_a_csv_without_the_column_of_times_asks_for_it(tmp_path, capsys):
    (tmp_path / "t.csv").write_text("date,load,OT\n2024-01-01 00:00,1,2\n2024-01-01 01:00,3,4\n")
    with pytest.raises(InputError, match=r"no column 'ds'; its first line is date, load, OT.*--data.time"):
        PanelReader().fit(str(tmp_path / "t.csv"))
    (tmp_path / "bare.csv").write_text("2024-01-01,1.5\n2024-01-02,2.5\n")
    with pytest.raises(InputError, match="no column 'ds'"):
        PanelReader().fit(str(tmp_path / "bare.csv"))
    assert (
        main(["train", "--task", "forecast", "--data.train", str(tmp_path / "t.csv"), "--out", str(tmp_path / "x")])
        == 2
    )
    assert "--data.format wide" in capsys.readouterr().err
    for text in ("V1,V2,V3\nH1,1,2\nH2,3,\n", "H1,1,2\nH2,3,\n", ",V2,V3\nH1,1,2\nH2,3,\n"):
        (tmp_path / "wide.csv").write_text(text)
        assert [one.name for one in PanelReader().fit(str(tmp_path / "wide.csv"))[1]] == ["H1", "H2"]
    assert len(PanelReader(format="wide").fit(str(tmp_path / "t.csv"))[1]) == 2  # who says so gets it


@pytest.mark.slow
def test_a_wide_file_that_was_read_already_does_not_follow_itself(tmp_path, capsys):
    lines = [[name, *(f"{v:.6g}" for v in values(name, 60))] for name in ("a", "c")]
    for part, stop in (("first", 49), ("whole", 61)):
        text = "".join(",".join(line[:stop]) + "\n" for line in lines)
        (tmp_path / f"{part}.csv").write_text(",".join(["V1", *(f"V{i}" for i in range(2, stop + 1))]) + "\n" + text)
    (tmp_path / "test.csv").write_text("".join(",".join([line[0], *line[49:]]) + "\n" for line in lines))
    data = {"train": str(tmp_path / "first.csv"), "seasonality": SEASON}
    config = config_in(tmp_path, data=data, model={"kind": "seasonal_naive"})
    train(config)
    for name in ("first", "whole"):
        for verb in ("evaluate", "predict"):
            assert main([verb, config.out, str(tmp_path / f"{name}.csv")]) == 2
            assert "were read already" in capsys.readouterr().err
    assert main(["evaluate", config.out, str(tmp_path / "test.csv")]) == 0
    assert main(["evaluate", config.out, str(tmp_path / "first.csv"), "--from_start"]) == 0


@pytest.mark.slow
def test_frames_levels_and_what_are_no_rows(tmp_path):
    model, _ = train(config_in(tmp_path, model={"kind": "seasonal_naive"}))
    for level in (1.5, 0.0, 1.0, -0.1, float("nan")):
        with pytest.raises(InputError, match=r"quantiles has .*above 0 and below 1"):
            model.forecast(model.state, 2, quantiles=[0.5, level])

    class Column:
        def __init__(self, name, cells):
            self.name, self.cells = name, cells

        def to_list(self):
            return self.cells

    class Polars:
        """As much of a polars frame as there is to a caller: columns, to_dict and get_columns, and no index."""

        def __init__(self, columns):
            self.inside = columns
            self.columns = [*columns]

        def to_dict(self, as_series=True):
            raise AssertionError("it is not a pandas frame")

        def get_columns(self):
            return [Column(name, cells) for name, cells in self.inside.items()]

    stamp = str(np.datetime64("2024-01-01T00") + LENGTHS["a"]).replace("T", " ") + ":00"
    rows = {"unique_id": ["a"], "ds": [stamp], "y": [5.0]}
    after = model.update(model.state, Polars(rows))
    assert after.value[after.names.index("a")].item() == 5.0
    assert model.state.value[model.state.names.index("a")].item() != 5.0  # a value: it stays what it was

    class Lazy:
        columns = ["unique_id", "ds", "y"]

    for wrong in (Lazy(), 5, None, np.zeros(3), [rows], []):
        with pytest.raises(InputError, match="rows are given as a"):
            model.update(model.state, wrong)


# The naive forecast beside it


@pytest.mark.slow
def test_scores_stand_beside_the_naive_forecast_and_say_so(tmp_path, capsys):
    """A network that has learnt nothing is worse than the last season, and a naive one as good as itself."""
    config = config_in(tmp_path, training={"steps": 1, "evaluate_every": 1}, model={"residual": "none"},
                       data={"valid_windows": 1})  # fmt: skip
    _, history = train(config)
    judged = []
    for name, n in LENGTHS.items():
        y = values(name, n)
        error = np.abs(y[SEASON : n - 5] - y[: n - 5 - SEASON]).mean()
        again = y[n - 5 - SEASON : n - 5][np.arange(5) % SEASON]
        judged.append(np.abs(y[n - 5 :] - again).mean() / error)
    assert history[-1]["naive_mase"] == pytest.approx(np.mean(judged), rel=1e-4)
    said = capsys.readouterr().err
    assert "worse than the seasonal naive forecast: mase" in said and "the model is worse than that" in said
    new = "".join(
        Path(write(tmp_path / "part.csv", {name: 5}, n)).read_text().split("\n", 1)[1] for name, n in LENGTHS.items()
    )
    (tmp_path / "test.csv").write_text("unique_id,ds,y\n" + new)
    assert main(["evaluate", config.out, str(tmp_path / "test.csv"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["naive_mase"] < found["mase"] and found["naive_nd"] < found["nd"]
    assert main(["evaluate", config.out, str(tmp_path / "test.csv")]) == 0
    assert "worse than the seasonal naive forecast" in capsys.readouterr().out
    other = config_in(tmp_path, out=str(tmp_path / "naive"), model={"kind": "seasonal_naive"})
    _, history = train(other)
    assert history[-1]["naive_mase"] == pytest.approx(history[-1]["mase"], rel=0.02)  # a median of paths beside it


def test_the_naive_forecast_where_the_last_season_has_gaps(tmp_path):
    """It is the last value that was seen there."""
    model, _ = train(config_in(tmp_path, model={"kind": "seasonal_naive"}))
    state = model.read_from_start({"ds": [f"2024-01-01 0{t}:00" for t in range(5)], "y": ["1", "2", "", "4", "5"]})
    assert naive(state, 6)[0, :, 0].tolist() == [2, 5, 4, 5, 2, 5]


def test_levels_and_names_are_lists_of_them(tmp_path):
    model, _ = train(config_in(tmp_path, model={"kind": "seasonal_naive"}))
    name = model.state.names[0]
    for settings, message in (
        ({"quantiles": 0.5}, "quantiles is a float; it must be a list of levels"),
        ({"quantiles": ["0.5"]}, "quantiles has '0.5'; a level is a number"),
        ({"series": name}, f"series is a string, '{name}'; it must be a list of names"),
    ):
        with pytest.raises(InputError, match=message):
            model.forecast(model.state, 2, **settings)
    assert model.forecast(model.state, 2, quantiles=np.array([0.5]), series=iter([name])).names == [name]
