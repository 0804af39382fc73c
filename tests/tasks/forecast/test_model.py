"""The state of a forecaster at the end of its training: written with what is kept, not with every checkpoint."""

from dataclasses import replace

import numpy as np
import pytest

import elman
from elman.errors import InputError
from elman.tasks.forecast.config import ForecastConfig
from elman.tasks.forecast.task import ForecastTask

ROWS = {"ds": [str(t) for t in range(80)], "y": [f"{10 + t % 5 + (t * 7919 % 13) / 10}" for t in range(80)]}


def config(out):
    return ForecastConfig(
        data={"horizon": 3, "seasonality": 5, "samples": 5, "window": 16, "batch_size": 2},
        model={"size": 4, "layers": 1},
        training={"steps": 6, "evaluate_every": 3, "checkpoint_every": 1},
        out=str(out),
    )


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.slow
def test_it_is_read_for_what_is_kept_only(tmp_path, monkeypatch):
    finish, finished = ForecastTask.finish, []
    monkeypatch.setattr(ForecastTask, "finish", lambda *given: finished.append(1) or finish(*given))
    forecaster, metrics = elman.train(config(tmp_path / "run"), {"train": ROWS}, progress=False)
    scores = [line["valid"] for line in metrics if "valid" in line]
    bests = sum(score < min(scores[:i], default=np.inf) for i, score in enumerate(scores))
    assert len(finished) == bests + 1  # and the last one: six checkpoints were written
    for folder in ("best", "last"):
        kept = elman.load(tmp_path / "run" / folder)
        wanted = kept.read_from_start(ROWS)
        leaves = zip(elman.state.leaves(kept.state), elman.state.leaves(wanted), strict=True)
        assert all(np.array_equal(a.numpy(), b.numpy(), equal_nan=True) for a, b in leaves), folder
    assert forecaster.forecast(forecaster.state, 3, samples=4).mean.shape == (1, 3, 1)


@pytest.mark.slow
def test_a_run_that_was_stopped_has_none_and_resumes_to_the_same_bytes(tmp_path):
    elman.train(config(tmp_path / "whole"), {"train": ROWS}, progress=False)

    class Stop(Exception):
        pass

    def stop(step, scores):
        raise Stop

    with pytest.raises(Stop):
        elman.train(config(tmp_path / "run"), {"train": ROWS}, callback=stop, progress=False)
    half = elman.load(tmp_path / "run" / "last")
    assert half.state.names == []
    with pytest.raises(InputError, match="resume the run"):
        half.forecast(half.state, 3)
    assert half.forecast(half.read_from_start(ROWS), 3, samples=4).mean.shape == (1, 3, 1)
    elman.train(replace(config(tmp_path / "run"), resume="auto"), {"train": ROWS}, progress=False)
    for folder in ("best", "last"):
        ours, theirs = files(tmp_path / "run" / folder), files(tmp_path / "whole" / folder)
        for name in ("model.safetensors", "series.safetensors", "model.json"):
            assert ours[name] == theirs[name], (folder, name)
