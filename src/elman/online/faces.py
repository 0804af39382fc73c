"""What river's users know: a regressor and a classifier that read dicts, and (series.py) a forecaster.

    learn_one(x, y)   predict_one(x)   predict_proba_one(x)          learn_one(y, x)   forecast(horizon, xs)

River is not needed. A row's features are those of the first x, in the order of their names: a feature that is missing
later, or None, counts as its mean, and one that is new is left out. Numbers only: a feature that is a text is refused.
"""

from __future__ import annotations

import inspect
import math
import os
import warnings
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self, cast

import torch
from torch import Tensor, nn

from elman import kernels
from elman import state as states
from elman.cells import cell as build_cell
from elman.compose import Columns, Parallel, Stack
from elman.core import Core
from elman.errors import InputError
from elman.files import artifact
from elman.model import SequenceModel
from elman.nn.readout import Readout, Softmax, StudentTReadout
from elman.online.learner import Learner, LearnerState
from elman.online.optim import Optim
from elman.online.scaling import Standardise, StandardiseState, spread
from elman.options import whole

FILE, STATE = "face.json", "state.safetensors"
KIND, VERSION = "elman-online", 1
LARGEST = torch.finfo(torch.float32).max  # of features and targets

Features = Mapping[Any, Any]


class FaceState(NamedTuple):
    """All that moves in a face: its learner's state, and what the face itself remembers."""

    learner: LearnerState
    rows: Tensor  # (1,) int64, how many have come
    target: StandardiseState
    past: Tensor  # (1, season) float64, the last targets, the oldest first; NaN where none has come
    before: Tensor  # (1, 1), the last difference that was learned from, standardised


class Face:
    """What they have in common: a learner, made when the first features come, and made again when copied or loaded."""

    def __init__(
        self,
        cell: str = "mingru",
        size: int = 32,
        *,
        rule: str = "rtrl",
        lr: float = 0.01,
        schedule: str = "constant",
        halve: int = 1000,
        clip_norm: float = 1.0,
        forget: float = 1.0,
        seed: int = 0,
    ) -> None:
        self.cell, self.size, self.rule = cell, whole("size", size), rule
        self.lr, self.schedule, self.halve, self.clip_norm = lr, schedule, halve, clip_norm
        self.forget, self.seed = forget, whole("seed", seed, least=0)
        self.names: list[Hashable] | None = None  # of the features
        self.labels: list[Any] = []  # of a classifier, in the order in which they came
        self._learner: Learner | None = None
        self._target = Standardise(1, forget=forget)
        nothing = torch.full((1, self._season()), math.nan, dtype=torch.float64)
        self._recorded: dict[str, Callable[..., list[Tensor]]] = {}  # by kernels: how a target is standardised
        self._own = (torch.zeros(1, dtype=torch.int64), self._target.init_state(1), nothing, torch.zeros(1, 1))

    @property
    def rows(self) -> int:
        """How many rows have come."""
        return int(self._own[0])

    @property
    def state(self) -> FaceState | None:
        """All that moves, a value; None before the first features have come. It can be set, to one of this face."""
        return None if self._learner is None else FaceState(self._learner.state, *self._own)

    @state.setter
    def state(self, state: FaceState) -> None:
        self._learner = self._learner or self._make(self._width())
        self._learner.state, self._own = state.learner, (state.rows, state.target, state.past, state.before)

    def settings(self) -> dict[str, Any]:
        """The arguments that it was made with."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write what it is and all that has moved to a folder, from which `load` continues to the same bytes."""
        if self.state is None:
            raise InputError("nothing has been learned yet, so there is nothing to save")
        content = {"settings": self.settings(), "names": self.names, "labels": self.labels}

        def fill(new: Path) -> None:
            artifact.write_json(new / FILE, KIND, VERSION, content)
            states.save(new / STATE, states.map(lambda leaf: leaf[None].clone(), cast(FaceState, self.state)))

        artifact.write(Path(folder), fill)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Self:
        """The face that `save` wrote, where it stood."""
        path = artifact.find(Path(folder)) or Path(folder)
        content = artifact.read_json(path / FILE, KIND, VERSION)
        artifact.verify(path / STATE)
        face = cls(**content["settings"])
        face.names, face.labels = content["names"], content["labels"]
        face._learner = face._make(face._width())
        like = states.map(lambda leaf: leaf[None], cast(FaceState, face.state))
        face.state = cast(FaceState, states.map(lambda leaf: leaf[0], states.load(path / STATE, like)))
        return face

    def pass_over(self) -> None:
        """A row that nothing can be learned from."""
        rows, *rest = self._own
        self._own = (rows + 1, *rest)  # type: ignore[assignment]

    def _season(self) -> int:
        return 1

    def _make(self, width: int) -> Learner:
        """The learner of `width` features: standardised, through the cell, and past it."""
        optim = Optim(lr=self.lr, schedule=self.schedule, halve=self.halve, clip_norm=self.clip_norm)
        with torch.random.fork_rng(devices=()), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # which rule it is was chosen by name
            torch.manual_seed(self.seed)
            core: Core = Parallel(build_cell(self.cell, width, self.size), Columns(width, 0, width))
            core = Stack(Standardise(width, forget=self.forget), core)
            readout = self._readout(core.output_size)
            with torch.no_grad():
                for parameter in readout.parameters():  # at first it predicts what is known without it
                    parameter.zero_()
            return Learner(SequenceModel(nn.Identity(), core, readout), rule=self.rule, optim=optim)

    def _width(self) -> int:
        return max(1, len(self.names or []))

    def _readout(self, width: int) -> Readout[Any]:
        raise NotImplementedError

    def _vector(self, x: Features) -> Tensor:
        if not self.names:
            return torch.zeros(1, 1)
        return torch.tensor([[_number(name, x.get(name)) for name in self.names]])

    def _begin(self, x: Features) -> Learner:
        if self._learner is None:
            self.names = sorted(x, key=str)
            self._learner = self._make(self._width())
        return self._learner

    def _standardised(self, y: Tensor) -> tuple[Tensor, StandardiseState]:
        """y (1, 1) float64 by statistics that do not know it, and the statistics with y among them."""
        state, name = self._own[1], kernels.active()
        if name not in self._recorded:
            target = self._target

            def both(y: Tensor, *parts: Tensor) -> list[Tensor]:
                state = StandardiseState(*parts)
                return [target.scaled(y, state).float(), *target.seen(y, state)]

            self._recorded[name] = kernels.record(both, [y, *state])
        z, *seen = self._recorded[name](y, *state)
        return z, StandardiseState(*seen)

    def __getstate__(self) -> dict[str, Any]:
        """Its settings and its state: a learner has functions in it, which cannot be written down."""
        return {**vars(self), "_recorded": {}, "_learner": None if self._learner is None else self._learner.state}

    def __setstate__(self, kept: dict[str, Any]) -> None:
        vars(self).update(kept, _learner=None)
        if kept["_learner"] is not None:
            self._learner = self._make(self._width())
            self._learner.state = kept["_learner"]


class Regressor(Face):
    """Predicts a number of a dict of numbers, and learns from it: river's `Regressor`.

    The target is standardised by its running mean and variance, which `forget` lets follow a drift, and so are the
    features. `cell`, `size` and `rule` are those of the recurrence; `lr`, `schedule`, `halve` and `clip_norm` those of
    its optimiser, adam.

    >>> model = Regressor(size=4)
    >>> for t in range(60):
    ...     model.learn_one({"t": t % 3}, 10.0 + t % 3)
    >>> round(model.predict_one({"t": 2}))
    12
    """

    def learn_one(self, x: Features, y: float) -> None:
        """Read x and learn from its target y; a NaN is one that is missing."""
        given = torch.tensor([[finite("the target", y)]], dtype=torch.float64)
        if bool(given.isnan()):
            self.pass_over()
            return
        learner, (rows, _, past, before) = self._begin(x), self._own
        z, seen = self._standardised(given)
        learner.learn_one(self._vector(x), z)
        self._own = (rows + 1, seen, past, before)

    def predict_one(self, x: Features) -> float:
        """The target of x, as far as it can be told; nothing moves."""
        if self._learner is None:
            return 0.0
        target = self._own[1]
        z = self._learner.predict_one(self._vector(x)).mode.item()
        return target.mean.item() + spread(target).item() * z

    def _readout(self, width: int) -> Readout[Any]:
        return StudentTReadout(width, 1)


class Classifier(Face):
    """Predicts one of several labels of a dict of numbers, and learns from it: river's `Classifier`.

    There can be as many labels as `classes`; the rest is as in `Regressor`.

    >>> model = Classifier(size=4)
    >>> for t in range(60):
    ...     model.learn_one({"t": t % 2}, "odd" if t % 2 else "even")
    >>> model.predict_one({"t": 1})
    'odd'
    """

    _multiclass = True

    def __init__(
        self,
        cell: str = "mingru",
        size: int = 32,
        *,
        classes: int = 10,
        rule: str = "rtrl",
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
        self.classes = whole("classes", classes, least=2)

    def learn_one(self, x: Features, y: Any) -> None:
        """Read x and learn from its label y."""
        learner = self._begin(x)
        if y not in self.labels:
            if len(self.labels) == self.classes:
                raise InputError(f"{y!r} is label number {self.classes + 1}; build the Classifier with more `classes`")
            self.labels.append(y)
        learner.learn_one(self._vector(x), torch.tensor([self.labels.index(y)]))
        self.pass_over()

    def predict_proba_one(self, x: Features) -> dict[Any, float]:
        """The probability of each label that was seen so far."""
        if self._learner is None:
            return {}
        logits = self._learner.predict_one(self._vector(x)).logits[0, : len(self.labels)]  # type: ignore[attr-defined]
        return dict(zip(self.labels, torch.softmax(logits.double(), 0).tolist(), strict=True))

    def predict_one(self, x: Features) -> Any:
        """The most probable label; None before the first."""
        probabilities = self.predict_proba_one(x)
        return max(probabilities, key=probabilities.__getitem__) if probabilities else None

    def _readout(self, width: int) -> Readout[Any]:
        return Softmax(width, self.classes)


def _number(name: Hashable, value: object) -> float:
    if value is None:
        return math.nan
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise InputError(
            f"the feature {name!r} is {value!r}; a learner takes numbers: encode it, with river's OneHotEncoder, say"
        ) from None
    return finite(f"the feature {name!r}", number)


def finite(what: str, value: float) -> float:
    """A number, or NaN for one that is missing; after an infinite one all that is learned would be NaN."""
    number = float(value)
    if abs(number) > LARGEST:
        raise InputError(f"{what} is {value!r}; it must be a number that float32 has, or None where it is missing")
    return number
