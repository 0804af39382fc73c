"""Quantiles and means of what a model predicts with, and a distribution that is a grid of quantiles.

    quantile(p) is the smallest x with P(X <= x) >= p

Student's t and the negative binomial need the incomplete beta function, which stands here in Numpy: its continued
fraction (Lentz's method). Of Student's t it is inverted by Newton's steps, of counts by bisection.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elman import kernels, random
from elman.errors import InputError
from elman.nn.distributions import (
    Bernoulli,
    Categorical,
    Distribution,
    Gaussian,
    NegativeBinomial,
    Poisson,
    StudentT,
    _one_event_per_row,
    log_rising,
)
from elman.nn.readout import Affine

Array = NDArray[np.float64]

LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
LARGE = 1e6  # degrees of freedom from which Student's t is a correction of the normal distribution
GRID = (0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)


@dataclass(frozen=True)
class QuantileGrid:
    """D independent numbers, each by its quantiles at `levels`: values (..., D, Q), which rise.

    Between them the distribution function is a line; below the first and above the last, an exponential tail that goes
    on with the density of the outermost piece.

    >>> grid = QuantileGrid(torch.tensor([[[0.0, 1.0, 3.0]]]), (0.25, 0.5, 0.75))
    >>> quantile(grid, [0.5, 0.625]).flatten().tolist()
    [1.0, 2.0]
    """

    values: Tensor
    levels: tuple[float, ...] = GRID

    def __post_init__(self) -> None:
        if len(self.levels) < 2 or self.values.shape[-1] != len(self.levels):
            raise InputError(
                f"a grid of quantiles was given the levels {self.levels} and {self.values.shape[-1]} values; it needs "
                "two or more levels, and a value for each"
            )

    def log_prob(self, value: Tensor) -> Tensor:
        """The log-density (...) at value (..., D)."""
        p, q = self._levels(), self.values.double()
        x = value.double()[..., None]
        width = (q[..., 1:] - q[..., :-1]).clamp(min=1e-12)
        inner = (p[1:] - p[:-1]).log() - width.log()
        place = (x >= q).sum(-1)  # 0 below all, Q above all
        inside = inner.gather(-1, (place - 1).clamp(0, len(self.levels) - 2)[..., None])[..., 0]
        # A tail of mass m whose density begins with that of its neighbour, f: f exp(-f d / m), d the distance.
        below, above = (q[..., 0] - x[..., 0]).clamp(min=0), (x[..., 0] - q[..., -1]).clamp(min=0)
        low, high = inner[..., 0], inner[..., -1]
        tail_low, tail_high = low - low.exp() * below / p[0], high - high.exp() * above / (1 - p[-1])
        each = torch.where(place == 0, tail_low, torch.where(place == len(self.levels), tail_high, inside))
        return each.sum(-1).to(self.values.dtype)

    def pinball(self, value: Tensor) -> Tensor:
        """2 * mean over levels of max(p (x - q), (p - 1) (x - q)), summed over D: (...); about the CRPS."""
        error = value[..., None] - self.values
        p = self._levels().to(error.dtype)
        return 2 * torch.maximum(p * error, (p - 1) * error).mean(-1).sum(-1)

    def sample(self, draws: Tensor) -> Tensor:
        """Numbers (B, D): the inverse of the distribution function."""
        B, D = len(self.values), self.values.shape[-2]
        _one_event_per_row(self.values[..., 0], draws)
        u = random.uniform(draws, D).to(self.values.device)
        return self._at(u.reshape(B, D, 1))[..., 0].to(self.values.dtype)

    @property
    def mode(self) -> Tensor:
        """The median (..., D)."""
        return quantile(self, [0.5])[..., 0]

    def _at(self, u: Tensor) -> Tensor:
        """The quantiles at u (..., D, n), in float64."""
        p, q = self._levels(), self.values.detach().double()
        place = (u[..., None] >= p).sum(-1)
        left = (place - 1).clamp(0, len(self.levels) - 2)
        a, b = q.gather(-1, left), q.gather(-1, left + 1)
        inside = a + (b - a) * (u - p[left]) / (p[left + 1] - p[left])
        low = (q[..., 1:2] - q[..., :1]).clamp(min=1e-12) / (p[1] - p[0])  # 1 / density
        high = (q[..., -1:] - q[..., -2:-1]).clamp(min=1e-12) / (p[-1] - p[-2])
        below = q[..., :1] + low * p[0] * torch.log(u / p[0])
        above = q[..., -1:] - high * (1 - p[-1]) * torch.log((1 - u) / (1 - p[-1]))
        return torch.where(place == 0, below, torch.where(place == len(self.levels), above, inside))

    def _levels(self) -> Tensor:
        return torch.tensor(self.levels, dtype=torch.float64, device=self.values.device)


class QuantileReadout(Affine[QuantileGrid]):
    """Quantiles that cannot cross, of each of `size` numbers: the middle one is V h + c, and each next one is further
    away by softplus of a value of its own."""

    def __init__(self, input_size: int, size: int, *, dropout: float = 0.0, levels: Sequence[float] = GRID) -> None:
        if len(levels) < 2 or not all(a < b for a, b in pairwise((0.0, *levels, 1.0))):
            raise InputError(f"levels are {list(levels)}; it takes two or more between 0 and 1, which rise")
        super().__init__(input_size, size * len(levels), dropout=dropout)
        self.size, self.levels = size, tuple(levels)

    def distribution(self, values: Tensor) -> QuantileGrid:
        each = values.unflatten(-1, (self.size, len(self.levels)))
        middle = len(self.levels) // 2
        steps = kernels.softplus(each)
        # Sums in a fixed order, place by place: a row has the same bits in any batch.
        up, down = [each[..., middle]], list[Tensor]()
        for i in range(middle + 1, len(self.levels)):
            up.append(up[-1] + steps[..., i])
        for i in range(middle - 1, -1, -1):
            down.append((down[-1] if down else up[0]) - steps[..., i])
        return QuantileGrid(torch.stack([*reversed(down), *up], -1), self.levels)


def quantile(predicted: Distribution, levels: Sequence[float]) -> Tensor:
    """The quantiles (..., D, Q) in float64 of D independent numbers; of a categorical, D is 1.

    >>> quantile(Gaussian(torch.zeros(1, 1), torch.ones(1, 1)), [0.5]).item()
    0.0
    """
    for level in levels:
        if not 0 < level < 1:
            raise InputError(f"a quantile at {level} was asked for; levels are above 0 and below 1")
    p = torch.tensor(list(levels), dtype=torch.float64)
    if isinstance(predicted, QuantileGrid):
        return predicted._at(p.expand(*predicted.values.shape[:-1], len(p)))
    if isinstance(predicted, Gaussian):
        return predicted.mean.double()[..., None] + predicted.std.double()[..., None] * torch.special.ndtri(p)
    if isinstance(predicted, StudentT):
        t = torch.from_numpy(student_t_quantile(_array(predicted.df)[..., None], p.numpy()))
        return predicted.mean.double()[..., None] + predicted.scale.double()[..., None] * t
    if isinstance(predicted, Bernoulli):
        return (p > 1 - predicted.logits.double().sigmoid()[..., None]).double()
    if isinstance(predicted, Categorical):
        total = predicted.log_probs().double().exp().cumsum(-1)
        return (total[..., None, :, None] < p).sum(-2).clamp(max=total.shape[-1] - 1).double()
    if isinstance(predicted, Poisson):
        rate = predicted.rate.double()[..., None]
        return _smallest(lambda n: torch.special.gammaincc(n + 1, rate.expand_as(n)), rate, rate.sqrt(), p)
    if isinstance(predicted, NegativeBinomial):
        m, r = predicted.mean.double()[..., None], predicted.shape.double()[..., None]
        return _smallest(lambda n: _negative_binomial_cdf(n, m, r), m, (m + m * m / r).sqrt(), p)
    raise InputError(f"a {type(predicted).__name__} has no quantiles here")


def mean(predicted: Distribution) -> Tensor:
    """The mean (..., D), in float64.

    >>> mean(Bernoulli(torch.zeros(1, 1))).item()
    0.5
    """
    if isinstance(predicted, Gaussian | StudentT | NegativeBinomial):
        return predicted.mean.double()
    if isinstance(predicted, Poisson):
        return predicted.rate.double()
    if isinstance(predicted, Bernoulli):
        return predicted.logits.double().sigmoid()
    if isinstance(predicted, Categorical):
        p = predicted.log_probs().double().exp()
        return (p * torch.arange(p.shape[-1])).sum(-1, keepdim=True)
    if isinstance(predicted, QuantileGrid):
        p, q = predicted._levels(), predicted.values.double()
        pieces = ((p[1:] - p[:-1]) * (q[..., 1:] + q[..., :-1]) / 2).sum(-1)
        low = (q[..., 1] - q[..., 0]) / (p[1] - p[0]) * p[0]  # the mean distance in an exponential tail
        high = (q[..., -1] - q[..., -2]) / (p[-1] - p[-2]) * (1 - p[-1])
        return pieces + p[0] * (q[..., 0] - low) + (1 - p[-1]) * (q[..., -1] + high)
    raise InputError(f"a {type(predicted).__name__} has no mean here")


def _smallest(cdf: Callable[[Tensor], Tensor], centre: Tensor, deviation: Tensor, p: Tensor) -> Tensor:
    """The smallest whole numbers n with cdf(n) >= p, by bisection."""
    shape = torch.broadcast_shapes(centre.shape, p.shape)
    low = torch.full(shape, -1.0, dtype=torch.float64)
    high = (centre + 20 * deviation + 20).ceil().expand(shape).clone()
    while bool((cdf(high) < p).any()):
        high = torch.where(cdf(high) < p, 2 * high, high)
    while bool((high - low > 1).any()):
        middle = ((low + high) / 2).ceil()  # never low itself; high where they are neighbours
        enough = cdf(middle) >= p
        low, high = torch.where(enough, low, middle), torch.where(enough, middle, high)
    return high


def _negative_binomial_cdf(n: Tensor, m: Tensor, r: Tensor) -> Tensor:
    """I_x(r, n + 1), x = r / (r + m)."""
    logs = -_array(torch.log1p(m / r)), -_array(torch.log1p(r / m))
    a, b, log_x, log_y = np.broadcast_arrays(_array(r), _array(n + 1), *logs)
    return torch.from_numpy(_tails(a, b, log_x, log_y)[0])


def student_t_quantile(df: Array, p: Array) -> Array:
    """The quantile of Student's t at levels p: P(|T| > t) = I_x(df/2, 1/2) with x = df / (df + t^2).

    >>> float(student_t_quantile(np.array(2.0), np.array(0.9)).round(6))
    1.885618
    """
    df, p = np.asarray(df, np.float64), np.asarray(p, np.float64)
    outside, inside = 2 * np.minimum(p, 1 - p), np.abs(2 * p - 1)  # P(|T| > t) and P(|T| < t)
    # Levels 0.1 and 0.9 are as far out, but for the last digits of 1 - 0.9: each distance is looked for once.
    distances, places = np.unique(np.where(outside < 0.5, -_digits(outside), _digits(inside)), return_inverse=True)
    size = np.zeros((*np.broadcast_shapes(df.shape, p.shape), len(distances)))
    for i, distance in enumerate(distances):
        size[..., i] = _t_distance(np.broadcast_to(df, size.shape[:-1]), float(distance))
    at = np.broadcast_to(places.reshape(p.shape), size.shape[:-1])
    return np.sign(p - 0.5) * np.take_along_axis(size, at[..., None], -1)[..., 0]


def _t_distance(df: Array, distance: float) -> Array:
    """t >= 0 with P(|T| < t) = distance, or P(|T| > t) = -distance where that is negative."""
    if distance == 0:
        return np.zeros(df.shape)
    level = -distance / 2 if distance < 0 else (1 - distance) / 2
    z = -float(torch.special.ndtri(torch.tensor(level, dtype=torch.float64)))
    # Cornish and Fisher: of a million degrees of freedom it leaves less than a rounding.
    terms = (z, (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96, (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384)
    near = np.maximum(df, LARGE)
    normal = terms[0] + terms[1] / near + terms[2] / near**2 + terms[3] / near**3
    few = np.minimum(df, LARGE)
    with np.errstate(over="ignore"):  # infinite: of few degrees of freedom it is beyond 1e308
        exact = np.exp(0.5 * (np.log(few) + _t_log_odds(few / 2, distance, z)))
    return np.where(df > LARGE, normal, exact)


def _digits(x: Array) -> Array:
    """x to 47 bits, 14 digits."""
    share, power = np.frexp(x)
    rounded: Array = np.ldexp(np.round(np.ldexp(share, 47)), power - 47)
    return rounded


def _t_log_odds(a: Array, distance: float, z: float) -> Array:
    """u = log(t^2 / df) of that t, a = df / 2; z is the normal distribution's.

    By Newton's steps on the logarithm of the smaller of P(|T| > t) and P(|T| < t), each inside what is left; where one
    would leave that, half of it is cut off. In u nothing is ever too small or too large for a number, and the
    logarithms are concave.
    """
    outer, goal = distance < 0, math.log(abs(distance))
    b, log_beta = np.full(a.shape, 0.5), _log_beta(a, np.full(a.shape, 0.5))
    u = 2 * np.log(z + (z**3 + z) / (8 * a)) - np.log(2 * a)
    low, high = np.full(a.shape, -1e5), np.full(a.shape, 1e7)
    going = np.ones(a.shape, bool)  # a number that is found stays: it does not depend on the others
    for _ in range(200):
        log_x, log_y = -_softplus(u), -_softplus(-u)
        tails = _tails(a, b, log_x, log_y, log_beta)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            value = np.log(tails[0] if outer else tails[1])
            value = np.where(outer & np.isneginf(value), _log_front(a, b, log_x, log_y, log_beta), value)
            slope = np.exp(a * log_x + b * log_y - log_beta - value)
            above = (value > goal) if outer else (value < goal)  # u is too small
            low, high = np.where(above, u, low), np.where(above, high, u)
            step = u + (value - goal) / slope * (1 if outer else -1)
        inside = (step >= low) & (step <= high)
        after = np.where(inside, step, (low + high) / 2)
        near = inside & (np.abs(after - u) <= 1e-8 * np.maximum(1, np.abs(u)))  # the next step would be its square
        going, u = going & ~near, np.where(going, after, u)
        if not going.any():
            break
    return u


def _softplus(u: Array) -> Array:
    """log(1 + exp(u))."""
    found: Array = np.logaddexp(0.0, u)
    return found


def incomplete_beta(a: Array, b: Array, x: Array) -> Array:
    """The regularised incomplete beta function I_x(a, b).

    >>> float(incomplete_beta(np.array(1.0), np.array(1.0), np.array(0.25)))
    0.25
    """
    with np.errstate(divide="ignore"):
        return _tails(a, b, np.log(x), np.log1p(-x))[0]


def _log_beta(a: Array, b: Array) -> Array:
    """log G(a) + log G(b) - log G(a + b)."""
    small, large = _tensor(np.minimum(a, b)), _tensor(np.maximum(a, b))
    found: Array = (torch.special.gammaln(small) - log_rising(large, small)).numpy()
    return found


def _log_front(a: Array, b: Array, log_x: Array, log_y: Array, log_beta: Array) -> Array:
    """log of x^a y^b / (a B(a, b)): what I_x(a, b) is where x is small."""
    front: Array = a * log_x + b * log_y - log_beta - np.log(a)
    return front


def _tails(a: Array, b: Array, log_x: Array, log_y: Array, log_beta: Array | None = None) -> tuple[Array, Array]:
    """I_x(a, b) and 1 - I_x(a, b), x and y = 1 - x by their logarithms: the smaller of the two to all its digits."""
    log_beta = _log_beta(a, b) if log_beta is None else log_beta
    swap = np.exp(log_x) > (a + 1) / (a + b + 2)  # where the fraction converges fast
    a, b = np.where(swap, b, a), np.where(swap, a, b)
    log_x, log_y = np.where(swap, log_y, log_x), np.where(swap, log_x, log_y)
    value = np.exp(_log_front(a, b, log_x, log_y, log_beta)) * _fraction(a, b, np.exp(log_x), np.exp(log_y))
    return np.where(swap, 1 - value, value), np.where(swap, value, 1 - value)


def _fraction(a: Array, b: Array, x: Array, y: Array) -> Array:
    """The continued fraction of I_x(a, b), two terms at a time (Didonato and Morris, 1992): in a y - b x and 1 + y, for
    of an x near 1 the difference to 1 has few digits left."""
    tiny = 1e-300
    gap = a * y - b * x + 1
    d, c = (a + 1) / (a * gap), np.full(x.shape, np.inf)
    total, going = d, np.ones(x.shape, bool)
    for m in range(1, 100_000):  # about the square root of the larger of a and b
        below = a + 2 * m - 1
        back = m * (b - m) * x / below
        term = back * x * (a + m - 1) * ((a + b + m - 1) / below)
        rest = m + back + (a + m) / (below + 2) * (gap + m * (1 + y))
        d, c = rest + term * d, rest + term / c
        d = 1 / np.where(np.abs(d) < tiny, tiny, d)
        c = np.where(np.abs(c) < tiny, tiny, c)
        total = np.where(going, total * d * c, total)
        going &= np.abs(d * c - 1) >= 1e-15
        if not going.any():
            break
    return a * total


def _tensor(x: Array) -> Tensor:
    return torch.from_numpy(np.asarray(x, np.float64))


def _array(x: Tensor) -> Array:
    return x.detach().double().cpu().numpy()
