"""The study docs/concepts/long-memory.md: how far back a cell remembers. Writes the figure, prints the table.

python docs/concepts/long_memory.py
"""

import tempfile
from pathlib import Path
from typing import Any

from figures import INK, canvas, save

import elman
from elman.tasks.tag.task import TagConfig, TagDataConfig, TagModelConfig
from elman.training.loop import TrainingConfig
from elman.training.optim import OptimConfig

LENGTHS = (10, 30, 100, 300, 1000)
STEPS, BATCH, SIZE, SEED = 600, 16, 64, 0
TOKENS, SYMBOLS = 5, 8  # of which chance finds one answer in eight
CELLS: dict[str, dict[str, Any]] = {
    "tanh": {"cell": "elman"},
    "LSTM": {"cell": "lstm"},
    "minGRU": {"cell": "mingru", "layers": 2},
    "LRU": {"cell": "lru", "options": {"state_size": 128, "r_min": 0.999, "r_max": 1.0}},
}


def accuracy(name: str, T: int) -> float:
    """The share of symbols that a cell, trained to copy across T blanks, says again rightly."""
    made = f"synthetic:copy,T={T},tokens={TOKENS},vocabulary={SYMBOLS}"
    config = TagConfig(
        data=TagDataConfig(train=made, valid=f"{made},n=200", test=f"{made},n=500,seed=7", lower=False,
                           batch_size=BATCH),
        model=TagModelConfig(
            **CELLS[name], size=SIZE, bidirectional=False, crf=False, embedding_size=32, case_size=0, char_size=0,
            word_dropout=0.0, embedding_dropout=0.0, readout_dropout=0.0,
        ),
        optim=OptimConfig(lr=0.003, weight_decay=0.0, warmup=50),
        training=TrainingConfig(steps=STEPS, evaluate_every=STEPS, log_every=100),
        out=tempfile.mkdtemp() + "/run", seed=SEED,
    )  # fmt: skip
    _, history = elman.train(config)
    return history[-1]["test"]


def main() -> None:
    figure, (axes,) = canvas()
    print("| cell | " + " | ".join(f"T = {T}" for T in LENGTHS) + " |")
    print("|---" * (1 + len(LENGTHS)) + "|")
    for name in CELLS:
        found = [accuracy(name, T) for T in LENGTHS]
        print(f"| {name} | " + " | ".join(f"{share:.1%}" for share in found) + " |", flush=True)
        axes.plot(LENGTHS, found, "-o", markersize=4, label=name)
    axes.axhline(1 / SYMBOLS, linestyle=":", color=INK, label="chance")
    axes.set(
        xscale="log",
        xlabel="blanks between the symbols and their copy (T)",
        ylabel="share of symbols right",
        ylim=(0, 1.05),
    )
    axes.set_xticks(LENGTHS, [str(T) for T in LENGTHS])
    axes.minorticks_off()
    axes.legend(fontsize=8, loc="center right", bbox_to_anchor=(1.0, 0.6), labelcolor=INK)
    save(figure, Path(__file__).with_name("long-memory.svg"))


if __name__ == "__main__":
    main()
