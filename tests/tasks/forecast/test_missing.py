"""Values that are missing, of one target among several, and values that are too large to compute with."""

import numpy as np
import pytest
import torch
from scipy import stats

import elman
from elman.cli import main
from elman.data import Batch
from elman.errors import InputError
from elman.tasks.forecast import network as forecast_network
from elman.tasks.forecast.config import ForecastConfig, ForecastModelConfig
from elman.tasks.forecast.inputs import PanelInputs
from elman.tasks.forecast.network import Widths, build
from elman.tasks.forecast.readout import READOUTS
from elman.tasks.forecast.serving import ServedSeries

GONE = [*range(20, 60, 2)]  # rows without b


def rows(a=None, b=None, n=60):
    a = [str(5 + t % 3) for t in range(n)] if a is None else a
    b = ["" if t in GONE else str(50 + t % 5) for t in range(n)] if b is None else b
    return {"ds": [str(t) for t in range(n)], "a": a, "b": b}


def trained(tmp_path, **model):
    data = {"horizon": 3, "samples": 10, "target": ["a", "b"], "window": 16, "batch_size": 1, "seasonality": 3}
    data["valid_windows"] = 1
    settings = {"data": data, "model": {"size": 6, **model}, "training": {"steps": 4, "evaluate_every": 4}}
    return elman.train(ForecastConfig(**settings, out=str(tmp_path / "run")), {"train": rows()})


def test_each_target_is_read_and_counted_by_itself(tmp_path):
    model, _ = trained(tmp_path, readout="gaussian", residual="last")
    series = model.inputs.reader(rows())
    found = model.inputs.rows(series[0])
    there = np.array([[True, t not in GONE] for t in range(60)])
    np.testing.assert_array_equal(found.counted, there)
    last = [50 + max(s for s in range(t) if s not in GONE) % 5 if t else 0 for t in range(60)]
    np.testing.assert_array_equal(found.x[1:, 0], [5 + (t - 1) % 3 for t in range(1, 60)])
    np.testing.assert_array_equal(found.x[1:, 1], last[1:])
    np.testing.assert_array_equal(found.x[1:, 2:4], there[:-1])
    state, nats, known = model.score(series, model.init_state(series))
    assert known.all() and state.value.tolist() == [[7.0, 54.0]] and state.seen.tolist() == [[1.0, 1.0]]
    said, _ = model.model.scan(torch.from_numpy(found.x)[None])
    each = -stats.norm.logpdf(found.y, said.mean[0].detach().numpy(), said.std[0].detach().numpy())
    np.testing.assert_allclose(nats[0], np.where(there, each, 0).sum(1), rtol=1e-4)


@pytest.mark.slow
def test_a_state_goes_on_target_by_target(tmp_path):
    """Row by row and at once, also where a piece begins with a row that lacks one."""
    model, _ = trained(tmp_path)
    (series,) = model.inputs.reader(rows())
    whole = model.read([series], model.init_state([series]))
    state = model.init_state([series])
    for t in range(60):
        state = model.read([series.cut(t, t + 1)], state)
    for a, b in zip(elman.state.leaves(whole), elman.state.leaves(state), strict=True):
        torch.testing.assert_close(a, b, equal_nan=True)
    late = model.inputs.reader({**rows(n=62), "b": [*rows()["b"], "", ""]})[0].cut(60)
    after = model.read([late], whole)
    assert after.value.tolist() == [[6.0, 54.0]] and after.seen.tolist() == [[1.0, 0.0]]


def test_the_scale_of_a_target_counts_its_own_values():
    """Of 60 values of a and 40 of b, and of the differences that both ends of are there."""
    reader = elman.tasks.forecast.data.PanelReader(target=("a", "b")).fit(rows())[0]
    inputs = PanelInputs(reader, ("series",), calendar=False)
    widths = Widths(2, inputs.others, 1, inputs.flags)
    network = build(ForecastModelConfig(residual="last", size=4), widths, 1)
    (series,) = reader(rows())
    x = torch.from_numpy(inputs.rows(series).x)[None]
    weight = network.preprocessor.scan(x)[1].scale.weight[0].tolist()
    shown = np.array([[True, t not in GONE] for t in range(59)])  # the last value is not read yet
    pairs = (shown[1:] & shown[:-1]).sum(0).tolist()
    assert weight == [*shown.sum(0).tolist(), *pairs] and pairs[1] < pairs[0]


@pytest.mark.parametrize("readout", [name for name in READOUTS if name != "categorical"])
def test_the_loss_knows_nothing_of_what_is_missing(readout):
    """A target that is not there has no term and no gradient, whatever stands in its place; the others have theirs."""
    torch.manual_seed(0)
    model = build(
        ForecastModelConfig(readout=readout, residual="none", size=4, readout_dropout=0.0), Widths(2, 0, 1, 2), 1
    )
    x = torch.rand(1, 9, 4).round()
    x[..., 2:] = 1.0
    there = torch.ones(1, 9, 2, dtype=torch.bool)
    there[0, 4, 1] = there[0, 6] = False
    reset, lengths = torch.zeros(1, 9, dtype=torch.bool), torch.tensor([9])

    def found(hidden):
        y = torch.rand(1, 9, 2, generator=torch.Generator().manual_seed(1)).round()
        y[~there] = hidden
        model.zero_grad()
        loss, count, _ = forecast_network.loss(model, Batch(x, (y, there), reset, lengths), None)
        loss.backward()
        return loss.item(), count, [p.grad.clone() for p in model.parameters() if p.grad is not None]

    first, other = found(0.0), found(1e30 if readout in ("gaussian", "student_t", "quantiles") else 1.0)
    assert first[0] == other[0] and first[1] == other[1] == 8
    assert all(torch.isfinite(a).all() and torch.equal(a, b) for a, b in zip(first[2], other[2], strict=True))
    # The same as two models of one target each, of which one sees all rows but one: terms add up.
    hidden, _ = model.core(model.embed(x), None, lengths=lengths, reset=reset)
    alone = model.readout(hidden).elementwise()
    y = torch.rand(1, 9, 2, generator=torch.Generator().manual_seed(1)).round()
    if readout != "quantiles":
        terms = -alone.log_prob(y[..., None])
        assert first[0] == pytest.approx(terms[there].sum().item(), rel=1e-5)


def test_a_draw_stands_for_a_value_that_is_there_and_for_no_other():
    """Scheduled sampling: of two targets of which one is missing, the other keeps the last value that was seen."""
    torch.manual_seed(0)
    settings = ForecastModelConfig(readout="gaussian", residual="none", size=4, feedback="sample", sampled=0.999999)
    model, x = build(settings, Widths(2, 0, 1, 2), 1), torch.ones(1, 9, 4)
    there = torch.ones(1, 9, 2, dtype=torch.bool)
    there[0, 4, 1] = there[0, 6] = False
    reset, lengths = torch.zeros(1, 9, dtype=torch.bool), torch.tensor([9])
    own = forecast_network._with_own_values(model, Batch(x, (torch.ones(1, 9, 2), there), reset, lengths), None, there)
    assert torch.equal((own != x)[:, 1:, :2], there[:, :-1])  # x[t] has the values of t - 1
    assert torch.equal(own[..., 2:], x[..., 2:])


def test_a_baseline_fits_each_target_to_its_own_rows(tmp_path):
    """b is seen in 40 rows: those of a that stand beside its gaps are used, and what is said of b is right."""
    model, history = trained(tmp_path, kind="seasonal_naive")
    assert history[0]["rows"] == 60 - 3 - 7  # but what is validated on, and the first two seasons
    found = model.forecast(model.state, 3, samples=20)
    np.testing.assert_allclose(found.quantiles[0, :, 0, 1], [5, 6, 7], atol=1e-3)


def test_the_digits_of_a_baseline(tmp_path):
    y = [100_000_000 + t % 3 for t in range(60)]
    settings = {"data": {"horizon": 3, "seasonality": 3}, "model": {"kind": "seasonal_naive"}}
    table = {"ds": [str(t) for t in range(60)], "y": [str(v) for v in y]}
    model, _ = elman.train(ForecastConfig(**settings, out=str(tmp_path / "run")), {"train": table})
    again = elman.load(tmp_path / "run")
    for one in (model, again):
        np.testing.assert_allclose(one.forecast(one.state, 3).quantiles[0, :, 0, 1], [1e8, 1e8 + 1, 1e8 + 2], atol=0.1)
    assert again.fingerprint == model.fingerprint and again.state.value.dtype == torch.float64
    work = ServedSeries(again).reading([{"ds": t, "y": y[t]} for t in range(7)])
    work.begin(work.served.start(0))
    work.served.advance([work])
    assert work.answer()["outputs"][-1]["mean"][0] == pytest.approx(y[7], abs=0.1)


def test_a_network_warns_where_its_digits_do_not_suffice(tmp_path, capsys):
    for level, warned in ((100_000_000, True), (1000, False)):
        settings = {"data": {"horizon": 3}, "model": {"size": 4}, "training": {"steps": 1}}
        table = {"ds": [str(t) for t in range(60)], "y": [str(level + t % 3) for t in range(60)]}
        elman.train(ForecastConfig(**settings, out=str(tmp_path / str(level))), {"train": table})
        assert ("series 'series' is about 1e+08 and changes by about 1;" in capsys.readouterr().err) == warned


def large(value, at=30):
    y = [str(t % 7) for t in range(60)]
    y[at] = value
    return {"ds": [str(t) for t in range(60)], "y": y}


@pytest.mark.parametrize("kind", ["network", "linear", "seasonal_naive"])
def test_what_does_not_fit_is_named(tmp_path, kind, capsys):
    settings = {"data": {"horizon": 3, "samples": 20}, "model": {"kind": kind, "order": 3, "size": 4}}
    settings["training"] = {"steps": 2, "evaluate_every": 2}
    value = "1e39" if kind == "network" else "1e301"
    with pytest.raises(InputError, match=r"series 'series' has the value 1e\+\d+ of y at 30 \(row 30\), beyond"):
        elman.train(ForecastConfig(**settings, out=str(tmp_path / "no")), {"train": large(value)})
    model, _ = elman.train(ForecastConfig(**settings, out=str(tmp_path / "run")), {"train": large("1")})
    with pytest.raises(InputError, match=r"at 61 \(row 1\)"):
        model.update(model.state, {"ds": ["60", "61"], "y": ["1", value]})
    (tmp_path / "new.csv").write_text(f"ds,y\n60,{value}\n")
    assert main(["predict", str(tmp_path / "run"), str(tmp_path / "new.csv")]) == 2
    assert "beyond" in capsys.readouterr().err
    work = ServedSeries(model).reading([{"ds": 0, "y": float(value)}])
    work.begin(work.served.start(0))
    with pytest.raises(InputError, match="beyond"):
        work.served.advance([work])


def test_forecasts_that_are_not_finite_are_an_error_that_names_the_series(tmp_path):
    """A linear model of 0 to 6 and 1e39 explodes."""
    settings = {"data": {"horizon": 3, "samples": 20}, "model": {"kind": "linear", "order": 3}}
    with pytest.raises(InputError, match="the forecasts of series 'series' are not finite"):
        elman.train(ForecastConfig(**settings, out=str(tmp_path / "run")), {"train": large("1e39", 5)})
