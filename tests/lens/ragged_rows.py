"""Ragged rows of cells, and what a layer does with them, for the tests of the lens."""

import numpy as np
import torch

import elman
from elman import lens
from elman.lens.sample import Sample

JUNK = 50.0  # what stands in the padding


def sigmoid(v):
    return 1 / (1 + np.exp(-v))


def arrays(core, letters):
    return [core.get_parameter(letter).detach().numpy() for letter in letters]


def layer_of(core, x, **more):
    [layer] = lens.layers_of(core, Sample(x, **more))
    return layer


def ragged(name, size=3, **options):
    """A cell, three rows of which the first is short, with junk in the padding."""
    torch.manual_seed(0)
    core, x = elman.cell(name, 2, size, **options).double(), torch.randn(3, 20, 2, dtype=torch.float64)
    x[1] *= 4
    x[0, 12:], x[2, 17:] = JUNK, JUNK
    return core, x, [12, 20, 17]
