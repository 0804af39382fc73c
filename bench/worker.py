"""One library in one process, told what to do by lines of JSON: `python -m bench.worker LIBRARY THREADS`.

prepare {case, path}: build the case, run it once, write its outputs to `path` for comparison.
time {case, repeats}: seconds, seconds of the processor, and page faults per call.
count {case}: what a call returns.   drop {case}.
"""

import importlib
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

Run = Callable[[], Any]
Outputs = Callable[[Any], dict[str, Any]]  # what `Run` returned, as numpy arrays, batch first


def main() -> None:
    library, threads = sys.argv[1], int(sys.argv[2])
    os.sched_setaffinity(
        0, sorted(os.sched_getaffinity(0))[:threads]
    )  # the only limit on threads that all of them obey
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer
    module = importlib.import_module(f"bench.with_{library}")
    prepared: dict[str, Run] = {}
    for line in sys.stdin:
        order = json.loads(line)
        key = json.dumps(order["case"])
        if order["do"] == "prepare":
            run, outputs = module.prepare(order["case"], threads)
            np.savez(order["path"], **outputs(run()))
            prepared[key] = run
            answer: Any = "ready"
        elif order["do"] == "time":
            answer = _time(prepared[key], order["repeats"])
        elif order["do"] == "count":
            answer = prepared[key]()
        else:
            prepared.pop(key, None)
            answer = "dropped"
        print(json.dumps(answer), file=answers, flush=True)


def _time(run: Run, repeats: int) -> dict[str, float]:
    faults, processor, begin = _faults(), time.process_time(), time.perf_counter()
    for _ in range(repeats):
        run()
    seconds, processor = time.perf_counter() - begin, time.process_time() - processor
    return {"seconds": seconds / repeats, "processor": processor / repeats, "faults": (_faults() - faults) / repeats}


def _faults() -> int:
    """Page faults of this process that the disk had no part in."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


if __name__ == "__main__":
    main()
