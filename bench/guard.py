"""Is anything slower than it was? `python -m bench.guard` (`make bench-guard`): a few rows of each family.

Each row is a ratio to a peer in the same run, measured as bench.kernels measures; the peers are Torch and hmmlearn,
which the tests need too. bench/guard.json holds the ratios of each instruction set as they were last written
(`--write`). A row has fallen if its ratio is below the stored one by more than the spread: the wider of the two ranges
between quartiles. A row that has fallen is measured once more, and counts if it has fallen again. It takes under three
minutes on two quiet cores; a machine that does something else meanwhile proves nothing.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from bench import language_model
from bench.hmm import rows as hmm_rows
from bench.kernels import machine, run
from bench.rows import Case, Row, gated, shape
from elman import kernels

TABLE = Path(__file__).with_name("guard.json")
ROUNDS = 12
LINE = "{:52} {:>8} {:>16} {:>8} {:>10}  {}"
# What has no peer in Torch is held against a product, which tells how fast the machine is.
PRODUCT: Case = {"family": "product", "mode": "forward", "M": 8192, "K": 256, "N": 768}


def _torch(name: str, case: Case, peer: Case | None = None, threads: int = 2, mapped: bool = False) -> Row:
    return Row(name, case, (("torch", peer or case),), None, None, threads=threads, mapped=mapped)


def _gated() -> list[Row]:
    small, wide = (16, 200, 128, 128), (32, 64, 256, 256)
    chosen = [("train", cell, small) for cell in ("tanh", "gru", "lstm", "lstm_norm")]
    chosen += [("train", "lstm", wide), ("forward", "gru", small), ("forward", "lstm", small)]
    rows = [_torch(f"{mode} {cell} ({shape(*sizes)})", gated(cell, mode, *sizes)) for mode, cell, sizes in chosen]
    ragged = {"family": "ragged", "mode": "train", "B": 32, "T": 50, "D": 128, "K": 128}
    return [*rows, _torch("train ragged bidirectional lstm (32,50,128,128)", ragged)]


def _scans() -> list[Row]:
    rows = []
    for number in ("real", "complex"):
        case = {"family": "scan", "number": number, "mode": "train", "B": 8, "T": 1024, "C": 256, "how": "loop"}
        # With fresh memory, page faults take longer than the scan, now and then.
        rows.append(_torch(f"train {number} scan (8,1024,256), mapped memory", case, mapped=True))
    mamba = {"family": "mamba", "mode": "train", "B": 8, "T": 256, "D": 128}
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
    generate = language_model.GENERATE  # as it was when the ratios were stored: the peer on two threads
    peer = (("lm_torch", {**generate, "threads": 2}),)
    return [*hmm, train, Row(language_model.NAME, generate, peer, None, None)]


ROWS = [*_gated(), *_scans(), *_streams(), *_models()]


def measured(rows: list[Row], report: Any) -> dict[str, dict[str, Any]]:
    """Each row by name: ratio and quartiles."""
    results = {}
    for row in rows:
        lm = row.ours["family"] == "lm"
        (result,) = [language_model.run(row, ROUNDS)] if lm else run([row], ROUNDS, lambda r: None)
        results[row.name] = {"ratio": result["ratio"], "spread": result["spread"], "quiet": result["quiet"]}
        report(row.name, results[row.name])
    return results


def fallen(before: dict[str, Any] | None, now: dict[str, Any]) -> bool:
    """Whether a ratio is lower than it was, by more than the wider of the two spreads."""
    if before is None:
        return False
    spread = max(high - low for low, high in (before["spread"], now["spread"]))
    return bool(now["ratio"] < before["ratio"] - spread)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.guard", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="store the ratios as those to compare with")
    parser.add_argument("--json", action="store_true", help="the rows as JSON alone on standard output")
    options = parser.parse_args()
    tables: dict[str, Any] = json.loads(TABLE.read_text()) if TABLE.exists() else {}
    stored: dict[str, Any] = tables.get(kernels.isa(), {}).get("rows", {})
    messages = sys.stderr if options.json else sys.stdout
    print(json.dumps(machine()), file=messages)
    print(LINE.format("row", "ratio", "quartiles", "stored", "change", ""), file=messages)

    def report(name: str, now: dict[str, Any]) -> None:
        before = stored.get(name)
        quartiles = "{:.2f} to {:.2f}".format(*now["spread"])
        change = "" if before is None else f"{now['ratio'] / before['ratio'] - 1:+.0%}"
        verdict = ("FELL" if fallen(before, now) else "") + ("" if now["quiet"] else " (the machine was busy)")
        old = "" if before is None else f"{before['ratio']:.2f}"
        print(LINE.format(name, f"{now['ratio']:.2f}", quartiles, old, change, verdict), file=messages, flush=True)

    results = measured(ROWS, report)
    again = [row for row in ROWS if fallen(stored.get(row.name), results[row.name])]
    if again:
        print("once more, what fell:", file=messages)
        results |= measured(again, report)
    slower = [row.name for row in again if fallen(stored.get(row.name), results[row.name])]
    if options.json:
        print(json.dumps(results, indent=1))
    if options.write:
        tables[kernels.isa()] = {"processor": machine()["processor"], "rows": results}
        TABLE.write_text(json.dumps(tables, indent=1) + "\n")
    print(
        f"{len(slower)} of {len(ROWS)} rows are slower than they were" + "".join(f"\n  {n}" for n in slower),
        file=messages,
    )
    return 1 if slower else 0


if __name__ == "__main__":
    raise SystemExit(main())
