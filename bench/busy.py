"""Beside another busy process: `python -m bench.busy [--seconds 1] [--rounds 3] [--json]`, on two cores.

Tokens per second of evaluating one long text and of training, two layers of 256 units: with one thread alone on the
machine, then with two threads alone, beside one process that never rests, and beside another training. Ratios are to
one thread alone, of the same round. A machine that does something else meanwhile proves nothing.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from bench.turns import Report, Result, parser, result

MUST = {"train": 0.9, "train lstm": 0.9}  # beside a process that never rests; the others are for information
KINDS = ("evaluate", "small", "middle", "train", "train lstm", "words")
HOW = {"2 alone": "alone", "2 beside": "beside a process that never rests", "2 twice": "beside another like it"}


def main() -> None:
    flags = parser("busy", __doc__, 3)
    flags.add_argument("--seconds", type=float, default=1.0, help="of each measurement")
    flags.add_argument("--only", nargs="+", default=list(KINDS), choices=KINDS)
    flags.add_argument("--work", nargs=2, metavar=("KIND", "THREADS"), help=argparse.SUPPRESS)
    options = flags.parse_args()
    if options.work:
        return _work(options.work[0], int(options.work[1]))
    report = Report(options.json)
    for kind in options.only:
        report.add(*_rows(kind, _measured(kind, options.seconds, options.rounds)))
    report.end()


def _rows(kind: str, rates: dict[str, list[float]]) -> list[Result]:
    rows = []
    for how, words in HOW.items():
        must = MUST.get(kind) if how == "2 beside" else None
        name = f"busy {kind}: two threads {words}"
        one, these = rates["1 alone"], rates[how]
        rows.append(result(name, "elman, 1 thread alone", these, one, must, inverted=True, unit="tokens/s"))
    return rows


def _measured(kind: str, seconds: float, rounds: int) -> dict[str, list[float]]:
    """Tokens per second in each round."""
    one, two, other = Worker(kind, 1), Worker(kind, 2), Worker(kind, 2)
    rates: dict[str, list[float]] = {how: [] for how in ("1 alone", *HOW)}
    try:
        for _ in range(rounds):
            rates["1 alone"].append(one.rate(seconds))
            rates["2 alone"].append(two.rate(seconds))
            busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            try:
                time.sleep(0.1)
                rates["2 beside"].append(two.rate(seconds))
            finally:
                busy.kill()
                busy.wait()
            other.begin(seconds)
            rates["2 twice"].append(two.rate(seconds))
            other.end()
    finally:
        for worker in (one, two, other):
            worker.close()
    return rates


class Worker:
    """A process that does one thing on so many threads, for so many seconds as it is told."""

    def __init__(self, kind: str, threads: int) -> None:
        command = [sys.executable, "-m", "bench.busy", "--work", kind, str(threads)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.rate(0.0)  # ready, and warm

    def begin(self, seconds: float) -> None:
        assert self.process.stdin
        self.process.stdin.write(f"{seconds}\n")
        self.process.stdin.flush()

    def end(self) -> float:
        assert self.process.stdout
        return float(self.process.stdout.readline())

    def rate(self, seconds: float) -> float:
        self.begin(seconds)
        return self.end()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def _work(kind: str, threads: int) -> None:
    from elman.cli.flags import sleep_early

    sleep_early()  # as the command line does
    import torch

    torch.set_num_threads(threads)
    once, tokens = _evaluation() if kind == "evaluate" else _training(kind)
    for line in sys.stdin:
        begin, count, spent = time.perf_counter(), 0, 0.0
        while spent < float(line) or not count:
            once()
            count, spent = count + 1, time.perf_counter() - begin
        print(count * tokens / spent, flush=True)


def _evaluation() -> tuple[Callable[[], Any], int]:
    """One long text, whose state is carried: one row, so that the units are divided among the threads."""
    from bench import lm_inputs

    tokens = 2048
    lm, text = lm_inputs.language_model("gru"), lm_inputs.text(tokens)
    return lambda: lm.evaluate(text), tokens


# Cell, size, layers, symbols, rows, window
TRAINED = {
    "small": ("gru", 64, 1, 67, 8, 32),
    "middle": ("gru", 128, 1, 67, 16, 64),
    "train": ("gru", 256, 2, 67, 32, 128),
    "train lstm": ("lstm", 256, 2, 67, 32, 128),
    "words": ("gru", 64, 1, 10_000, 16, 64),
}


def _training(kind: str) -> tuple[Callable[[], Any], int]:
    """The training loop's own step."""
    import torch

    from elman.data.cache import Encoded
    from elman.tasks.text.lm import LanguageModelTask, LMModelConfig, build
    from elman.tasks.text.windows import Streams
    from elman.training.average import Average
    from elman.training.loop import LoopState, _gradients, _update
    from elman.training.loss import LossModule
    from elman.training.optim import OptimConfig, Schedule, optimiser

    cell, size, layers, symbols, rows, window = TRAINED[kind]
    torch.manual_seed(0)
    model, config = build(LMModelConfig(cell=cell, size=size, layers=layers), symbols).train(), OptimConfig()
    streams = Streams(Encoded(np.random.default_rng(0).integers(2, symbols, 200_001), 200_000, 0), rows, window)
    run = LoopState(
        LossModule(LanguageModelTask(), model),
        streams,
        optimiser(config, model),
        Schedule(config, 1000),
        Average(model),
    )

    def step() -> None:
        _, count = _gradients(run, 1)
        _update(run, config, 1e-3, 1 / count)
        run.optimiser.step()

    return step, rows * window


if __name__ == "__main__":
    main()
