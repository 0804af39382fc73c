"""Peak memory of a call: how far the resident set of this process grows above what it was before. Linux only."""

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any


def peak(run: Callable[[], Any]) -> float:
    """Megabytes."""
    ctypes.CDLL(None).malloc_trim(0)  # what was freed before must not hide what is taken now
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
    before = _kilobytes("VmRSS")
    results = run()
    after = _kilobytes("VmHWM")
    del results
    return (after - before) * 1024 / 1e6


def _kilobytes(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))
