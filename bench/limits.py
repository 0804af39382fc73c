"""How near our side of a row is to what the machine can do: its multiply-adds, or the bytes that it reads and writes.

A row whose products are large is held against the fastest product of the same run, ours or a peer's on the same
instruction set; a row that reads its weights once for each step against Torch's fastest matrix-vector product over the
weights of a step, those of the input included (part `memory`), and a linear scan against the sum of two arrays as large
as its own: what Torch reaches, which a row may exceed. Multiply-adds are those of the products alone: gates and norms
take time too, and count nothing here, so that no row comes to 100 %; "all" is the ratio of one that did.

`python -m bench.limits` measures the part `memory`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from bench.inputs import GATES, lengths
from bench.rows import FAMILIES, Case
from bench.turns import Report, Result, figure, in_turn, parser

CASES = {row.name: row.ours for rows in FAMILIES.values() for row in rows}
WIDTHS = (64, 128, 256, 512)  # of a matrix-vector product: 4 gates of so many units over as many inputs and states
PRODUCT = "product (8192x256) by (256x768)"


def multiply_adds(case: Case) -> int | None:
    """Of the matrix products of a case whose time is mostly theirs; None of others."""
    if case["family"] == "product":
        return int(case["M"] * case["K"] * case["N"])
    if case["family"] not in ("gated", "ragged") or case["mode"] not in ("forward", "train") or case["B"] == 1:
        return None
    both = case["family"] == "ragged"  # two directions, over the valid steps
    steps = 2 * int(lengths(case["B"], case["T"]).sum()) if both else case["B"] * case["T"]
    gates = GATES["lstm" if both else case["cell"]]
    passes = 3 if case["mode"] == "train" else 1  # forward; the gradients of what is read; those of the weights
    return int(passes * steps * gates * case["K"] * (case["D"] + case["K"]))


def bytes_moved(case: Case) -> int | None:
    """Of weights that each step reads anew, or of the arrays of a linear scan; None of others."""
    if case["family"] == "stream":
        return int(4 * GATES[case["cell"]] * case["K"] * (case["D"] + case["K"]))
    if case["family"] == "gated" and case["B"] == 1 and case["mode"] == "forward":  # inputs are projected many at once
        return int(4 * case["T"] * GATES[case["cell"]] * case["K"] * case["K"])
    if case["family"] != "scan":
        return None
    number = 4 if case["number"] == "real" else 8
    of_a = 1 if case["number"] == "real" else 0  # complex: one a for each channel
    arrays = 2 + of_a if case["mode"] == "forward" else (2 + of_a) + (3 + 2 * of_a)  # b, h; then h, gy, gb, and a, ga
    return int(number * arrays * case["B"] * case["T"] * case["C"])


def share(row: Result, rows: list[Result]) -> str:
    """What a row reaches of the machine's speed, as the other rows of the run show that; empty if they do not."""
    case, by_name = CASES.get(row["name"]), {other["name"]: other for other in rows}
    if case is None or row["unit"] != "ms":
        return ""
    work, moved = multiply_adds(case), bytes_moved(case)
    if work is not None and PRODUCT in by_name:
        products = [by_name[name] for name in (PRODUCT, f"{PRODUCT}, torch") if name in by_name]
        best = min(p["ours"] if p["free"] else min(p["ours"], p["theirs"]) for p in products)
        fastest = multiply_adds(CASES[PRODUCT]) / best  # type: ignore[operator]
        part, bound = work / row["ours"] / fastest, row["ratio"] * row["ours"] * fastest / work
        return f"{part:.0%} of the products' {fastest / 1e6:.0f} G multiply-adds a second; all: {bound:.2f}"
    known = {name: other["ours"] for name, other in by_name.items() if other["unit"] == "GB/s"}
    if moved is not None and known:
        name = _name(case)
        speed = moved / row["ours"] / 1e6
        return f"{speed:.0f} GB/s; {known[name]:.0f} by {name}" if name in known else ""
    return ""


def _name(case: Case) -> str:
    """The row of `memory` that a case is held against."""
    if case["family"] in ("stream", "gated"):
        return f"matrix-vector product, {GATES[case['cell']]} x {case['K']} rows of {case['D'] + case['K']}"
    return f"sum of arrays of {case['B'] * case['T'] * case['C']:,} numbers, 2 threads"


def measure(rounds: int) -> list[Result]:
    """Gigabytes a second of Torch's fastest ways through memory, outputs being there."""
    steps, names, amounts, repeats = [], [], [], []
    for gates in (3, 4):
        for width in WIDTHS:
            weights, x = torch.randn(gates * width, 2 * width), torch.randn(2 * width)
            out = torch.empty(gates * width)
            steps.append(lambda w=weights, x=x, out=out: torch.mv(w, x, out=out))
            names.append(f"matrix-vector product, {gates} x {width} rows of {2 * width}")
            amounts.append(4 * weights.numel())
            repeats.append(200)
    sizes = sorted({c["B"] * c["T"] * c["C"] for c in CASES.values() if c["family"] == "scan"})
    for size in sizes:
        a, b, out = torch.ones(size), torch.ones(size), torch.empty(size)
        steps.append(lambda a=a, b=b, out=out: torch.add(a, b, out=out))
        names.append(f"sum of arrays of {size:,} numbers, 2 threads")
        amounts.append(12 * size)
        repeats.append(4)
    results = []
    for step, name, amount, times in zip(steps, names, amounts, repeats, strict=True):
        torch.set_num_threads(2 if "threads" in name else 1)

        def run(step: Any = step, times: int = times) -> None:
            for _ in range(times):
                step()

        [seconds] = in_turn([run], rounds)
        results.append(figure(name, times * amount / float(np.min(seconds)) / 1e9, "GB/s"))
    return results


def main() -> int:
    options = parser("limits", __doc__, 10).parse_args()
    report = Report(options.json)
    report.add(*measure(options.rounds))
    report.end()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
