"""The network that a task's config describes: layers of one cell, plain or in the block that the cell's paper has."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any, ClassVar, Protocol, TypeVar

from elman.cells import CELLS
from elman.compose import blocks, stack
from elman.core import Core, Options
from elman.errors import InputError
from elman.options import choice

BLOCKS = ("auto", "plain", "residual")


class Network(Protocol):
    """The settings of a network; a frozen dataclass, the config of a task's model."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def cell(self) -> str: ...
    @property
    def size(self) -> int: ...
    @property
    def layers(self) -> int: ...
    @property
    def block(self) -> str: ...
    @property
    def options(self) -> Options: ...
    @property
    def residual(self) -> bool: ...
    @property
    def norm(self) -> str | None: ...
    @property
    def dropout(self) -> float: ...


N = TypeVar("N", bound=Network)


def block_of(config: Network) -> str:
    """The block that a config builds, residual or plain, where it says auto.

    >>> from elman.tasks.text.lm import LMModelConfig
    >>> block_of(LMModelConfig(cell="s4d")), block_of(LMModelConfig(cell="gru"))
    ('residual', 'plain')
    """
    choice("model.block", config.block, BLOCKS)
    if config.block != "auto":
        return config.block
    own = config.residual or config.norm is not None  # who says what stands around the cell shall have that alone
    kind = CELLS.get(config.cell)
    return "residual" if kind is not None and kind.block is not None and not own else "plain"


def settled(config: N) -> N:
    """The config with its block decided, as a model keeps it; a warning of a dropout that does nothing."""
    config = replace(config, block=block_of(config))
    if config.dropout and config.layers == 1 and config.block == "plain":
        warnings.warn(
            f"model.dropout is {config.dropout}, between layers, of which there is one: it does nothing. "
            "model.readout_dropout stands behind the last layer.",
            stacklevel=2,
        )
    return config


def stored(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of a saved network, those that it was saved without added."""
    return {"block": "plain", **settings}  # what there was before there was a choice


def describe(config: Network) -> str:
    """What a layer computes of what it reads, in a few words.

    >>> from elman.tasks.text.lm import LMModelConfig
    >>> describe(LMModelConfig(cell="s4d")), describe(LMModelConfig(cell="lstm", norm="rms"))
    ('x + GLU(s4d(norm(x)))', 'lstm(norm(x))')
    """
    if block_of(config) == "plain":
        inner = f"{config.cell}({'x' if config.norm is None else 'norm(x)'})"
        return f"x + {inner}" if config.residual else inner
    around = CELLS[config.cell].block
    return f"x + {config.cell}(norm(x))" if around and not around.mixes else f"x + GLU({config.cell}(norm(x)))"


def core(config: Network, width: int, *, bidirectional: bool = False) -> Core:
    """The core of a config, which reads what is `width` wide.

    >>> from elman.tasks.text.lm import LMModelConfig
    >>> core(LMModelConfig(cell="lru", size=8), 3, bidirectional=True).output_size  # a block mixes the two directions
    8
    >>> core(LMModelConfig(cell="gru", size=8), 3, bidirectional=True).output_size
    16
    """
    if config.cell == "hmm":
        raise InputError(
            "model.cell is hmm, which filters log-likelihoods of hidden states; what a network reads is not that. "
            "A hidden Markov model is a task of its own: elman train --task hmm"
        )
    given: Options = {"layers": config.layers, "norm": config.norm, "bidirectional": bidirectional, **config.options}
    if block_of(config) == "plain":
        between = config.dropout if config.layers != 1 else 0.0
        return stack(config.cell, width, config.size, residual=config.residual, dropout=between, **given)
    return blocks(config.cell, width, config.size, dropout=config.dropout, **given)
