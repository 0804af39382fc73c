"""A linear-chain conditional random field, on the filter of a hidden Markov model (Lafferty et al., 2001).

    s(z) = start[z[0]] + sum_t e[t, z[t]] + sum_(t > 0) S[z[t-1], z[t]] + stop[z[L-1]],    P(z) = exp(s(z)) / Z

Z, the sum over all paths z of one row, is what the filter normalises by, given the non-negative matrix
A = exp(S - max S): each of the L - 1 transitions leaves out max S, which is added back. start and stop are added to the
emissions of the first and the last step. The largest filtered state is at least 1 / K, and the filter multiplies a
prediction by A once more before it normalises: with S of at least max S - 40 neither underflows. Smaller transition
scores count as max S - 40, in Z and in s alike, so that probabilities still add up to one. (What a tagging scheme
forbids is therefore left out in decoding only: `best_path(allowed)`.) The gradient of log Z with respect to e is the
marginals P(z[t] = k). Sums over steps are taken in float64: of 10,000 scores of 1e3, float32 would lose what tells two
paths apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from elman import kernels, random
from elman.errors import InputError
from elman.lengths import checked, masked, valid
from elman.nn.distributions import Categorical, Distribution, Product
from elman.nn.readout import Linear, Softmax
from elman.options import whole

SPAN = 40.0  # exp(-40)^2 / K is still above float32's smallest normal number, exp(-87)


class Allowed(NamedTuple):
    """Which tags may come first, which may follow which (from row to column), which may come last: bool."""

    first: Tensor  # (K,)
    following: Tensor  # (K, K)
    last: Tensor  # (K,)


class Tags(Distribution, Protocol):
    """A distribution over the tags of sentences, K of them."""

    def best_path(self, allowed: Allowed | None = None) -> Tensor: ...
    def marginals(self) -> Tensor: ...


@dataclass(frozen=True)
class LinearChain(Distribution):
    """A distribution over the paths z (B, T) of B rows, one event per row; K tags. Past the lengths z is -1.

    >>> chain = LinearChain(torch.zeros(1, 3, 2), torch.tensor([3]), torch.zeros(2), torch.zeros(2), torch.zeros(2, 2))
    >>> chain.log_prob(torch.tensor([[0, 1, 0]])).exp().item()
    0.125
    """

    emissions: Tensor  # (B, T, K)
    lengths: Tensor  # (B,)
    start: Tensor  # (K,)
    stop: Tensor  # (K,)
    transition: Tensor  # (K, K), from row to column

    def log_prob(self, value: Tensor) -> Tensor:
        """log P of the paths value (B, T): (B,). What stands past the lengths is not read."""
        return (self.score(value) - self.log_partition()).to(self.emissions.dtype)

    def score(self, value: Tensor) -> Tensor:
        """s of the paths value (B, T): (B,) float64."""
        path, n = self._checked(value), self.lengths
        total = masked(self.emissions.gather(2, path[..., None])[..., 0], n).double().sum(1)
        if path.shape[1] == 0:
            return total
        # From a copy for each row: gradients are then added up in one order, whatever the number of threads.
        first, last = path[:, :1], path.gather(1, (n - 1).clamp(min=0)[:, None])
        ends = [scores.expand(len(path), -1).gather(1, z) for scores, z in ((self.start, first), (self.stop, last))]
        moves = path[:, :-1] * len(self.start) + path[:, 1:]
        taken = self._transition().reshape(1, -1).expand(len(path), -1).gather(1, moves)
        total = total + masked(taken, (n - 1).clamp(min=0)).double().sum(1)
        return total + masked(torch.cat(ends, 1).sum(1, keepdim=True), n)[:, 0].double()

    def log_partition(self) -> Tensor:
        """log Z (B,) float64; zero for a row without steps, which has one path."""
        x, S = self._with_ends(), self._transition()
        top, one = S.detach().max(), torch.ones_like(S[0])
        log_c = kernels.hmm_log_prob(x, one, torch.exp(S - top), one.expand(len(x), -1), self.lengths, _no_reset(x))
        return masked(log_c, self.lengths).double().sum(1) + (self.lengths - 1).clamp(min=0) * top.double()

    def marginals(self) -> Tensor:
        """P(z[t] = k) (B, T, K), zero past the lengths; without a gradient of their own."""
        with torch.inference_mode(False), torch.enable_grad():
            e, *rest = (tensor.detach().clone() for tensor in (self.emissions, self.start, self.stop, self.transition))
            chain = LinearChain(e.requires_grad_(), self.lengths.clone(), *rest)
            (found,) = torch.autograd.grad(chain.log_partition().sum(), e)
        return found.clamp(0, 1)

    @property
    def mode(self) -> Tensor:
        """The most probable paths (B, T)."""
        return self.best_path()

    def best_path(self, allowed: Allowed | None = None) -> Tensor:
        """The most probable paths (B, T) of those allowed, by Viterbi's algorithm; of equal ones the first.

        An InputError where a row has none.
        """
        start, S, stop = self.start, self._transition(), self.stop
        if allowed is not None:
            pairs = zip(allowed, (start, S, stop), strict=True)
            start, S, stop = (torch.where(may, scores, -torch.inf) for may, scores in pairs)
        path, score = kernels.best_path(self.emissions, start, S, stop, self.lengths, _no_reset(self.emissions))
        if allowed is not None and bool((score == -torch.inf).any()):
            row = int((score == -torch.inf).nonzero()[0])
            raise InputError(
                f"`allowed` leaves no path of {int(self.lengths[row])} tags, which row {row} has: allow more tags to "
                "come first, to follow or to come last"
            )
        return path

    def k_best(self, k: int) -> tuple[Tensor, Tensor]:
        """The k most probable paths of each row (B, k, T), best first, and their s (B, k) float64.

        By a list Viterbi algorithm: each tag keeps its k best ways to it. Where a row has fewer paths, the rest are -1
        and their s is minus infinity. Of equal paths the first is the one that `mode` is.
        """
        return list_viterbi(self, whole("k", k))

    def sample(self, draws: Tensor) -> Tensor:
        """A path (B, T) for each row: z[L-1] by the filter's last, then each z[t] given z[t+1]."""
        x, S = (tensor.detach() for tensor in (self._with_ends(), self._transition()))
        B, T, K = x.shape
        A = torch.exp(S - S.max())
        ones = x.new_ones(B, 1, K)
        _, after, _ = kernels.hmm_filter(x, x.new_ones(K), A, ones[:, 0], self.lengths, _no_reset(x))
        before = torch.cat([ones, after], 1)[:, :T]  # predictions of each step
        log_p, log_A = kernels.log(before).double() + x, A.double().log()
        u = random.uniform(draws, max(T, 1)).numpy()
        path, follower = torch.full((B, T), -1), torch.zeros(B, K, dtype=torch.float64)
        for t in range(T - 1, -1, -1):
            weights = torch.softmax(log_p[:, t] + follower, -1)
            z = torch.from_numpy(random.place(np.cumsum(weights.cpu().numpy(), axis=1), u[:, t : t + 1]))
            inside = t < self.lengths.cpu()
            path[:, t] = torch.where(inside, z, -1)
            follower = torch.where(inside[:, None], log_A.cpu()[:, z].T, follower.cpu()).to(x.device)
        return path.to(x.device)

    def _with_ends(self) -> Tensor:
        """The emissions (B, T, K) with start and stop in them."""
        x = self.emissions.clone()
        B, T, K = x.shape
        if T:  # what a row without steps gets is in its padding, which nobody reads
            rows, zero = torch.arange(B, device=x.device), self.lengths.new_zeros(B)
            for step, scores in ((zero, self.start), ((self.lengths - 1).clamp(min=0), self.stop)):
                x.index_put_((rows, step), scores.to(x.dtype).expand(B, K), accumulate=True)
        return x

    def _transition(self) -> Tensor:
        """S (K, K), nothing more than SPAN below its largest."""
        return torch.maximum(self.transition, self.transition.detach().max() - SPAN)

    def _checked(self, value: Tensor) -> Tensor:
        """The path, with tag 0 past the lengths, where -1 may stand."""
        B, T, K = self.emissions.shape
        if value.shape != (B, T) or value.dtype != torch.int64:
            raise InputError(f"the tags are {value.dtype}{list(value.shape)}; expected int64[{B}, {T}]")
        path = masked(value, self.lengths)
        if path.numel() and (int(path.min()) < 0 or int(path.max()) >= K):
            raise InputError(f"tags are from {int(path.min())} to {int(path.max())}; there are {K}, from 0 to {K - 1}")
        return path


class WordTags(Categorical):
    """Tags that do not know their neighbours, each by a softmax of its own: logits (B, T, K). A tag below 0 is none."""

    def __init__(self, logits: Tensor | Product, lengths: Tensor | None = None) -> None:
        super().__init__(logits)
        self.lengths = lengths  # (B,)

    def log_prob(self, value: Tensor) -> Tensor:
        """log P of each tag (B, T), zero where there is none."""
        counted = value >= 0 if self.lengths is None else (value >= 0) & valid(self.lengths, value.shape[1])
        return torch.where(counted, super().log_prob(value.clamp(min=0)), 0.0)

    log_prob_sum = Distribution.log_prob_sum  # a kernel for the whole product would take -1 for a symbol

    def best_path(self, allowed: Allowed | None = None) -> Tensor:
        """The most probable tags (B, T); what may follow what is not looked at."""
        return self.mode

    def marginals(self) -> Tensor:
        """P(z[t] = k) (B, T, K)."""
        return self.log_probs().exp()


class TagSoftmax(Softmax):
    """A read-out whose tags do not know their neighbours."""

    def forward(self, y: Tensor, lengths: Tensor | None = None) -> WordTags:
        return WordTags(self.linear.product(y), lengths)


class CRF(nn.Module):
    """A read-out whose tags know their neighbours: emissions V h + c, and scores to start, to move and to stop.

    >>> CRF(4, 3)(torch.zeros(2, 5, 4), torch.tensor([5, 0])).log_prob(torch.zeros(2, 5, dtype=torch.int64)).shape
    torch.Size([2])
    """

    def __init__(self, input_size: int, tags: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.linear = Linear(input_size, whole("tags", tags), dropout=dropout)
        self.start, self.stop = (nn.Parameter(torch.empty(tags)) for _ in range(2))
        self.transition = nn.Parameter(torch.empty(tags, tags))  # from row to column
        self.reset_parameters()

    def reset_parameters(self) -> None:
        # The emissions speak first; what the chain adds is learnt.
        for scores in (self.start, self.stop, self.transition):
            nn.init.zeros_(scores)

    def forward(self, y: Tensor, lengths: Tensor | None = None) -> LinearChain:
        if lengths is None:
            raise InputError("a CRF scores whole sequences, so it has no step: scan them")
        return LinearChain(self.linear(y), checked(lengths, y), self.start, self.stop, self.transition)


def list_viterbi(chain: LinearChain, k: int) -> tuple[Tensor, Tensor]:
    """`LinearChain.k_best`: d[t, j] are the k largest of d[t-1, i] + S[i, j] + e[t, j], over all i and their k."""
    x, S = chain._with_ends().detach().double(), chain._transition().detach().double()
    lengths = chain.lengths
    B, T, K = x.shape
    best = torch.full((B, K, k), -torch.inf, dtype=torch.float64, device=x.device)
    came_from = torch.zeros(T, B, K, k, dtype=torch.int64, device=x.device)  # place among the K * k before it
    for t in range(T):
        if t == 0:
            new, origin = best.clone(), torch.zeros_like(came_from[0])
            new[..., 0] = x[:, 0]
        else:
            ways = best[:, None] + S.T[:, :, None]  # (B, to, from, k)
            new, origin = _largest(ways.flatten(2), k)
            new = new + x[:, t, :, None]
        inside = (t < lengths)[:, None, None]
        best, came_from[t] = torch.where(inside, new, best), origin
    best[lengths == 0, 0, 0] = 0.0  # a row without steps has one path, whose s is zero
    scores, place = _largest(best.flatten(1), k)
    paths = torch.full((B, k, T), -1, device=x.device)
    for t in range(T - 1, -1, -1):
        inside = (t < lengths)[:, None]
        paths[:, :, t] = torch.where(inside & (scores > -torch.inf), place // k, -1)
        place = torch.where(inside, came_from[t].flatten(1).gather(1, place), place)
    return paths, scores


def _largest(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of the last axis, and where they stand; of equal ones the first, as Viterbi's algorithm has it."""
    ordered, places = values.sort(dim=-1, descending=True, stable=True)
    return ordered[..., :k], places[..., :k]


def _no_reset(x: Tensor) -> Tensor:
    return torch.zeros(x.shape[:2], dtype=torch.bool, device=x.device)
