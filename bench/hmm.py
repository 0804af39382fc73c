"""Hidden Markov models against hmmlearn and dynamax: `python -m bench.hmm [--json] [--only TEXT ...] [--rounds N]`.

Every library is given the same log-likelihoods: neither emissions nor M steps are timed. `em` is the expectation of
an EM iteration: posteriors and expected transitions. hmmlearn (one thread) is its scaled implementation in float64,
dynamax is jitted, float32, compiled beforehand; Elman runs in the dtype of its peer. bench.kernels does the measuring.
"""

import argparse
import importlib
import json
import resource
import subprocess
import sys
from typing import Any

from bench import kernels
from bench.rows import Row

SIZES = ((1, 100_000, 8), (1, 10_000, 64), (1, 2_000, 256), (1000, 200, 16))
# (hmmlearn, dynamax) by size, for score, posteriors and em; a viterbi must be 3 times hmmlearn's.
MUST = ((4, 2), (10, 5), (12, 10), (None, None))


def rows() -> list[Row]:
    table = []
    for (B, T, K), (hmmlearn, dynamax) in zip(SIZES, MUST, strict=True):
        for mode in ("score", "posteriors", "em", "viterbi"):
            for peer, dtype, must in (("hmmlearn", "float64", hmmlearn), ("dynamax", "float32", dynamax)):
                case = {"family": "hmm", "mode": mode, "B": B, "T": T, "K": K, "dtype": dtype}
                if mode == "viterbi":
                    must = 3 if peer == "hmmlearn" else None
                table.append(Row(f"{mode} {B} x {T}, K = {K}, {dtype}", case, ((peer, case),), must, must))
    return table


MEMORY = {"family": "hmm", "mode": "em", "B": 1, "T": 100_000, "K": 64, "dtype": "float64"}
MOST = 2.0  # our memory over hmmlearn's


def grown(library: str) -> float:
    """Megabytes by which the peak of this process grows in one expectation, its inputs being there already."""
    small = {**MEMORY, "T": 1000}
    module = importlib.import_module(f"bench.with_{library}")
    module.prepare(small, 1)[0]()  # what a library loads when it is first used is no cost of the data
    run, _ = module.prepare(MEMORY, 1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def memory() -> dict[str, Any]:
    """Peak memory of the expectation of an EM iteration, each library in a process of its own."""
    command = "from bench.hmm import grown; print(grown({!r}))"
    ours, theirs = (
        float(subprocess.run([sys.executable, "-c", command.format(name)], check=True, capture_output=True).stdout)
        for name in ("elman", "hmmlearn")
    )
    name = "memory of em, 1 x 100000, K = 64, float64"
    return {
        "name": name,
        "ours_mb": ours,
        "hmmlearn_mb": theirs,
        "ratio": ours / theirs,
        "reached": ours <= MOST * theirs,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.hmm", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="rows of JSON alone on standard output")
    parser.add_argument("--only", nargs="+", default=[""], metavar="TEXT", help="rows whose name contains one of these")
    parser.add_argument("--rounds", type=int, default=24, help="timings of each library in a row")
    options = parser.parse_args()
    chosen = [r for r in rows() if any(text in f"{r.name} {r.peers[0][0]}" for text in options.only)]
    messages = sys.stderr if options.json else sys.stdout
    print(kernels.FORMAT.format(*kernels.HEADER), file=messages)
    results = kernels.run(chosen, options.rounds, lambda r: print(kernels._line(r), file=messages, flush=True))
    if any(text in "memory" for text in options.only):
        results.append(memory())
        print("{name}: {ours_mb:.0f} MB, hmmlearn {hmmlearn_mb:.0f} MB".format(**results[-1]), file=messages)
    if options.json:
        print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
