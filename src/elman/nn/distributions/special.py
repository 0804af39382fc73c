"""Special functions: the incomplete beta function, the quantile of Student's t, and that of counts.

Torch has the incomplete gamma function and no incomplete beta function, and SciPy is not needed at run time: it stands
here in Numpy, as its continued fraction (Lentz's method). Of Student's t it is inverted by Halley's steps, of counts by
bisection.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elman.kernels.reference.densities import log_rising

Array = NDArray[np.float64]

LARGE = 1e6  # degrees of freedom from which Student's t is a correction of the normal distribution


def smallest_count(cdf: Callable[[Tensor], Tensor], centre: Tensor, deviation: Tensor, p: Tensor) -> Tensor:
    """The smallest whole numbers n with cdf(n) >= p, by bisection."""
    shape = torch.broadcast_shapes(centre.shape, p.shape)
    low = torch.full(shape, -1.0, dtype=torch.float64)
    high = (centre + 20 * deviation + 20).ceil().expand(shape).clone()
    while bool((cdf(high) < p).any()):
        high = torch.where(cdf(high) < p, 2 * high, high)
    while True:
        middle = ((low + high) / 2).ceil()  # past 2^53, one of the two where no number lies between
        if not bool(((middle > low) & (middle < high)).any()):
            return high
        enough = cdf(middle) >= p
        low, high = torch.where(enough, low, middle), torch.where(enough, middle, high)


def negative_binomial_cdf(n: Tensor, m: Tensor, r: Tensor) -> Tensor:
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

    def series(df: Array, length: int) -> Array:
        return sum((term / df**k for k, term in enumerate(terms[1:length], 1)), np.full(df.shape, terms[0]))

    few = np.minimum(df, LARGE)
    guess = np.where(few < 2, series(few, 2), series(np.maximum(few, 2), 4))
    with np.errstate(over="ignore"):  # infinite: of few degrees of freedom it is beyond 1e308
        exact = np.exp(0.5 * (np.log(few) + _t_log_odds(few / 2, distance, guess)))
    return np.where(df > LARGE, series(np.maximum(df, LARGE), 4), exact)


def _digits(x: Array) -> Array:
    """x to 47 bits, 14 digits."""
    share, power = np.frexp(x)
    rounded: Array = np.ldexp(np.round(np.ldexp(share, 47)), power - 47)
    return rounded


def _t_log_odds(a: Array, distance: float, guess: Array) -> Array:
    """u = log(t^2 / df) of that t, a = df / 2, from a guess of t on.

    By Halley's steps on the logarithm of the smaller of P(|T| > t) and P(|T| < t), each inside what is left; where one
    would leave that, half of it is cut off. In u nothing is ever too small or too large for a number, and the
    logarithms are concave. The density has its own derivative at hand, by which a step leaves the cube of the error.
    """
    outer, goal = distance < 0, math.log(abs(distance))
    b, log_beta = np.full(a.shape, 0.5), _log_beta(a, np.full(a.shape, 0.5))
    u = 2 * np.log(guess) - np.log(2 * a)
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
            step = (value - goal) / slope * (1 if outer else -1)
            bend = b * np.exp(log_x) - a * np.exp(log_y) + (slope if outer else -slope)  # of the slope, over the slope
            step = u + step / np.maximum(1 + 0.5 * step * bend, 0.5)
        inside = (step >= low) & (step <= high)
        after = np.where(inside, step, (low + high) / 2)
        near = inside & (np.abs(after - u) <= 1e-6 * np.maximum(1, np.abs(u)))  # the next step would be its cube
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
