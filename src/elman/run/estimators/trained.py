"""What estimators share: a fit is a run of `elman.train` that leaves no folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Generic, TypeVar

from elman.options import positive, whole
from elman.run import train
from elman.scikit import Configured, NotFitted, RandomState, seed
from elman.tasks.predictor import AnyPredictor
from elman.tasks.task import Settings, TrainedSettings
from elman.training.loop import TrainingConfig
from elman.training.optim import OptimConfig

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    Section = TypeVar("Section", bound=DataclassInstance)

P = TypeVar("P", bound=AnyPredictor)


class Trained(Configured, Generic[P]):
    """An estimator of one task. Its options have the names of settings, but for `learning_rate` and `random_state`."""

    model_: P
    learning_rate: float
    random_state: RandomState
    verbose: bool

    @property
    def _predictor(self) -> P:
        if not hasattr(self, "model_"):
            raise NotFitted(f"this {type(self).__name__} is not fitted yet; call fit first")
        return self.model_

    def _section(self, kind: type[Section], **others: object) -> Section:
        """A section of the config: the options that have the names of its settings, and some `others`."""
        options = self.get_params()
        own = {part.name: options[part.name] for part in fields(kind) if options.get(part.name) is not None}
        return kind(**{**own, **others})

    def _seed(self) -> int:
        return seed(self.random_state) % 2**62

    def _train(self, config: Settings[P], data: object) -> None:
        self.model_, _ = train(config, data, progress=bool(self.verbose))

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")


class TrainedOnRows(Trained[P]):
    """One that reads rows which are independent of each other, all of them `epochs` times."""

    epochs: int
    batch_size: int

    def _train_on(self, rows: Sequence[object], config: TrainedSettings[P]) -> None:
        """All rows are trained on. Their one evaluation, at the end, keeps what the last step has made."""
        size = whole("batch_size", self.batch_size)
        steps = whole("epochs", self.epochs) * -(-len(rows) // size)
        optim = self._section(OptimConfig, lr=positive("learning_rate", self.learning_rate))
        training = TrainingConfig(steps=steps, evaluate_every=steps, log_every=steps)
        self._train(replace(config, optim=optim, training=training, seed=self._seed()), {"train": rows, "valid": rows})
