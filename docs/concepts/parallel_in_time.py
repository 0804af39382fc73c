"""The study docs/concepts/parallel-in-time.md: Newton iterations against T. Writes the figure, prints the table.

python docs/concepts/parallel_in_time.py
"""

from pathlib import Path

import torch

from elman import kernels
from elman.cells import cell

LENGTHS = (16, 64, 256, 1024, 4096)
B, D, H = 4, 8, 16
CELLS = {"tanh": "elman", "GRU": "gru", "LSTM": "lstm"}
LIMIT = 200


def solved(name: str, T: int, jacobian: str) -> tuple[int, int, float]:
    """The most iterations that a row took, how many rows fell back, and the largest distance from the loop."""
    torch.manual_seed(0)
    core = cell(CELLS[name], D, H).double()
    x, state = torch.randn(B, T, D, dtype=torch.float64), core.init_state(B)
    given = (core.step, x, state, state, torch.full((B,), T), torch.zeros(B, T, dtype=torch.bool), H)
    with torch.no_grad():
        y, _, report = kernels.newton_scan(*given, jacobian=jacobian, max_iterations=LIMIT)
        wanted, _ = kernels.loop(*given)
    return int(report.iterations.max()), int(report.fallback.sum()), float((y - wanted).abs().max())


def main() -> None:
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "elman"  # the same bytes each time
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 3.6))
    print("| cell | Jacobian | " + " | ".join(f"T = {T}" for T in LENGTHS) + " | largest error | fallbacks |")
    print("|---" * (4 + len(LENGTHS)) + "|")
    for i, name in enumerate(CELLS):
        for jacobian, line in (("full", "-"), ("diagonal", "--")):
            results = [solved(name, T, jacobian) for T in LENGTHS]
            counts = [n if not fallbacks else float("nan") for n, fallbacks, _ in results]  # a fallback is no result
            axes.plot(LENGTHS, counts, f"{line}o", color=f"C{i}", markersize=4, label=f"{name}, {jacobian}")
            cells = [str(n) if not fallbacks else f"not in {LIMIT}" for n, fallbacks, _ in results]
            worst, fallbacks = max(error for *_, error in results), sum(n for _, n, _ in results)
            print(f"| {name} | {jacobian} | {' | '.join(cells)} | {worst:.0e} | {fallbacks} of {B * len(LENGTHS)} |")
    axes.plot(LENGTHS, LENGTHS, ":", color="grey", label="one per step")
    axes.set(xscale="log", yscale="log", xlabel="T", ylabel="iterations", xticks=LENGTHS, ylim=(1, 300))
    axes.set_xticks(LENGTHS, [str(T) for T in LENGTHS])
    axes.minorticks_off()
    axes.legend(fontsize=7, ncols=2)
    figure.tight_layout()
    figure.savefig(Path(__file__).parent / "parallel-in-time.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
