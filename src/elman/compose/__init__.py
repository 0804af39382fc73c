"""The combinators that build larger recurrences. Each is a Core, and can be used wherever a cell can.

    Stack(a, b)         b(a(x))                        Dense, GLU, Norm  pointwise: they remember nothing
    Residual(a)         x + a(x)                       Dropout(a)        zeroes outputs of a
    Parallel(a, b)      [a(x), b(x)]                   Zoneout(a)        keeps units of the state as they are
    Reverse(a)          a, from the row's end          WeightDrop(a)     zeroes entries of its matrices
    Bidirectional(a, b) Parallel(a, Reverse(b))        Recompute(a)      trains long sequences in little memory
    Pool("mean", …)     the mean of all inputs so far, or the maximum, or by attention
    LearnedStart(a)     a, whose initial state is a parameter
    Lags, Scale         inputs of some steps ago, the running mean of absolute values; Columns chooses features
    save_bfloat16(a)    a itself, whose gated cells store half as much for the backward pass
    stack("lstm", …)    the usual network, in one line; blocks("s4d", …), that of linear and selective recurrences

The state of Stack and Parallel is a tuple with one state per part; every other combinator has the state of what it
wraps, and pointwise ones have the empty tuple. When `_scan` is called, `scan` has validated everything and zeroed the
padding; outputs are zero past lengths too. So combinators call `scan_unchecked`. Hooks of a core inside fire where it
is scanned, but not in a Stream, nor, in training, for the cores that Recompute runs piece by piece.
"""

from __future__ import annotations

import warnings

from elman.cells import CELLS, check_options
from elman.cells import cell as build_cell
from elman.compose.dropout import Dropout, WeightDrop, Zoneout
from elman.compose.pointwise import ACTIVATIONS, GLU, Dense, Norm
from elman.compose.pool import Pool
from elman.compose.recompute import Recompute, save_bfloat16
from elman.compose.series import Columns, Lags, Scale
from elman.compose.start import LearnedStart, learn_start
from elman.compose.structure import Bidirectional, Parallel, Residual, Reverse, Stack
from elman.core import Block, Core
from elman.errors import InputError
from elman.options import fraction, whole

__all__ = [
    "ACTIVATIONS", "GLU", "Bidirectional", "Columns", "Dense", "Dropout", "Lags", "LearnedStart", "Norm", "Parallel",
    "Pool", "Recompute", "Residual", "Reverse", "Scale", "Stack", "WeightDrop", "Zoneout", "blocks", "learn_start",
    "save_bfloat16", "stack",
]  # fmt: skip


def stack(
    cell: str | type[Core],
    input_size: int,
    size: int,
    *,
    layers: int = 1,
    bidirectional: bool = False,
    residual: bool = False,
    norm: str | None = None,
    dropout: float = 0.0,
    weight_dropout: float = 0.0,
    **options: object,
) -> Stack:
    """The usual network of cells called `cell` (or of a class of yours), built from the combinators above; `options`
    are those of the cell.

    A layer is a cell of `size`, or two if bidirectional (then its output is 2 * size wide). `norm` ("layer" or "rms")
    comes before the cell; `dropout` after every layer but the last; `residual` adds the input of the layer to that,
    except where the widths differ: in layer 0, unless input_size is as wide as a layer's output. `weight_dropout` is
    the WeightDrop of what multiplies the state, in gated cells.

    >>> stack("lstm", 8, 16, layers=3, bidirectional=True, residual=True, norm="layer", dropout=0.2).output_size
    32
    """
    layers, dropout = whole("layers", layers), fraction("dropout", dropout)
    others = ("layers", "bidirectional", "residual", "norm", "dropout", "weight_dropout")
    check_options(cell, options, others=others)
    if dropout and layers == 1:
        warnings.warn(f"dropout is {dropout}, between layers, and there is only one: it does nothing", stacklevel=2)
    parts: list[Core] = []
    for i in range(layers):
        width = parts[-1].output_size if parts else input_size
        layer = _dropping(build_cell(cell, width, size, **options), weight_dropout)
        if bidirectional:
            layer = Bidirectional(layer, _dropping(build_cell(cell, width, size, **options), weight_dropout))
        if norm is not None:
            layer = Stack(Norm(width, kind=norm), layer)
        if dropout and i < layers - 1:
            layer = Dropout(layer, dropout)
        if residual and width == layer.output_size:
            layer = Residual(layer)
        parts.append(layer)
    return Stack(*parts)


def _dropping(core: Core, p: float) -> Core:
    """The core, of whose weights that multiply the state some are dropped in training."""
    if not fraction("weight_dropout", p):
        return core
    if not core.state_weights:
        usable = ", ".join(name for name, kind in CELLS.items() if kind.state_weights)
        raise InputError(
            f"weight_dropout is {p}; it acts on weights that multiply the state, and {type(core).__name__} has none. "
            f"Cells that have: {usable}"
        )
    return WeightDrop(core, p, names=core.state_weights)


def blocks(
    cell: str | type[Core],
    input_size: int,
    size: int,
    *,
    layers: int = 1,
    bidirectional: bool = False,
    norm: str | None = None,
    dropout: float = 0.0,
    **options: object,
) -> Stack:
    """`layers` blocks x + mix(cell(norm(x))) and a last norm, as papers of linear and selective recurrences have it.

    A GLU after a linear cell mixes its channels; a mamba mixes them itself. `norm` ("layer" or "rms") is the paper's
    by default. If the input is not `size` wide, a Dense makes it so. `dropout` comes before each addition. A
    bidirectional block has two cells, and what mixes them reduces both to `size`. `options` are those of the cell.

    >>> blocks("s4d", 8, 16, layers=2).output_size
    16
    """
    layers, dropout = whole("layers", layers), fraction("dropout", dropout)
    check_options(cell, options, others=("layers", "bidirectional", "norm", "dropout"))
    parts: list[Core] = [] if input_size == size else [Dense(input_size, size)]
    for _ in range(layers):
        inner = build_cell(cell, size, size, **options)
        around = inner.block or Block("layer", mixes=True)
        kind = around.norm if norm is None else norm
        mix: list[Core] = []
        if bidirectional:
            inner, mix = Bidirectional(inner, build_cell(cell, size, size, **options)), [Dense(2 * size, size)]
        if around.mixes:
            mix = [GLU(inner.output_size, size)]
        layer: Core = Stack(Norm(size, kind=kind), inner, *mix)
        parts.append(Residual(Dropout(layer, dropout) if dropout else layer))
    return Stack(*parts, Norm(size, kind=kind))
