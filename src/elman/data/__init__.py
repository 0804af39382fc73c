"""From text to batches: sources, vocabularies, the encoded cache, windows."""

from elman.data.batches import Batch, Batches, Bucketed, ExampleBatches, Examples, Numbered, Position, Shuffled, padded
from elman.data.cache import Encoded, encode
from elman.data.text import Text, open_text
from elman.data.vocabulary import VOCABULARIES, Vocabulary
from elman.data.windows import Streams, lanes

__all__ = [
    "VOCABULARIES", "Batch", "Batches", "Bucketed", "Encoded", "ExampleBatches", "Examples", "Numbered",
    "Position", "Shuffled", "Streams", "Text", "Vocabulary", "encode", "lanes", "open_text",
    "padded",
]  # fmt: skip
