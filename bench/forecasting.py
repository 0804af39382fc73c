"""A forecaster against DeepAR as it is written with torch.nn: `python -m bench.forecasting`.

gluonts itself does not install beside the versions that are pinned here, so the peer is the network of its PyTorch
DeepAR written anew: values over the mean absolute value of the context, 28 lags of hourly data, an nn.LSTM with
dropout, Student's t by torch.distributions; teacher forcing over context and horizon (168 + 48); sampling by steps of
the nn.LSTM with all paths in the batch, 64 series at a time.

training   whole steps of 64 series, with clipping and Adam, 2 x 40 and 2 x 128 units
sampling   100 paths of 48 steps for 414 series, the windows encoded before (theirs) or the states at hand (ours)
updating   10,000 series read one new row and forecast one step, over encoding their windows of 168 once more

Both sides run in this process, in turn; the ratio is of medians.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from elman.data import Batch
from elman.data.panel import PanelReader, Series
from elman.data.panel_inputs import PanelInputs
from elman.tasks import forecast_loss
from elman.tasks.forecast_files import widths
from elman.tasks.forecast_network import ModelConfig, build
from elman.tasks.forecaster import Forecaster

LAGS = [*range(1, 8), *(day + hour for day in range(24, 169, 24) for hour in (-1, 0, 1))]
CONTEXT, HORIZON, BATCH = 168, 48, 64
FEATURES = 3  # of the calendar and of the log of the scale


class DeepAR(nn.Module):
    """An LSTM over scaled lags and features; Student's t of its outputs, in units of the scale."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(len(LAGS) + FEATURES, size, 2, dropout=0.1, batch_first=True)
        self.df, self.loc, self.scale = (nn.Linear(size, 1) for _ in range(3))

    def lagged(self, values: Tensor, steps: int) -> Tensor:
        """The lags (B, steps, L) of the last `steps` targets, values (B, max(LAGS) + steps - 1) before them."""
        T = values.shape[1]
        return torch.stack([values[:, T - steps - lag + 1 : T - lag + 1] for lag in LAGS], -1)

    def distribution(self, h: Tensor, scale: Tensor) -> torch.distributions.Distribution:
        soft = nn.functional.softplus
        loc, wide, df = self.loc(h)[..., 0], soft(self.scale(h)[..., 0]), 2 + soft(self.df(h)[..., 0])
        return torch.distributions.StudentT(df, loc * scale, wide * scale)

    def inputs(self, values: Tensor, features: Tensor, scale: Tensor) -> Tensor:
        logs = scale.log()[..., None].expand(*features.shape[:2], 1)
        return torch.cat([self.lagged(values / scale, features.shape[1]), features, logs], -1)

    def loss(self, values: Tensor, features: Tensor) -> Tensor:
        """values (B, max(LAGS) + CONTEXT + HORIZON)."""
        scale = values[:, -CONTEXT - HORIZON : -HORIZON].abs().mean(1, keepdim=True)
        h, _ = self.lstm(self.inputs(values[:, :-1], features, scale))
        return -self.distribution(h, scale).log_prob(values[:, -CONTEXT - HORIZON :]).mean()

    @torch.no_grad()
    def encode(self, values: Tensor, features: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor], Tensor]:
        """values (B, max(LAGS) + CONTEXT): the last output, the state and the scale."""
        scale = values[:, -CONTEXT:].abs().mean(1, keepdim=True)
        h, state = self.lstm(self.inputs(values[:, :-1], features, scale))
        return h[:, -1:], state, scale

    @torch.no_grad()
    def paths(self, values: Tensor, features: Tensor, ahead: Tensor, samples: int) -> Tensor:
        """(B * samples, HORIZON)."""
        _, state, scale = self.encode(values, features)
        h, c = (part.repeat_interleave(samples, 1) for part in state)
        scale, values = scale.repeat_interleave(samples, 0), values.repeat_interleave(samples, 0)
        ahead = ahead.repeat_interleave(samples, 0)
        found = []
        for step in range(HORIZON):
            y, (h, c) = self.lstm(self.inputs(values, ahead[:, step : step + 1], scale), (h, c))
            drawn = self.distribution(y, scale).sample()
            values = torch.cat([values, drawn], 1)
            found.append(drawn)
        return torch.cat(found, 1)


def forecaster(size: int) -> Forecaster:
    """Ours: the same cells, lags and read-out."""
    times = [str(np.datetime64("2024-01-01T00") + np.timedelta64(t, "h")) for t in range(2)]
    reader, _ = PanelReader().fit({"unique_id": ["s"] * 2, "ds": times, "y": ["1", "2"]})
    inputs = PanelInputs(reader, ("s",))
    config = ModelConfig(cell="lstm", size=size, layers=2, dropout=0.1, lags=LAGS, scale="mean", readout="student_t")
    return Forecaster(build(config, widths(inputs), 24), config, inputs, HORIZON, 24)


def panel(number: int, rows: int) -> list[Series]:
    g = np.random.default_rng(0)
    wave = 10 + 3 * np.sin(np.arange(rows) * np.pi / 12)
    none = np.zeros((rows, 0))
    return [Series(f"s{i}", 0, (wave + g.normal(size=rows))[:, None], none, none, np.zeros(0)) for i in range(number)]


def training(size: int, rounds: int) -> dict[str, float]:
    """Steps a second, ours and theirs."""
    torch.manual_seed(0)
    ours, theirs = forecaster(size), DeepAR(size)
    T = CONTEXT + HORIZON
    rows = [ours.inputs.rows(one) for one in panel(BATCH, T)]
    x, y = (torch.from_numpy(np.stack([getattr(row, name) for row in rows])) for name in ("x", "y"))
    counted = torch.ones(BATCH, T, dtype=torch.bool)
    counted[:, 0] = False
    reset = torch.zeros(BATCH, T, dtype=torch.bool)
    batch = Batch(x, (y, counted), reset, torch.full((BATCH,), T))
    values, features = torch.rand(BATCH, max(LAGS) + T) + 5, torch.randn(BATCH, T, FEATURES - 1)

    def stepper(model: nn.Module, loss: Callable[[], Tensor]) -> Callable[[int], None]:
        optimiser = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
        model.train()

        def step(i: int) -> None:
            optimiser.zero_grad()
            loss().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 10.0)
            optimiser.step()

        return step

    def own() -> Tensor:
        total, count, _ = forecast_loss.loss(ours.model, batch, None)
        return total / count

    times = _in_turn([stepper(ours.model, own), stepper(theirs, lambda: theirs.loss(values, features))], rounds)
    return {"ours": 1 / times[0], "theirs": 1 / times[1], "ratio": times[1] / times[0]}


def sampling(rounds: int) -> dict[str, float]:
    """Seconds for 100 paths of 414 series."""
    series, ours, theirs = panel(414, max(LAGS) + CONTEXT), forecaster(40), DeepAR(40).eval()
    ours.read_from_start(series)
    values = torch.from_numpy(np.stack([one.y[:, 0] for one in series])).float()
    features, ahead = torch.randn(414, CONTEXT, FEATURES - 1), torch.randn(414, HORIZON, FEATURES - 1)

    def their_paths(i: int) -> None:
        for at in range(0, 414, BATCH):
            rows = slice(at, at + BATCH)
            theirs.paths(values[rows], features[rows], ahead[rows], 100)

    times = _in_turn([lambda i: ours.forecast(HORIZON, samples=100), their_paths], rounds)
    return {"ours": times[0], "theirs": times[1], "ratio": times[1] / times[0]}


def updating(rounds: int) -> dict[str, float]:
    """Seconds to read one new row of 10,000 series and say what follows, over reading their windows again."""
    N = 10_000
    ours, theirs = forecaster(40), DeepAR(40).eval()
    window = panel(N, CONTEXT)
    ours.read_from_start(window)
    x, known = (torch.randn(N, ours.model.core.input_size - k) for k in (0, 2))
    ahead = known[:, None]
    state, start = ours.state, ours.model.init_state(N)
    rows = torch.randn(N, CONTEXT, x.shape[1])
    values, features = torch.rand(N, max(LAGS) + CONTEXT) + 5, torch.randn(N, CONTEXT, FEATURES - 1)

    @torch.inference_mode()
    def update(i: int) -> None:
        y, core = ours.model.core.scan(x[:, None], state.core)
        ours._first(state._replace(core=core), ahead)

    @torch.inference_mode()
    def encode(i: int) -> None:
        for at in range(0, N, 500):
            part = slice(at, at + 500)
            ours.model.scan(rows[part], torch.utils._pytree.tree_map(lambda leaf, p=part: leaf[p], start))

    def their_encoding(i: int) -> None:
        for at in range(0, N, 500):
            h, _, scale = theirs.encode(values[at : at + 500], features[at : at + 500])
            theirs.distribution(h, scale)

    times = _in_turn([update, encode, their_encoding], rounds)
    return {"update": times[0], "over encoding": times[1] / times[0], "over their encoding": times[2] / times[0]}


def _in_turn(steps: list[Callable[[int], object]], rounds: int) -> list[float]:
    times: list[list[float]] = [[] for _ in steps]
    for i in range(rounds + 1):
        for step, found in zip(steps, times, strict=True):
            start = time.perf_counter()
            step(i)
            found.append(time.perf_counter() - start)
    return [statistics.median(found[1:]) for found in times]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.forecasting", description=__doc__)
    parser.add_argument("--rounds", type=int, default=10, help="timings of each side")
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    for size in (40, 128):
        print(json.dumps({f"training 2 x {size}, steps a second": training(size, given.rounds)}), flush=True)
    print(json.dumps({"sampling, seconds": sampling(max(1, given.rounds // 3))}), flush=True)
    print(json.dumps({"updating, seconds": updating(max(1, given.rounds // 3))}), flush=True)


if __name__ == "__main__":
    main()
