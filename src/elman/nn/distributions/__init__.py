"""What a model predicts with. A distribution answers for itself: a new one is its class and a read-out, no more."""

from elman.nn.distributions.continuous import Gaussian, StudentT
from elman.nn.distributions.counts import NegativeBinomial, Poisson
from elman.nn.distributions.discrete import AdaptiveCategorical, Bernoulli, Categorical, Discrete, Product
from elman.nn.distributions.distribution import Distribution, Numeric, WithValues
from elman.nn.distributions.quantile_grid import GRID, QuantileGrid

__all__ = [
    "GRID", "AdaptiveCategorical", "Bernoulli", "Categorical", "Discrete", "Distribution", "Gaussian",
    "NegativeBinomial", "Numeric", "Poisson", "Product", "QuantileGrid", "StudentT", "WithValues",
]  # fmt: skip
