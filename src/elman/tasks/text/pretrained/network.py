"""The network of a converted model, built again from its settings: embedding, the core of its family, softmax.

x = scale * E[symbol]         E[start] in place of E[0]: what begins a text may not be what ends one
logits = V y                  V is E if tied; cap * tanh(V y / cap) where there is a cap
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from elman import kernels
from elman.errors import FileError, UnknownNameError
from elman.files.artifact import Content
from elman.kernels.builder import Builder, Slot
from elman.kernels.trace import slot_of, traced
from elman.model import SequenceModel
from elman.nn.distributions import Categorical
from elman.nn.embed import Embedding
from elman.nn.readout import Softmax
from elman.tasks.text.pretrained.families import FAMILIES

COMMON = ("family", "scale", "start", "cap")  # settings that are not those of the core


class TokenEmbedding(Embedding):
    """x[t] = scale * E[symbol], where the boundary, symbol 0, reads the row `start`.

    >>> embed = TokenEmbedding(3, 2, scale=2.0, start=1)
    >>> bool((embed(torch.tensor([0])) == 2 * embed.weight[1]).all())
    True
    """

    def __init__(self, vocabulary_size: int, size: int, *, scale: float, start: int, dropout: float = 0.0) -> None:
        super().__init__(vocabulary_size, size, dropout=dropout)
        self.scale, self.start = scale, start

    def forward(self, symbols: Tensor) -> Tensor:
        if self.start:
            symbols = torch.where(symbols == 0, self.start, symbols)
        x = super().forward(symbols)
        return x if self.scale == 1.0 else x * self.scale

    def describe_step(self, builder: Builder) -> Slot:
        table: Tensor = self.weight
        if self.start:
            table = torch.cat([self.weight[self.start : self.start + 1], self.weight[1:]])
        return builder.lookup(table if self.scale == 1.0 else table * self.scale)


class CappedSoftmax(Softmax):
    """A softmax over cap * tanh(logits / cap): no logit is larger than `cap`.

    >>> CappedSoftmax(4, 10, cap=30.0)(torch.zeros(2, 5, 4)).log_probs().shape
    torch.Size([2, 5, 10])
    """

    def __init__(
        self,
        input_size: int,
        vocabulary_size: int,
        *,
        cap: float,
        dropout: float = 0.0,
        weight: nn.Parameter | None = None,
    ) -> None:
        super().__init__(input_size, vocabulary_size, dropout=dropout, weight=weight)
        self.cap = cap

    def forward(self, y: Tensor, lengths: Tensor | None = None) -> Categorical:
        return Categorical(self.capped(self.linear(y)))

    def describe_step(self, builder: Builder, y: Slot) -> Slot:
        return slot_of(builder, self.capped(traced(builder, super().describe_step(builder, y))))

    def capped(self, logits: Tensor) -> Tensor:
        return kernels.tanh(logits / self.cap) * self.cap


def build(
    settings: Content, symbols: int, size: int, layers: int, *, tied: bool, dropout: tuple[float, float]
) -> SequenceModel:
    """The network with fresh weights; `dropout` after the embedding and before the read-out."""
    name = settings.get("family")
    if name not in FAMILIES:
        raise UnknownNameError("family of pretrained models", name, FAMILIES)
    try:
        core = FAMILIES[name].core(size, layers, {k: v for k, v in settings.items() if k not in COMMON})
    except (KeyError, TypeError) as error:
        raise FileError(f"model.pretrained is not one of the family {name} that this version knows: {error}") from error
    before, after = dropout
    scale, start, cap = settings.get("scale", 1.0), settings.get("start", 0), settings.get("cap", 0.0)
    embed = TokenEmbedding(symbols, size, scale=scale, start=start, dropout=before)
    weight = embed.weight if tied else None
    if cap:
        return SequenceModel(embed, core, CappedSoftmax(size, symbols, cap=cap, dropout=after, weight=weight))
    return SequenceModel(embed, core, Softmax(size, symbols, dropout=after, weight=weight))
