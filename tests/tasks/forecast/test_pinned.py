"""Numbers of forecasters that are known beforehand: from theory, from each part alone, or by hand."""

import csv
import io
import json

import numpy as np
import pytest
import torch
from scipy import stats

import elman
from elman.cli import main
from elman.errors import InputError
from elman.nn.distributions import NegativeBinomial, QuantileGrid
from elman.tasks import respond
from elman.tasks.forecast.calendar import find
from elman.tasks.forecast.config import ForecastConfig
from elman.tasks.forecast.data import PanelReader
from elman.tasks.forecast.metrics import backtest
from elman.tasks.forecast.season import find_season
from elman.tasks.forecast.task import ForecastTask


def days(n, first="2024-01-01"):
    return [str(np.datetime64(first) + np.timedelta64(t, "D")) for t in range(n)]


def trained(folder, rows, *, data=None, model=None, **settings):
    data = {"horizon": 3, "samples": 20, "seasonality": 1, "valid_windows": 1, **(data or {})}
    settings = {"training": {"steps": 2, "evaluate_every": 2}, **settings}
    config = ForecastConfig(data=data, model={"size": 4, **(model or {})}, **settings, out=str(folder / "run"))
    return elman.train(config, {"train": rows} if isinstance(rows, dict) else None, progress=False)[0]


@pytest.mark.parametrize("kind", ["seasonal_naive", "linear"])
def test_the_width_of_a_baseline_is_that_of_its_errors(kind, tmp_path):
    """Of white noise the naive error has the variance 2, that of a regression 1: eight in ten lie between q0.1 and
    q0.9 of a normal distribution so wide."""
    y = np.random.default_rng(0).normal(size=3000)
    model = {"kind": kind, "order": 1} if kind == "linear" else {"kind": kind}
    rows = {"ds": days(3000), "y": [f"{v:.9g}" for v in y]}
    model = trained(tmp_path, rows, model=model)
    found = model.forecast(model.state, 1, quantiles=[0.1, 0.9])
    deviation = 2**0.5 if kind == "seasonal_naive" else 1.0
    width = (found.quantiles[0, 0, 0, 1] - found.quantiles[0, 0, 0, 0]) / (2 * stats.norm.ppf(0.9))
    assert width == pytest.approx(deviation, rel=0.05)


def test_a_scale_leaves_the_shape_of_counts_alone():
    """Counts of mean m and shape r times a scale of 7: the mean is 7 m, the shape stays, the variance follows."""
    m, r = torch.tensor([[3.0]], dtype=torch.float64), torch.tensor([[2.0]], dtype=torch.float64)
    found = NegativeBinomial(torch.log(torch.expm1(m)), r).rescaled(torch.zeros(1, 1), torch.full((1, 1), 7.0))
    n = torch.arange(4000.0, dtype=torch.float64)[:, None]
    p = NegativeBinomial(found.logits.double(), found.shape.double()).log_prob(n).exp()
    mean = float((p * n[:, 0]).sum())
    variance = float((p * (n[:, 0] - mean) ** 2).sum())
    assert mean == pytest.approx(21.0, rel=1e-5) and variance == pytest.approx(21 + 21**2 / 2, rel=1e-4)


def test_the_loss_of_quantiles_is_counted_in_scales():
    """What is 1,000 times as large in values, forecasts and scale has the same loss."""
    g = torch.Generator().manual_seed(0)
    values, y = torch.randn(5, 2, 3, generator=g).sort(-1).values, torch.randn(5, 2, generator=g)
    scale = torch.rand(5, 2, generator=g) + 0.5
    loss = QuantileGrid(values, (0.1, 0.5, 0.9)).loss(y, scale)
    again = QuantileGrid(1000 * values, (0.1, 0.5, 0.9)).loss(1000 * y, 1000 * scale)
    torch.testing.assert_close(again, loss)
    p = torch.tensor([0.1, 0.5, 0.9])
    error = (y[..., None] - values) / scale[..., None]
    torch.testing.assert_close(loss, 2 * torch.maximum(p * error, (p - 1) * error).mean(-1).sum(-1))


@pytest.mark.parametrize("order", ["as they are", "shuffled"])
def test_held_out_rows_are_the_latest_wherever_they_stand(order):
    wind = np.concatenate([np.random.default_rng(1).normal(size=30), np.full(10, 1e6)])
    rows = np.random.default_rng(2).permutation(40) if order == "shuffled" else np.arange(40)
    times, y = days(40), [str(t % 5) for t in range(40)]
    frame = {"ds": [times[t] for t in rows], "y": [y[t] for t in rows], "wind": [str(wind[t]) for t in rows]}
    reader, _ = PanelReader(past=("wind",)).fit(frame, last=10)
    assert reader.covariates["wind"].mean == pytest.approx(wind[:30].mean())


def test_rows_that_are_validated_on_do_not_say_how_large_covariates_are(tmp_path):
    """How many windows these are is left open, and chosen by the data."""
    wind = [1e6 if t >= 190 else float(t % 2) for t in range(200)]
    rows = {"ds": days(200), "y": [str(t % 5) for t in range(200)], "wind": [str(v) for v in wind]}
    config = ForecastConfig(data={"horizon": 10, "past": ["wind"]}, model={"size": 4}, training={"steps": 1})
    data = ForecastTask().open_in_memory(config, None, {"train": rows})
    assert data.inputs.reader.covariates["wind"].mean < 1


def test_the_state_that_is_kept_has_all_series_though_one_is_forecast(tmp_path, capsys):
    text = "unique_id,ds,y\n" + "".join(f"{name},{day},{t % 3}\n" for name in "ab" for t, day in enumerate(days(40)))
    (tmp_path / "two.csv").write_text(text)
    trained(tmp_path, None, data={"train": str(tmp_path / "two.csv")}, model={"kind": "seasonal_naive"})
    run, state = str(tmp_path / "run"), str(tmp_path / "state.safetensors")
    assert main(["predict", run, "--series", "a", "--save_state", state]) == 0
    assert main(["predict", run, "--state", state, "--series", "b"]) == 0
    assert "b,2024-02-10" in capsys.readouterr().out


@pytest.mark.parametrize("readout", ["poisson", "negative_binomial"])
@pytest.mark.parametrize("value", ["-3", "2.5"])
def test_counts_are_whole_and_not_negative(readout, value, tmp_path):
    rows = {"ds": days(30), "y": [value if t == 20 else str(t % 4) for t in range(30)]}
    with pytest.raises(InputError, match=rf"has the value {value}, and model\.readout is {readout}"):
        trained(tmp_path, rows, model={"readout": readout, "residual": "none"})


def test_columns_of_several_targets_have_their_own_numbers(tmp_path, capsys):
    text = "ds,a,b\n" + "".join(f"{day},{1 + t % 2},{1000 + t % 2}\n" for t, day in enumerate(days(60)))
    (tmp_path / "two.csv").write_text(text)
    data = {"train": str(tmp_path / "two.csv"), "target": ["a", "b"], "seasonality": 2}
    trained(tmp_path, None, data=data, model={"kind": "seasonal_naive"})
    assert main(["predict", str(tmp_path / "run"), "--horizon", "2", "--quantiles", "0.25,0.75"]) == 0
    first, *_ = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert {name for name in first if "." in name} == {f"{t}.{w}" for t in "ab" for w in ("mean", "q0.25", "q0.75")}
    for name, value in first.items():
        if name[:2] in ("a.", "b."):
            assert float(value) == pytest.approx(1000 if name[0] == "b" else 1, rel=0.3), name


@pytest.mark.parametrize("stride", [1, 3, 4])
def test_a_backtest_ends_with_the_last_row_whatever_its_stride(stride, tmp_path):
    """Its origins, one by one: each is the last of a series that is cut behind its horizon."""
    y = np.random.default_rng(0).normal(size=60)
    model = trained(tmp_path, {"ds": days(60), "y": [f"{v:.9g}" for v in y]}, model={"kind": "linear", "order": 3})

    def rows(n):
        return {"ds": days(n), "y": [f"{v:.9g}" for v in y[:n]]}

    found = backtest(model, rows(60), windows=3, stride=stride).numbers
    alone = [backtest(model, rows(60 - back * stride), windows=1).numbers for back in (2, 1, 0)]
    assert found["windows"] == 3
    assert found["mase"] == pytest.approx(np.mean([one["mase"] for one in alone]), rel=1e-9)


def test_business_days_have_a_season_of_five():
    dates = [str(day) for day in np.busday_offset("2024-01-01", np.arange(200), roll="forward")]
    frequency = find({"a": dates})
    assert str(frequency) == "B"
    pattern = np.array([0.0, 5, 2, 8, 1])[np.arange(200) % 5] + 0.1 * np.random.default_rng(0).normal(size=200)
    _, series = PanelReader().fit({"ds": dates, "y": [str(v) for v in pattern]})
    assert find_season(frequency, series) == 5


def test_nats_of_sequences_are_the_mean_over_their_frames(tmp_path, capsys):
    """Two sequences of 5 and 15 frames together are what each is alone, by the number of its frames."""
    g = np.random.default_rng(0)
    x = (g.random((2, 15, 3)) < 0.3).astype(float)
    np.savez(tmp_path / "both.npz", x=x, lengths=np.array([5, 15]))
    np.savez(tmp_path / "short.npz", x=x[:1, :5], lengths=np.array([5]))
    np.savez(tmp_path / "long.npz", x=x[1:], lengths=np.array([15]))
    data = {"train": str(tmp_path / "both.npz"), "valid": str(tmp_path / "both.npz")}
    trained(tmp_path, None, data=data, model={"readout": "bernoulli", "residual": "none"})

    def judged(name):
        assert main(["evaluate", str(tmp_path / "run"), str(tmp_path / f"{name}.npz"), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        return found["nats"], found["rows"]

    (both, rows), (short, few), (long, many) = judged("both"), judged("short"), judged("long")
    assert rows == few + many and few < many
    assert both == pytest.approx((short * few + long * many) / (few + many), rel=1e-6)


def test_what_is_asked_for_is_counted_and_read_once(tmp_path):
    rows = {"unique_id": ["a"] * 40, "ds": days(40), "y": [str(t % 3) for t in range(40)]}
    model = trained(tmp_path, rows, model={"kind": "seasonal_naive"})

    def lines(**options):
        return [*respond(model, "predict", horizon=1, **options)]

    assert lines(quantiles=(q / 10 for q in (1, 9)))[0].strip().endswith("mean,q0.1,q0.9")
    assert len(lines(series=iter(["a"]))) == 2
    with pytest.raises(InputError, match="has a name twice"):
        lines(series=["a", "a"])
    with pytest.raises(InputError, match=r"20,000 quantiles .* at most are drawn"):
        lines(quantiles=[0.5] * 20_000, drawn=10_000)
    for empty in ([], {}):
        with pytest.raises(InputError, match="data is empty"):
            lines(data=empty)
    with pytest.raises(InputError, match="data is empty"):
        lines(data="")
    with pytest.raises(InputError, match=r"Write forecaster\.forecast\(forecaster\.state, 6\)"):
        model.forecast(6)
