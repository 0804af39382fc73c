"""The figure of docs/guides/online.md: what is learned as inputs come, and what by back-propagation at the end of each
sequence, on the same model, data and optimiser: `python docs/guides/online_curves.py`.

A sequence: three symbols of four, each position with an alphabet of its own, 50 blanks, then three cues, at each of
which one of the symbols is due. Where nothing is due the target is a blank. What is drawn is the share of symbols that
are right, over the sequences that the step was taken with, before they were learned.
"""

from __future__ import annotations

import argparse
import copy
import sys
import time
import warnings
from pathlib import Path

import torch
from torch import Tensor

import elman
from elman.nn.readout import Softmax
from elman.online import Learner, Optim

sys.path.insert(0, str(Path(__file__).parents[1] / "concepts"))
import figures

SYMBOLS, POSITIONS, BLANKS = 4, 3, 50
TARGETS = SYMBOLS * POSITIONS + 1  # the last one is a blank
INPUTS = TARGETS + POSITIONS  # cues
ROWS, UNITS, EVERY = 16, 64, 10


def sequences(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Symbols as vectors (count, T, INPUTS), and what is due (count, T)."""
    generator = torch.Generator().manual_seed(seed)
    symbols = torch.randint(SYMBOLS, (count, POSITIONS), generator=generator) + SYMBOLS * torch.arange(POSITIONS)
    blanks = torch.full((count, BLANKS), TARGETS - 1)
    cues = (TARGETS + torch.arange(POSITIONS)).expand(count, -1)
    due = torch.cat([torch.full((count, POSITIONS + BLANKS), TARGETS - 1), symbols], 1)
    return torch.nn.functional.one_hot(torch.cat([symbols, blanks, cues], 1), INPUTS).float(), due


def model(seed: int) -> elman.SequenceModel:
    torch.manual_seed(seed)
    core = elman.cell("mingru", INPUTS, UNITS, chrono=2 * BLANKS)
    return elman.SequenceModel(torch.nn.Identity(), core, Softmax(UNITS, TARGETS))


def right(logits: Tensor, due: Tensor) -> float:
    """The share of the symbols that are due that the logits (B, POSITIONS, TARGETS) have first."""
    return float((logits.argmax(-1) == due[:, -POSITIONS:]).float().mean())


def online(rule: str, batches: int, seed: int, lr: float, window: int, every_input: bool) -> list[float]:
    """By a rule; a step of the optimiser at every input, or one of the sum at the end of each sequence."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        optim = Optim(lr=lr, clip_norm=1.0)
        learner = Learner(model(seed), rule=rule, optim=optim, batch_size=ROWS, window=window)
    state, found = learner.init_state(ROWS), []
    for batch in range(batches):
        x, y = sequences(ROWS, 1000 * seed + batch)
        start = learner.init_state(ROWS)
        state = state._replace(h=start.h, traces=start.traces)
        found.append(right(scores(learner.model(state), x), y))
        if every_input:
            for t in range(x.shape[1]):
                state = learner.learn(state, x[:, t], y[:, t])[1]
            continue
        gradient = learner.accumulate(state, x, y)[0]
        flat = torch.cat([g.flatten() for g in gradient.values()]) / ROWS
        weights, moments = optim.update(state.weights, flat, state.moments, state.t)
        state = state._replace(weights=weights, moments=moments, t=state.t + 1)
    return found


@torch.no_grad()
def scores(net: elman.SequenceModel, x: Tensor) -> Tensor:
    """Logits (B, POSITIONS, TARGETS) at the cues."""
    return net.scan(x)[0].logits[:, -POSITIONS:]  # type: ignore[attr-defined]


def back_propagated(batches: int, seed: int, lr: float) -> list[float]:
    """Through the whole sequence, by autograd and Torch's Adam: one step at the end of each."""
    net, found = copy.deepcopy(model(seed)), []
    optimiser = torch.optim.Adam(net.parameters(), lr=lr)
    for batch in range(batches):
        x, y = sequences(ROWS, 1000 * seed + batch)
        found.append(right(scores(net, x), y))
        loss = -net.scan(x)[0].log_prob(y).sum() / ROWS
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimiser.step()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=800, help=f"of {ROWS} sequences")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--lr", type=float, default=0.01, help="of one step for each sequence")
    parser.add_argument("--online_lr", type=float, default=0.001, help="of one step for each input")
    parser.add_argument("--window", type=int, default=10, help="of truncated back-propagation")
    flags = parser.parse_args()
    torch.set_num_threads(1)
    n = flags.batches
    runs = {
        "back-propagation, whole sequence": lambda seed: back_propagated(n, seed, flags.lr),
        "exact online, a step for each sequence": lambda seed: online("rtrl", n, seed, flags.lr, 1, False),
        "exact online, a step for each input": lambda seed: online("rtrl", n, seed, flags.online_lr, 1, True),
        f"truncated after {flags.window} steps, a step for each input": lambda seed: online(
            "tbptt", n, seed, flags.online_lr, flags.window, True
        ),
    }
    figure, (axis,) = figures.canvas()
    for (name, run), style in zip(runs.items(), ("-", "--", "-", "-"), strict=True):
        begin = time.perf_counter()
        found = torch.tensor([run(seed) for seed in range(flags.seeds)])
        seconds = (time.perf_counter() - begin) / flags.seeds
        last = found[:, -50:].mean(1)
        print(f"| {name} | {last.mean():.3f} ({last.min():.3f} to {last.max():.3f}) | {seconds:.0f} |", flush=True)
        smooth = found.unfold(1, EVERY, EVERY).mean(2)
        at = ROWS * EVERY * torch.arange(1, smooth.shape[1] + 1)
        (line,) = axis.plot(at, smooth.mean(0), style, label=name)
        axis.fill_between(at, smooth.amin(0), smooth.amax(0), color=line.get_color(), alpha=0.15, linewidth=0)
    axis.axhline(1 / SYMBOLS, color=figures.INK, linewidth=0.6, linestyle=":")
    axis.set(xlabel="sequences", ylabel=f"share right, {BLANKS} blanks later", ylim=(0, 1.03))
    axis.legend(fontsize=8)
    figures.save(figure, Path(__file__).with_name("online-curves.svg"))


if __name__ == "__main__":
    main()
