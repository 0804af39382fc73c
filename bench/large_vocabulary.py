"""The loss of a large softmax against Torch's cross-entropy: `python -m bench.large_vocabulary [--rounds 5] [--json]`.

Forward and backward pass of 4,096 tokens, 256 wide, over 50,000 and 143,000 symbols, in float32 on two threads. A
process for each library, in turns, one peer after the other. Torch's is timed with all logits at once and by its
`linear_cross_entropy` in chunks, which has two rounds; the faster counts, and the other is listed for information.
With all logits it has a new process each round, in which one pass warms up: its memory stays mapped, and grows by
gigabytes from pass to pass. Memory is the peak of one pass in a fresh process, less the gradients; `at the speed of
multiply-adds` is what three products of that size would take where everything is in the cache.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from bench.kernels import MAPPED
from bench.turns import Report, Result, clocked, figure, parser, result

TOKENS, WIDTH = 4096, 256
SYMBOLS = (50_000, 143_000)
MUST, AIM, MUST_MB, AIM_MB = 1.5, 2.5, 200, 100
PEERS = {"whole": "torch", "chunked": "torch linear_cross_entropy"}


def main() -> None:
    flags = parser("large_vocabulary", __doc__, 5)
    flags.add_argument("--only", nargs="+", type=int, default=SYMBOLS, metavar="SYMBOLS")
    flags.add_argument("--work", nargs=2, metavar=("LIBRARY", "SYMBOLS"), help=argparse.SUPPRESS)
    options = flags.parse_args()
    if options.work:
        return _work(options.work[0], int(options.work[1]))
    report = Report(options.json)
    for symbols in options.only:
        report.add(*_measure(symbols, options.rounds))
    report.end()


def _measure(symbols: int, rounds: int) -> list[Result]:
    memory = {library: _memory(library, symbols) for library in ("elman", *PEERS)}
    ours = Worker("elman", symbols)
    try:
        ours.ask("time")
        checked, times = ours.ask("check"), {how: _timed(ours, how, symbols, rounds) for how in PEERS}
        speed = ours.ask("speed")
    finally:
        ours.close()
    sums = {how: sum_of_squares for how, (_, _, sum_of_squares) in times.items()}
    assert all(abs(each / checked - 1) < 1e-5 for each in sums.values()), f"the gradients differ: {checked}, {sums}"
    name, rows = f"loss over V = {symbols}", []
    for how in sorted(PEERS, key=lambda how: statistics.median(times[how][1])):
        bars = (MUST, AIM) if not rows else (None, None)
        rows.append(result(name, PEERS[how], *times[how][:2], *bars))
    rows += [result(f"{name}: memory", PEERS[how], [memory["elman"]], [memory[how]], unit="MB") for how in PEERS]
    best = 3 * TOKENS * WIDTH * symbols / speed
    return [
        *rows,
        figure(f"{name}: memory beyond weights and gradients", memory["elman"], "MB", MUST_MB, AIM_MB),
        figure(f"{name}: at the speed of multiply-adds", 1e3 * best, "ms"),
    ]


def _timed(ours: Worker, how: str, symbols: int, rounds: int) -> tuple[list[float], list[float], float]:
    """Seconds of ours and of a peer by round, and the sum of squares of the peer's gradients."""
    peer, checked = None, 0.0

    def once() -> float:
        nonlocal peer, checked
        if peer is None:
            peer = Worker(how, symbols, mapped=True)
            peer.ask("time")
            checked = peer.ask("check")
        seconds = peer.ask("time")
        if how == "whole":
            peer.close()
            peer = None
        return seconds

    try:
        mine, theirs = clocked([lambda: ours.ask("time"), once], rounds if how == "whole" else min(rounds, 2), warm=0)
    finally:
        if peer is not None:
            peer.close()
    return mine, theirs, checked


def _memory(library: str, symbols: int) -> float:
    """In a process that gives memory back as it likes, not told to keep it."""
    worker = Worker(library, symbols)
    try:
        return worker.ask("memory")
    finally:
        worker.close()


class Worker:
    """A process with one library, which does what a line says and answers with a number."""

    def __init__(self, library: str, symbols: int, mapped: bool = False) -> None:
        command = [sys.executable, "-m", "bench.large_vocabulary", "--work", library, str(symbols)]
        env = {**os.environ, **(MAPPED if mapped else {})}
        self.process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, what: str) -> float:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"the process that was asked to {what} ended; what it said stands above")
        return float(answer)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def _work(library: str, symbols: int) -> None:
    import torch

    from bench.memory import peak

    torch.set_num_threads(2)
    torch.manual_seed(0)
    h, weight, bias = torch.randn(TOKENS, WIDTH), torch.randn(symbols, WIDTH) / 16, torch.zeros(symbols)
    parts = [part.requires_grad_() for part in (h, weight, bias)]
    at = torch.randint(symbols, (TOKENS,))
    loss = {"elman": _ours, "whole": _whole, "chunked": _chunked}[library](parts, at)

    def run() -> None:
        for part in parts:
            part.grad = None
        loss().backward()

    for line in sys.stdin:
        begin = time.perf_counter()
        if line == "memory\n":
            answer = peak(run) - sum(part.nbytes for part in parts) / 1e6
        elif line == "check\n":
            answer = sum(float(part.grad.square().sum()) for part in parts if part.grad is not None)
        elif line == "speed\n":
            answer = _multiply_adds()
        else:
            run()
            answer = time.perf_counter() - begin
        print(answer, flush=True)


def _ours(parts: Any, at: Any) -> Callable[[], Any]:
    """As the training loop does it."""
    from elman.nn.distributions import Categorical, Product

    return lambda: -Categorical(Product(*parts)).log_prob_sum(at)[0]


def _whole(parts: Any, at: Any) -> Callable[[], Any]:
    import torch.nn.functional as F

    return lambda: F.cross_entropy(F.linear(*parts), at, reduction="sum")


def _chunked(parts: Any, at: Any) -> Callable[[], Any]:
    import torch.nn.functional as F
    from torch.nn import LinearCrossEntropyOptions

    h, weight, bias = parts
    options = LinearCrossEntropyOptions()  # of chunks as it chooses them for this processor
    return lambda: F.linear_cross_entropy(h, weight, at, linear_bias=bias, reduction="sum", options=options)


def _multiply_adds() -> float:
    """A second, on two threads, where everything is in the cache."""
    import torch

    from elman import kernels

    x, w = torch.randn(1024, 2048), torch.randn(256, 2048)
    times = []
    for _ in range(20):
        begin = time.perf_counter()
        kernels.linear(x, w)
        times.append(time.perf_counter() - begin)
    return x.numel() * len(w) / min(times)


if __name__ == "__main__":
    main()
