"""Baselines, fitted in one go: seasonal naive, and linear autoregression by least squares.

y[t] = reference + scale (b + sum_k a_k z_k[t] + e),   e normal, as wide as what is left over
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from elman.data.panel import Series
from elman.located import Located
from elman.readout import GaussianReadout
from elman.tasks.forecaster import Forecaster


@torch.no_grad()
def fit(face: Forecaster, series: Sequence[Series]) -> list[dict[str, float]]:
    """Give the read-out the coefficients of least squares; of seasonal naive they are zero. The metrics of the fit."""
    targets, features = [], []
    for one in series:
        rows = face.inputs.rows(one)
        y, _ = face.model.core.scan(face.model.embed(torch.from_numpy(rows.x)[None]))
        C = face.inputs.targets
        z, reference, scale = y[0].double().split([y.shape[-1] - 2 * C, C, C], -1)
        # In the first two seasons the scale is not worth much yet.
        known = torch.from_numpy(rows.counted) & (torch.arange(len(z)) > 2 * face.seasonality)
        targets.append(((torch.from_numpy(rows.y) - reference) / scale)[known])
        features.append(z[known])
    y, z = torch.cat(targets), torch.cat([torch.cat(features), torch.ones(len(torch.cat(features)), 1)], 1)
    solution = torch.zeros(z.shape[1], y.shape[1], dtype=torch.float64)
    if face.config.kind == "linear":
        ridge = 1e-9 * len(z) * torch.eye(z.shape[1], dtype=torch.float64)  # a constant series leaves columns alike
        solution = torch.linalg.solve(z.T @ z + ridge, z.T @ y)
    # Of a normal distribution the median of absolute errors is 0.6745 deviations; a few wild errors do not move it.
    deviation = ((y - z @ solution).abs().median(0).values / 0.6745).clamp(min=1e-6)
    readout = face.model.readout
    assert isinstance(readout, Located) and isinstance(readout.readout, GaussianReadout)
    linear = readout.readout.linear
    linear.weight.zero_()
    linear.weight[: y.shape[1]] = solution[:-1].T
    assert linear.bias is not None
    linear.bias[: y.shape[1]] = solution[-1]
    linear.bias[y.shape[1] :] = torch.log(torch.expm1(deviation))
    return [{"rows": float(len(y)), "deviation": float(deviation.mean()), "loss": math.log(float(deviation.mean()))}]
