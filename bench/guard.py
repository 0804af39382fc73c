"""Is anything slower than it was? `python -m bench.guard` (`make bench-guard`): a few rows of each family.

Each row is a ratio to a peer in the same run, measured as bench.kernels measures; the peers are Torch and hmmlearn,
which the tests need too. All rows are measured in several passes, each with new processes: a row's ratio is the median
over the passes of the ratio of both sides' best rounds, and its standard error is that of this median. (Medians of
rounds within one pair of processes came out up to 30 % apart in rows on two threads: where another process runs for
some milliseconds, our teams of threads work on one thread for a while, which the peers' do not. Best rounds do not meet
it.) bench/guard.json holds the ratios of each instruction set and
processor as they were last written, and why (`--write WHY`, which goes into the message of the commit too). A row has
fallen if its ratio is below the stored one by more than three standard errors of the difference, and by more than 3 %;
or if its calls have page faults, and had none, or have twice as many. It is then measured once more, and counts if it
has fallen again. Where nothing is stored nothing can fall, and the guard fails. It takes under four minutes on two
quiet cores; a machine that does something else meanwhile proves nothing, and what it gives is not stored.
"""

import argparse
import json
import math
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench import language_model
from bench.hmm import rows as hmm_rows
from bench.kernels import machine, processor, run
from bench.rows import Case, Row, gated, shape
from bench.turns import Result
from elman import kernels

TABLE = Path(__file__).with_name("guard.json")
PASSES, ROUNDS = 4, 4
ERRORS = 3.0  # standard errors of a difference that are hardly an accident
LEAST = 0.03  # a fall that is worth a look; of four passes the standard error is itself uncertain
MEDIAN = math.sqrt(math.pi / 2)  # its standard error over that of the mean
LINE = "{:56} {:>8} {:>8} {:>8} {:>8} {:>7} {}"
# What has no peer in Torch is held against a product, which tells how fast the machine is.
PRODUCT: Case = {"family": "product", "mode": "forward", "M": 8192, "K": 256, "N": 768}


def _on_one_thread(row: Row) -> Row:
    return replace(row, name=f"{row.name}, 1 thread", threads=1)


def _torch(name: str, case: Case, peer: Case | None = None, threads: int = 2) -> Row:
    return Row(name, case, (("torch", peer or case),), None, None, threads=threads)


def _gated() -> list[Row]:
    small, wide = (16, 200, 128, 128), (32, 64, 256, 256)
    chosen = [("train", cell, small) for cell in ("tanh", "gru", "lstm", "lstm_norm")]
    chosen += [("train", "lstm", wide), ("forward", "gru", small), ("forward", "lstm", small)]
    rows = [_torch(f"{mode} {cell} ({shape(*sizes)})", gated(cell, mode, *sizes)) for mode, cell, sizes in chosen]
    ragged = {"family": "ragged", "mode": "train", "B": 32, "T": 50, "D": 128, "K": 128}
    one = [r for r in rows if r.name in (f"train lstm ({shape(*small)})", f"forward gru ({shape(*small)})")]
    return [*rows, _torch("train ragged bidirectional lstm (32,50,128,128)", ragged), *map(_on_one_thread, one)]


def _scans() -> list[Row]:
    rows = []
    for number in ("real", "complex"):
        case = {"family": "scan", "number": number, "mode": "train", "B": 8, "T": 1024, "C": 256, "how": "loop"}
        rows.append(_torch(f"train {number} scan (8,1024,256)", case))
    mamba = {"family": "mamba", "mode": "train", "B": 8, "T": 256, "D": 128}
    rows.append(_on_one_thread(rows[0]))
    return [*rows, _torch("train mamba (8,256,128) beside a product", mamba, PRODUCT)]


def _streams() -> list[Row]:
    rows = []
    for cell in ("gru", "lstm"):
        case = {"family": "stream", "cell": cell, "mode": "step", "B": 1, "T": 1, "D": 128, "K": 128}
        rows.append(_torch(f"stream step {cell} (1,1,128,128)", case, threads=1))
    return rows


def _models() -> list[Row]:
    hmm = [r for r in hmm_rows() if "1 x 10000," in r.name and "float64" in r.name]
    train = next(r for r in language_model.ROWS if "train gru" in r.name)
    generate = language_model.GENERATE
    peer = (("torch", {**generate, "threads": 1}),)  # its better number; on two threads it jumps
    return [*hmm, train, Row(language_model.NAME, generate, peer, None, None)]


ROWS = [*_gated(), *_scans(), *_streams(), *_models()]


Measured = dict[str, Any]  # ratio, its standard error, page faults, passes, and whether the machine was quiet


def measure(rows: list[Row], report: Callable[[str, Measured], None]) -> dict[str, Measured]:
    """Each row by name."""
    passes = [run(rows, ROUNDS, lambda r: None) for _ in range(PASSES)]
    results = {}
    for row, found in zip(rows, zip(*passes, strict=True), strict=True):
        results[row.name] = over_passes(found)
        report(row.name, results[row.name])
    return results


def over_passes(found: Sequence[Result]) -> Measured:
    """A row as several passes have it."""
    ratios = [r["best"] for r in found]
    return {
        "ratio": round(statistics.median(ratios), 3),
        "error": MEDIAN * statistics.stdev(ratios) / math.sqrt(len(ratios)),
        "passes": ratios,
        "faults": statistics.median(r["faults"] for r in found),
        "quiet": all(r["quiet"] for r in found),
    }


def fallen(before: Measured | None, now: Measured) -> str:
    """How a row is worse than it was, empty if it is not."""
    if before is None:
        return ""
    fall = before["ratio"] - now["ratio"]
    slower = fall > ERRORS * math.hypot(before["error"], now["error"]) and fall > LEAST * before["ratio"]
    faults = now["faults"] >= 1 and (before["faults"] < 1 or now["faults"] > 2 * before["faults"])
    return " and ".join(what for what, happened in (("SLOWER", slower), ("PAGE FAULTS", faults)) if happened)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.guard", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--write", metavar="WHY", help="store the ratios as those to compare with, and why they are new"
    )
    parser.add_argument("--json", action="store_true", help="the rows as JSON alone on standard output")
    options = parser.parse_args()
    tables: dict[str, Any] = json.loads(TABLE.read_text()) if TABLE.exists() else {}
    key = f"{kernels.isa()}, {processor()}"
    table = tables.get(key, {})
    stored: dict[str, Measured] = table.get("rows", {})
    messages = sys.stderr if options.json else sys.stdout
    here = machine()
    print(json.dumps(here), file=messages)
    if not stored:
        print(f"no ratios are stored for {key}; --write WHY stores these", file=messages)
    elif others := sorted(name for name in here if here[name] != table["machine"].get(name)):
        print(f"the ratios were stored with other versions of {', '.join(others)}", file=messages)
    print(LINE.format("row", "ratio", "error", "stored", "change", "faults", ""), file=messages)

    def report(name: str, now: Measured) -> None:
        before = stored.get(name)
        old, change = (
            ("", "") if before is None else (f"{before['ratio']:.2f}", f"{now['ratio'] / before['ratio'] - 1:+.0%}")
        )
        verdict = fallen(before, now) + ("" if now["quiet"] else " (the machine was busy)")
        cells = (
            f"{now['ratio']:.2f}",
            f"{now['error'] / now['ratio']:.1%}",
            old,
            change,
            f"{now['faults']:g}",
        )
        print(LINE.format(name, *cells, verdict), file=messages, flush=True)

    results = measure(ROWS, report)
    again = [row for row in ROWS if fallen(stored.get(row.name), results[row.name])]
    if again:
        print("once more, what fell:", file=messages)
        results |= measure(again, report)
    worse = [row.name for row in again if fallen(stored.get(row.name), results[row.name])]
    if options.json:
        print(json.dumps(results, indent=1))
    noisy = [name for name, now in results.items() if not now["quiet"]]
    if options.write and noisy:
        print(f"nothing is stored: the machine was busy at {', '.join(noisy)}", file=messages)
        return 1
    if options.write:
        tables[key] = {"why": options.write, "machine": here, "rows": results}
        TABLE.write_text(json.dumps(tables, indent=1) + "\n")
        return 0
    print(
        f"{len(worse)} of {len(ROWS)} rows are worse than they were" + "".join(f"\n  {n}" for n in worse),
        file=messages,
    )
    return 1 if worse or not stored else 0


if __name__ == "__main__":
    raise SystemExit(main())
