"""What recurrence adds: a GRU, a window of five characters and a Markov model on the text that comes with Python.

Trains all three (about a minute on two cores), prints bits per character on text that none has seen, and a sample;
draws the learning curves and what the lens sees, and says what to do next. A second call resumes what is there.
"""

import sys
from pathlib import Path

from rich.bar import Bar
from rich.console import Console
from rich.table import Table

import elman
from elman.errors import ElmanError, MissingExtraError
from elman.tasks.text import lm, markov
from elman.tasks.text.data import TextDataConfig, open_splits
from elman.training.loop import TrainingConfig
from elman.training.optim import OptimConfig

OUT = Path("runs/demo")
DATA = TextDataConfig(train="embedded", batch_size=32, window=64)
NETWORKS = {
    "window of 5 characters": (lm.LMModelConfig(cell="window", size=256, layers=1, embedding_size=32), 1000),
    "gru, 2 x 256": (lm.LMModelConfig(cell="gru", size=256, layers=2, embedding_size=64, dropout=0.1), 2000),
}
NEXT = """
Look at {picture} (how they learnt) and open {page} (where the GRU's gradient dies).

What next?
  your own text       elman train --data.train FILE --out runs/mine           docs/start/text.md
  other data          labels, series, pairs, sensors, trees, images           docs/start/index.md
  serve this model    elman serve {run} (with the extra [serve])       docs/guides/serving.md"""


def network(name: str, out: str) -> lm.LMConfig:
    model, steps = NETWORKS[name]
    training = TrainingConfig(steps=steps, evaluate_every=250, checkpoint_every=100)
    return lm.LMConfig(data=DATA, model=model, optim=OptimConfig(lr=0.004), training=training, out=out, resume="auto")


def main() -> None:
    counted = markov.MarkovConfig(data=DATA, model=markov.MarkovModelConfig(order=5), out=str(OUT / "0"), resume="auto")
    configs = {"markov, 5 characters": counted, **{n: network(n, str(OUT / str(i))) for i, n in enumerate(NETWORKS, 1)}}
    scores, histories = {}, {}
    test = open_splits(DATA).test
    for name, config in configs.items():
        print(f"Training: {name}", flush=True)
        model, histories[name] = elman.train(config)
        scores[name] = model.evaluate(test).bits_per_character
    print("\nA sample of the GRU:\n\nThe " + model.generate("The ", max_new_tokens=400, temperature=0.7, seed=1))
    page = OUT / "report.html"
    elman.inspect(OUT / "2", rows=16, steps=200).save(page)
    draw(scores, histories)
    print(NEXT.format(picture=plot(histories), page=page, run=OUT / "2"))


def points(history: list[dict[str, float]]) -> list[tuple[int, float]]:
    """Characters read and bits per character on the validation text."""
    size = DATA.batch_size * DATA.window
    return [(line["step"] * size, line["bits_per_character"]) for line in history if "valid" in line]


def draw(scores: dict[str, float], histories: dict[str, list[dict[str, float]]]) -> None:
    """The result as bars, and how each network got there, in the terminal."""
    table = Table(title="Bits per character on text that no model has seen: fewer is better", title_justify="left")
    for heading in ("model", "", "bits", "while it trained"):
        table.add_column(heading)
    for name, bits in scores.items():
        curve = [value for _, value in points(histories[name])]
        steps = [int(8 * (value - 1) / (max(curve) - 1)) for value in curve] if len(curve) > 1 else []
        best = bits == min(scores.values())
        bar = Bar(3, 0, bits, width=40, color="green" if best else "yellow")
        table.add_row(name, bar, f"{bits:.3f}", "".join(" ▁▂▃▄▅▆▇█"[step] for step in steps))
    Console().print(table)


def plot(histories: dict[str, list[dict[str, float]]]) -> Path:
    """Bits per character on the validation text against characters read."""
    try:
        import matplotlib
    except ImportError as error:
        raise MissingExtraError("matplotlib", "plot") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5))
    for name, history in histories.items():
        curve = points(history)
        if len(curve) == 1:
            axes.axhline(curve[0][1], linestyle="--", color="grey", label=name)
        else:
            axes.plot(*zip(*curve, strict=True), marker="o", label=name)
    axes.set(xlabel="characters read", ylabel="bits per character, validation")
    axes.legend()
    figure.savefig(OUT / "learning_curve.png", dpi=150, bbox_inches="tight")
    return OUT / "learning_curve.png"


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt as stop:
        print(f"\n{stop or 'stopped'}; `make demo` resumes", file=sys.stderr)
        sys.exit(getattr(stop, "exit_code", 130))
    except ElmanError as error:
        print(f"demo: error: {error}", file=sys.stderr)
        sys.exit(2)
