from dataclasses import replace
from pathlib import Path

import pytest
import torch
from interrupting import stopping

from elman.errors import InputError
from elman.files import config as configs
from elman.run import train
from elman.tasks.text.data import TextDataConfig
from elman.tasks.text.lm import LMConfig, LMModelConfig
from elman.tasks.text.task import PreviewConfig
from elman.training import threads
from elman.training.interrupt import Interrupted
from elman.training.loop import TrainingConfig


@pytest.fixture(autouse=True)
def as_before(tmp_path, monkeypatch):
    monkeypatch.setenv("ELMAN_CACHE", str(tmp_path / "cache"))
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def config(tmp_path):
    (tmp_path / "text.txt").write_text("the cat sat on the mat; the dog sat on the log. " * 40)
    return LMConfig(
        data=TextDataConfig(train=str(tmp_path / "text.txt"), batch_size=8, window=32),
        model=LMModelConfig(size=64, layers=1),  # enough that rows and sums of gradients are divided
        training=TrainingConfig(steps=6, log_every=2, evaluate_every=3),
        preview=PreviewConfig(tokens=0),
        out=str(tmp_path / "run"),
    )


@pytest.mark.slow
def test_a_run_resumed_in_an_environment_of_fewer_threads_gives_the_same_bytes(config, tmp_path, monkeypatch, capsys):
    config = replace(config, threads=2)
    train(config)
    other = replace(config, out=str(tmp_path / "other"), resume="auto")
    with stopping([4], monkeypatch), pytest.raises(Interrupted):
        train(other)
    torch.set_num_threads(1)
    train(replace(other, threads=0))
    assert torch.get_num_threads() == 1  # as it was
    assert "was begun with threads = 2, and continues with them" in capsys.readouterr().err
    for name in ("metrics.jsonl", "last/model.safetensors", "best/model.safetensors"):
        assert (Path(config.out) / name).read_bytes() == (Path(other.out) / name).read_bytes()


def test_a_run_that_was_killed_before_its_first_checkpoint_keeps_its_threads_too(config):
    out = Path(config.out)
    out.mkdir()
    (out / configs.NAME).write_text(configs.render(replace(config, threads=2)))
    torch.set_num_threads(1)
    with threads.of_run(replace(config, resume="auto")) as settings:
        assert settings.threads == torch.get_num_threads() == 2


def test_the_number_of_threads_is_noted_and_cannot_be_changed(config):
    train(replace(config, threads=1))
    assert configs.read(Path(config.out) / configs.NAME)["threads"] == 1
    with pytest.raises(InputError, match=r"was begun with threads = 1, not 2; a resumed run must be the same run"):
        train(replace(config, threads=2, resume="auto"))
    with pytest.raises(InputError, match="threads is -1; it must be a whole number of at least 0"):
        train(replace(config, threads=-1, out=config.out + "2"))


def test_a_step_with_little_work_is_not_divided(config):
    torch.set_num_threads(2)
    with threads.of_run(config) as settings:
        assert settings.threads == 0
        assert threads.resolve_threads(settings, threads.WORTH - 1).threads == torch.get_num_threads() == 1
    with threads.of_run(config) as settings:
        assert threads.resolve_threads(settings, threads.WORTH).threads == torch.get_num_threads() == 2
    with threads.of_run(replace(config, threads=2)) as settings:
        assert threads.resolve_threads(settings, 1).threads == torch.get_num_threads() == 2  # who says so has it so


def test_runs_whose_environments_differ_are_the_same_if_their_threads_are(config, tmp_path):
    for threads_of_environment in (1, 2):
        torch.set_num_threads(threads_of_environment)
        train(replace(config, out=str(tmp_path / str(threads_of_environment))))
    one, two = ((tmp_path / name / "last" / "model.safetensors").read_bytes() for name in "12")
    assert one == two  # both chose one thread
