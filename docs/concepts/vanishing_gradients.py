"""The figures and tables of vanishing-gradients.md: `python docs/concepts/vanishing_gradients.py`. It needs [plot].

The task: the first of 60 inputs says which of four classes the row has, the rest is noise; the answer comes at the end.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

import elman
from elman import lens
from elman.nn.readout import Pooled, Softmax

T, SIZE, CLASSES, BATCH, STEPS, EVERY = 60, 32, 4, 32, 300, 20
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


def model(name: str) -> elman.SequenceModel:
    torch.manual_seed(0)
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


NAMES = [
    "tanh, gain 0.7", "tanh, gain 1.0", "tanh, gain 1.5", "tanh, gain 1.5, not clipped", *FORGET,
    "LRU on a ring, 0.9 to 0.999",
]  # fmt: skip


def train(name: str, network: elman.SequenceModel) -> tuple[list[float], float]:
    """The accuracy on 256 rows after every 20 steps, and the largest gradient norm that there was."""
    optimiser: torch.optim.Optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    if "LRU" in name:  # as in its paper: nu and theta are logarithms, and steps of one size do not suit them and B
        optimiser = torch.optim.Adam(network.parameters(), lr=0.01)
    x, y = rows(10**6, 256)
    found, most = [], 0.0
    for step in range(STEPS):
        if step % EVERY == 0:
            with torch.no_grad():
                found.append(float((network.scan(x)[0].mode == y).float().mean()))
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


def main() -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    plt.rcParams.update({"svg.hashsalt": "elman", "svg.fonttype": "none", "font.size": 9})
    torch.set_num_threads(1)
    figures = [plt.subplots(figsize=(6.5, 3.6)) for _ in range(3)]
    (begins, at_first), (ends, at_last), (curves, accuracy) = figures
    disc, circles = plt.subplots(1, 4, figsize=(9, 2.6))
    header = [
        "network",
        "verdict at first",
        "half-life",
        "horizon",
        "exponent",
        "largest gradient",
        "accuracy",
        "horizon after",
    ]
    print("| " + " | ".join(header) + " |\n|" + "---|" * len(header))
    spectra = {}
    for i, name in enumerate(NAMES):
        network = model(name)
        before = look(network)
        history, most = train(name, network)
        after = look(network)
        spectra[name] = before.spectrum[0].values
        for axis, report in ((at_first, before), (at_last, after)):
            axis.plot(
                report.reach[0].tau,
                report.reach[0].relative,
                color=f"C{i}",
                label=name,
                ls="--" if "clip" in name else "-",
            )
        accuracy.plot(range(0, STEPS, EVERY), history, color=f"C{i}", label=name, ls="--" if "clip" in name else "-")
        r, later = before.reach[0], after.reach[0]
        top = next(iter(before.lyapunov.values()))[0]
        cells = [
            name,
            before.kind,
            number(r.half_life),
            str(r.horizon),
            f"{top:+.3f}",
            number(most),
            f"{history[-1]:.2f}",
            str(later.horizon),
        ]
        print("| " + " | ".join(cells) + " |", flush=True)
    for axis, title in ((at_first, "before training"), (at_last, "after training")):
        axis.set(
            xlabel="steps before the answer", ylabel="relative |dL/ds|", yscale="log", ylim=(1e-8, 1e2), title=title
        )
        axis.legend(fontsize=7, loc="lower left" if axis is at_first else "lower right")
    accuracy.set(xlabel="step", ylabel="accuracy", ylim=(0, 1.05), title="what is learnt of the first of 60 inputs")
    accuracy.legend(fontsize=7, loc="center right")
    turn = torch.linspace(0, 6.2832, 200)
    for axis, name in zip(circles, [*NAMES[:3], NAMES[-1]], strict=True):
        axis.plot(turn.cos(), turn.sin(), color="0.7", lw=0.8)
        axis.scatter(spectra[name].real, spectra[name].imag, s=8)
        axis.set(
            title=name.removesuffix(", 0.9 to 0.999"),
            aspect="equal",
            xlim=(-1.7, 1.7),
            ylim=(-1.7, 1.7),
        )
    for figure, name in ((begins, "first"), (ends, "after"), (curves, "learning"), (disc, "spectra")):
        figure.tight_layout()
        figure.savefig(HERE / f"vanishing-{name}.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
