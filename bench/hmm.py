"""Hidden Markov models against hmmlearn and dynamax: `python -m bench.hmm [--json] [--only TEXT ...] [--rounds N]`.

Every library is given the same log-likelihoods: neither emissions nor M steps are timed. `em` is the expectation of
an EM iteration: posteriors and expected transitions. hmmlearn (one thread) is its scaled implementation in float64,
dynamax is jitted, float32, compiled beforehand; Elman runs in the dtype of its peer. bench.kernels does the measuring.
"""

import argparse
import json
import sys

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
    if options.json:
        print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
