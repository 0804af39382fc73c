"""Faces of sequences of targets: a forecaster, as river/time_series has it, and a text that is learned byte by byte."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from elman.cells import cell as build_cell
from elman.errors import InputError
from elman.model import SequenceModel
from elman.nn.embed import Embedding
from elman.nn.readout import Readout, Softmax, StudentTReadout
from elman.online.faces import Face, Features, finite
from elman.online.learner import Learner
from elman.online.optim import Optim
from elman.online.scaling import spread
from elman.options import whole


class Forecaster(Face):
    """Forecasts a series that it learns as it comes: river's `time_series.Forecaster`.

    What it learns is the difference from the value `season` steps before (1: from the last one), standardised, of the
    difference before and the features x; forecasts are added up from there, so that before it has learned anything they
    are the last season and the mean drift.

    >>> model = Forecaster(size=4, season=2)
    >>> for t in range(40):
    ...     model.learn_one(float(t + 5 * (t % 2)))
    >>> [round(y) for y in model.forecast(2)]
    [40, 46]
    """

    def __init__(
        self,
        cell: str = "mingru",
        size: int = 32,
        *,
        season: int = 1,
        rule: str = "rtrl",
        lr: float = 0.01,
        schedule: str = "constant",
        halve: int = 1000,
        clip_norm: float = 1.0,
        forget: float = 1.0,
        seed: int = 0,
    ) -> None:
        self.season = whole("season", season)
        super().__init__(
            cell, size, rule=rule, lr=lr, schedule=schedule, halve=halve, clip_norm=clip_norm, forget=forget, seed=seed
        )

    def learn_one(self, y: float, x: Features | None = None) -> None:
        """The next value of the series and, if there are some, its features."""
        given = torch.tensor([[finite("the target", y)]], dtype=torch.float64)
        learner, (rows, target, past, before) = self._begin(x or {}), self._own
        difference = given - past[:, :1]
        if not bool(difference.isnan()):
            z, seen = self._standardised(difference)
            learner.learn_one(self._inputs(x or {}, before), z)
            target, before = seen, z
        self._own = (rows + 1, target, torch.cat([past[:, 1:], given], 1), before)

    def forecast(self, horizon: int, xs: Sequence[Features] | None = None) -> list[float]:
        """The next `horizon` values; xs are their features, if the series has some. Nothing moves."""
        whole("horizon", horizon)
        if xs is not None and len(xs) != horizon:
            raise InputError(
                f"xs has the features of {len(xs)} steps, the horizon is {horizon}: one dict for each step"
            )
        _, target, past, before = self._own
        if self._learner is None or bool(past[:, 0].isnan().any()):
            last = float(past[0, -1])
            return [0.0 if math.isnan(last) else last] * horizon
        state, values = self._learner.state, []
        for step in range(horizon):
            predicted, state = self._learner.follow(state, self._inputs(xs[step] if xs else {}, before))
            before = predicted.mode
            value = past[:, :1] + target.mean + spread(target) * before.double()
            past = torch.cat([past[:, 1:], value], 1)
            values.append(float(value))
        return values

    def _season(self) -> int:
        return self.season

    def _width(self) -> int:
        return 1 + len(self.names or [])

    def _inputs(self, x: Features, before: Tensor) -> Tensor:
        return torch.cat([before, self._vector(x)], 1) if self.names else before

    def _readout(self, width: int) -> Readout[Any]:
        return StudentTReadout(width, 1)


class Bytes(Face):
    """Predicts a text byte by byte, and learns from it; the line before goes on in the next.

    >>> model = Bytes(size=8, lr=0.03)
    >>> first = model.learn_one("aaaaaaaaaaaaaaaa")
    >>> model.learn_one("aaaaaaaaaaaaaaaa") < first
    True
    """

    def __init__(
        self,
        cell: str = "mingru",
        size: int = 32,
        *,
        rule: str = "spatial",
        lr: float = 0.01,
        schedule: str = "constant",
        halve: int = 1000,
        clip_norm: float = 1.0,
        forget: float = 1.0,
        seed: int = 0,
    ) -> None:
        super().__init__(
            cell, size, rule=rule, lr=lr, schedule=schedule, halve=halve, clip_norm=clip_norm, forget=forget, seed=seed
        )

    def learn_one(self, text: str) -> float:
        """Read a text and learn from each byte; nats a byte, each as it was predicted before it was learned."""
        return self._read(text, learns=True)

    def predict_one(self, text: str) -> float:
        """Nats a byte of a text that would come now, without learning from it; nothing moves."""
        return self._read(text, learns=False)

    def _read(self, text: str, *, learns: bool) -> float:
        learner, nats, symbols = self._begin({}), 0.0, list(text.encode())
        state, last = learner.state, int(self._own[3])
        for symbol in symbols:
            x, y = torch.tensor([last]), torch.tensor([symbol])
            if learns:
                loss, state = learner.learn(state, x, y)
                nats += float(loss)
            else:
                predicted, state = learner.follow(state, x)
                nats -= float(predicted.log_prob(y))
            last = symbol
        if learns:
            learner.state = state
            rows, target, past, before = self._own
            self._own = (rows + 1, target, past, torch.full_like(before, last))
        return nats / max(1, len(symbols))

    def _make(self, width: int) -> Learner:
        optim = Optim(lr=self.lr, schedule=self.schedule, halve=self.halve, clip_norm=self.clip_norm)
        with torch.random.fork_rng(devices=()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(self.seed)
            core = build_cell(self.cell, self.size, self.size)
            model = SequenceModel(Embedding(256, self.size), core, Softmax(core.output_size, 256))
            return Learner(model, rule=self.rule, optim=optim, example=torch.zeros(1, dtype=torch.int64))
