"""elman train: a config, with the overrides of the command line, becomes a run."""

from __future__ import annotations

import gc
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from elman.files.config import NAME


def run(arguments: Sequence[str]) -> int:
    """Train; 128 plus the signal if one stopped it."""
    with _no_garbage_collection():
        from elman.cli.settings import read_config

        settings = read_config(arguments)  # help ends here, before anything that takes long to import
        from elman import tasks
        from elman.cli.output import print_table
        from elman.run import train
        from elman.training.interrupt import Interrupted

    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *where, **_: print(f"elman: warning: {message}", file=sys.stderr)
            predictor, _ = train(settings)
    except Interrupted as stop:
        print(f"elman: {stop}", file=sys.stderr)
        return stop.exit_code
    except KeyboardInterrupt:
        print(f"elman: {_stop_message(Path(settings.out))}", file=sys.stderr)
        return 130
    if os.environ.get("RANK", "0") == "0":  # of several processes, one says it
        for table in predictor.describe():
            print_table(table)
        verb, (kind, _) = next(iter(tasks.find(settings.task).requests.items()))
        data = kind.reads()
        needs = f" {data.metavar}" if data is not None else ""
        print(f"The model is in {settings.out}. Try: elman {verb} {settings.out}{needs}", file=sys.stderr)
    return 0


def _stop_message(out: Path) -> str:
    """What Ctrl-C leaves if there is no step to finish."""
    if (out / NAME).exists():
        return f"stopped; to resume, or to start again if there is no checkpoint: elman train --out {out} --resume auto"
    return f"stopped before the run started; there is no run in {out}. The same command starts it."


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """A block that imports Torch, without the garbage collector: what modules make stays, and it would look through a
    million objects again and again."""
    if "torch" in sys.modules:
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
