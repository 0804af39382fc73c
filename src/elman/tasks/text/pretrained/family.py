"""What a family of pretrained networks is: how its config is read, its network built, and its tensors named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from elman.core import Core
from elman.files.artifact import Content
from elman.tasks.text.pretrained.source import Config, Tensors


@dataclass(frozen=True)
class Family:
    """One file here says it of each. `settings` is what `core` needs besides the size and the number of layers."""

    cell: str  # the cell in its layers, as CELLS calls it
    embedding: str  # the tensor with a row for each symbol
    head: str  # the tensor of the read-out; where it is not there, it is the embedding
    settings: Callable[[Config, Tensors], Content]  # "size", "layers", "symbols" and those of `core`
    core: Callable[[int, int, Content], Core]
    copy: Callable[[Core, Tensors], None]  # the weights of the core
