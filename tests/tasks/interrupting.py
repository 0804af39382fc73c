"""A run that is stopped several times and resumed."""

import os
import signal
from contextlib import contextmanager
from pathlib import Path

import pytest

from elman.run import train
from elman.training import loop
from elman.training.interrupt import Interrupted

CLOCKS_AND_NAMES = ("config.yaml", "timings.jsonl")  # what differs between two runs that are the same


@contextmanager
def stopping(steps, monkeypatch):
    """Each training in it gets SIGTERM in the middle of a step, the first in the first of them; then none does."""
    original, stop_at = loop.train, iter(steps)

    def stopped(state, *arguments):
        at, forward = next(stop_at, None), state.module.forward

        def counted(batch, carried):
            if state.progress.step + 1 == at:
                os.kill(os.getpid(), signal.SIGTERM)
            return forward(batch, carried)

        state.module.forward = counted
        original(state, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "train", stopped)
        yield


def train_stopping_at(steps, config, monkeypatch):
    """Train, stopped in each of some steps and resumed after each."""
    with stopping(steps, monkeypatch):
        for _ in steps:
            with pytest.raises(Interrupted, match=r"stopped after step.*--resume auto") as stop:
                train(config)
            assert stop.value.exit_code == 128 + signal.SIGTERM
        return train(config)


def contents(run):
    """Every file of a run by its name, but for those with clocks or the run's own name."""
    files = (path for path in Path(run).rglob("*") if path.is_file() and path.name not in CLOCKS_AND_NAMES)
    return {str(path.relative_to(run)): path.read_bytes() for path in sorted(files)}


def same_files(a, b, but=()):
    first, second = contents(a), contents(b)
    differing = [name for name in first if first[name] != second.get(name) and Path(name).name not in but]
    return first.keys() == second.keys() and not differing
