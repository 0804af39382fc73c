"""The figure of docs/guides/online.md: the copy task over 50 steps, learned online and by back-propagation.

python docs/guides/online_curves.py        # some minutes

A row is one of 4 symbols, 49 blanks and a cue, at which the symbol is to be said again; at all other steps a blank. One
model, the same rows, adam; online the weights change after every step, by back-propagation at the end of the rows or,
truncated, every 10 steps.
"""

import argparse
import sys
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn

import elman
from elman import state as states
from elman.nn.readout import Softmax
from elman.online import Learner, Optim

sys.path.insert(0, str(Path(__file__).parent.parent / "concepts"))
from figures import canvas, save

SYMBOLS, STEPS, ROWS, UNITS, BATCHES, SEEDS = 4, 50, 16, 32, 1200, 3
EVERY = 20  # batches between two points


def rows(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """x (B, T, 6) one-hot, y (B, T): symbols 0 to 3, a blank 4, in x a cue 5."""
    symbol = torch.randint(SYMBOLS, (ROWS,), generator=generator)
    read = torch.full((ROWS, STEPS + 1), SYMBOLS)
    said = read.clone()
    read[:, 0], read[:, -1], said[:, -1] = symbol, SYMBOLS + 1, symbol
    return nn.functional.one_hot(read, SYMBOLS + 2).float(), said


def model(seed: int) -> elman.SequenceModel:
    torch.manual_seed(seed)
    core = elman.cell("mingru", SYMBOLS + 2, UNITS, chrono=2 * STEPS)
    return elman.SequenceModel(nn.Identity(), core, Softmax(UNITS, SYMBOLS + 1))


def online(seed: int, lr: float, rule: str) -> list[float]:
    learner, generator, errors = Learner(model(seed), rule=rule, optim=Optim(lr=lr)), _generator(seed), []
    learner.state = learner.init_state(ROWS)
    for _ in range(BATCHES):
        x, y = rows(generator)
        learner.state = learner.reset(learner.state, range(ROWS))
        learner.learn_many(x[:, :-1], y[:, :-1])
        errors.append(float((learner.predict(learner.state, x[:, -1]).mode != y[:, -1]).float().mean()))
        learner.learn_many(x[:, -1:], y[:, -1:])
    return errors


def trained(seed: int, lr: float, window: int) -> list[float]:
    network, generator, errors = model(seed), _generator(seed), []
    optimiser = torch.optim.Adam(network.parameters(), lr=lr, betas=(0.9, 0.999))
    for _ in range(BATCHES):
        x, y = rows(generator)
        state = network.init_state(ROWS)
        for start in range(0, STEPS + 1, window):
            predicted, state = network.scan(x[:, start : start + window], states.detach(state))
            loss = -predicted.log_prob(y[:, start : start + window]).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        errors.append(float((predicted.mode[:, -1] != y[:, -1]).float().mean()))
    return errors


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(100 + seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "online-curves.svg")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    curves = {
        "online, rtrl": [online(seed, 0.001, "rtrl") for seed in range(SEEDS)],
        "back-propagation, all 51 steps": [trained(seed, 0.01, STEPS + 1) for seed in range(SEEDS)],
        "back-propagation, truncated to 10": [trained(seed, 0.003, 10) for seed in range(SEEDS)],
    }
    figure, (axis,) = canvas()
    for name, seeds in curves.items():
        mean = torch.tensor(seeds).mean(0).unflatten(0, (-1, EVERY)).mean(1)
        axis.plot([EVERY * (i + 1) for i in range(len(mean))], mean.tolist(), label=name)
        last = [sum(seed[-100:]) / 100 for seed in seeds]
        print(f"| {name} | {', '.join(f'{error:.3f}' for error in last)} |", flush=True)
    axis.set_xlabel("batches of 16 rows")
    axis.set_ylabel("wrong at the cue")
    axis.set_ylim(0, 1)
    axis.legend()
    save(figure, given.out)


if __name__ == "__main__":
    main()
