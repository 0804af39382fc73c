"""What recurrence adds: a GRU, a window of five characters and a Markov model on the text that comes with Python.

Trains all three (about three minutes on two cores), prints bits per character on text that none has seen, and a sample;
draws the learning curve. A second call resumes what is there.
"""

from pathlib import Path

import elman
from elman.cli.output import print_table
from elman.errors import MissingExtraError
from elman.tables import Table
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


def network(name: str, out: str) -> lm.LMConfig:
    model, steps = NETWORKS[name]
    training = TrainingConfig(steps=steps, evaluate_every=250, checkpoint_every=100)
    return lm.LMConfig(data=DATA, model=model, optim=OptimConfig(lr=0.004), training=training, out=out, resume="auto")


def main() -> None:
    counted = markov.MarkovConfig(data=DATA, model=markov.MarkovModelConfig(order=5), out=str(OUT / "0"), resume="auto")
    configs = {"markov, 5 characters": counted, **{n: network(n, str(OUT / str(i))) for i, n in enumerate(NETWORKS, 1)}}
    rows, histories = [], {}
    test = open_splits(DATA).test
    for name, config in configs.items():
        print(f"Training: {name}", flush=True)
        model, histories[name] = elman.train(config)
        score = model.evaluate(test)
        rows.append((name, f"{score.bits_per_character:.3f}", f"{score.perplexity:.2f}"))
    print_table(Table("On text that no model has seen", ("model", "bits per character", "perplexity"), rows))
    print("\nA sample of the GRU:\n\nThe " + model.generate("The ", max_new_tokens=400, temperature=0.7, seed=1))
    print(f"\nThe learning curve is in {plot(histories)}.")


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
        points = [
            (line["step"] * DATA.batch_size * DATA.window, line["bits_per_character"])
            for line in history
            if "valid" in line
        ]
        if len(points) == 1:
            axes.axhline(points[0][1], linestyle="--", color="grey", label=name)
        else:
            axes.plot(*zip(*points, strict=True), marker="o", label=name)
    axes.set(xlabel="characters read", ylabel="bits per character, validation")
    axes.legend()
    figure.savefig(OUT / "learning_curve.png", dpi=150, bbox_inches="tight")
    return OUT / "learning_curve.png"


if __name__ == "__main__":
    main()
