"""elman train: a config, changed by what stands on the command line, becomes a run."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence


def run(arguments: Sequence[str]) -> int:
    """Train; 128 plus the signal if it was asked to stop."""
    from elman import tasks
    from elman.cli.output import print_table
    from elman.cli.settings import read_config
    from elman.run import train
    from elman.training.interrupt import Interrupted

    settings = read_config(arguments)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *where, **_: print(f"elman: warning: {message}", file=sys.stderr)
            face, _ = train(settings)
    except Interrupted as stop:
        print(f"elman: {stop}", file=sys.stderr)
        return stop.exit_code
    if os.environ.get("RANK", "0") == "0":  # of several processes, one says it
        for table in face.describe():
            print_table(table)
        verb = next(iter(tasks.find(settings.task).verbs))
        print(f"The model is in {settings.out}. Try: elman {verb} {settings.out}", file=sys.stderr)
    return 0
