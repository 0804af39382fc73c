"""Forecasters, states, sessions and runs that were written at 867694c: they load, and say what they said then."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import elman
from elman.files import config
from elman.run import train
from elman.tasks.forecast.config import ForecastConfig
from elman.tasks.forecast.serving import ServedSeries

OLD = Path(__file__).parent / "version-2" / "forecast"
SAID = json.loads((OLD / "forecast.json").read_text())
NAMES = ("network", "two", "naive")


def rows():
    """What they were trained on: 60 days of it."""
    g, days = np.random.default_rng(3), [str(np.datetime64("2024-01-01") + t) for t in range(60)]
    a = (10 + np.array([1.0, 3, 2, 5, 4, 0, 2])[np.arange(65) % 7] + g.normal(size=65) * 0.3).round(3)
    b = (100 + 5 * np.sin(np.arange(65)) + g.normal(size=65)).round(3)
    return {"ds": days, "y": a[:60].tolist(), "a": a[:60].tolist(), "b": b[:60].tolist()}


def same(found, name):
    assert found.times[0] == SAID[name]["times"]
    np.testing.assert_allclose(found.mean, SAID[name]["mean"], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found.quantiles, SAID[name]["quantiles"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_a_model_with_its_state_goes_on(name):
    model = elman.load(OLD / name)
    assert model.fingerprint == SAID[name]["fingerprint"]
    after = model.update(model.state, SAID[name]["new"])
    same(model.forecast(after, 3, samples=4), name)
    stored = model.load_state(OLD / name / "after.safetensors")  # with sums in float32
    same(model.forecast(stored, 3, samples=4), name)
    assert stored.names == after.names and torch.equal(stored.tick, after.tick)


def test_several_targets_had_one_flag_and_still_read_what_is_there():
    model = elman.load(OLD / "two")
    assert model.inputs.flags == 1 and model.state.seen.shape == (1, 1)
    new = {name: [*values] for name, values in SAID["two"]["new"].items()}
    new["b"][1] = ""
    after = model.update(model.state, new)
    assert after.value[0].tolist() == pytest.approx([float(new["a"][1]), float(new["b"][0])])
    assert after.seen.item() == 0  # not all were seen


@pytest.mark.parametrize("way", ["bytes", "file"])
def test_a_session_of_a_store_goes_on(way):
    served = ServedSeries(elman.load(OLD / "network"))
    old = bytes.fromhex(SAID["session"]["state"])
    assert len(old) < served.row_bytes  # it is laid out otherwise
    state = old if way == "bytes" else served.parse((OLD / "session.safetensors").read_bytes())
    assert served.parse(served.dump(old)) == served.current(old)
    work = served.reading([SAID["session"]["next"]])
    work.begin(state)
    served.advance([work])
    (said,), wanted = work.answer()["outputs"], SAID["session"]["after"]
    assert said["next"] == wanted["next"] and len(work.end()) == served.row_bytes
    assert said["mean"] == pytest.approx(wanted["mean"], rel=2e-6)
    assert said["quantiles"]["0.1"] == pytest.approx(wanted["quantiles"]["0.1"], rel=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["network", "two"])
def test_a_run_is_resumed_with_the_settings_it_had(name, tmp_path):
    shutil.copytree(OLD / name, tmp_path / name)
    stored = config.read(tmp_path / name / "config.yaml")
    assert stored["data"]["valid_windows"] == 1 and stored["model"]["residual"] == "none"
    settings = ForecastConfig(**{key: value for key, value in stored.items() if key != "out"}, out=str(tmp_path / name))
    columns = ("ds", "y") if name == "network" else ("ds", "a", "b")
    data = {column: rows()[column] for column in columns}
    longer = replace(settings, resume="auto", training={**stored["training"], "steps": 6})
    model, history = train(longer, {"train": data})
    assert [line["step"] for line in history if "valid" in line] == [2, 4, 6]
    assert model.inputs.flags == 1 and model.config.residual == "none" and np.isfinite(history[-1]["valid"])
