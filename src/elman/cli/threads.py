"""`--threads N`, which every verb takes. In a run it is a setting, since it decides the last bits of the weights."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from elman.errors import InputError


def sleep_early() -> None:
    """Make Torch's threads, which wait for work by spinning, go to sleep soon: if another process needs the cores, the
    spinning takes time from the work. It has an effect only before Torch is imported.
    """
    if "torch" not in sys.modules and not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & set(os.environ):
        os.environ["GOMP_SPINCOUNT"] = "1000"  # some 20 us, not 5 ms


def pop_flag(verb: str, arguments: Sequence[str]) -> list[str]:
    """Compute on as many threads as the arguments of a verb say; the arguments that the verb itself parses.

    >>> pop_flag("train", ["--threads", "2"])
    ['--threads', '2']
    """
    sleep_early()
    if verb == "train" or not any(word.partition("=")[0] == "--threads" for word in arguments):
        return list(arguments)
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--threads")
    try:
        given, rest = parser.parse_known_args(arguments)
    except argparse.ArgumentError as error:
        raise InputError(str(error)) from error
    if not given.threads.isdecimal() or int(given.threads) < 1:
        raise InputError(f"threads is {given.threads!r}; it must be a whole number of at least 1")
    import torch

    torch.set_num_threads(int(given.threads))
    return rest
