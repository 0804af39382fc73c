"""Language models against torch.nn and ONNX Runtime: `python -m bench.language_model [--json] [--only TEXT ...]`.

Training: two layers of 256 units, 32 streams, windows of 128; the whole step, with clipping and AdamW. Generation:
batch 1, 100 tokens sampled after a prompt. Measured as bench.kernels measures: a process per library, rounds in turn.
"""

from bench import lm_inputs
from bench.kernels import run
from bench.rows import Case, Row
from bench.turns import Report, parser


def _train(cell: str) -> Case:
    return {"family": "lm", "mode": "train", "cell": cell, "B": 32, "T": 128}


GENERATE = {"family": "lm", "mode": "generate", "cell": "gru", "B": 1, "T": lm_inputs.TOKENS}
NAME = "lm generate gru 2 x 256, batch 1"


def _peers(library: str) -> tuple[tuple[str, Case], ...]:
    """A step of one row may be slower on two threads than on one: the faster of the two counts."""
    return tuple((library, {**GENERATE, "threads": n, "how": f"{n} thread{'s' * (n > 1)}"}) for n in (1, 2))


ROWS = [
    Row("lm train gru 2 x 256", _train("gru"), (("torch", _train("gru")),), 2.2, 3.0),
    Row("lm train lstm 2 x 256", _train("lstm"), (("torch", _train("lstm")),), 1.5, 2.0),
    Row(NAME, GENERATE, _peers("torch"), 4.0, 6.0),
    Row(NAME, GENERATE, _peers("onnxruntime"), 1.3, 2.0),
]


def main() -> None:
    flags = parser("language_model", __doc__, 24)
    flags.add_argument("--only", nargs="+", default=[""], metavar="TEXT", help="rows whose name or peer contains one")
    options = flags.parse_args()
    rows = [r for r in ROWS if any(text in f"{r.name} {r.peers[0][0]}" for text in options.only)]
    report = Report(options.json)
    run(rows, options.rounds, report.add)
    report.end()


if __name__ == "__main__":
    main()
