"""What runs note for the lens: the same bytes whether or not they are killed, and refused where it cannot be had."""

import json
import math

import pytest
import torch
from torch import nn

import elman
from elman.errors import InputError
from elman.lens.run_metrics import run_metrics
from elman.lens.sample import Sample
from elman.tasks.text.lm import LMConfig, LMModelConfig
from elman.training import optim
from elman.training.optim import OptimConfig

TEXT = "to be or not to be, that is the question. " * 40


def config(out):
    training = {"steps": 4, "evaluate_every": 2, "checkpoint_every": 1, "log_every": 1, "lens": True}
    data = {"batch_size": 2, "window": 16}
    return LMConfig(
        model=LMModelConfig(size=4, layers=1), training=training, data=data, preview={"tokens": 0}, out=str(out),
        resume="auto", threads=1,
    )  # fmt: skip


def test_a_run_that_is_cut_notes_the_same_bytes(tmp_path):
    class Stop(Exception):
        pass

    def stop(step, scores):
        raise Stop

    elman.train(config(tmp_path / "whole"), TEXT)
    with pytest.raises(Stop):
        elman.train(config(tmp_path / "cut"), TEXT, callback=stop)
    elman.train(config(tmp_path / "cut"), TEXT)
    whole = (tmp_path / "whole" / "metrics.jsonl").read_bytes()
    assert whole == (tmp_path / "cut" / "metrics.jsonl").read_bytes()
    noted = [line for line in map(json.loads, whole.splitlines()) if "lens_0_gru_horizon" in line]
    assert [line["step"] for line in noted] == [2, 4] and 0 <= noted[0]["lens_0_gru_z_saturation"] <= 1


def test_the_update_ratio_is_the_change_over_the_weights():
    layer = nn.Linear(3, 2)
    optimiser = optim.optimiser(OptimConfig(name="sgd", momentum=0.0, lr=0.5, weight_decay=0.0), layer)
    layer(torch.ones(1, 3)).sum().backward()
    before = [p.detach().clone() for p in layer.parameters()]
    ratio = optim.step(optimiser, measured=True)
    change = torch.cat([(p - old).flatten() for p, old in zip(layer.parameters(), before, strict=True)]).norm()
    assert ratio == pytest.approx(float(change.detach() / torch.cat([old.flatten() for old in before]).norm()))
    assert optim.step(optimiser, measured=False) == 0.0


def test_a_task_that_cannot_be_looked_into_says_so_before_any_work(tmp_path, monkeypatch):
    from dataclasses import replace

    import counted_bits

    from elman.tasks import TASKS
    from elman.training.loop import TrainingConfig

    monkeypatch.setitem(TASKS, "bits", counted_bits.task)
    settings = replace(counted_bits.CounterConfig(), out=str(tmp_path / "run"), training=TrainingConfig(lens=True))
    with pytest.raises(InputError, match="cannot be inspected"):
        elman.train(settings)
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_the_reach_at_16_steps_is_relative_to_that_of_one():
    """A core h = 0.9 h' + u x: of the loss at a step, 0.9^15 of the gradient one step back is left 16 steps back."""

    class Leaky(elman.Core):
        def __init__(self):
            super().__init__(1, 1)
            self.u = nn.Parameter(torch.tensor(0.5))

        def init_state(self, batch_size):
            return torch.zeros(batch_size, 1)

        def step(self, x, state):
            h = 0.9 * state + self.u * x
            return h, h

    found = run_metrics(Leaky(), Sample(torch.randn(2, 40, 1)))
    assert found["lens_0_leaky_reach_16"] == pytest.approx(0.9**15, rel=1e-4)
    assert found["lens_0_leaky_slope"] == pytest.approx(math.log(0.9), rel=1e-4)
