"""One sequence to another: an encoder reads the source, a decoder writes the target.

    P(y | x) = product over t of P(y[t] | y[0], ..., y[t-1], x),     the first y given a boundary symbol

    start      the decoder begins with tanh(B s + b), s all leaves of the encoder's last state, side by side
    every      it also reads tanh(C s + d) at every step (Fixed of compose/attention/decoders.py)
    attention  it also reads the encoder's outputs, which are its memory

Training knows the symbols before (teacher forcing), or in their place now and then symbols drawn from what the model
itself would say (scheduled sampling, Bengio et al. 2015). A draw has no gradient, so the inputs are drawn first, a step
at a time and without dropout, and then scored by one scan.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from elman import kernels, random
from elman import state as states
from elman.cells import initial
from elman.compose.attention import Decoder, Fixed
from elman.core import Core
from elman.model import SequenceModel
from elman.nn.distributions import Categorical
from elman.nn.embed import Embedding
from elman.nn.readout import Softmax
from elman.options import fraction
from elman.state import State
from elman.tasks.translate.data import Pairs


class Bridge(nn.Module):
    """tanh(W s + b): all leaves of a state, side by side, to all leaves of another.

    >>> from elman.cells import cell
    >>> bridge = Bridge(cell("lstm", 2, 3), cell("gru", 2, 4))
    >>> bridge(cell("lstm", 2, 3).init_state(5)).h.shape
    torch.Size([5, 4])
    """

    def __init__(self, encoder: Core, decoder: Core | Decoder) -> None:
        super().__init__()
        self.like = states.map(lambda leaf: leaf.detach(), decoder.init_state(1))
        self.widths = [_flat(leaf).shape[1] for leaf in states.leaves(self.like)]
        self.W = nn.Parameter(torch.empty(sum(self.widths), _side_by_side(encoder.init_state(1)).shape[1]))
        self.b = nn.Parameter(torch.zeros(len(self.W)))
        initial.input(self.W)

    def forward(self, state: State) -> State:
        parts = iter(kernels.tanh(kernels.linear(_side_by_side(state), self.W, self.b)).split(self.widths, 1))

        def leaf(like: Tensor) -> Tensor:
            part, shape = next(parts), like.shape[1:]
            return (
                torch.view_as_complex(part.unflatten(1, (*shape, 2))) if like.is_complex() else part.unflatten(1, shape)
            )

        return states.map(leaf, self.like)


class Summary(nn.Module):
    """tanh(W s + b): all leaves of a state to one vector (B, 1, size), the memory of a Fixed."""

    def __init__(self, encoder: Core, size: int) -> None:
        super().__init__()
        self.W = nn.Parameter(torch.empty(size, _side_by_side(encoder.init_state(1)).shape[1]))
        self.b = nn.Parameter(torch.zeros(size))
        initial.input(self.W)

    def forward(self, state: State) -> Tensor:
        return kernels.tanh(kernels.linear(_side_by_side(state), self.W, self.b))[:, None]


class EncoderDecoder(nn.Module):
    """source -> encoder -> decoder -> softmax over the target's symbols. The decoder is a causal Core, or a Decoder.

    >>> from elman.cells import cell
    >>> model = EncoderDecoder(Embedding(5, 3), cell("gru", 3, 4), Embedding(6, 2), cell("gru", 2, 4), Softmax(4, 6))
    >>> decoder, state = model.given(torch.tensor([[1, 2, 3]]), torch.tensor([3]))
    >>> decoder.scan(torch.tensor([[0]]), state)[0].logits.shape
    torch.Size([1, 1, 6])
    """

    def __init__(
        self,
        source: Embedding,
        encoder: Core,
        target: Embedding,
        decoder: Core | Decoder,
        readout: Softmax,
        *,
        smoothing: float = 0.0,
    ) -> None:
        super().__init__()
        self.smoothing = fraction("smoothing", smoothing)  # of the labels, in training
        self.source, self.encoder, self.target, self.decoder, self.readout = source, encoder, target, decoder, readout
        self.bridge = Bridge(encoder, decoder)
        self.summary = Summary(encoder, decoder.memory_size) if isinstance(decoder, Fixed) else None

    def given(self, source: Tensor, sizes: Tensor) -> tuple[SequenceModel, State]:
        """A model of the targets of some sources, source (B, S) of the lengths `sizes` (B,); and its first state."""
        memory, state = self.encoder.scan(self.source(source), lengths=sizes)
        core = self.decoder
        if isinstance(core, Decoder):
            core = core.given(memory, sizes) if self.summary is None else core.given(self.summary(state))
        return SequenceModel(self.target, core, self.readout).train(self.training), self.bridge(state)

    def forced(self, pairs: Pairs, lengths: Tensor) -> Categorical:
        """What it says of each symbol of the targets when it knows those before it, or (truth below 1) often does."""
        inputs = self.drawn_inputs(pairs) if self.training and bool((pairs.truth < 1).any()) else pairs.target
        model, state = self.given(pairs.source, pairs.sizes)
        predicted, _ = model.scan(inputs, state, lengths=lengths)
        assert isinstance(predicted, Categorical)
        return predicted

    @torch.no_grad()
    def drawn_inputs(self, pairs: Pairs) -> Tensor:
        """The targets (B, T), at each step with probability 1 - truth what the model draws after what it has read.

        Number 2 t of a row's draw decides whether step t is the true symbol, number 2 t + 1 which other it is.
        """
        training = self.training
        model, state = self.eval().given(pairs.source, pairs.sizes)
        B, T = pairs.target.shape
        true = random.uniform(pairs.draws, 2 * T)[:, ::2] < pairs.truth[:, None]
        inputs = pairs.target.clone()
        for t in range(T - 1):
            predicted, state = model.scan(inputs[:, t : t + 1], state)
            assert isinstance(predicted, Categorical)
            own = random.symbols(pairs.draws, predicted.logits[:, 0], first=2 * t + 3)
            inputs[:, t + 1] = torch.where(true[:, t + 1], pairs.target[:, t + 1], own)
        self.train(training)
        return inputs


def smoothed_loss(predicted: Categorical, y: Tensor, smoothing: float) -> Tensor:
    """- (1 - s) log P(y) - s mean over v of log P(v): label smoothing (Szegedy et al., 2016), one number a symbol.

    That is - log P(y) + s (logit of y - mean logit), so that no log-probability but that of y is needed.

    >>> smoothed_loss(Categorical(torch.zeros(1, 4)), torch.tensor([2]), 0.1).exp().item()
    4.0
    """
    loss = -predicted.log_prob(y)
    if not smoothing:
        return loss
    if predicted.product is None:
        return loss + smoothing * (predicted.logits.gather(-1, y[..., None])[..., 0] - predicted.logits.mean(-1))
    h, weight, bias = predicted.product
    above = (h * (nn.functional.embedding(y, weight) - weight.mean(0))).sum(-1)
    return loss + smoothing * (above if bias is None else above + bias[y] - bias.mean())


def _flat(leaf: Tensor) -> Tensor:
    return (torch.view_as_real(leaf) if leaf.is_complex() else leaf).flatten(1)


def _side_by_side(state: State) -> Tensor:
    return torch.cat([_flat(leaf) for leaf in states.leaves(state)], 1)
