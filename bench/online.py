"""Learning from a stream: how long a row takes, and how far off predictions are: `python -m bench.online [--json]`.

Speed: predict and learn one row of 16 numbers with 64 units, one process, one thread, by a Learner of tensors and by a
Regressor of dicts; beside it deep-river's LSTM of the same size, which reads a window again at each row; and learning
over a forward pass of the same model, 32 rows: over `model.step`, and over a step of its Stream.

Errors: river's data sets, one pass, each row predicted before it is learned, one set of settings for all of them. Needs
river, and deep-river, whose 0.3.4 takes river below 0.26, for its row: pip install --no-deps river deep-river
"""

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

import elman
from elman.nn.readout import GaussianReadout
from elman.online import Classifier, Forecaster, Learner, Regressor

UNITS, INPUTS = 64, 16
DIAGONAL = ("mingru", "indrnn", "minlstm", "lru", "s5")
OTHERS = (("gru", "snap1"), ("rate", "rflo"), ("gru", "uoro"), ("gru", "tbptt"), ("mingru", "tbptt"))
SEEDS = 3
# For all data. Chosen on them with seed 0, of constant rates of 0.003, 0.01 and 0.03, and of 0.01 that falls as here or
# with the root of time; "unlearned" is what the running means alone do.
SETTINGS: dict[str, Any] = {"lr": 0.01, "schedule": "inverse", "halve": 300}


def median_us(run: Callable[[], object], rounds: int = 15, repeats: int = 100) -> float:
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        for _ in range(repeats):
            run()
        times.append((time.perf_counter() - begin) / repeats * 1e6)
    return sorted(times)[len(times) // 2]


def speed(cell: str, batch_size: int, rule: str = "rtrl") -> dict[str, Any]:
    torch.manual_seed(0)
    model = elman.SequenceModel(torch.nn.Identity(), elman.cell(cell, INPUTS, UNITS), GaussianReadout(UNITS, 1))
    learner = Learner(model, rule=rule, batch_size=batch_size)
    x, y = torch.randn(batch_size, INPUTS), torch.randn(batch_size, 1)
    learner.predict_one(x), learner.learn_one(x, y)
    h = model.init_state(batch_size)
    stream, row = elman.Stream(model, batch_size), x.numpy()

    def forward() -> None:
        with torch.no_grad():
            model.step(x, h)

    predict, learn = median_us(lambda: learner.predict_one(x)), median_us(lambda: learner.learn_one(x, y))
    return {
        "cell": cell, "rule": rule, "rows": batch_size, "predict_us": predict, "learn_us": learn,
        "both_us": predict + learn, "forward_us": median_us(forward), "stream_us": median_us(lambda: stream.step(row)),
    }  # fmt: skip


def dicts() -> dict[str, Any]:
    """The same row as a dict of 16 numbers."""
    return {"library": "elman", "both_us": both_us(Regressor(size=UNITS), 15, 100)}


def deep_river() -> dict[str, Any]:
    from deep_river.regression import LSTMRegressor

    model = LSTMRegressor(n_features=INPUTS, hidden_size=UNITS)
    return {"library": "deep-river", "window": model.window_size, "both_us": both_us(model, 7, 20)}


def both_us(model: Any, rounds: int, repeats: int) -> float:
    x = {str(i): float(v) for i, v in enumerate(torch.randn(INPUTS))}

    def row() -> None:
        model.predict_one(x)
        model.learn_one(x, 0.5)

    for _ in range(20):
        row()
    return median_us(row, rounds, repeats)


def backtest(rows: list[tuple[Any, float]], model: Forecaster, horizon: int) -> float:
    """The mean absolute error over all horizons, as river's evaluation has it: after a grace period of one horizon."""
    total = count = 0.0
    for t, (_, y) in enumerate(rows):
        model.learn_one(y)
        future = [value for _, value in rows[t + 1 : t + 1 + horizon]]
        if t >= horizon and len(future) == horizon:
            total += sum(abs(a - b) for a, b in zip(model.forecast(horizon), future, strict=True))
            count += horizon
    return total / count


def stepwise(rows: Iterable[tuple[Any, Any]], model: Regressor | Classifier) -> float:
    """The mean absolute error of a regressor, the accuracy of a classifier: each row predicted before it is learned."""
    total = count = 0.0
    for x, y in rows:
        guess = model.predict_one(x)
        total += float(guess == y) if isinstance(model, Classifier) else abs(guess - y)
        count += 1
        model.learn_one(x, y)
    return total / count


def errors() -> Iterator[dict[str, Any]]:
    from river import datasets

    air, trump = list(datasets.AirlinePassengers()), list(datasets.TrumpApproval())
    runs: dict[str, Callable[[dict[str, Any]], float]] = {
        "AirlinePassengers": lambda given: backtest(air, Forecaster(season=12, **given), 12),
        "TrumpApproval": lambda given: backtest(trump, Forecaster(season=1, **given), 12),
        "ChickWeights": lambda given: stepwise(datasets.ChickWeights(), Regressor(**given)),
        "Phishing": lambda given: stepwise(datasets.Phishing(), Classifier(**given)),
    }
    for name, run in runs.items():
        found = [run({**SETTINGS, "seed": seed}) for seed in range(SEEDS)]
        least, most, unlearned = min(found), max(found), run({**SETTINGS, "lr": 0.0})
        yield {"data": name, "mean": sum(found) / SEEDS, "least": least, "most": most, "unlearned": unlearned}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.online", description=__doc__)
    parser.add_argument("--json", action="store_true", help="rows as JSON")
    parser.add_argument("--only", choices=("speed", "peer", "errors"), help="one of the three")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    if options.only in (None, "speed"):
        rows += [speed(cell, batch_size) for cell in DIAGONAL for batch_size in (1, 32)]
        rows += [speed(cell, 1, rule) for cell, rule in OTHERS]
        rows.append(dicts())
    if options.only in (None, "peer"):
        rows.append(deep_river())
    if options.only in (None, "errors"):
        rows += errors()
    if options.json:
        json.dump(rows, sys.stdout)
    else:
        for row in rows:
            print(", ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
