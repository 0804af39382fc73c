"""The figures and tables of vanishing-gradients.md: `python docs/concepts/vanishing_gradients.py`. It needs [plot].

The task: the first of 60 inputs says which of four classes the row has, the rest is noise; the answer comes at the end.
"""

from __future__ import annotations

import statistics
from pathlib import Path

import torch
from figures import BLUE, GREEN, INK, ORANGE, RED, canvas, save
from torch import Tensor, nn

import elman
from elman import lens
from elman.nn.readout import Pooled, Softmax

T, SIZE, CLASSES, BATCH, STEPS, EVERY, SEEDS = 60, 32, 4, 32, 300, 20, 10
HERE = Path(__file__).parent
FORGET = {"LSTM, forget bias 0": 0.0, "LSTM, forget bias 1": 1.0, "LSTM, forget bias 5": 5.0}


def rows(seed: int, n: int) -> tuple[Tensor, Tensor]:
    """Inputs (n, T, 1 + classes) and classes (n,)."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(0, CLASSES, (n,), generator=generator)
    x = torch.zeros(n, T, 1 + CLASSES)
    x[..., 0] = torch.randn(n, T, generator=generator)
    x[torch.arange(n), 0, 1 + y] = 3.0
    return x, y


def model(name: str, seed: int) -> elman.SequenceModel:
    torch.manual_seed(seed)
    if name.startswith("tanh"):
        core: elman.Core = elman.cell("elman", 1 + CLASSES, SIZE)
        nn.init.orthogonal_(core.W, float(name.split()[2].rstrip(",")))  # type: ignore[arg-type]
    elif name in FORGET:
        core = elman.cell("lstm", 1 + CLASSES, SIZE, forget_bias=FORGET[name])
    else:
        core = elman.cell("lru", 1 + CLASSES, SIZE, r_min=0.9, r_max=0.999)
    return elman.SequenceModel(
        nn.Identity(), elman.Stack(core, elman.Pool("last", SIZE)), Pooled(Softmax(SIZE, CLASSES))
    )


LINES = {  # a colour for each family, a kind of line for each of its members
    "tanh, gain 0.7": (BLUE, "-"),
    "tanh, gain 1.0": (BLUE, "--"),
    "tanh, gain 1.5": (BLUE, ":"),
    "tanh, gain 1.5, not clipped": (RED, ":"),
    "LSTM, forget bias 0": (ORANGE, "-"),
    "LSTM, forget bias 1": (ORANGE, "--"),
    "LSTM, forget bias 5": (ORANGE, ":"),
    "LRU on a ring, 0.9 to 0.999": (GREEN, "-"),
}


def train(name: str, network: elman.SequenceModel) -> tuple[list[float], float]:
    """The accuracy on 256 rows after every 20 steps and the last, and the largest gradient norm that there was."""
    optimiser: torch.optim.Optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    if "LRU" in name:  # as in its paper: nu and theta are logarithms, and steps of one size do not suit them and B
        optimiser = torch.optim.Adam(network.parameters(), lr=0.01)
    x, y = rows(10**6, 256)
    found, most = [], 0.0
    for step in range(STEPS + 1):
        if step % EVERY == 0:
            with torch.no_grad():
                found.append(float((network.scan(x)[0].mode == y).float().mean()))
        if step == STEPS:
            break
        inputs, classes = rows(step, BATCH)
        optimiser.zero_grad()
        (-network.scan(inputs)[0].log_prob(classes).mean()).backward()
        clip = float("inf") if "not clipped" in name else 1.0
        most = max(most, float(nn.utils.clip_grad_norm_(network.parameters(), clip)))
        optimiser.step()
    return found, most


def look(network: elman.SequenceModel) -> lens.Report:
    return lens.inspect(network, *rows(7, 16), anchors=16)


def number(value: float) -> str:
    return "none" if value == float("inf") else f"{value:.3g}"


HEADER = (
    "network", "verdict at first", "half-life", "horizon", "exponent", "largest gradient", "mean accuracy", "solved",
    "horizon after",
)  # fmt: skip


def row(name: str, before: lens.Report, trained: list[tuple[list[float], float, lens.Report]]) -> str:
    """A line of the table: the first network as it is made, and all of them after training."""
    reach, top = before.reach[0], next(iter(before.lyapunov.values()))[0]
    last = [history[-1] for history, _, _ in trained]
    cells = [name, before.kind, number(reach.half_life), str(reach.horizon), f"{top:+.3f}"]
    cells += [number(statistics.median(most for _, most, _ in trained)), f"{statistics.mean(last):.2f}"]
    cells += [f"{sum(share > 0.95 for share in last)} of {SEEDS}"]
    return "| " + " | ".join([*cells, f"{statistics.median(after.reach[0].horizon for *_, after in trained):g}"]) + " |"


def main() -> None:
    torch.set_num_threads(1)
    print("| " + " | ".join(HEADER) + " |\n|" + "---|" * len(HEADER))
    (first, (at_first,)), (after_all, (at_last,)), (learning, (accuracy,)) = (canvas(width=7.5) for _ in range(3))
    spectra = {}
    for name, (colour, line) in LINES.items():
        before, trained = look(model(name, 0)), []
        for seed in range(SEEDS):
            network = model(name, seed)
            trained.append((*train(name, network), look(network)))
        spectra[name] = before.spectrum[0].values
        for axes, reach in ((at_first, before.reach[0]), (at_last, trained[0][2].reach[0])):
            if axes is at_last or "not clipped" not in name:  # before training it is the network that is clipped
                axes.plot(reach.tau, reach.relative, color=colour, ls=line, label=name)
        mean = torch.tensor([history for history, _, _ in trained]).mean(0)
        accuracy.plot(range(0, STEPS + 1, EVERY), mean, color=colour, ls=line, label=name)
        print(row(name, before, trained), flush=True)
    for axes in (at_first, at_last):
        axes.set(
            xlabel="steps before the answer", ylabel="relative size of the gradient", yscale="log", ylim=(1e-8, 1e2)
        )
    accuracy.set(xlabel="training step", ylabel="accuracy, mean of ten starts", ylim=(0, 1.05))
    for figure, axes, name in (
        (first, at_first, "first"),
        (after_all, at_last, "after"),
        (learning, accuracy, "learning"),
    ):
        axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5), labelcolor=INK)
        save(figure, HERE / f"vanishing-{name}.svg")
    draw_spectra(spectra)


def draw_spectra(spectra: dict[str, Tensor]) -> None:
    """The eigenvalues of the three tanh nets and of the LRU, each beside the unit circle."""
    figure, discs = canvas(4, width=8.5, height=2.6)
    turn = torch.linspace(0, 6.2832, 200)
    for axes, name in zip(discs, [*list(LINES)[:3], list(LINES)[-1]], strict=True):
        axes.plot(turn.cos(), turn.sin(), color=INK, lw=0.8)
        axes.plot(spectra[name].real, spectra[name].imag, ".", color=LINES[name][0], ms=5)
        axes.set(title=name.removesuffix(", 0.9 to 0.999"), aspect="equal", xlim=(-1.7, 1.7), ylim=(-1.7, 1.7))
        axes.set(xlabel="real part", xticks=(-1, 0, 1), yticks=(-1, 0, 1))
    discs[0].set_ylabel("imaginary part")
    save(figure, HERE / "vanishing-spectra.svg")


if __name__ == "__main__":
    main()
