"""What a tagger's core reads: words, how they are written, and their characters, as one vector each.

    x[t] = [E[word], E'[case], E''[feature] ..., left[C], right[0]]

left and right are the outputs of a core that reads the C characters of the word from either end: at its last character
and at its first (Lample et al., 2016). All words of a batch are rows of one ragged scan.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from elman import kernels, progress
from elman.cells import cell as build_cell
from elman.compose import Bidirectional
from elman.data.vocabulary import UNKNOWN
from elman.nn.embed import Embedding
from elman.nn.readout import at_end
from elman.options import fraction
from elman.tasks.tag.lexicon import Written
from elman.tasks.tag.vectors import read_vectors


class WordEmbedding(Embedding):
    """x[t] = E[symbol]; in training, each symbol is the unknown one with probability `word_dropout`.

    >>> WordEmbedding(9, 4, word_dropout=0.1)(torch.tensor([[2, 3]])).shape
    torch.Size([1, 2, 4])
    """

    def __init__(self, vocabulary_size: int, size: int, *, dropout: float = 0.0, word_dropout: float = 0.0) -> None:
        super().__init__(vocabulary_size, size, dropout=dropout)
        self.word_dropout = fraction("word_dropout", word_dropout)

    def forward(self, symbols: Tensor) -> Tensor:
        """symbols (B, T) or (B,) -> (..., D)."""
        if self.training and self.word_dropout:
            hidden = torch.rand(symbols.shape, device=symbols.device) < self.word_dropout
            symbols = torch.where(hidden, UNKNOWN, symbols)
        return super().forward(symbols)

    @torch.no_grad()
    def begin_with(self, file: str, names: Sequence[str]) -> None:
        """Begin with the vectors of a file, of as many words as it has; `names` are the words from number 2 on."""
        vectors = read_vectors(file, {*names}, self.output_size)
        progress.say(f"{file} has vectors of {len(vectors):,} of the {len(names):,} words")
        rows = [i for i, name in enumerate(names, 2) if name in vectors]
        if rows:
            self.weight[rows] = torch.from_numpy(np.stack([vectors[names[i - 2]] for i in rows]))


class Characters(nn.Module):
    """A vector for each word, of its characters: [left at the last, right at the first], 2 * size wide.

    >>> Characters(30, "gru", 5, 4)(torch.ones(2, 3, 7, dtype=torch.int64), torch.full((2, 3), 7)).shape
    torch.Size([2, 3, 8])
    """

    def __init__(self, vocabulary_size: int, cell: str, embedding_size: int, size: int) -> None:
        super().__init__()
        self.embed = Embedding(vocabulary_size, embedding_size)
        self.core = Bidirectional(*(build_cell(cell, embedding_size, size) for _ in range(2)))
        self.size, self.output_size = size, self.core.output_size

    def forward(self, characters: Tensor, sizes: Tensor) -> Tensor:
        """characters (B, T, C), of which `sizes` (B, T) count -> (B, T, H); zeros where there are none."""
        features = self.embed.weight.new_zeros(*sizes.shape, self.output_size)
        there = sizes > 0
        if not bool(there.any()):
            return features
        lengths = sizes[there]
        y, _ = self.core.scan(self.embed(characters[there]), lengths=lengths)
        features[there] = torch.cat([at_end(y[..., : self.size], lengths), y[:, 0, self.size :]], -1)
        return features


class SentenceEmbedding(nn.Module):
    """x[t] = [E[word], E'[case], E''[feature] ..., its characters], with dropout on all of it; parts may be missing."""

    def __init__(
        self,
        words: WordEmbedding,
        case: Embedding | None,
        features: Sequence[Embedding],
        characters: Characters | None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.words, self.case, self.characters = words, case, characters
        self.features = nn.ModuleList(features)
        self.dropout = fraction("dropout", dropout)
        every: list[Embedding | Characters | None] = [words, case, *features, characters]
        self.output_size = sum(part.output_size for part in every if part is not None)

    def forward(self, sentences: Written) -> Tensor:
        """(B, T, D)."""
        parts = [self.words(sentences.words)]
        if self.case is not None:
            parts.append(self.case(sentences.case))
        parts.extend(embed(sentences.features[..., i]) for i, embed in enumerate(self.features))
        if self.characters is not None:
            parts.append(self.characters(sentences.characters, sentences.sizes))
        return kernels.dropout(torch.cat(parts, -1), self.dropout, self.training)
