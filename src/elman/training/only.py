"""Training some parameters of a model alone: the others keep their values to the last bit."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from torch import nn

from elman.errors import InputError


def freeze_others(model: nn.Module, patterns: Sequence[str]) -> None:
    """Take the gradient from all parameters but those that `patterns` name, if there are patterns.

    A pattern is a part of a dotted name, between two dots or several, in which * and ? stand for anything.

    >>> model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    >>> freeze_others(model, ["1", "0.b*"])
    >>> [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    ['0.bias', '1.weight', '1.bias']
    """
    if not patterns:
        return
    parameters = list(model.named_parameters(remove_duplicate=False))  # what modules share has several names
    chosen = set()
    for pattern in patterns:
        named = [parameter for name, parameter in parameters if fnmatchcase(f".{name}.", f"*.{pattern}.*")]
        if not named:
            raise InputError(_unknown(pattern, [name for name, _ in model.named_parameters()]))
        chosen.update(named)
    for _, parameter in parameters:
        if parameter not in chosen:
            parameter.requires_grad_(False)


def _unknown(pattern: str, names: list[str]) -> str:
    hint = " model.learn_initial_state true gives the model one." if pattern == "initial_state" else ""
    return (
        f"training.only names {pattern!r}, which is no part of the name of any parameter.{hint} "
        f"The parameters are {', '.join(names)}"
    )
