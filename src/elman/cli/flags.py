"""The flags that every verb takes, `--import MODULE`, which adds cells or tasks, and `--threads N`; and what the
process of a verb is set to.

In a run `threads` is a setting, since the last bits of the weights depend on it.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import sys
from collections.abc import Sequence

from elman.errors import InputError
from elman.files import plugins
from elman.options import MOST_THREADS, whole

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3  # of malloc.h


def pop_flags(verb: str, arguments: Sequence[str]) -> list[str]:
    """Import the modules and use the number of threads that the arguments name; the arguments of the verb itself.

    >>> pop_flags("train", ["--threads", "2"])
    ['--threads', '2']
    """
    modules, arguments = _pop("--import", arguments)
    load(modules)
    sleep_early()
    if verb in ("train", "search"):
        keep_memory()
    if verb == "train" or not any(word.partition("=")[0] == "--threads" for word in arguments):
        return arguments
    threads, arguments = _pop("--threads", arguments)
    number = whole("threads", int(threads[-1]) if threads[-1].isdecimal() else threads[-1], most=MOST_THREADS)
    import torch

    torch.set_num_threads(number)
    return arguments


def _pop(flag: str, arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The values of a flag, and the other arguments."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument(flag, dest="values", action="append", default=[])
    try:
        parsed, rest = parser.parse_known_args(arguments)
    except argparse.ArgumentError as error:
        raise InputError(str(error)) from error
    return parsed.values, rest


def load(names: Sequence[str]) -> None:
    """Import some modules. The current folder is part of the path, as it is for `python -m`."""
    if names and not {"", os.getcwd()} & set(sys.path):
        sys.path.append(os.getcwd())
    plugins.load(names)


def load_from_config(names: Sequence[str], where: str) -> None:
    """Import the modules that a config names, and say so: it is code that runs. Those that a model names are not
    imported without a flag."""
    for name in plugins.missing(names):
        print(f"elman: importing {name}, which {where} names", file=sys.stderr)
    load(names)


def sleep_early() -> None:
    """Make Torch's threads, which wait for work by spinning, go to sleep soon: if another process needs the cores, the
    spinning takes time from the work. It has an effect only before Torch is imported.
    """
    if "torch" not in sys.modules and not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & set(os.environ):
        os.environ["GOMP_SPINCOUNT"] = "1000"  # some 20 us, not 5 ms


def keep_memory() -> None:
    """Make glibc keep what large tensors free for those of the next step, for which it would otherwise ask the system
    again, at a page fault for every 4 KiB: blocks of up to 32 MB come from the heap, and the heap is given back once
    256 MB of its end are free, but for 64. It is for a process that trains, and not if the environment says otherwise.
    """
    named = any(f"MALLOC_{name}_" in os.environ for name in ("MMAP_THRESHOLD", "TRIM_THRESHOLD", "TOP_PAD", "MMAP_MAX"))
    if named or "glibc.malloc." in os.environ.get("GLIBC_TUNABLES", "") or sys.platform != "linux":
        return
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt") and libc.mallopt(M_MMAP_THRESHOLD, 32 << 20):  # older ones refuse more
        libc.mallopt(M_TRIM_THRESHOLD, 256 << 20)
        libc.mallopt(M_TOP_PAD, 64 << 20)
