import os
import sys

import pytest
import torch

from elman.cli import threads
from elman.errors import InputError


@pytest.fixture(autouse=True)
def as_before():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_a_verb_does_not_see_it_and_a_run_does():
    assert threads.pop_flag("evaluate", ["run", "--threads", "2", "text.txt"]) == ["run", "text.txt"]
    assert torch.get_num_threads() == 2
    assert threads.pop_flag("laws", ["--threads=1"]) == [] and torch.get_num_threads() == 1
    assert threads.pop_flag("train", ["--threads", "2"]) == ["--threads", "2"] and torch.get_num_threads() == 1
    with pytest.raises(InputError, match="threads is '-1'"):
        threads.pop_flag("laws", ["--threads=-1"])


def test_idle_threads_sleep_early_unless_someone_says_otherwise(monkeypatch):
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.delenv(name, raising=False)
    threads.sleep_early()
    assert "GOMP_SPINCOUNT" not in os.environ  # Torch is there already: too late
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    threads.sleep_early()
    assert "GOMP_SPINCOUNT" not in os.environ
    monkeypatch.delenv("OMP_WAIT_POLICY")
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    threads.sleep_early()
    assert os.environ["GOMP_SPINCOUNT"] == "7"
    monkeypatch.delenv("GOMP_SPINCOUNT")
    threads.sleep_early()
    assert os.environ.pop("GOMP_SPINCOUNT") == "1000"
