"""Beam search, for every model with a state: `repeat` once, then `take` the parents.

Of all continuations of the num_beams best sequences, the num_beams best are kept. A sequence that has ended (the
boundary symbol, or what the caller says) stays as it is. The score is the log-probability,
without a correction for length.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from elman import state as states
from elman.data.vocabulary import BOUNDARY
from elman.options import whole
from elman.state import State


class Hypothesis(NamedTuple):
    """A continuation, its log-probability, and the state (1 row) that has read all of it but the last symbol."""

    tokens: list[int]
    log_prob: float
    state: State


def beam(
    model: Any,
    state: State,
    token: Tensor,
    *,
    num_beams: int,
    max_new_tokens: int,
    ended: Callable[[list[int]], bool] = lambda tokens: tokens[-1] == BOUNDARY,
) -> list[list[Hypothesis]]:
    """For each row of `state`, whose next input is `token` (B,), its num_beams best continuations, the best first."""
    whole("num_beams", num_beams)
    B, K = len(token), num_beams
    state, token = states.repeat(state, K), token.repeat_interleave(K)
    # All beams of a row are equal at first: all but one are shut, or the search would keep K copies.
    scores = torch.full((B, K), -torch.inf, dtype=torch.float64)
    scores[:, 0] = 0
    tokens: list[list[int]] = [[] for _ in range(B * K)]
    done = torch.zeros(B * K, dtype=torch.bool)
    with torch.inference_mode():
        for _ in range(max_new_tokens):
            if bool(done.all()):
                break
            predicted, new = model.scan(token[:, None], state)
            state = states.where(done, state, new)
            parents, symbols, scores = _best(scores, predicted.log_probs()[:, 0].double(), done)
            state = states.take(state, parents)
            done = done[parents]
            # What has ended goes on by nothing: its last symbol stays pending.
            token = torch.where(done, token[parents], symbols)
            tokens = [
                tokens[p] if over else [*tokens[p], s]
                for p, s, over in zip(parents.tolist(), symbols.tolist(), done.tolist(), strict=True)
            ]
            done = torch.tensor([over or ended(t) for over, t in zip(done.tolist(), tokens, strict=True)])
    rows = [
        Hypothesis(t, float(s), states.take(state, [i]))
        for i, (t, s) in enumerate(zip(tokens, scores.flatten(), strict=True))
    ]
    return [[h for h in rows[b * K : (b + 1) * K] if h.log_prob > -torch.inf] for b in range(B)]


def _best(scores: Tensor, log_probs: Tensor, done: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The best K of the K * V continuations of each row: parents (B * K,), symbols (B * K,), scores (B, K)."""
    B, K = scores.shape
    V = log_probs.shape[-1]
    stays = torch.full((V,), -torch.inf, dtype=log_probs.dtype)
    stays[BOUNDARY] = 0
    grown = scores[:, :, None] + torch.where(done[:, None], stays, log_probs).reshape(B, K, V)
    best, index = grown.reshape(B, K * V).topk(min(K, K * V))
    parents = index // V + torch.arange(B)[:, None] * K
    return parents.flatten(), (index % V).flatten(), best
