"""From PyTorch's nn.RNN, nn.GRU and nn.LSTM to a Core and back: the same outputs, states and gradients.

A module of L layers is a Stack of L; a layer is a cell, or Bidirectional; dropout between layers is Dropout. Gates
are in the same order. PyTorch has two biases per gate where the sum of both is all that acts: that sum is our b. Only
the GRU's candidate has a second one that acts by itself, our c. A core is batch first.

    PyTorch                  Elman                 PyTorch                  Elman
    weight_ih_l0 (G*H, D)    U                     bias_ih_l0 + bias_hh_l0  b
    weight_hh_l0 (G*H, H)    W                     bias_hh_l0[2*H:] (GRU)   c
    weight_hr_l0 (P, H)      P
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from elman import state as states
from elman.cells import cell as build_cell
from elman.cells.elman import Elman
from elman.cells.gru import GRU
from elman.cells.lstm import LSTM
from elman.compose import Bidirectional, Dropout, Parallel, Reverse, Stack
from elman.core import Core, Options
from elman.errors import InputError
from elman.state import State

Cell = Elman | GRU | LSTM


def from_torch(module: nn.RNNBase, *, time_first_ok: bool = False) -> Stack:
    """The Core that computes what an nn.RNN, nn.GRU or nn.LSTM computes, with a copy of its parameters.

    A Core reads (B, T, D). PyTorch's default is (T, B, D), batch_first=False: fed as before, the Core would take time
    for rows without a word. So such a module is refused unless `time_first_ok` says that inputs and outputs will be
    transposed. A module without biases has biases of zero here that do not require a gradient.

    >>> core = from_torch(nn.LSTM(3, 4, num_layers=2, bidirectional=True, batch_first=True))
    >>> core.scan(torch.zeros(2, 5, 3))[0].shape
    torch.Size([2, 5, 8])
    """
    _check_module(module)
    if not module.batch_first and not time_first_ok:
        raise InputError(
            f"this nn.{type(module).__name__} has batch_first=False: it reads (T, B, D); a Core reads (B, T, D). Set "
            "module.batch_first = True if that is how your inputs are; or call from_torch(module, time_first_ok=True), "
            "and transpose inputs and outputs: core.scan(x.transpose(0, 1))."
        )
    layers: list[Core] = []
    for i in range(module.num_layers):
        layer: Core = _cell_from(module, f"l{i}")
        if module.bidirectional:
            layer = Bidirectional(layer, _cell_from(module, f"l{i}_reverse"))
        if module.dropout and i < module.num_layers - 1:
            layer = Dropout(layer, module.dropout)
        layers.append(layer)
    return Stack(*layers).train(module.training)


def _check_module(module: nn.Module) -> None:
    """Refuse what computes something else than its parameters say."""
    kind = next((kind.__name__ for kind in (nn.RNN, nn.GRU, nn.LSTM) if isinstance(module, kind)), None)
    if kind is not None and parametrize.is_parametrized(module):
        changed = ", ".join(cast(nn.ModuleDict, module.parametrizations))
        raise InputError(
            f"{changed} of this nn.{kind} is parametrized (weight norm, spectral norm, ...), and a Core has plain "
            "weights: first call torch.nn.utils.parametrize.remove_parametrizations(module, name)"
        )
    if type(module) not in (nn.RNN, nn.GRU, nn.LSTM):
        why = f", a kind of nn.{kind} that may compute something else" if kind else ""
        raise InputError(
            f"from_torch was given a {type(module).__name__}{why}; it takes an nn.RNN, nn.GRU or nn.LSTM itself"
        )
    names = cast(list[str], module._flat_weights_names)
    made = [name for name in names if name not in module._parameters]
    if made:
        raise InputError(
            f"{', '.join(made)} of this nn.{kind} is computed from other parameters at each call (pruning, weight "
            "norm), and a Core has plain weights: first call torch.nn.utils.prune.remove(module, name), or "
            "torch.nn.utils.remove_weight_norm(module, name)"
        )


def to_torch(core: Core) -> nn.RNNBase:
    """The nn.RNN, nn.GRU or nn.LSTM (batch first) that computes what a core computes; the inverse of `from_torch`.

    It takes what PyTorch can express: an elman cell, a gru with reset_after or an lstm (with projection or without), or
    a stack of such cells that are alike, bidirectional or not, with one dropout between layers. Our b goes to bias_ih;
    bias_hh is zero but for the GRU's c.

    >>> from elman.compose import stack
    >>> to_torch(stack("gru", 3, 4, layers=2, dropout=0.1))
    GRU(3, 4, num_layers=2, batch_first=True, dropout=0.1)
    """
    layers = _layers(core)
    first = layers[0][0]
    biases = [b for layer in layers for cell in layer for b in _biases(cell)]
    module = _module_like(
        first,
        {
            "num_layers": len(layers),
            "bias": any(b.requires_grad or bool(b.any()) for b in biases),
            "batch_first": True,
            "dropout": _dropout(core),
            "bidirectional": len(layers[0]) == 2,
            "device": first.W.device,
            "dtype": first.W.dtype,
        },
    )
    for i, layer in enumerate(layers):
        for cell, suffix in zip(layer, ("", "_reverse"), strict=False):
            _copy_to(module, f"l{i}{suffix}", cell)
    return module.train(core.training)


def state_from_torch(core: Core, state: State) -> State:
    """PyTorch's h (L * directions, B, H), or (h, c) of an nn.LSTM, as a state of the core that `from_torch` gave.

    >>> lstm = nn.LSTM(3, 4, num_layers=2, batch_first=True)
    >>> core = from_torch(lstm)
    >>> _, carried = lstm(torch.zeros(2, 5, 3))
    >>> y, state = core.scan(torch.zeros(2, 5, 3), state_from_torch(core, carried))
    """
    cells = [cell for layer in _layers(core) for cell in layer]
    parts, names = states.leaves(state), cells[0].init_state(0)._fields
    widths = [leaf.shape[-1] for leaf in states.leaves(cells[0].init_state(0))]
    wanted = [[len(cells), parts[0].shape[1] if parts[0].dim() == 3 else "B", width] for width in widths]
    if [list(part.shape) for part in parts] != wanted:
        raise InputError(
            f"the PyTorch state is {states.describe(state)}; this core's is {', '.join(names)} of shapes "
            f"{', '.join(map(str, wanted))}. A state without a batch gets one with unsqueeze(1)."
        )
    leaves = iter([leaf for cell_parts in zip(*parts, strict=True) for leaf in cell_parts])
    return states.map(lambda like: next(leaves).to(like.dtype), core.init_state(0))


def state_to_torch(core: Core, state: State) -> State:
    """A core's state as PyTorch has it: h (L * directions, B, H), or (h, c) for an nn.LSTM. The inverse of the above.

    >>> core = from_torch(nn.GRU(3, 4, num_layers=2, batch_first=True))
    >>> state_to_torch(core, core.init_state(5)).shape
    torch.Size([2, 5, 4])
    """
    cell = _layers(core)[0][0]
    states.check(state, core.init_state(0), len(states.leaves(state)[0]))
    parts = [leaf.to(cell.W.dtype) for leaf in states.leaves(state)]
    if isinstance(cell, LSTM):
        return torch.stack(parts[0::2]), torch.stack(parts[1::2])
    return torch.stack(parts)


def _cell_from(module: nn.RNNBase, suffix: str) -> Cell:
    """One direction of one layer; `suffix` ends the names of its parameters."""
    U, W = module.get_parameter(f"weight_ih_{suffix}"), module.get_parameter(f"weight_hh_{suffix}")
    name, options = _name_and_options(module)
    cell = cast(Cell, build_cell(name, U.shape[1], module.hidden_size, **options)).to(U.device, U.dtype)
    _copy(cell.U, U)
    _copy(cell.W, W)
    if isinstance(cell, LSTM) and cell.P is not None:
        _copy(cell.P, module.get_parameter(f"weight_hr_{suffix}"))
    if not module.bias:
        for b in _biases(cell):
            nn.init.zeros_(b).requires_grad_(False)
        return cell
    b_ih, b_hh = module.get_parameter(f"bias_ih_{suffix}"), module.get_parameter(f"bias_hh_{suffix}")
    if isinstance(cell, GRU) and cell.c is not None:
        inside = 2 * module.hidden_size
        _copy(cell.b, torch.cat([b_ih[:inside] + b_hh[:inside], b_ih[inside:]]))
        _copy(cell.c, b_hh[inside:])
    else:
        _copy(cell.b, b_ih + b_hh)
    return cell


def _copy_to(module: nn.RNNBase, suffix: str, cell: Cell) -> None:
    """The parameters of one cell into the module's, whose names end in `suffix`."""
    _copy(module.get_parameter(f"weight_ih_{suffix}"), cell.U)
    _copy(module.get_parameter(f"weight_hh_{suffix}"), cell.W)
    if isinstance(cell, LSTM) and cell.P is not None:
        _copy(module.get_parameter(f"weight_hr_{suffix}"), cell.P)
    if not module.bias:
        return
    b_hh = torch.zeros_like(cell.b)
    if isinstance(cell, GRU) and cell.c is not None:
        b_hh = torch.cat([b_hh[: 2 * cell.output_size], cell.c])
    _copy(module.get_parameter(f"bias_ih_{suffix}"), cell.b)
    _copy(module.get_parameter(f"bias_hh_{suffix}"), b_hh.requires_grad_(b_hh.requires_grad or cell.b.requires_grad))


@torch.no_grad()
def _copy(target: Tensor, source: Tensor) -> None:
    """The values, and whether they are to be trained."""
    target.copy_(source)
    target.requires_grad_(source.requires_grad)


def _name_and_options(module: nn.RNNBase) -> tuple[str, Options]:
    if isinstance(module, nn.RNN):
        return "elman", {"phi": module.nonlinearity}
    if isinstance(module, nn.GRU):
        return "gru", {}
    return "lstm", {"projection": module.proj_size or None}


def _module_like(cell: Cell, shape: Options) -> nn.RNNBase:
    """An nn.RNN, nn.GRU or nn.LSTM of cells like this one, its parameters not yet set."""
    if isinstance(cell, Elman):
        return nn.RNN(cell.input_size, cell.output_size, nonlinearity=cell.phi, **shape)
    if isinstance(cell, GRU):
        return nn.GRU(cell.input_size, cell.output_size, **shape)
    return nn.LSTM(cell.input_size, cell.size, proj_size=0 if cell.P is None else cell.output_size, **shape)


def _biases(cell: Cell) -> list[nn.Parameter]:
    return [cell.b, cell.c] if isinstance(cell, GRU) and cell.c is not None else [cell.b]


def _layers(core: Core) -> list[tuple[Cell, ...]]:
    """The cells of each layer, left to right and right to left, of a core that PyTorch can express."""
    if isinstance(core, Stack) and core.inputs != "previous":
        raise _refusal("a Stack whose layers all read the input")
    layers = [_directions(part) for part in _parts(core)]
    first = layers[0]
    for i, layer in enumerate(layers):
        for cell in layer:
            _check_plain(cell)
            if len(layer) != len(first) or _form(cell) != _form(first[0]):
                raise _refusal(f"layer {i} of another form than layer 0")
    return layers


def _parts(core: Core) -> Sequence[Core]:
    return cast(Sequence[Core], core.cores) if isinstance(core, Stack) else [core]


def _directions(layer: Core) -> tuple[Cell, ...]:
    if isinstance(layer, Dropout):
        layer = layer.core
    if isinstance(layer, Parallel) and len(layer.cores) == 2 and isinstance(layer.cores[1], Reverse):
        return cast(tuple[Cell, ...], (layer.cores[0], layer.cores[1].core))
    return (cast(Cell, layer),)


def _form(cell: Cell) -> tuple[object, ...]:
    """What PyTorch has once for all layers."""
    return type(cell), cell.W.shape, cell.phi if isinstance(cell, Elman) else None


def _check_plain(cell: Core) -> None:
    if isinstance(cell, LSTM):
        options = [name for name in ("peephole", "coupled", "layer_norm") if getattr(cell, name)]
        if cell.candidate != "tanh":
            options.append(f"candidate={cell.candidate!r}")
        if cell.P is not None and cell.output_size >= cell.size:
            options.append(f"a projection of {cell.output_size}, not smaller than its size {cell.size}")
    elif isinstance(cell, GRU):
        options = ["layer_norm"] * cell.layer_norm + ["reset_after=False"] * (not cell.reset_after)
    elif isinstance(cell, Elman):
        options = []
    else:
        raise _refusal(f"a {type(cell).__name__}")
    if options:
        raise _refusal(f"a {type(cell).__name__} with {' and '.join(options)}")


def _dropout(core: Core) -> float:
    """The one probability of the Dropout after all layers but the last."""
    parts = _parts(core)
    dropouts = [part.p if isinstance(part, Dropout) else 0.0 for part in parts]
    if any(isinstance(part, Dropout) and part.per != "element" for part in parts):
        raise _refusal("dropout per row")
    if dropouts[-1] or len(set(dropouts[:-1])) > 1:
        raise _refusal(f"dropout of {', '.join(map(str, dropouts))} after its layers")
    return dropouts[0]


def _refusal(what: str) -> InputError:
    return InputError(
        f"this is {what}, which PyTorch has no module for. Conversion takes an elman cell, a gru with reset_after, "
        "an lstm (plain, or with a smaller projection), or a Stack of layers of one form, each such a cell or "
        "Bidirectional of two, with the same Dropout after all but the last."
    )
