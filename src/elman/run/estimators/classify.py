"""The task classify: a class or a number for each sequence.

X is a list of texts; a list of arrays (T, D) or (T,), each as long as it is; or a padded array (N, T, D) or (N, T) with
`lengths` (N,), all of it without.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from elman.core import Options
from elman.data.names import refuse_alike
from elman.data.tables import ABSENT, is_frame
from elman.errors import InputError
from elman.options import several
from elman.run.estimators.trained import TrainedOnRows
from elman.scikit import RandomState
from elman.tasks.classify import metrics
from elman.tasks.classify.data import Input, Row
from elman.tasks.classify.model import Classifier, ClassifyModelConfig
from elman.tasks.classify.task import ClassifyConfig, ClassifyDataConfig, LossConfig

if TYPE_CHECKING:
    from sklearn.utils import Tags

Inputs = Sequence[str] | Sequence[ArrayLike] | NDArray[np.generic]


class _Sequences(TrainedOnRows[Classifier]):
    """What the two have in common."""

    kind: ClassVar[str]
    n_features_in_: int
    class_weight: str | None
    label_smoothing: float

    def __init__(
        self,
        cell: str = "gru",
        size: int = 64,
        *,
        layers: int = 1,
        bidirectional: bool = True,
        pool: str = "max",
        block: str = "auto",
        options: Options | None = None,
        residual: bool = False,
        norm: str | None = None,
        dropout: float = 0.0,
        embedding_size: int = 0,
        embedding_dropout: float = 0.2,
        word_dropout: float = 0.05,
        readout_dropout: float = 0.1,
        vocabulary: str = "word",
        min_count: int = 1,
        class_weight: str | None = None,
        label_smoothing: float = 0.0,
        epochs: int = 20,
        batch_size: int = 32,
        learning_rate: float = 0.005,
        weight_decay: float = 0.01,
        random_state: RandomState = None,
        verbose: bool = False,
    ) -> None:
        self._store(locals())

    def _fit(self, rows: list[Row]) -> None:
        if self.class_weight not in (None, "balanced"):
            raise InputError(f"class_weight is {self.class_weight!r}; it must be None or 'balanced'")
        data, model = self._section(ClassifyDataConfig, label_kind=self.kind), self._section(ClassifyModelConfig)
        loss = LossConfig(self.class_weight or "equal", self.label_smoothing)
        self._train_on(rows, ClassifyConfig(data=data, model=model, loss=loss))

    def _inputs(self, X: Inputs, lengths: ArrayLike | None) -> list[Input]:
        """The rows of X, each as long as it is."""
        if is_frame(X) and (numbers := X.to_numpy()).dtype.kind in "iuf":  # type: ignore[union-attr]
            X = numbers  # a row of it is a sequence
        sequences = several("X", X, "texts, or of arrays (T, D)")
        rows = [row if isinstance(row, str) else np.asarray(row) for row in sequences]
        if lengths is None:
            return rows
        if any(isinstance(row, str) for row in rows):
            raise InputError("X is texts, and lengths would cut their letters; lengths are those of padded arrays")
        sizes = np.asarray(lengths)
        if sizes.shape != (len(rows),) or not np.issubdtype(sizes.dtype, np.integer):
            raise InputError(f"lengths is {sizes.dtype}{list(sizes.shape)}; expected {len(rows)} whole numbers")
        if any(not 0 <= n <= len(row) for n, row in zip(sizes, rows, strict=True)):
            raise InputError("a length is below 0 or above what its row of X has")
        return [row[:n] for row, n in zip(rows, sizes, strict=True)]

    def _outputs(self, X: Inputs, lengths: ArrayLike | None) -> torch.Tensor:
        model = self._predictor
        return model.outputs([model.inputs(x, f"row {i} of X") for i, x in enumerate(self._inputs(X, lengths))])

    def __sklearn_tags__(self) -> Tags:
        from sklearn.utils import ClassifierTags, RegressorTags

        tags, classifies = super().__sklearn_tags__(), self.kind == "class"
        tags.estimator_type, tags.target_tags.required = "classifier" if classifies else "regressor", True
        tags.classifier_tags, tags.regressor_tags = (ClassifierTags(), None) if classifies else (None, RegressorTags())
        tags.input_tags.string, tags.input_tags.allow_nan = True, False
        return tags


class SequenceClassifier(_Sequences):
    """A class for each sequence. Its `model_` answers with the same labels, of the type that they were given in.

    >>> texts, labels = ["good day", "bad day", "good", "bad"] * 4, [1, 0, 1, 0] * 4
    >>> model = SequenceClassifier(size=8, random_state=0).fit(texts, labels)
    >>> model.predict(["good", "bad"]).tolist()
    [1, 0]
    """

    kind = "class"
    classes_: NDArray[np.generic]

    def fit(self, X: Inputs, y: ArrayLike, lengths: ArrayLike | None = None) -> Self:
        """Fit to sequences X and a label y (N,) for each, of any type."""
        inputs, labels = self._inputs(X, lengths), np.asarray(y)
        _check(inputs, labels)
        given = np.asarray(y, dtype=object)  # in an array of texts, 1 and nan would be texts
        for i, label in enumerate(given):
            if not isinstance(label, str) and str(label) in ABSENT:
                raise InputError(f"row {i} of y is {label}, which is missing and no class; leave the row out")
        refuse_alike(map(str, labels), "labels")
        kept = given if labels.dtype.kind == "U" else labels  # 1 and 2.5 are numbers, 1 and "a" are not texts
        types = sorted({"str" if isinstance(label, str) else type(label).__name__ for label in kept.tolist()})
        if len(types) > 1:
            raise InputError(f"y has labels of several types, {' and '.join(types)}; give all the same")
        classes = np.unique(labels)
        names = [label if isinstance(label, str | int | float) else str(label) for label in labels.tolist()]
        self._fit([Row(x, (name,), f"row {i} of X") for i, (x, name) in enumerate(zip(inputs, names, strict=True))])
        self.classes_ = classes
        return self

    def predict(self, X: Inputs, lengths: ArrayLike | None = None) -> NDArray[np.generic]:
        """The most probable label (N,) of each sequence."""
        places = self.predict_proba(X, lengths).argmax(-1)  # first: it refuses what is not fitted
        labels: NDArray[np.generic] = self.classes_[places]
        return labels

    def predict_proba(self, X: Inputs, lengths: ArrayLike | None = None) -> NDArray[np.float64]:
        """P of each class (N, C), in the order of `classes_`."""
        outputs, names = self._outputs(X, lengths).exp().numpy(), self._predictor.labels.names
        places = {name: i for i, name in enumerate(names)}
        return outputs[:, [places[str(label)] for label in self.classes_.tolist()]]

    def score(self, X: Inputs, y: ArrayLike, lengths: ArrayLike | None = None) -> float:
        """The share of labels that are right."""
        labels = self.predict(X, lengths)
        truth = np.asarray(y)
        _check(labels, truth)
        return float((labels == truth).mean())


class SequenceRegressor(_Sequences):
    """A number for each sequence, and how sure it is.

    >>> X = [[0.0, 1.0], [1.0, 1.0], [2.0, 1.0], [3.0, 1.0]] * 4
    >>> model = SequenceRegressor(size=8, random_state=0, epochs=40).fit(X, [row[0] for row in X])
    >>> model.predict([[0.0, 1.0], [3.0, 1.0]]).shape
    (2,)
    """

    kind = "number"

    def fit(self, X: Inputs, y: ArrayLike, lengths: ArrayLike | None = None) -> Self:
        """Fit to sequences X and a number y (N,) for each."""
        inputs, numbers = self._inputs(X, lengths), _numbers(y)
        _check(inputs, numbers)
        rows = zip(inputs, numbers, strict=True)
        self._fit([Row(x, (repr(float(value)),), f"row {i} of X") for i, (x, value) in enumerate(rows)])
        return self

    def predict(self, X: Inputs, lengths: ArrayLike | None = None) -> NDArray[np.float64]:
        """The expected number (N,) for each sequence."""
        return self._outputs(X, lengths)[:, 0].numpy()

    def predict_std(self, X: Inputs, lengths: ArrayLike | None = None) -> NDArray[np.float64]:
        """Its standard deviation (N,)."""
        return self._outputs(X, lengths)[:, 1].numpy()

    def score(self, X: Inputs, y: ArrayLike, lengths: ArrayLike | None = None) -> float:
        """r2: 1 - mean squared error / variance of y."""
        outputs, truth = self._outputs(X, lengths), _numbers(y)
        _check(outputs, truth)
        return metrics.of_numbers(outputs[:, 0], outputs[:, 1], torch.tensor(truth)).numbers["r2"]


def _numbers(y: ArrayLike) -> NDArray[np.float64]:
    try:
        return np.asarray(y, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"y is not numbers: {error}. A class for each sequence is a SequenceClassifier's") from None


def _check(inputs: Sized, y: NDArray[np.generic]) -> None:
    if y.ndim != 1 or len(y) != len(inputs):
        raise InputError(f"y is {y.dtype}{list(y.shape)}; there are {len(inputs)} sequences, each needs one label")
    if not len(inputs):
        raise InputError("X is empty; there is nothing to fit to")
