"""A tagger that reads its own tags: the previous tag is an input of the next one (Jordan's idea, for labels).

    P(z | x) = product over t of P(z[t] | z[t-1], ..., z[0], x),   h[t] = decoder([core(x)[t], E[z[t-1]]], h[t-1])

Training knows the true z[t-1] (teacher forcing), or in its place now and then a tag drawn from what the model itself
would say (scheduled sampling, Bengio et al. 2015, in two passes as Mihaylova and Martins 2019). Decoding takes the best
tag of each step, or searches with a beam.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from elman import state as states
from elman.core import Core
from elman.errors import InputError
from elman.nn.crf import TagSoftmax, WordTags
from elman.nn.embed import Embedding
from elman.options import fraction, whole
from elman.progress import check_cancelled
from elman.state import State


class AutoregressiveTagger(nn.Module):
    """embed -> core -> [its output, the previous tag] -> decoder -> softmax over K tags. The decoder must be causal.

    >>> from elman.cells import cell
    >>> model = AutoregressiveTagger(nn.Identity(), cell("gru", 3, 4), cell("gru", 4 + 2, 5), TagSoftmax(5, 6), size=2)
    >>> model.search(torch.zeros(2, 7, 3), torch.tensor([7, 4])).shape
    torch.Size([2, 7])
    """

    def __init__(
        self, embed: nn.Module, core: Core, decoder: Core, readout: TagSoftmax, *, size: int, sampled: float = 0.0
    ) -> None:
        super().__init__()
        if not decoder.causal:
            raise InputError("the decoder of an AutoregressiveTagger reads its own past, so it must be causal")
        self.embed, self.core, self.decoder, self.readout = embed, core, decoder, readout
        self.number = readout.linear.output_size  # of tags; one more comes before the first
        self.tags = Embedding(self.number + 1, size)
        self.sampled = fraction("sampled", sampled)

    def forced(self, x: State, y: Tensor, lengths: Tensor) -> WordTags:
        """What it says of each tag when it knows those before it: y (B, T), of which only y[:, :-1] is read."""
        read = self._read(x, lengths)
        y = y.clamp(min=0)
        if self.training and self.sampled:
            with torch.no_grad():
                own = self._scan(read, y, lengths).logits
            noise = -torch.log(-torch.log(torch.rand(own.shape, device=own.device).clamp(1e-7, 1 - 1e-7)))
            drawn = (own + noise).argmax(-1)  # a draw from the softmax (Gumbel)
            y = torch.where(torch.rand(y.shape, device=y.device) < self.sampled, drawn, y)
        return self._scan(read, y, lengths)

    def search(self, x: State, lengths: Tensor, num_beams: int = 1) -> Tensor:
        """The best tags (B, T) that were found, -1 past the lengths: greedily, or with a beam."""
        return self.scored(x, lengths, num_beams)[0]

    def scored(self, x: State, lengths: Tensor, num_beams: int = 1) -> tuple[Tensor, Tensor]:
        """The same, and P of each tag given those before it (B, T)."""
        k = whole("num_beams", num_beams)
        read = self._read(x, lengths)
        B, T = read.shape[:2]
        rows = torch.arange(B, device=read.device)[:, None] * k
        state = states.repeat(self.decoder.init_state(B), k)
        path = torch.full((B, k, T), -1, device=read.device)
        chances = read.new_zeros(B, k, T)
        score = read.new_zeros(B, k).double()
        score[:, 1:] = -torch.inf  # all beams are alike at first
        previous = torch.full((B * k,), self.number, device=read.device)
        for t in range(T):
            check_cancelled()
            inputs = torch.cat([read[:, t].repeat_interleave(k, 0), self.tags(previous)], -1)
            # A scan of one step: its bits do not depend on the batch.
            y, after = self.decoder.scan(inputs[:, None], state)
            log_p = self.readout(y[:, 0]).log_probs().reshape(B, k, -1)
            best, place = (score[:, :, None] + log_p.double()).flatten(1).topk(k, -1)
            inside = (t < lengths)[:, None]
            parent = torch.where(inside, place // self.number, torch.arange(k, device=read.device))
            tag = place % self.number
            path, chances = (part.gather(1, parent[..., None].expand(-1, -1, T)) for part in (path, chances))
            path[:, :, t] = torch.where(inside, tag, -1)
            chances[:, :, t] = torch.where(inside, log_p.flatten(1).gather(1, place).exp(), 0.0)
            score = torch.where(inside, best, score)
            state = states.take(after, (rows + parent).flatten())
            previous = tag.flatten()
        return path[:, 0], chances[:, 0]

    def _read(self, x: State, lengths: Tensor) -> Tensor:
        y: Tensor = self.core.scan(self.embed(x), lengths=lengths)[0]
        return y

    def _scan(self, read: Tensor, y: Tensor, lengths: Tensor) -> WordTags:
        first = torch.full_like(y[:, :1], self.number)
        previous = torch.cat([first, y[:, :-1]], 1)[:, : y.shape[1]]
        h, _ = self.decoder.scan(torch.cat([read, self.tags(previous)], -1), lengths=lengths)
        predicted: WordTags = self.readout(h, lengths)
        return predicted
