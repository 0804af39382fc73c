"""The kernels against their peers: `python -m bench.kernels [--json] [--only TEXT ...] [--families NAME ...]`.

A library has a process of its own, and the processes take turns, round by round, so that a change in the machine's
speed meets them all. Outputs are compared before any time is taken. A ratio is the peer's time over ours in the same
round; what is reported is the median over the rounds and, as spread, its quartiles. Rounds in which other processes
had more than a tenth of the processor are discarded; a row without enough quiet rounds says so (`quiet: false`).
What runs on one thread is timed by the clock of the processor, which others do not disturb. Faults are page faults of
ours in a call: none, once calls have found their memory. Rows of memory have megabytes in the place of milliseconds.
"""

import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bench.rows import FAMILIES, Case, Row
from bench.turns import SETTLE, Report, Result, parser, result

# Of peers: memory once mapped stays mapped, as ours keeps its own; glibc would otherwise map and unmap large arrays on
# each call.
MAPPED = {
    "MALLOC_MMAP_THRESHOLD_": "8589934592",  # the logits of a large vocabulary alone are 2.3 GB
    "MALLOC_TRIM_THRESHOLD_": "17179869184",
    "MALLOC_TOP_PAD_": "268435456",
    "MALLOC_ARENA_MAX": "1",  # other arenas have no heap of this kind: what does not fit into 64 MB is mapped anew
}
SECONDS = 10.0  # what a row may take, about; slow rows get fewer rounds, and say how many


def unmapped() -> dict[str, str]:
    """The environment without MAPPED, which bench.all gives to parts that have both sides in one process."""
    return {name: value for name, value in os.environ.items() if name not in MAPPED}


class Worker:
    """The other end of bench.worker."""

    def __init__(self, library: str, threads: int) -> None:
        self.library = library
        env = {**unmapped(), **(MAPPED if library != "elman" else {}), "OMP_NUM_THREADS": str(threads)}
        command = [sys.executable, "-m", "bench.worker", library, str(threads)]
        self.process = subprocess.Popen(command, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, **order: Any) -> Any:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"the worker for {self.library} ended; what it said stands above")
        return json.loads(answer)

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


class Timing(NamedTuple):
    seconds: float  # per call
    faults: float  # page faults per call
    load: float  # the share of the processor that others had meanwhile


class Round(NamedTuple):
    ours: Timing
    peer: Timing

    @property
    def quiet(self) -> bool:
        return max(self.ours.load, self.peer.load) < 0.1


@dataclass
class Timed:
    """A case in its worker, by which clock it is timed, and how often it is called to be timed once."""

    worker: Worker
    case: Case
    clock: str = "seconds"  # or processor
    repeats: int = 1

    def time(self) -> Timing:
        before, begin = _busy(), time.perf_counter()
        mine = _cpu(self.worker.process.pid)
        result = self.worker.ask(do="time", case=self.case, repeats=self.repeats)
        wall = time.perf_counter() - begin
        others = (_busy() - before) - (_cpu(self.worker.process.pid) - mine)
        load = max(0.0, others - 0.02) / (wall * (os.cpu_count() or 1))
        return Timing(result[self.clock], result["faults"], load)

    def settle(self) -> float:
        """Repeats such that one timing takes at least 100 ms, most of it warm; the first timing warms up."""
        self.time()
        once = self.time().seconds
        self.repeats = math.ceil(0.1 / once)
        return once * self.repeats


def _busy() -> float:
    """Seconds that all processors together were busy, since the start of the machine."""
    fields = [int(n) for n in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    idle = fields[3] + fields[4]
    return float(sum(fields[:8]) - idle) / os.sysconf("SC_CLK_TCK")


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _difference(ours: Path, theirs: Path) -> str:
    """What differs by more than float32 sums in another order may; empty if nothing does."""
    a, b = np.load(ours), np.load(theirs)
    if a.files and not set(a) & set(b):  # what is counted has none
        return f"it has no output of ours, which are {', '.join(a)}"
    for name in sorted(set(a) & set(b)):
        scale = float(np.abs(b[name]).max()) or 1.0
        worst = float(np.abs(a[name] - b[name]).max()) / scale
        if not worst < 2e-3:
            return f"its `{name}` differs from ours by {worst:.1e} of the largest value"
    return ""


def _prepare(row: Row, workers: dict[str, Worker], folder: Path) -> tuple[Timed, list[Timed]]:
    clock = "processor" if row.threads == 1 else "seconds"
    ours = Timed(workers["elman"], row.ours, clock)
    ours.worker.ask(do="prepare", case=row.ours, path=str(folder / "ours.npz"))
    peers = []
    for i, (library, case) in enumerate(row.peers):
        path = folder / f"peer{i}.npz"
        workers[library].ask(do="prepare", case=case, path=str(path))
        same = library != "elman" and case["family"] == row.ours["family"]  # else it is a yardstick, not a peer
        why = _difference(folder / "ours.npz", path) if same else ""
        if why:
            print(f"{row.name}: {library} {case.get('how', '')} is not timed: {why}", file=sys.stderr, flush=True)
        else:
            peers.append(Timed(workers[library], case, clock))
    if not peers:
        raise SystemExit(f"{row.name}: no peer computes what we do")
    return ours, peers


def measure(row: Row, workers: dict[str, Worker], rounds: int) -> Result:
    """So many quiet rounds, or as many as there is time for, which are five at least if so many are asked for."""
    with tempfile.TemporaryDirectory() as folder:
        ours, peers = _prepare(row, workers, Path(folder))
    if row.counted:
        mine, theirs = (float(t.worker.ask(do="count", case=t.case)) for t in (ours, *peers))
        return result(row.name, _label(row, peers[0]), [mine], [theirs], row.must, row.aim, unit="MB")
    spent = {id(t): t.settle() for t in (ours, *peers)}
    peer = _fastest(peers)
    wanted = min(rounds, max(5, int(SECONDS / (spent[id(ours)] + spent[id(peer)]))))
    taken: list[Round] = []
    while sum(r.quiet for r in taken) < wanted and len(taken) < 2 * wanted:
        time.sleep(SETTLE)
        mine = ours.time()
        time.sleep(SETTLE)
        taken.append(Round(mine, peer.time()))
    for t in (ours, *peers):
        t.worker.ask(do="drop", case=t.case)
    quiet = [r for r in taken if r.quiet]
    used = quiet if len(quiet) > wanted // 2 else taken
    return _result(row, peer, used, used is quiet)


def _fastest(peers: list[Timed]) -> Timed:
    """The one that took least in the best of three timings."""
    return min(peers, key=lambda t: min(t.time().seconds for _ in range(3))) if len(peers) > 1 else peers[0]


def _result(row: Row, peer: Timed, used: list[Round], quiet: bool) -> Result:
    ours, theirs = [r.ours.seconds for r in used], [r.peer.seconds for r in used]
    if row.upper:  # per token
        theirs = [seconds * row.ours["T"] / peer.case["T"] for seconds in theirs]
    faults, peer_faults = (
        round(statistics.median(timing.faults for timing in side), 1)
        for side in ([r.ours for r in used], [r.peer for r in used])
    )
    tokens = row.ours["B"] * row.ours["T"] if row.ours["family"] == "lm" else 0
    return result(
        row.name, _label(row, peer), ours, theirs, row.must, row.aim, upper=row.upper, per_round=tokens,
        unit="tokens/s" if tokens else "ms", faults=faults, peer_faults=peer_faults, quiet=quiet,
    )  # fmt: skip


def _label(row: Row, peer: Timed) -> str:
    if "every" in peer.case:
        return "elman, Recompute"
    how = f"T = {peer.case['T']}" if row.upper else peer.case.get("how", "")
    return " ".join([peer.worker.library, how]).strip()


def processor() -> str:
    """Its name, which several kinds may share, and its kind."""
    lines = [line.split(":") for line in Path("/proc/cpuinfo").read_text().splitlines() if ":" in line]
    facts = {name.strip(): value.strip() for name, value, *_ in reversed(lines)}
    name = facts.get("model name") or platform.processor()
    return f"{name}, family {facts.get('cpu family', '?')}, model {facts.get('model', '?')}"


PEERS = (
    "torch",
    "jax",
    "onnxruntime",
    "numpy",
    "hmmlearn",
    "dynamax",
    "mambapy",
    "pytorch-crf",
    "fastapi",
    "transformers",
)


def machine() -> dict[str, Any]:
    versions = {}
    for name in PEERS:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "not installed"
    return {"processor": processor(), "cores": os.cpu_count(), "system": platform.platform(), **versions}


def run(rows: list[Row], rounds: int, report: Callable[[Result], None]) -> list[Result]:
    """Measure row by row. Workers stay for the rows that follow; one with nothing to do waits, asleep."""
    workers: dict[tuple[str, int], Worker] = {}
    results = []
    try:
        for row in rows:
            here = {}
            for library in ("elman", *(library for library, _ in row.peers)):
                key = (library, row.threads)
                here[library] = workers[key] = workers.get(key) or Worker(*key)
            results.append(measure(row, here, rounds))
            report(results[-1])
    finally:
        for worker in workers.values():
            worker.close()
    return results


def main() -> None:
    flags = parser("kernels", __doc__, 24)
    flags.add_argument("--only", nargs="+", default=[""], metavar="TEXT", help="rows whose name contains one of these")
    flags.add_argument("--families", nargs="+", default=list(FAMILIES), choices=list(FAMILIES), help="which")
    options = flags.parse_args()
    rows = [r for family in options.families for r in FAMILIES[family] if any(text in r.name for text in options.only)]
    if not rows:
        names = "\n".join(r.name for family in options.families for r in FAMILIES[family])
        raise SystemExit(f"no row contains {options.only}; the names are:\n{names}")
    report = Report(options.json)
    run(rows, options.rounds, report.add)
    report.end()


if __name__ == "__main__":
    main()
