"""The same network before training."""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from torch import nn

from elman.compose.attention import Bound
from elman.errors import InputError
from elman.lens.sample import Sample
from elman.model import SequenceModel


def fresh(model: nn.Module, seed: int = 0) -> nn.Module:
    """A copy with fresh parameters, as each module's `reset_parameters` draws them.

    >>> layer = nn.Linear(2, 3)
    >>> bool((fresh(layer, seed=1).weight != layer.weight).any())
    True
    """
    twin = copy.deepcopy(model)
    for part in twin.modules():
        if next(part.parameters(recurse=False), None) is not None and not hasattr(part, "reset_parameters"):
            raise InputError(
                f"{type(part).__name__} has parameters and no reset_parameters, so its initial weights are not known: "
                "omit --at init"
            )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for part in twin.modules():
            reset = getattr(part, "reset_parameters", None)
            if reset is not None:
                reset()
    return twin


@torch.no_grad()
def rebind(model: nn.Module, sample: Sample) -> Sample:
    """The sample for a model with other parameters: if the core is bound to a memory, it keeps that memory."""
    if not isinstance(sample.core, Bound):
        return sample
    assert isinstance(model, SequenceModel) and isinstance(model.core, Bound)
    memory = sample.core.memory
    return replace(sample, core=model.core.decoder.given(memory.values, memory.lengths))
