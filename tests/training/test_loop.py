"""The loop on a model of one weight, whose every step can be done by hand."""

import math
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
import tables
import torch

import elman
from elman.data import Batch, Position
from elman.errors import InputError, TrainingError
from elman.tasks import TASKS
from elman.tasks.task import TrainedSettings
from elman.training import loop, optim
from elman.training.average import Average
from elman.training.distributed import Ranks
from elman.training.interrupt import Interrupted
from elman.training.loop import LoopState, Supervisor, TrainingConfig
from elman.training.loss import LossModule
from elman.training.optim import OptimConfig, Schedule
from elman.training.scores import Scores

HOW = OptimConfig(name="sgd", lr=0.1, momentum=0.0, weight_decay=0.0, schedule="constant", warmup=0, clip_norm=0.0)


class Weight(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(1))


class Squares:
    """loss = sum (w - y)^2 over the rows; what it is given as state comes back with one more number."""

    def __init__(self, carries=True):
        self.carries, self.given = carries, []

    def loss(self, model, batch, state):
        self.given.append(state)
        n = len(batch.y)
        after = (torch.zeros(1) if state is None else state) + model.w if self.carries else None
        return ((model.w - batch.y) ** 2).sum(), n, after


class Numbers:
    def __init__(self, *rows):
        self.rows = rows

    def batch(self, at):
        y = torch.tensor(self.rows[at.window], dtype=torch.float32)
        return Batch((), y, torch.zeros(len(y), 0, dtype=torch.bool), torch.zeros(len(y), dtype=torch.int64))

    def after(self, at):
        return Position(at.epoch, at.window + 1) if at.window + 1 < len(self.rows) else Position(at.epoch + 1, 0)


@dataclass(frozen=True)
class Noted(Supervisor):
    """What the loop reports, in lists; scores come from a function."""

    verbose: bool = False
    scores: Callable = lambda step: Scores({"x": 0.0}, "x")
    saved: list = field(default_factory=list)
    lines: list = field(default_factory=list)

    def evaluate(self, step):
        return self.scores(step)

    def save(self, name):
        self.saved.append(name)

    def record(self, step, **values):
        self.lines.append((step, values))


def run_of(task, batches, how=HOW, **parts):
    model = Weight()
    module = LossModule(task, model)
    state = LoopState(module, batches, optim.optimiser(how, model), Schedule(how, 100), Average(model), **parts)
    return state, model


def test_a_step_takes_the_mean_over_all_terms():
    run, model = run_of(Squares(), Numbers([1.0, 2.0, 6.0]))
    loop.train(run, TrainingConfig(steps=1), HOW, Noted())
    assert model.w.item() == pytest.approx(0.1 * 2 * 3.0)


def test_every_update_has_the_learning_rate_of_its_own_step():
    how = replace(HOW, warmup=4, lr=0.4)
    run, model = run_of(Squares(), Numbers([1.0]), how=how)
    loop.train(run, TrainingConfig(steps=3, log_every=1, evaluate_every=9), how, noted := Noted())
    rates = [(step, values["lr"]) for step, values in noted.lines if "lr" in values]
    assert rates == [(1, 0.1), (2, 0.2), (3, pytest.approx(0.3))]
    w = 0.0
    for lr in (0.1, 0.2, 0.3):
        w -= lr * 2 * (w - 1.0)
    assert model.w.item() == pytest.approx(w)


def test_the_mean_gradient_is_clipped_not_the_sum():
    how = replace(HOW, clip_norm=3.0)
    run, model = run_of(Squares(), Numbers([1.0, 1.0, 1.0, 1.0]), how=how)  # 2 a term, 8 in all
    loop.train(run, TrainingConfig(steps=1, log_every=1), how, noted := Noted())
    assert noted.lines[0][1]["gradient_norm"] == pytest.approx(2.0) and model.w.item() == pytest.approx(0.1 * 2.0)


def test_accumulated_batches_are_one_batch():
    run, model = run_of(Squares(), Numbers([1.0, 2.0], [6.0]))
    loop.train(run, TrainingConfig(steps=1, accumulate=2), HOW, Noted())
    assert model.w.item() == pytest.approx(0.1 * 2 * 3.0)
    assert run.progress.position == Position(1, 0) and run.progress.count == 3


def test_the_state_is_carried_without_its_graph_or_not_at_all():
    task = Squares()
    run, _ = run_of(task, Numbers([1.0]))
    loop.train(run, TrainingConfig(steps=3), HOW, Noted())
    assert task.given[0] is None and not any(state.requires_grad for state in task.given[1:])
    task = Squares(carries=False)
    run, _ = run_of(task, Numbers([1.0]))
    loop.train(run, TrainingConfig(steps=3), HOW, Noted())
    assert task.given == [None, None, None] and run.state is None


@pytest.mark.parametrize(("larger", "best"), [(True, [1, 3]), (False, [1, 2, 4])])
def test_the_best_is_kept_by_the_direction_of_its_score(larger, best):
    values = iter([0.5, 0.4, 0.9, 0.3])
    run, _ = run_of(Squares(), Numbers([1.0]))
    noted = Noted(scores=lambda step: Scores({"x": next(values)}, "x", larger_is_better=larger))
    loop.train(run, TrainingConfig(steps=4, evaluate_every=1), HOW, noted)
    each = "".join(noted.saved).split("last")[:-1]  # what was saved before each checkpoint
    assert [step for step, name in enumerate(each, 1) if name == "best"] == best and run.progress.best == (
        0.9 if larger else 0.3
    )


def test_every_process_hears_of_what_the_first_has_found():
    """A second process evaluates nothing, and its schedule still waits as that of the first."""
    how = replace(HOW, schedule="plateau", patience=0, factor=0.5)
    second = Ranks(1, 2)
    second.wrap, second.sum, second.from_first = lambda unit: unit, lambda *v: list(v), lambda *v: [1.0, 0.0]
    run, _ = run_of(Squares(), Numbers([1.0]), how=how, ranks=second)
    loop.train(run, TrainingConfig(steps=3, evaluate_every=1), how, Noted())
    assert run.schedule.memory == {"scale": 1.0, "bad": 0} and run.progress.evals_since_best == 0


def test_it_stops_when_nothing_improves_or_the_task_says_so():
    run, _ = run_of(Squares(), Numbers([1.0]))
    loop.train(run, TrainingConfig(steps=50, evaluate_every=1, patience=3), HOW, Noted())
    assert run.progress.step == 4  # the first is the best
    run, _ = run_of(Squares(), Numbers([1.0]))
    noted = Noted(scores=lambda step: Scores({"x": -step}, "x", stop_early=step >= 6))
    loop.train(run, TrainingConfig(steps=50, evaluate_every=2), HOW, noted)
    assert run.progress.step == 6 and run.progress.stop_early
    loop.train(run, TrainingConfig(steps=50, evaluate_every=2), HOW, noted)  # and stays so when it is resumed
    assert run.progress.step == 6


def test_a_loss_that_is_not_a_number_stops_before_the_weights_change():
    run, model = run_of(Squares(), Numbers([1.0], [math.nan]))
    with pytest.raises(TrainingError, match=r"the loss of step 2 is nan.*--optim\.lr"):
        loop.train(run, TrainingConfig(steps=9), HOW, Noted())
    assert model.w.item() == pytest.approx(0.2) and run.progress.step == 1


def test_a_signal_lets_the_step_finish_and_writes_a_checkpoint():
    run, _ = run_of(Squares(), Numbers([1.0]))
    noted = Noted(scores=lambda step: os.kill(os.getpid(), signal.SIGTERM) or Scores({"x": 1.0}, "x"))
    with pytest.raises(Interrupted, match="stopped after step 4") as stop:
        loop.train(run, TrainingConfig(steps=9, evaluate_every=3), HOW, noted)
    assert stop.value.exit_code == 143 and noted.saved == ["best", "last", "last"]


def test_settings_are_checked_before_any_work():
    for parts, name in (({"steps": 0}, "steps"), ({"log_every": 0}, "log_every"), ({"patience": -1}, "patience")):
        with pytest.raises(InputError, match=rf"training\.{name} is"):
            loop.check(TrainingConfig(**parts), "cpu")
    with pytest.raises(InputError, match="trained on the CPU"):
        loop.check(TrainingConfig(), "cuda")
    for device in ("gpu", "cuda:0", "mps"):
        with pytest.raises(InputError, match="trained on the CPU") as error:
            loop.check(TrainingConfig(), device)
        assert "Did you mean" not in str(error.value)


def test_scores_have_their_names_while_it_trains(capfd):
    scores = Scores({"mse": 0.0534, "r2": 0.9, "n": 4.0}, "mse", secondary=("r2",), remark="of 4 rows")
    run, _ = run_of(Squares(), Numbers([1.0, 2.0]))
    loop.train(run, TrainingConfig(steps=1, evaluate_every=1), HOW, Noted(verbose=True, scores=lambda step: scores))
    assert "step 1  valid mse 0.0534  r2 0.9000  (of 4 rows)  (best so far)\n" in capfd.readouterr().err


def test_a_loop_that_nobody_supervises_evaluates_nothing_and_says_so_of_nothing(capfd):
    run, model = run_of(Squares(), Numbers([1.0]))
    loop.train(run, TrainingConfig(steps=2, evaluate_every=1), HOW, Supervisor())
    assert run.progress.step == 2 and run.progress.best is None and model.w.item() > 0
    assert "valid" not in capfd.readouterr().err


def test_there_is_a_line_of_metrics_for_every_nth_step():
    run, _ = run_of(Squares(), Numbers([1.0], [2.0]))
    loop.train(run, TrainingConfig(steps=7, log_every=3, evaluate_every=99), HOW, noted := Noted())
    assert [step for step, values in noted.lines if "loss" in values] == [3, 6]


# bfloat16 in the backward pass


def _lm(cell, out, **training):
    settings = {"steps": 6, "evaluate_every": 3, **training}
    data = {"batch_size": 4, "window": 16}
    return elman.LMConfig(data=data, model={"cell": cell, "size": 24}, training=settings, out=str(out))


def test_autocast_rounds_products_of_the_backward_pass_and_nothing_else(monkeypatch, tmp_path):
    """The loss of the first step is the same to the bit; gradients of a linear recurrence are near, those of a gated
    cell, which has products of its own, the same."""
    monkeypatch.setattr(loop, "has_bfloat16", lambda: True)  # any processor computes it, if slowly
    text = "to be or not to be, that is the question: " * 60
    for cell, least, most in (("mingru", 1e-5, 2e-2), ("gru", 0.0, 0.0)):
        norms = []
        for autocast in (False, True):
            config = _lm(cell, tmp_path / f"{cell}{autocast}", log_every=1, autocast=autocast)
            lines = [line for line in elman.train(config, text, progress=False)[1] if "loss" in line]
            norms.append([lines[0]["loss"], lines[0]["gradient_norm"]])
        (loss, exact), (same, near) = norms
        assert loss == same and least * exact <= abs(near - exact) <= most * exact


def test_autocast_is_for_every_part_of_a_step_and_for_no_loss():
    seen = []

    class Watched(Squares):
        def loss(self, model, batch, state):
            loss, n, after = super().loss(model, batch, state)
            seen.append(torch.is_autocast_enabled("cpu"))
            loss.register_hook(lambda _: seen.append(torch.is_autocast_enabled("cpu")))
            return loss, n, after

    for autocast in (False, True):
        seen.clear()
        run, _ = run_of(Watched(), Numbers([1.0], [2.0], [3.0]))
        loop.train(run, TrainingConfig(steps=1, accumulate=3, autocast=autocast), HOW, Noted())
        assert seen == [False, autocast] * 3


def test_a_run_with_autocast_resumes_to_the_same_bytes(monkeypatch, tmp_path):
    monkeypatch.setattr(loop, "has_bfloat16", lambda: True)
    text = "to be or not to be, that is the question: " * 60

    def stop(step, scores):
        raise KeyboardInterrupt

    elman.train(_lm("mingru", tmp_path / "whole", autocast=True), text, progress=False)
    with pytest.raises(KeyboardInterrupt):
        elman.train(_lm("mingru", tmp_path / "cut", autocast=True), text, stop, progress=False)
    elman.train(replace(_lm("mingru", tmp_path / "cut", autocast=True), resume="auto"), text, progress=False)
    for name in ("metrics.jsonl", "last/model.safetensors", "last/optimiser.safetensors"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "cut" / name).read_bytes()


@pytest.mark.parametrize("name", [name for name, task in TASKS.items() if issubclass(task.Config, TrainedSettings)])
def test_every_task_that_the_loop_trains_can_use_it(monkeypatch, tmp_path, name):
    monkeypatch.setattr(loop, "has_bfloat16", lambda: True)
    changes = {"training": {"autocast": True, "steps": 2, "evaluate_every": 2, "log_every": 1}}
    lines = elman.train(tables.config(name, tmp_path / "run", changes), progress=False)[1]
    assert all(math.isfinite(line["gradient_norm"]) for line in lines if "gradient_norm" in line)


def test_autocast_is_refused_where_it_is_slow(monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": False})
    with pytest.raises(InputError, match=r"training\.autocast is true, and this processor has no instructions"):
        loop.check(TrainingConfig(autocast=True), "auto")
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True})
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    with pytest.raises(InputError, match="or Torch may not use them"):
        loop.check(TrainingConfig(autocast=True), "auto")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    loop.check(TrainingConfig(autocast=True), "auto")
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": False, "amx_bf16": True})
    loop.check(TrainingConfig(autocast=True), "auto")
    with pytest.raises(InputError, match=r"training\.autocast is 'yes'"):
        loop.check(TrainingConfig(autocast="yes"), "auto")
