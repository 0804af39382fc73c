"""Language models against torch.nn and ONNX Runtime: `python -m bench.language_model [--json] [--only TEXT ...]`.

Training: two layers of 256 units, 32 streams, windows of 128; the whole step, with clipping and AdamW. Generation:
batch 1, 100 tokens sampled after a prompt. Measured as bench.kernels measures: a process per library, rounds in turn.
"""

import argparse
import json
import math
import sys
from typing import Any

from bench import lm_inputs
from bench.kernels import FORMAT, HEADER, Worker, _line, machine, measure
from bench.rows import Case, Row


def _train(cell: str) -> Case:
    return {"family": "lm", "mode": "train", "cell": cell, "B": 32, "T": 128}


GENERATE = {"family": "lm", "mode": "generate", "cell": "gru", "B": 1, "T": lm_inputs.TOKENS}
NAME = "lm generate gru 2 x 256, batch 1"


def _peers(library: str) -> tuple[tuple[str, Case], ...]:
    """A step of one row may be slower on two threads than on one: the faster of the two counts."""
    return tuple((library, {**GENERATE, "threads": n, "how": f"{n} thread{'s' * (n > 1)}"}) for n in (1, 2))


ROWS = [
    Row("lm train gru 2 x 256", _train("gru"), (("lm_torch", _train("gru")),), 2.2, 3.0),
    Row("lm train lstm 2 x 256", _train("lstm"), (("lm_torch", _train("lstm")),), 1.5, 2.0),
    Row(NAME, GENERATE, _peers("lm_torch"), 4.0, 6.0),
    Row(NAME, GENERATE, _peers("lm_onnxruntime"), 1.3, 2.0),
]


def run(row: Row, rounds: int, precision: float = math.inf) -> dict[str, Any]:
    """One row, with the tokens that each side does in a second."""
    workers = {"elman": Worker("lm_elman", row.threads, False)}
    workers |= {library: Worker(library, row.threads, False) for library, _ in row.peers}
    try:
        result = measure(row, workers, rounds, precision)
    finally:
        for worker in workers.values():
            worker.close()
    tokens = row.ours["B"] * row.ours["T"]
    speeds = {f"{who}_tokens_per_second": round(1e3 * tokens / result[f"{who}_ms"]) for who in ("ours", "peer")}
    return {**result, **speeds}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.language_model", description=__doc__)
    parser.add_argument("--json", action="store_true", help="rows of JSON alone on standard output")
    parser.add_argument("--only", nargs="+", default=[""], metavar="TEXT", help="rows whose name or peer contains one")
    parser.add_argument("--rounds", type=int, default=24, help="timings of each library in a row")
    options = parser.parse_args()
    rows = [r for r in ROWS if any(text in f"{r.name} {r.peers[0][0]}" for text in options.only)]
    messages = sys.stderr if options.json else sys.stdout
    print(json.dumps(machine()), FORMAT.format(*HEADER), sep="\n", file=messages)
    results = []
    for row in rows:
        results.append(run(row, options.rounds))
        speeds = " / ".join(f"{results[-1][f'{who}_tokens_per_second']:,}" for who in ("ours", "peer"))
        print(f"{_line(results[-1])}  {speeds} tokens/s", file=messages, flush=True)
    if options.json:
        print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
