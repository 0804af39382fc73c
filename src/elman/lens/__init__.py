"""See where the gradient dies, what the state holds, how long it remembers. docs/guides/lens.md defines the numbers."""

from elman.lens.context import Context, context
from elman.lens.flow import Flow, Reach, flow, layers_of, reach
from elman.lens.gates import Gate, Health, gates, health, timescale
from elman.lens.influence import Influence, influence
from elman.lens.layers import Layer
from elman.lens.report import Report, inspect
from elman.lens.run_metrics import RUN_SAMPLE, run_metrics
from elman.lens.sample import Sample
from elman.lens.spectra import Isometry, Spectrum, isometry, lyapunov, spectrum
from elman.lens.units import Follower, units

__all__ = [
    "RUN_SAMPLE",
    "Context",
    "Flow",
    "Follower",
    "Gate",
    "Health",
    "Influence",
    "Isometry",
    "Layer",
    "Reach",
    "Report",
    "Sample",
    "Spectrum",
    "context",
    "flow",
    "gates",
    "health",
    "influence",
    "inspect",
    "isometry",
    "layers_of",
    "lyapunov",
    "reach",
    "run_metrics",
    "spectrum",
    "timescale",
    "units",
]  # fmt: skip
