"""A run that is stopped several times and resumed, for the tests of tasks."""

import os
import signal
from pathlib import Path

import pytest

from elman.run import train
from elman.training import loop
from elman.training.interrupt import Interrupted

FILES = (
    "metrics.jsonl",
    "samples.txt",
    "last/model.safetensors",
    "best/model.safetensors",
    "last/optimiser.safetensors",
)


def train_stopping_at(steps, config, monkeypatch):
    """Train, with SIGTERM in the middle of each of some steps, and a resumed run after each."""
    original, stop_at = loop.train, iter(steps)

    def stopping(state, *arguments):
        at, forward = next(stop_at, None), state.module.forward

        def counted(batch, carried):
            if state.progress.step + 1 == at:
                os.kill(os.getpid(), signal.SIGTERM)
            return forward(batch, carried)

        state.module.forward = counted
        original(state, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "train", stopping)
        for _ in steps:
            with pytest.raises(Interrupted):
                train(config)
        train(config)


def same_files(a, b):
    return all((Path(a) / name).read_bytes() == (Path(b) / name).read_bytes() for name in FILES)
