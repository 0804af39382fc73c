"""The study docs/concepts/em-against-sgd.md: same data, same starts, EM and Adam. Writes the figure, prints the table.

python docs/concepts/em_against_sgd.py
"""

import time
import warnings
from pathlib import Path

import numpy as np
import torch
from figures import COLOURS, INK, canvas, save

from elman.hmm import CategoricalHMM, FitWarning

SEEDS = range(3)
STEPS = 60


def data() -> tuple[np.ndarray, list[int]]:
    """40 sequences of 100 symbols from a chain of 4 states that is not too easy to see."""
    rng = np.random.default_rng(0)
    truth = CategoricalHMM(4)
    truth.startprob_ = np.full(4, 0.25)
    truth.transmat_ = 0.85 * np.eye(4) + 0.05
    truth.transmat_ /= truth.transmat_.sum(1, keepdims=True)
    truth.emissionprob_ = rng.dirichlet(np.full(8, 0.5), 4)
    return np.concatenate([truth.sample(100, random_state=i)[0] for i in range(40)]).astype(int), [100] * 40


def curve(seed: int, X: np.ndarray, lengths: list[int], **options: object) -> tuple[list[float], float]:
    """Log-likelihood per symbol before each pass and after the last, and the seconds that all of them took."""
    model = CategoricalHMM(4, n_features=8, random_state=seed, n_iter=STEPS, tol=-np.inf, **options)
    begin = time.perf_counter()
    model.fit(X, lengths)
    return [value / len(X) for value in model.log_likelihoods_], time.perf_counter() - begin


METHODS = {
    "EM": {"method": "em"},
    "Adam 0.05, batches of 8": {"method": "adam", "learning_rate": 0.05, "batch_size": 8},
    "Adam 0.05, all at once": {"method": "adam", "learning_rate": 0.05, "batch_size": 40},
}


def main() -> None:
    warnings.simplefilter("ignore", FitWarning)
    torch.set_num_threads(1)  # seconds that mean something on a machine with other work
    X, lengths = data()
    figure, (by_step, by_second) = canvas(2, width=8, sharey=True)
    print("| method | after 5 | after 20 | after 60 passes | seconds for 60 |\n|---|---|---|---|---|")
    for i, (name, options) in enumerate(METHODS.items()):
        runs = [curve(seed, X, lengths, **options) for seed in SEEDS]
        values = np.array([history for history, _ in runs])
        seconds = np.mean([s for _, s in runs])
        for history, took in runs:
            by_step.plot(history, color=COLOURS[i], alpha=0.8, lw=1.2)
            by_second.plot(np.linspace(0, took, len(history)), history, color=COLOURS[i], alpha=0.8, lw=1.2)
        by_step.plot([], color=COLOURS[i], label=name)
        mean = values.mean(0)
        print(f"| {name} | {mean[5]:.4f} | {mean[20]:.4f} | {mean[-1]:.4f} | {seconds:.2f} |")
    by_step.set(xlabel="pass over the data", ylabel="log-likelihood per symbol")
    by_second.set(xlabel="seconds")
    by_step.legend(fontsize=8, loc="lower right", labelcolor=INK)
    save(figure, Path(__file__).with_name("em-against-sgd.svg"))


if __name__ == "__main__":
    main()
