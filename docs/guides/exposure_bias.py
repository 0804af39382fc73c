"""The figure of exposure bias in docs/guides/translation.md: what a model's own symbols as a past cost it, by position.

python docs/guides/exposure_bias.py                                     # trains two small models on synthetic pairs
python docs/guides/exposure_bias.py test.en test.de forced=runs/a sampled=runs/b    # finished runs, any pairs

The gap at position t is the mean of log P(y[t] | the true symbols before) - log P(y[t] | symbols that the model drew).
"""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import elman
from elman.data.synthetic import parse
from elman.tasks.translate.data import Pair, PairReader, synthetic_pairs
from elman.tasks.translate.metrics import exposure
from elman.tasks.translate.model import TranslateModelConfig, Translator
from elman.tasks.translate.task import SamplingConfig, TranslateConfig, TranslateDataConfig
from elman.training.loop import TrainingConfig
from elman.training.optim import OptimConfig

MADE, STEPS, SEED = "synthetic:reverse,T=12,vocabulary=10", 3000, 0
SAMPLING = {
    "teacher forcing": SamplingConfig(),
    "scheduled sampling": SamplingConfig(schedule="linear", batches=STEPS / 2, least=0.25),
}
FEWEST = 20  # pairs that a position needs to be drawn


def trained(sampling: SamplingConfig) -> Translator:
    """A small decoder that must keep the whole source in one vector: it errs, and its errors are in its way."""
    config = TranslateConfig(
        data=TranslateDataConfig(source=MADE, valid_source=f"{MADE},n=200", joint=True, batch_tokens=832),
        model=TranslateModelConfig(
            size=64, embedding_size=32, attention="none", bidirectional=False, embedding_dropout=0.0,
            readout_dropout=0.0, smoothing=0.0,
        ),
        sampling=sampling,
        optim=OptimConfig(lr=0.003, weight_decay=0.0, warmup=100),
        training=TrainingConfig(steps=STEPS, evaluate_every=STEPS, log_every=500),
        out=tempfile.mkdtemp() + "/run", seed=SEED,
    )  # fmt: skip
    translator: Translator = elman.train(config)[0]
    return translator


def report(name: str, translator: Translator, pairs: Sequence[Pair]) -> list[Any]:
    """Print the line of a model; its numbers by position."""
    found: list[Any] = [row for row in exposure(translator, pairs) if row["sentences"] >= FEWEST]
    n = sum(row["sentences"] for row in found)
    means = (sum(row[key] * row["sentences"] for row in found) / n for key in ("forced", "own", "gap"))
    print(f"| {name} | {' | '.join(f'{mean:.3f}' for mean in means)} |", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", nargs="*", metavar="SOURCE TARGET NAME=RUN")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "exposure-bias.svg")
    given = parser.parse_args()

    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "elman"  # the same bytes each time
    from matplotlib import pyplot as plt

    if given.pairs:
        source, target, *runs = given.pairs
        pairs = PairReader()([source], [target])
        models = {name: lambda run=run: elman.load(run) for name, _, run in (one.partition("=") for one in runs)}
    else:
        pairs = synthetic_pairs(parse(f"{MADE},n=2000,seed=7").part())
        models = {name: lambda s=sampling: trained(s) for name, sampling in SAMPLING.items()}
    print("| trained by | log P, true past | log P, own past | gap |\n|---|---|---|---|")
    figure, axes = plt.subplots(figsize=(6.4, 3.6))
    for name, model in models.items():
        found = report(name, model(), pairs)
        axes.plot([row["position"] for row in found], [row["gap"] for row in found], "-o", markersize=4, label=name)
    axes.axhline(0, linestyle=":", color="grey")
    axes.set(xlabel="position in the target", ylabel="gap in log-probability (nats)")
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(given.out, metadata={"Date": None})


if __name__ == "__main__":
    main()
