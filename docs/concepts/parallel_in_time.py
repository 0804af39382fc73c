"""The figures of parallel-in-time.md: the rounds of a prefix scan, and Newton iterations against T, with their table.

python docs/concepts/parallel_in_time.py
"""

from pathlib import Path

import torch
from figures import BLUE, COLOURS, GREEN, INK, canvas, save

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


def draw_rounds(T: int = 8) -> None:
    """Which steps each round combines: after the first a result covers 2 steps, then 4, then all 8."""
    figure, (axes,) = canvas(width=6, height=2.6)
    for round in range(T.bit_length()):
        for t in range(T):
            covered = min(t + 1, 2**round)
            done = covered == t + 1
            axes.plot(t, -round, "o", ms=13, color=GREEN if done else BLUE)
            axes.text(t, -round, str(covered), color="white", ha="center", va="center", fontsize=8)
            if round:
                distance = 2 ** (round - 1)
                for source in {t, t - distance} - set(range(-T, 0)):
                    axes.plot([source, t], [1 - round - 0.13, -round + 0.13], color=INK, lw=0.8, zorder=0)
    axes.set(xticks=range(T), xlabel="step", ylabel="round", xlim=(-0.5, T - 0.5), ylim=(0.4 - T.bit_length(), 0.4))
    axes.set_yticks([-round for round in range(T.bit_length())], [str(round) for round in range(T.bit_length())])
    save(figure, Path(__file__).with_name("parallel-in-time-rounds.svg"))


def main() -> None:
    draw_rounds()
    figure, (axes,) = canvas()
    print("| cell | Jacobian | " + " | ".join(f"T = {T}" for T in LENGTHS) + " | largest error | fallbacks |")
    print("|---" * (4 + len(LENGTHS)) + "|")
    for i, name in enumerate(CELLS):
        for jacobian, line in (("full", "-"), ("diagonal", "--")):
            results = [solved(name, T, jacobian) for T in LENGTHS]
            counts = [n if not fallbacks else float("nan") for n, fallbacks, _ in results]  # a fallback is no result
            axes.plot(LENGTHS, counts, f"{line}o", color=COLOURS[i], markersize=4, label=f"{name}, {jacobian}")
            cells = [str(n) if not fallbacks else f"not in {LIMIT}" for n, fallbacks, _ in results]
            worst, fallbacks = max(error for *_, error in results), sum(n for _, n, _ in results)
            print(f"| {name} | {jacobian} | {' | '.join(cells)} | {worst:.0e} | {fallbacks} of {B * len(LENGTHS)} |")
    axes.plot(LENGTHS, LENGTHS, ":", color=INK, label="as many as steps: no gain")
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="length of the sequence (T)",
        ylabel="Newton iterations",
        xticks=LENGTHS,
        ylim=(1, 300),
    )
    axes.set_xticks(LENGTHS, [str(T) for T in LENGTHS])
    axes.minorticks_off()
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5), labelcolor=INK)
    save(figure, Path(__file__).with_name("parallel-in-time.svg"))


if __name__ == "__main__":
    main()
