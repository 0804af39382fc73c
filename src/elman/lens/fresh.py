"""The same network before it learnt anything."""

from __future__ import annotations

import copy

import torch
from torch import nn

from elman.errors import InputError


def fresh(model: nn.Module, seed: int = 0) -> nn.Module:
    """A copy with fresh parameters, as each module's `reset_parameters` draws them.

    >>> layer = nn.Linear(2, 3)
    >>> bool((fresh(layer).weight != layer.weight).any())
    True
    """
    twin = copy.deepcopy(model)
    before = {name: parameter.clone() for name, parameter in twin.named_parameters()}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for part in twin.modules():
            reset = getattr(part, "reset_parameters", None)
            if reset is not None:
                reset()
    if before and all(torch.equal(before[name], parameter) for name, parameter in twin.named_parameters()):
        raise InputError("this model has no reset_parameters, so nobody knows what it began with; leave out --at init")
    return twin
