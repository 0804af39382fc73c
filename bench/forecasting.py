"""A forecaster against DeepAR of gluonts: `python -m bench.forecasting --gluonts FOLDER`, or GLUONTS=FOLDER.

gluonts 0.17 needs an older pandas than the one that is pinned here, so it stands in a folder of its own, beside the
same Torch, and runs in a process of its own (bench/with_gluonts.py):

    pip install --target FOLDER --no-deps gluonts==0.17.0 'lightning<2.7' 'pytorch-lightning<2.7' lightning-utilities \
        torchmetrics 'pandas<3' pytz pydantic pydantic-core annotated-types typing-inspection toolz tqdm scipy

Without --gluonts the peer is the network of its DeepAR written anew with torch.nn, in this process and without the
parts around it: values over the mean absolute value of the context, 28 lags, an nn.LSTM with dropout, Student's t by
torch.distributions.

training   a step of 64 series on a batch that is there, with clipping and Adam, 2 x 40 and 2 x 128 units
loading    the same, the batch made by the loader of each: against gluonts alone
sampling   100 paths of 48 steps for 414 series, from states that are at hand; gluonts encodes windows of 168 first
updating   10,000 series read one new row from a frame, and one step is forecast (`update`, `forecast`), over reading
           their last 168 rows again and the same forecast: by ours (`read_from_start`), and by the peer; and over
           one step of the LSTM alone from states that are kept, without a frame (*torch, state kept*)

Both sides run in turn.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bench.kernels import MAPPED
from bench.turns import Report, Result, clocked, parser, result
from elman.data import Batch, Position
from elman.tasks.forecast.config import ForecastModelConfig
from elman.tasks.forecast.data import PanelReader, Series
from elman.tasks.forecast.inputs import PanelInputs, SeriesStreams
from elman.tasks.forecast.model import Forecaster
from elman.tasks.forecast.network import Widths, build
from elman.tasks.forecast.network import loss as loss_of

LAGS = [*range(1, 8), *(day + hour for day in range(24, 169, 24) for hour in (-1, 0, 1))]
CONTEXT, HORIZON, BATCH = 168, 48, 64
SERIES, UPDATED = 414, 10_000
FEATURES = 3  # of the calendar and of the log of the scale
Step = Callable[[], object]


class DeepAR(nn.Module):
    """An LSTM over scaled lags and features; Student's t of its outputs, in units of the scale. Time first: values
    (T, B), features (T, B, F), scale (1, B)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(len(LAGS) + FEATURES, size, 2, dropout=0.1)
        self.df, self.loc, self.scale = (nn.Linear(size, 1) for _ in range(3))

    def lagged(self, values: Tensor, steps: int) -> Tensor:
        """The lags (steps, B, L) of the last `steps` targets, values (max(LAGS) + steps - 1, B) before them."""
        T = len(values)
        return torch.stack([values[T - steps - lag + 1 : T - lag + 1] for lag in LAGS], -1)

    def distribution(self, h: Tensor, scale: Tensor) -> torch.distributions.Distribution:
        soft = nn.functional.softplus
        loc, wide, df = self.loc(h)[..., 0], soft(self.scale(h)[..., 0]), 2 + soft(self.df(h)[..., 0])
        return torch.distributions.StudentT(df, loc * scale, wide * scale, validate_args=False)

    def inputs(self, values: Tensor, features: Tensor, scale: Tensor) -> Tensor:
        logs = scale.log()[..., None].expand(*features.shape[:2], 1)
        return torch.cat([self.lagged(values / scale, len(features)), features, logs], -1)

    def loss(self, values: Tensor, features: Tensor) -> Tensor:
        """values (max(LAGS) + CONTEXT + HORIZON, B)."""
        scale = values[-CONTEXT - HORIZON : -HORIZON].abs().mean(0, keepdim=True)
        h, _ = self.lstm(self.inputs(values[:-1], features, scale))
        return -self.distribution(h, scale).log_prob(values[-CONTEXT - HORIZON :]).mean()

    @torch.inference_mode()
    def encode(self, values: Tensor, features: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor], Tensor]:
        """values (max(LAGS) + CONTEXT, B): the last output, the state and the scale."""
        scale = values[-CONTEXT:].abs().mean(0, keepdim=True)
        h, state = self.lstm(self.inputs(values[:-1], features, scale))
        return h[-1:], state, scale

    @torch.inference_mode()
    def paths(self, past: Tensor, ahead: Tensor, state: tuple[Tensor, Tensor], scale: Tensor, samples: int) -> Tensor:
        """(HORIZON, B * samples), past (max(LAGS), B). Scaled values in one buffer; rows at the lags are selected."""
        h, c = (part.repeat_interleave(samples, 1) for part in state)
        most, rows = max(LAGS), past.shape[1] * samples
        buffer = torch.empty(most + HORIZON, rows)
        buffer[:most] = (past / scale).repeat_interleave(samples, 1)
        more = torch.cat([ahead, scale.log()[..., None].expand(HORIZON, -1, 1)], -1).repeat_interleave(samples, 1)
        back = torch.tensor(LAGS)
        for step in range(HORIZON):
            lags = buffer.index_select(0, most + step - back).T
            y, (h, c) = self.lstm(torch.cat([lags, more[step]], -1)[None], (h, c))
            buffer[most + step] = self.distribution(y, torch.ones(1)).sample()[0]
        return buffer[most:] * scale.repeat_interleave(samples, 1)

    @torch.inference_mode()
    def advance(self, values: Tensor, features: Tensor, state: tuple[Tensor, Tensor], scale: Tensor) -> Tensor:
        """The output after one row more, values (max(LAGS), B) before it and the state being kept."""
        return self.lstm(self.inputs(values, features, scale), state)[0]


class WithTorch:
    """The peer in this process: `seconds(case)` runs it once."""

    name = "torch"

    def __init__(self) -> None:
        self.made: dict[str, Step] = {}

    def seconds(self, case: dict[str, Any]) -> float:
        key = json.dumps(case)
        if key not in self.made:
            self.made[key] = self._make(case)
            self.made[key]()
        return _seconds(self.made[key])

    def _make(self, case: dict[str, Any]) -> Step:
        model, N, T = DeepAR(case["size"]), case["series"], CONTEXT + HORIZON
        if case["what"] == "training":
            values, features = torch.rand(max(LAGS) + T, BATCH) + 5, torch.randn(T, BATCH, FEATURES - 1)
            return _stepper(model, lambda: model.loss(values, features))
        model.eval()
        values, features = torch.rand(max(LAGS) + CONTEXT, N) + 5, torch.randn(CONTEXT, N, FEATURES - 1)
        ahead, past, each = torch.randn(HORIZON, N, FEATURES - 1), values[-max(LAGS) :], 500
        _, state, scale = model.encode(values, features)

        @torch.inference_mode()
        def advance() -> None:
            model.distribution(model.advance(past, ahead[:1], state, scale), scale)

        def sample() -> None:
            for at in range(0, N, BATCH):
                rows = slice(at, at + BATCH)
                some = state[0][:, rows].contiguous(), state[1][:, rows].contiguous()
                model.paths(past[:, rows], ahead[:, rows], some, scale[:, rows], case["samples"])

        @torch.inference_mode()
        def encode() -> None:
            for at in range(0, N, each):
                h, _, wide = model.encode(values[:, at : at + each], features[:, at : at + each])
                model.distribution(h, wide)

        return {"advancing": advance, "sampling": sample, "encoding": encode}[case["what"]]


class WithGluonts:
    """gluonts itself, in a process of its own that waits for orders."""

    name = "gluonts"

    def __init__(self, folder: Path, threads: int) -> None:
        path = os.pathsep.join([str(folder.resolve()), str(Path(__file__).resolve().parent.parent)])
        self.process = subprocess.Popen(
            [sys.executable, "-m", "bench.worker", "gluonts", str(threads)], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env={**os.environ, **MAPPED, "PYTHONPATH": path},
        )  # fmt: skip
        self.prepared: set[str] = set()
        self.scratch = tempfile.TemporaryDirectory()

    def seconds(self, case: dict[str, Any]) -> float:
        if json.dumps(case) not in self.prepared:
            self._order({"do": "prepare", "case": case, "path": self.scratch.name + "/outputs"})
            self.prepared.add(json.dumps(case))
        return float(self._order({"do": "time", "case": case, "repeats": 1})["seconds"])

    def _order(self, order: dict[str, Any]) -> Any:
        assert self.process.stdin is not None and self.process.stdout is not None
        print(json.dumps(order), file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())


Peer = WithTorch | WithGluonts


def case_of(what: str, **more: Any) -> dict[str, Any]:
    """What the peer is to do."""
    settings = {"size": 40, "horizon": HORIZON, "context": CONTEXT, "lags": LAGS, "batch": BATCH, "samples": 100}
    return {"what": what, **settings, "series": BATCH, "rows": max(LAGS) + CONTEXT, **more}


def forecaster(size: int) -> Forecaster:
    """Ours: the same cells, lags and read-out."""
    times = [str(np.datetime64("2024-01-01T00") + np.timedelta64(t, "h")) for t in range(2)]
    reader, _ = PanelReader().fit({"unique_id": ["s"] * 2, "ds": times, "y": ["1", "2"]})
    inputs = PanelInputs(reader, ("s",))
    config = ForecastModelConfig(cell="lstm", size=size, layers=2, dropout=0.1, lags=LAGS, scale="mean",
                                 readout="student_t", residual="none", readout_dropout=0.0)  # fmt: skip
    return Forecaster(build(config, Widths.of(inputs), 24), config, inputs, HORIZON, 24)


def panel(number: int, rows: int) -> list[Series]:
    g = np.random.default_rng(0)
    wave = 10 + 3 * np.sin(np.arange(rows) * np.pi / 12)
    none = np.zeros((rows, 0))
    return [Series(f"s{i}", 0, (wave + g.normal(size=rows))[:, None], none, none, np.zeros(0)) for i in range(number)]


GOALS = {("training", 40): (2.5, 4.0)}


def training(peer: Peer, what: str, size: int, rounds: int) -> Result:
    """Steps a second, ours and theirs."""
    torch.manual_seed(0)
    ours, T = forecaster(size), CONTEXT + HORIZON
    rows = 4 * T
    streams = SeriesStreams(ours.inputs, panel(BATCH, rows), BATCH, T, 0, skip=1)
    held, at = streams.batch(Position()), Position()

    def loss() -> Tensor:
        nonlocal at
        batch: Batch = held
        if what == "loading":
            batch, at = streams.batch(at), streams.after(at)
        total, count, _ = loss_of(ours.model, batch, None)
        return total / count

    case = case_of(what, size=size, rows=rows)
    times = clocked([_timed(_stepper(ours.model, loss)), lambda: peer.seconds(case)], rounds)
    name = f"train a forecaster 2 x {size}{', with its loader' * (what == 'loading')}"
    must, aim = GOALS.get((what, size), (None, None))
    return result(name, peer.name, *times, must, aim, per_round=1, unit="steps/s")


def sampling(peer: Peer, rounds: int) -> Result:
    """Seconds for 100 paths of 414 series."""
    ours, case = forecaster(40), case_of("sampling", series=SERIES)
    state = ours.read_from_start(panel(SERIES, max(LAGS) + CONTEXT))
    steps = [_timed(lambda: ours.forecast(state, HORIZON, samples=100)), lambda: peer.seconds(case)]
    return result("100 paths of 48 steps for 414 series", peer.name, *clocked(steps, rounds, warm=1), unit="s")


def updating(peer: Peer, rounds: int) -> list[Result]:
    """Seconds to read one new row of 10,000 series and say what follows, over reading their windows again."""
    ours, window = forecaster(40), panel(UPDATED, CONTEXT)
    before, frequency = ours.read_from_start(window), ours.inputs.reader.frequency
    assert frequency is not None
    (stamp,) = frequency.stamps(np.array([CONTEXT]))
    rows = {"unique_id": [one.name for one in window], "ds": [stamp] * UPDATED, "y": [10.5] * UPDATED}

    def update() -> None:
        ours.forecast(ours.update(before, rows), 1, samples=0)

    def encode() -> None:
        ours.forecast(ours.read_from_start(window), 1, samples=0)

    case, kept = (case_of(what, series=UPDATED, horizon=1, samples=1) for what in ("encoding", "advancing"))
    torch_alone = peer if isinstance(peer, WithTorch) else WithTorch()
    steps = [lambda: peer.seconds(case), lambda: torch_alone.seconds(kept)]
    mine, *others = clocked([_timed(update), _timed(encode), *steps], rounds, warm=1)
    name = "update 10,000 series by a row and forecast one step"
    peers = ("elman, reading windows again", f"{peer.name}, reading windows", "torch, state kept")
    return [result(name, who, mine, other, unit="s") for who, other in zip(peers, others, strict=True)]


def _stepper(model: nn.Module, loss: Callable[[], Tensor]) -> Step:
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    model.train()

    def step() -> None:
        optimiser.zero_grad()
        loss().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimiser.step()

    return step


def _seconds(step: Step) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def _timed(step: Step) -> Callable[[], float]:
    return lambda: _seconds(step)


def main() -> None:
    flags = parser("forecasting", __doc__, 10)
    flags.add_argument("--threads", type=int, default=2)
    flags.add_argument("--gluonts", default=os.environ.get("GLUONTS"), help="the folder that gluonts is in")
    flags.add_argument(
        "--rows", default="training,loading,sampling,updating", help="which, between commas; loading is for gluonts"
    )
    options = flags.parse_args()
    torch.set_num_threads(options.threads)
    peer = WithGluonts(Path(options.gluonts), options.threads) if options.gluonts else WithTorch()
    few, report = max(4, options.rounds // 2), Report(options.json)
    for what in options.rows.split(","):
        if what == "loading" and isinstance(peer, WithTorch):
            continue  # which loads nothing
        if what in ("training", "loading"):
            for size in (40, 128):
                report.add(training(peer, what, size, options.rounds))
        elif what == "sampling":
            report.add(sampling(peer, few))
        else:
            report.add(*updating(peer, few))
    report.end()


if __name__ == "__main__":
    main()
