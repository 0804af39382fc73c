"""From files to batches: what several tasks share."""

from elman.data.batches import Batch, Batches, Examples, OrderedBatches, Position, Shuffled, padded
from elman.data.text import Text, open_text
from elman.data.vocabulary import VOCABULARIES, Vocabulary

__all__ = [
    "VOCABULARIES", "Batch", "Batches", "Examples", "OrderedBatches", "Position", "Shuffled", "Text", "Vocabulary",
    "open_text", "padded",
]  # fmt: skip
