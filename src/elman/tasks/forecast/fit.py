"""Baselines, fitted in one go: seasonal naive, and linear autoregression by least squares.

y[t] = reference + scale (b + sum_k a_k z_k[t] + e),   e normal, as wide as what is left over
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from elman.nn.readout import GaussianReadout
from elman.tasks.forecast.data import Series
from elman.tasks.forecast.model import Forecaster
from elman.tasks.forecast.rescaled import Located


@torch.no_grad()
def fit(predictor: Forecaster, series: Sequence[Series]) -> list[dict[str, float]]:
    """Give the read-out the coefficients of least squares; of seasonal naive they are zero. The metrics of the fit."""
    C = predictor.inputs.targets
    targets, features, known = [], [], []
    for one in series:
        rows = predictor.inputs.rows(one)
        hidden, _ = predictor.model.core.scan(predictor.model.embed(torch.from_numpy(rows.x)[None]))
        z, reference, scale = hidden[0].double().split([hidden.shape[-1] - 2 * C, C, C], -1)
        # In the first two seasons the scale is not worth much yet.
        known.append(torch.from_numpy(rows.counted) & (torch.arange(len(z)) > 2 * predictor.seasonality)[:, None])
        targets.append((torch.from_numpy(rows.y) - reference) / scale)
        features.append(z)
    y, there = torch.cat(targets), torch.cat(known)
    z = torch.cat([torch.cat(features), torch.ones(len(y), 1)], 1)
    found = [_solved(z[there[:, c]], y[there[:, c], c], predictor.config.kind == "linear") for c in range(C)]
    solution, deviation = (torch.stack(part, -1) for part in zip(*found, strict=True))
    readout = predictor.model.readout
    assert isinstance(readout, Located) and isinstance(readout.readout, GaussianReadout)
    linear = readout.readout.linear
    linear.weight.zero_()
    linear.weight[:C] = solution[:-1].T
    assert linear.bias is not None
    linear.bias[:C] = solution[-1]
    linear.bias[C:] = torch.log(torch.expm1(deviation))
    mean = float(deviation.mean())
    return [{"rows": float(there.any(1).sum()), "deviation": mean, "loss": math.log(mean)}]


def _solved(z: Tensor, y: Tensor, linear: bool) -> tuple[Tensor, Tensor]:
    """The coefficients (K,) of y (N,) by z (N, K), zero unless `linear`, and how far off they are."""
    solution = torch.zeros(z.shape[1], dtype=torch.float64)
    if linear:
        ridge = 1e-9 * len(z) * torch.eye(z.shape[1], dtype=torch.float64)  # a constant series leaves columns alike
        solution = torch.linalg.solve(z.T @ z + ridge, z.T @ y)
    # Of a normal distribution the median of absolute errors is 0.6745 deviations; a few wild errors do not move it.
    return solution, ((y - z @ solution).abs().median() / 0.6745).clamp(min=1e-6)
