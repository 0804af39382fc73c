"""The loss of a large softmax against Torch's cross-entropy: `python -m bench.large_vocabulary [--rounds 5] [--json]`.

Forward and backward pass of 4,096 tokens, 256 wide, over 50,000 and 143,000 symbols, in float32 on two threads. A
process for each library, in turns; a ratio is Torch's time over ours in the same round; the table has the median and
the quartiles. Memory is the peak of one such pass in a fresh process, less the gradients. `share` is what three
products of that size would take at the speed of the multiply-adds (measured by a product that stays in the cache),
over our time.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

TOKENS, WIDTH = 4096, 256
SYMBOLS = (50_000, 143_000)
MUST, MUST_MB = 1.5, 200
FORMAT = "{:>8} {:>7} {:>14} {:>9} {:>9} {:>9} {:>8} {:>9}  {}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.large_vocabulary", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", type=int, default=SYMBOLS, metavar="SYMBOLS")
    parser.add_argument("--json", action="store_true", help="the rows as JSON alone on standard output")
    parser.add_argument("--work", nargs=2, metavar=("LIBRARY", "SYMBOLS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        return _work(options.work[0], int(options.work[1]))
    rows = [_measure(symbols, options.rounds) for symbols in options.only]
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    print(FORMAT.format("symbols", "ratio", "quartiles", "ours, ms", "peer, ms", "ours, MB", "peer, MB", "share", ""))
    for row in rows:
        low, high = row["quartiles"]
        ok = row["ratio"] >= MUST and row["ours_mb"] <= MUST_MB
        texts = (f"{row['ratio']:.2f}", f"{low:.2f} to {high:.2f}", *(f"{row[key]:.0f}" for key in KEYS))
        print(FORMAT.format(row["symbols"], *texts, f"{row['share']:.2f}", "ok" if ok else "MISSED"))


KEYS = ("ours_ms", "peer_ms", "ours_mb", "peer_mb")


def _measure(symbols: int, rounds: int) -> dict[str, Any]:
    workers = {library: Worker(library, symbols) for library in ("elman", "torch")}
    try:
        memory = {library: worker.ask("memory") for library, worker in workers.items()}
        sums = {library: worker.ask("check") for library, worker in workers.items()}
        assert abs(sums["elman"] / sums["torch"] - 1) < 1e-5, f"the gradients differ: {sums}"
        times: dict[str, list[float]] = {library: [] for library in workers}
        for _ in range(rounds):
            for library, worker in workers.items():
                times[library].append(worker.ask("time"))
        speed = workers["elman"].ask("speed")
    finally:
        for worker in workers.values():
            worker.close()
    ratios = [peer / ours for ours, peer in zip(times["elman"], times["torch"], strict=True)]
    ours, peer = (statistics.median(times[library]) for library in ("elman", "torch"))
    low, _, high = statistics.quantiles(ratios, n=4)
    return {
        "symbols": symbols, "ratio": statistics.median(ratios), "quartiles": (low, high), "ours_ms": 1e3 * ours,
        "peer_ms": 1e3 * peer, "ours_mb": memory["elman"], "peer_mb": memory["torch"],
        "share": 3 * TOKENS * WIDTH * symbols / speed / ours,
    }  # fmt: skip


class Worker:
    """A process with one library, which does what a line says and answers with a number."""

    def __init__(self, library: str, symbols: int) -> None:
        command = [sys.executable, "-m", "bench.large_vocabulary", "--work", library, str(symbols)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, what: str) -> float:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

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
    loss = _ours(parts, at) if library == "elman" else _theirs(parts, at)

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


def _theirs(parts: Any, at: Any) -> Callable[[], Any]:
    import torch.nn.functional as F

    return lambda: F.cross_entropy(F.linear(*parts), at, reduction="sum")


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
