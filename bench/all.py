"""Every table of the benchmarks, on one commit: `python -m bench.all [PART ...] [--isa avx2] [--again] [--list]`.

Runs the parts one after the other, each in a process of its own, and keeps what they say in bench/results/ISA.json;
then `python -m bench.tables` writes the tables of the pages from it. A part that is measured already at this commit, on
this machine, is not measured again unless --again is given, so that a run can be cut short and resumed, or made in
pieces:

    python -m bench.all training inference && python -m bench.all

The commit is the last one that changed what is measured (src, csrc, bench), not the one that stores results. With --isa
the kernels run on that instruction set, and the peers are held to it as far as they can be (bench/__init__.py).
About half an hour for an instruction set; nothing else may run meanwhile.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench import HELD
from bench.rows import FAMILIES

RESULTS = Path(__file__).with_name("results")
ROOT = Path(__file__).parent.parent
MEASURED = ["src", "csrc", "bench", ":!bench/results", ":!bench/guard.json", "CMakeLists.txt", "constraints.txt"]

# By name: the module, and what it is given. Rounds such that the whole takes about half an hour; quartiles tell.
PARTS: dict[str, list[str]] = {
    **{family: ["kernels", "--families", family, "--rounds", "10"] for family in FAMILIES},
    "memory": ["limits", "--rounds", "10"],
    "language_model": ["language_model", "--rounds", "12"],
    "hmm": ["hmm", "--rounds", "8"],
    "large_vocabulary": ["large_vocabulary", "--rounds", "5"],
    "busy": ["busy", "--rounds", "3"],
    "first_step": ["first_step", "--rounds", "5"],
    "tagging": ["tagging", "--rounds", "10"],
    "lens": ["lens", "--rounds", "3"],
    "forecasting": ["forecasting", "--rounds", "8"],
    "translation": ["translation", "--rounds", "10"],
    "images": ["images", "--rounds", "9"],
    "trees": ["trees", "--rounds", "20"],
    "serving": ["serving", "--rounds", "3", "--seconds", "1.5"],
}


# Both sides in this part's own process (of hmm, the whole fits): there ours keeps its memory mapped too.
ONE_PROCESS = {"hmm", "tagging", "lens", "forecasting", "translation", "images", "trees"}


def commit(measured: Sequence[str] = MEASURED) -> str:
    """The last one that changed what is measured, with a + if there are changes since that are not committed."""

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", *words, "--", *measured], cwd=ROOT, check=True, capture_output=True, text=True
        ).stdout

    return git("log", "-1", "--format=%h").strip() + ("+" if git("status", "--porcelain").strip() else "")


def stored(isa: str) -> dict[str, Any]:
    path = RESULTS / f"{isa}.json"
    return json.loads(path.read_text()) if path.exists() else {"isa": isa, "machine": {}, "parts": {}}


def measure(part: str, isa: str) -> list[dict[str, Any]] | None:
    """The rows of a part; None if it failed, having said why."""
    from bench.kernels import MAPPED

    module, *flags = PARTS[part]
    env = {**os.environ, **(MAPPED if part in ONE_PROCESS else {}), "ELMAN_ISA": isa}
    command = [sys.executable, "-m", f"bench.{module}", "--json", *flags]
    done = subprocess.run(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True)
    return None if done.returncode else json.loads(done.stdout)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.all", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"which of {', '.join(PARTS)}; all if none is named")
    parser.add_argument("--isa", help="avx2 or avx512; what the machine has if none is named")
    parser.add_argument("--again", action="store_true", help="measure parts that are measured at this commit, too")
    parser.add_argument("--list", action="store_true", help="say what is measured at which commit, and measure nothing")
    options = parser.parse_args()
    unknown = set(options.parts) - set(PARTS)
    if unknown:
        parser.error(f"no part is called {', '.join(sorted(unknown))}; the parts are {', '.join(PARTS)}")

    from bench.kernels import machine
    from elman import kernels

    isa, at, here = options.isa or kernels.isa(), commit(), machine()
    if at.endswith("+") and not options.list:
        parser.error("what is measured has changes that are not committed, so that no figure could name its commit")
    results = stored(isa)
    if results["machine"] != here:  # rows of two machines do not belong in one table
        results = {"isa": isa, "machine": here, "held": HELD if isa == "avx2" else {}, "parts": {}}
    parts, failed = results["parts"], []
    for part in options.parts or PARTS:
        known = parts.get(part, {})
        if options.list or (known.get("commit") == at and not options.again):
            print(f"{part}: {known.get('commit', 'not measured')} {known.get('date', '')}", file=sys.stderr)
            continue
        print(f"== {part}", file=sys.stderr, flush=True)
        begin, date = time.perf_counter(), datetime.now(UTC).strftime("%Y-%m-%d %H:%M")
        rows = measure(part, isa)
        if rows is None:
            failed.append(part)
            continue
        seconds = round(time.perf_counter() - begin)
        parts[part] = {"commit": at, "date": date, "seconds": seconds, "rows": rows}
        results["parts"] = {name: parts[name] for name in PARTS if name in parts}
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"{isa}.json").write_text(json.dumps(results, indent=1) + "\n")
        print(f"== {part}: {seconds} s", file=sys.stderr, flush=True)
    if failed:
        print(f"failed: {', '.join(failed)}; what they said is above", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
