"""The network that a task's config describes: layers of one cell, plain or in the block that the cell's paper has."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, replace
from typing import TypeVar

from elman.cells import CELLS
from elman.compose import blocks, learn_start, stack
from elman.compose.pointwise import NORMS
from elman.core import Core, Options
from elman.errors import InputError
from elman.files.config import one_of
from elman.options import choice, flag, whole

BLOCKS = ("auto", "plain", "residual")


@dataclass(frozen=True)
class NetworkConfig:
    """Layers of one cell: what the networks of all tasks have.

    Args:
        cell: a cell; `elman laws` lists them
        size: units in each layer
        layers: the number of layers
        block: plain, residual (norm, cell, mixing and a sum), or auto for the block of the cell's paper
        options: the options of the cell, as {name: value}
        residual: add the input of a layer to its output
        norm: the norm before each layer, layer or rms; null for none
        dropout: the dropout between layers
        weight_dropout: the dropout of the weights that multiply the state, the same at all steps; of gated cells
        learn_initial_state: learn the state in which sequences begin; it is zero at first, and without
    """

    cell: str = one_of("gru", CELLS)
    size: int = 256
    layers: int = 1
    block: str = one_of("auto", BLOCKS)
    options: Options = field(default_factory=dict)
    residual: bool = False
    norm: str | None = one_of(None, NORMS)
    dropout: float = 0.0
    weight_dropout: float = 0.0
    learn_initial_state: bool = False

    @property
    def adds_input(self) -> bool:
        """Whether the input of a layer is added to its output; a task may have another setting for that."""
        return self.residual


N = TypeVar("N", bound=NetworkConfig)


def block_of(config: NetworkConfig) -> str:
    """The block that a config builds, residual or plain, where it says auto.

    >>> block_of(NetworkConfig(cell="s4d")), block_of(NetworkConfig(cell="gru"))
    ('residual', 'plain')
    """
    choice("model.block", config.block, BLOCKS)
    if config.block != "auto":
        return config.block
    own = config.adds_input or config.norm is not None  # settings of what surrounds the cell: nothing is added to them
    kind = CELLS.get(config.cell)
    return "residual" if kind is not None and kind.block is not None and not own else "plain"


def resolve_defaults(config: N) -> N:
    """The config with its block decided, as a model keeps it; a warning of a dropout that does nothing."""
    whole("model.size", config.size)
    config = replace(config, block=block_of(config))
    if config.dropout and config.layers == 1 and config.block == "plain":
        warnings.warn(
            f"model.dropout is {config.dropout}, but it acts between layers, and there is only one: it has no effect. "
            "model.readout_dropout acts after the last layer.",
            stacklevel=2,
        )
    return config


def describe(config: NetworkConfig) -> str:
    """What a layer computes of what it reads, in a few words.

    >>> describe(NetworkConfig(cell="s4d")), describe(NetworkConfig(cell="lstm", norm="rms"))
    ('x + GLU(s4d(norm(x)))', 'lstm(norm(x))')
    """
    if block_of(config) == "plain":
        inner = f"{config.cell}({'x' if config.norm is None else 'norm(x)'})"
        return f"x + {inner}" if config.adds_input else inner
    around = CELLS[config.cell].block
    return f"x + {config.cell}(norm(x))" if around and not around.mixes else f"x + GLU({config.cell}(norm(x)))"


def core(config: NetworkConfig, width: int, *, bidirectional: bool = False) -> Core:
    """The core of a config, which reads what is `width` wide.

    >>> core(NetworkConfig(cell="lru", size=8), 3, bidirectional=True).output_size  # a block mixes the two directions
    8
    >>> core(NetworkConfig(cell="gru", size=8), 3, bidirectional=True).output_size
    16
    """
    layers = _layers(config, width, bidirectional)
    return learn_start(layers) if flag("model.learn_initial_state", config.learn_initial_state) else layers


def _layers(config: NetworkConfig, width: int, bidirectional: bool) -> Core:
    if config.cell == "hmm":
        raise InputError(
            "model.cell is hmm, which filters log-likelihoods of hidden states; what a network reads is not that. "
            "A hidden Markov model is a task of its own: elman train --task hmm"
        )
    layers: Options = {"layers": config.layers, "norm": config.norm, "bidirectional": bidirectional, **config.options}
    if block_of(config) == "plain":
        between = config.dropout if config.layers != 1 else 0.0
        layers |= {"residual": config.adds_input, "dropout": between, "weight_dropout": config.weight_dropout}
        return stack(config.cell, width, config.size, **layers)
    if config.weight_dropout:
        raise InputError(
            f"model.weight_dropout is {config.weight_dropout}; it is for plain layers, as of lstm or gru, and these of "
            f"{config.cell} are residual blocks: leave it at 0"
        )
    return blocks(config.cell, width, config.size, dropout=config.dropout, **layers)
