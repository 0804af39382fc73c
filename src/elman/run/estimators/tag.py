"""The task tag: a tag for each word of a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from elman.core import Options
from elman.errors import InputError
from elman.options import several
from elman.run.estimators.trained import TrainedOnRows
from elman.scikit import RandomState
from elman.tasks.tag.data import Sentence
from elman.tasks.tag.model import Tagger, TagModelConfig, tagged_sentences
from elman.tasks.tag.task import TagConfig, TagDataConfig, check_types

Sentences = Sequence[Sequence[str]]


class SequenceTagger(TrainedOnRows[Tagger]):
    """A tag for each word. X is a list of sentences, each a list of words; y has their tags.

    >>> X, y = [["he", "runs"], ["she", "sleeps"]] * 4, [["N", "V"], ["N", "V"]] * 4
    >>> tagger = SequenceTagger(size=8, epochs=10, random_state=0).fit(X, y)
    >>> tagger.predict([["she", "runs"]])
    [['N', 'V']]
    """

    def __init__(
        self,
        cell: str = "lstm",
        size: int = 100,
        *,
        layers: int = 1,
        bidirectional: bool = True,
        block: str = "auto",
        options: Options | None = None,
        residual: bool = False,
        norm: str | None = None,
        dropout: float = 0.0,
        embedding_size: int = 100,
        word_dropout: float = 0.05,
        vectors: str = "",
        case_size: int = 8,
        char_cell: str = "lstm",
        char_size: int = 25,
        char_embedding_size: int = 25,
        embedding_dropout: float = 0.5,
        readout_dropout: float = 0.5,
        crf: bool = True,
        feedback: bool = False,
        feedback_size: int = 16,
        feedback_sampled: float = 0.0,
        scheme: str = "auto",
        train_as: str = "same",
        min_count: int = 1,
        lower: bool = True,
        epochs: int = 20,
        batch_size: int = 32,
        learning_rate: float = 0.005,
        weight_decay: float = 0.01,
        random_state: RandomState = None,
        verbose: bool = False,
    ) -> None:
        self._store(locals())

    def fit(self, X: Sentences, y: Sentences) -> Self:
        """Fit to sentences X and the tags y of their words."""
        data, model = self._section(TagDataConfig), self._section(TagModelConfig)
        self._train_on(_tagged(X, y), TagConfig(data=data, model=model))
        return self

    def predict(self, X: Sentences) -> list[list[str]]:
        """The tags of each sentence."""
        return self._predictor.tag_all(X)

    def score(self, X: Sentences, y: Sentences) -> float:
        """F1 of spans where the tags have a scheme, as IOB; else the share of tags that are right."""
        model, sentences = self._predictor, _tagged(X, y)
        check_types(model.lexicon, sentences)
        return model.evaluate(sentences).value


def _tagged(X: Sentences, y: Sentences) -> list[Sentence]:
    words, tags = several("X", X, "sentences, each a list of words"), several("y", y, "the tags of each sentence")
    if not words:
        raise InputError("X is empty; there is nothing to fit to")
    if len(words) != len(tags):
        raise InputError(f"X has {len(words)} sentences and y the tags of {len(tags)}; each sentence needs its own")
    return tagged_sentences([*zip(words, tags, strict=True)])
