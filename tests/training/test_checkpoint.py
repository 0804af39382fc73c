from dataclasses import replace

import pytest
import torch

import elman
from elman.data import Position
from elman.errors import FileError, InputError
from elman.training import checkpoint, optim
from elman.training.average import Average
from elman.training.checkpoint import Checkpoint
from elman.training.distributed import Ranks
from elman.training.loop import LoopState, Progress
from elman.training.optim import OptimConfig, Schedule

IDENTITY = {"settings": {"model.size": 4}, "data": {"data.train": "abc"}}


def run_of(seed=0, ranks=None):
    torch.manual_seed(seed)
    model, how = elman.cell("lru", 2, 3), OptimConfig(schedule="plateau")
    run = LoopState(model, None, optim.optimiser(how, model), Schedule(how, 10), Average(model), ranks or Ranks())
    x = torch.randn(2, 5, 2)
    y, run.state = model.scan(x)
    y.sum().backward()
    run.optimiser.step()
    run.state = elman.state.detach(run.state)
    run.schedule.memory, run.progress = {"scale": 0.1 + 0.2, "bad": 2}, Progress(7, 35, Position(1, 2), 0.1 + 0.7, 1)
    return run


def saved(folder, run):
    checkpoint.save(folder, lambda new: (new / "model.json").write_text("{}"), checkpoint.snapshot(run, IDENTITY, {}))
    return checkpoint.load(folder, lambda: run.module.init_state(0))


def test_everything_comes_back_to_the_last_bit(tmp_path):
    run = run_of()
    run.average = Average(run.module, 2)
    with run.average.weights():
        pass
    stored = saved(tmp_path / "last", run)
    expected = torch.rand(3)
    other = run_of(seed=5)
    other.average = Average(other.module, 2)
    other.schedule.memory, other.progress = {"scale": 1.0, "bad": 0}, Progress()  # or nothing would have to come back
    checkpoint.resume(stored, other)
    noted, back = run.average.tensors(), other.average.tensors()
    assert noted.keys() == back.keys() != set() and all(torch.equal(noted[name], back[name]) for name in noted)
    assert other.progress == run.progress and other.schedule.memory == run.schedule.memory
    assert torch.equal(torch.rand(3), expected)  # the random numbers go on where they were
    for a, b in zip(elman.state.leaves(other.state), elman.state.leaves(run.state), strict=True):
        assert torch.equal(a, b)
    assert stored.identity == IDENTITY
    before, after = (optim.tensors(r.optimiser) for r in (run, other))
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("larger", [False, True])
def test_which_score_decides_comes_back(tmp_path, larger):
    run = run_of()
    run.progress = replace(run.progress, primary="f1", larger_is_better=larger, stop_early=not larger)
    assert saved(tmp_path / "last", run).progress == run.progress
    assert checkpoint.read_primary(tmp_path) == ("f1", larger)


def test_a_run_that_carries_no_state_has_none_to_resume(tmp_path):
    run = run_of()
    run.state = None
    stored = saved(tmp_path / "last", run)
    assert stored.state is None and not (tmp_path / "last" / "state.safetensors").exists()


def test_another_number_of_processes_is_refused(tmp_path):
    stored = saved(tmp_path / "last", run_of())
    with pytest.raises(InputError, match="written by 1 processes; there are 2 now"):
        checkpoint.resume(stored, run_of(ranks=Ranks(0, 2)))


def test_each_process_has_its_own_rows(tmp_path):
    stored = saved(tmp_path / "last", run_of())
    torch.manual_seed(1)
    two = replace(stored, generators=torch.stack([stored.generators[0], torch.get_rng_state()]))
    whole = elman.state.leaves(stored.state)[0]
    for rank in range(2):
        run = run_of(ranks=Ranks(rank, 2))
        checkpoint.resume(two, run)
        assert torch.equal(torch.get_rng_state(), two.generators[rank])
        assert torch.equal(elman.state.leaves(run.state)[0], whole[rank : rank + 1])


def test_a_checkpoint_of_version_1_is_refused_by_name(tmp_path):
    saved(tmp_path / "last", run_of())
    path = tmp_path / "last" / "training.json"
    path.write_text(path.read_text().replace('"version": 2', '"version": 1'))
    (tmp_path / "last" / "checksums.json").unlink()  # which version 1 did not write
    with pytest.raises(FileError, match=r"version 1 of elman-training, this one reads version 2\. Train again"):
        checkpoint.load(tmp_path / "last", lambda: torch.zeros(0, 4))


def test_which_checkpoint_to_go_on_from(tmp_path):
    out = tmp_path / "run"
    assert checkpoint.latest(out, "auto") is None
    out.mkdir()
    assert checkpoint.latest(out, "never") is None  # an empty folder may be used
    (out / "config.yaml").write_text("task: lm")
    assert checkpoint.latest(out, "auto") is None  # begun, and killed before its first checkpoint
    with pytest.raises(InputError, match="never overwritten"):
        checkpoint.latest(out, "never")
    saved(out / "last", run_of())
    assert checkpoint.latest(out, "auto") == (out / "last").absolute()
    (out / "last" / "training.json").unlink()
    with pytest.raises(FileError, match="holds no checkpoint"):
        checkpoint.latest(out, "auto")


def test_the_identity_of_what_was_fitted_in_one_go(tmp_path):
    checkpoint.save_fitted(tmp_path / "best", lambda new: None, IDENTITY, Progress())
    assert checkpoint.read_identity(tmp_path / "best") == IDENTITY
    assert isinstance(checkpoint.snapshot(run_of(), IDENTITY, {}), Checkpoint)
