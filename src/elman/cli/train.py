"""elman train: a config, with the overrides of the command line, becomes a run."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from elman.files.config import NAME

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3  # of malloc.h


def run(arguments: Sequence[str]) -> int:
    """Train; 128 plus the signal if one stopped it."""
    with _no_garbage_collection():
        from elman.cli.settings import read_config

        settings = read_config(arguments)  # help ends here, before anything that takes long to import
        from elman import tasks
        from elman.cli.output import print_table
        from elman.run import train
        from elman.training.interrupt import Interrupted

    _keep_memory()
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


def _keep_memory() -> None:
    """Make glibc keep up to 256 MB of what large tensors free, those of up to 64 MB. It would give most of it back to
    the system, and each step would pay for a page fault for every 4 KiB that it needs again."""
    named = any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ)
    if named or sys.platform != "linux" or not hasattr(libc := ctypes.CDLL(None), "mallopt"):
        return
    for option, megabytes in {M_MMAP_THRESHOLD: 64, M_TRIM_THRESHOLD: 256, M_TOP_PAD: 64}.items():
        libc.mallopt(option, megabytes << 20)


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
