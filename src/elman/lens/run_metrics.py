"""A few numbers of the lens for each evaluation of a run: how far gradients reach back, how saturated gates are."""

from __future__ import annotations

import math

import torch
from torch import nn

from elman.lens.flow import layers_of, reach
from elman.lens.gates import gates
from elman.lens.layers import inspection_mode, trajectory
from elman.lens.sample import Sample

RUN_SAMPLE = (8, 128)  # rows and steps that are inspected
LAG = 16


def run_metrics(model: nn.Module, sample: Sample) -> dict[str, float]:
    """For each layer, by names such as lens_0_gru_horizon: the horizon and slope of its reach, its relative reach at 16
    steps, and for each gate the share of steps at which it is shut or open. Only finite numbers.

    >>> from elman.cells import cell
    >>> list(run_metrics(cell("mgu", 3, 4), Sample(torch.randn(2, 20, 3))))
    ['lens_0_mgu_horizon', 'lens_0_mgu_slope', 'lens_0_mgu_reach_16', 'lens_0_mgu_f_saturation']
    """
    numbers: dict[str, float] = {}
    for part in reach(model, sample, sample.shape[0]):
        name = "lens_" + part.name.replace(" ", "_")
        far = [value for tau, value in zip(part.tau, part.relative, strict=True) if tau == LAG]
        numbers.update({f"{name}_horizon": float(part.horizon), f"{name}_slope": part.slope})
        numbers.update({f"{name}_reach_{LAG}": value for value in far})
    with inspection_mode(model), torch.no_grad():
        for layer in layers_of(model, sample):
            for gate in gates(layer, trajectory(layer)):
                numbers[f"lens_{layer.name.replace(' ', '_')}_{gate.name}_saturation"] = gate.saturation
    return {name: value for name, value in numbers.items() if math.isfinite(value)}
