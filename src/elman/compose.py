"""The words that larger recurrences are made of. Each is a Core, so each goes wherever a cell goes.

    Stack(a, b)         b(a(x))                        Dense, Norm       pointwise: they remember nothing
    Residual(a)         x + a(x)                       Dropout(a)        zeroes outputs of a
    Parallel(a, b)      [a(x), b(x)]                   Zoneout(a)        lets units of the state stand still
    Reverse(a)          a, from the row's end          WeightDrop(a)     zeroes entries of its matrices
    Bidirectional(a, b) Parallel(a, Reverse(b))        stack("lstm", …)  the usual network, in one line

The state of Stack and Parallel is a tuple with one state per part; every other word has the state of what it wraps, and
pointwise words have the empty tuple. `scan` has validated everything, and zeroed the padding, when `_scan` is called;
outputs are zero past lengths too. So words call `_scan` inside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elman import kernels
from elman import state as states
from elman.cells import cell as build_cell
from elman.core import Core
from elman.errors import InputError, UnknownNameError

if TYPE_CHECKING:
    from elman.kernels.stream import Program, Slot

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "relu": torch.relu,
    "sigmoid": kernels.sigmoid,
    "silu": kernels.silu,
    "softplus": kernels.softplus,
    "tanh": kernels.tanh,
}


class Stack(Core):
    """Cores on top of each other: each reads what the one below it puts out.

    With inputs="all", every layer but the first reads [output of the layer below, x]: skip connections from the input.

    >>> Stack(Dense(3, 4), Dense(4 + 3, 2), inputs="all").scan(torch.ones(1, 5, 3))[0].shape
    torch.Size([1, 5, 2])
    """

    def __init__(self, *cores: Core, inputs: str = "previous") -> None:
        _check_cores("Stack", cores)
        if inputs not in ("previous", "all"):
            raise InputError(f"inputs is {inputs!r}; Stack takes 'previous' or 'all'")
        super().__init__(cores[0].input_size, cores[-1].output_size)
        skipped = self.input_size if inputs == "all" else 0
        for i in range(1, len(cores)):
            width = cores[i - 1].output_size + skipped
            if cores[i].input_size != width:
                raise InputError(
                    f"layer {i} of the Stack, {_name(cores[i])}, reads {cores[i].input_size} features, "
                    f"but what reaches it has {width}: build it with input_size={width}"
                )
        self.cores = nn.ModuleList(cores)
        self.inputs = inputs
        self.causal = all(core.causal for core in cores)

    def init_state(self, batch_size: int) -> tuple[Any, ...]:
        return tuple(core.init_state(batch_size) for core in _parts(self))

    def step(self, x: Tensor, state: tuple[Any, ...]) -> tuple[Tensor, tuple[Any, ...]]:
        return self._through(x, state, lambda core, y, before: core.step(y, before))

    def _scan(
        self, x: Tensor, state: tuple[Any, ...], lengths: Tensor, reset: Tensor
    ) -> tuple[Tensor, tuple[Any, ...]]:
        return self._through(x, state, lambda core, y, before: core._scan(y, before, lengths, reset))

    def _through(
        self, x: Tensor, state: tuple[Any, ...], run: Callable[[Core, Tensor, Any], tuple[Tensor, Any]]
    ) -> tuple[Tensor, tuple[Any, ...]]:
        after = []
        y = x
        for i, (core, before) in enumerate(zip(_parts(self), state, strict=True)):
            y, new = run(core, torch.cat([y, x], -1) if i and self.inputs == "all" else y, before)
            after.append(new)
        return y, tuple(after)

    def _stream(self, program: Program, x: Slot, state: Any) -> Slot:
        y = x
        for i, (core, part) in enumerate(zip(_parts(self), state, strict=True)):
            y = program.core(core, program.concat([y, x]) if i and self.inputs == "all" else y, part)
        return y


class Parallel(Core):
    """Cores side by side: all read x, their outputs stand one after the other.

    >>> Parallel(Dense(3, 4), Dense(3, 2)).scan(torch.ones(1, 5, 3))[0].shape
    torch.Size([1, 5, 6])
    """

    def __init__(self, *cores: Core) -> None:
        _check_cores("Parallel", cores)
        for i, core in enumerate(cores):
            if core.input_size != cores[0].input_size:
                raise InputError(
                    f"part {i} of the Parallel, {_name(core)}, reads {core.input_size} features, part 0 reads "
                    f"{cores[0].input_size}; all parts read the same input: build them with one input_size"
                )
        super().__init__(cores[0].input_size, sum(core.output_size for core in cores))
        self.cores = nn.ModuleList(cores)
        self.causal = all(core.causal for core in cores)

    def init_state(self, batch_size: int) -> tuple[Any, ...]:
        return tuple(core.init_state(batch_size) for core in _parts(self))

    def step(self, x: Tensor, state: tuple[Any, ...]) -> tuple[Tensor, tuple[Any, ...]]:
        return _side_by_side([core.step(x, part) for core, part in zip(_parts(self), state, strict=True)])

    def _scan(
        self, x: Tensor, state: tuple[Any, ...], lengths: Tensor, reset: Tensor
    ) -> tuple[Tensor, tuple[Any, ...]]:
        return _side_by_side(
            [core._scan(x, part, lengths, reset) for core, part in zip(_parts(self), state, strict=True)]
        )

    def _stream(self, program: Program, x: Slot, state: Any) -> Slot:
        return program.concat([program.core(core, x, part) for core, part in zip(_parts(self), state, strict=True)])


class _Around(Core):
    """A word around one core, whose state it has."""

    def __init__(self, core: Core) -> None:
        _check_cores(type(self).__name__, [core])
        super().__init__(core.input_size, core.output_size)
        self.core = core
        self.causal = core.causal

    def init_state(self, batch_size: int) -> Any:
        return self.core.init_state(batch_size)


class Residual(_Around):
    """y = x + core(x).

    >>> Residual(Dense(3, 3, activation="relu")).scan(torch.ones(1, 5, 3))[0].shape
    torch.Size([1, 5, 3])
    """

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        if core.input_size != core.output_size:
            raise InputError(
                f"Residual was given {_name(core)}, which reads {core.input_size} features and puts out "
                f"{core.output_size}; x + core(x) needs the two equal: choose equal sizes, or end the core with a Dense"
            )

    def step(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        y, state = self.core.step(x, state)
        return x + y, state

    def _scan(self, x: Tensor, state: Any, lengths: Tensor, reset: Tensor) -> tuple[Tensor, Any]:
        y, state = self.core._scan(x, state, lengths, reset)
        return x + y, state

    def _stream(self, program: Program, x: Slot, state: Any) -> Slot:
        return program.add(x, program.core(self.core, x, state))


class Reverse(_Around):
    """The core, reading each row from its last valid input to its first: y[t] knows x[t], x[t+1], ... and no more.

    The given state stands behind the row's end, and the state returned is the one after the row's first input. Episodes
    stay apart: what begins an episode for `reset` ends it for the core.

    >>> from elman.cells import cell
    >>> y, state = Reverse(cell("elman", 3, 4)).scan(torch.ones(1, 5, 3))
    >>> bool((y[:, 0] == state.h).all())
    True
    """

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self.causal = False

    def step(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        raise InputError(
            "Reverse reads the future, so it has no step: scan whole sequences, or stream a core without Reverse in it"
        )

    def _scan(self, x: Tensor, state: Any, lengths: Tensor, reset: Tensor) -> tuple[Tensor, Any]:
        # x[t] is read first of its episode if x[t+1] begins another one. The row's last input follows the given state.
        inside = torch.arange(1, x.shape[1] + 1, device=x.device) < lengths[:, None]
        ends = reset.roll(-1, 1) & inside
        y, state = self.core._scan(kernels.reverse(x, lengths), state, lengths, kernels.reverse(ends, lengths))
        return kernels.reverse(y, lengths), state


class Bidirectional(Parallel):
    """One core from the left, one from the right: Parallel(left, Reverse(right)).

    >>> from elman.cells import cell
    >>> Bidirectional(cell("gru", 3, 4), cell("gru", 3, 4)).output_size
    8
    """

    def __init__(self, left: Core, right: Core) -> None:
        super().__init__(left, Reverse(right))


class _Pointwise(Core):
    """y[t] = pointwise(x[t]): a core that remembers nothing."""

    def init_state(self, batch_size: int) -> tuple[()]:
        return ()

    def step(self, x: Tensor, state: tuple[()]) -> tuple[Tensor, tuple[()]]:
        return self.pointwise(x).to(x.dtype), ()

    def _scan(self, x: Tensor, state: tuple[()], lengths: Tensor, reset: Tensor) -> tuple[Tensor, tuple[()]]:
        y = self.pointwise(x).to(x.dtype)
        valid = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
        return torch.where(valid[..., None], y, torch.zeros_like(y)), ()  # a bias acts in the padding too

    def pointwise(self, x: Tensor) -> Tensor:
        """x (..., D) -> (..., H)."""
        raise NotImplementedError


class Dense(_Pointwise):
    """y = phi(U x + b) at each time step on its own. `activation` names phi: a key of ACTIVATIONS.

    >>> Dense(3, 2, activation="tanh").scan(torch.ones(1, 5, 3))[0].shape
    torch.Size([1, 5, 2])
    """

    def __init__(self, input_size: int, size: int, *, activation: str = "none") -> None:
        super().__init__(input_size, size)
        if activation not in ACTIVATIONS:
            raise UnknownNameError("activation", activation, ACTIVATIONS)
        self.activation = activation
        self.U = nn.Parameter(torch.empty(size, input_size))
        self.b = nn.Parameter(torch.empty(size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        # Outputs as large as inputs: relu and silu let half through (He et al., 2015), the others about all, near zero.
        nn.init.kaiming_uniform_(self.U, nonlinearity="relu" if self.activation in ("relu", "silu") else "linear")
        nn.init.zeros_(self.b)

    def pointwise(self, x: Tensor) -> Tensor:
        return ACTIVATIONS[self.activation](kernels.linear(x, self.U, self.b))

    def _stream(self, program: Program, x: Slot, state: Any) -> Slot:
        y = program.linear(x, self.U, self.b)
        return y if self.activation == "none" else program.map(self.activation, y)


class Norm(_Pointwise):
    """Each time step brought to one scale, then scaled by a learned gain g.

    kind="layer": y = g (x - mean(x)) / sqrt(var(x) + eps) + b (Ba et al., 2016).
    kind="rms":   y = g x / sqrt(mean(x x) + eps) (Zhang and Sennrich, 2019).

    >>> Norm(2, kind="rms").scan(torch.full((1, 1, 2), 7.0))[0].round(decimals=3).tolist()
    [[[1.0, 1.0]]]
    """

    eps = 1e-5

    def __init__(self, size: int, *, kind: str = "layer") -> None:
        super().__init__(size, size)
        if kind not in ("layer", "rms"):
            raise UnknownNameError("norm", kind, ("layer", "rms"))
        self.kind = kind
        self.g = nn.Parameter(torch.empty(size))
        self.b = nn.Parameter(torch.empty(size)) if kind == "layer" else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.g)
        if self.b is not None:
            nn.init.zeros_(self.b)

    def pointwise(self, x: Tensor) -> Tensor:
        x = x.to(torch.promote_types(x.dtype, self.g.dtype))
        if self.kind == "rms":
            return kernels.rms_norm(x, self.g, self.eps)
        return kernels.layer_norm(x, self.g, self.b, self.eps)

    def _stream(self, program: Program, x: Slot, state: Any) -> Slot:
        if self.kind == "rms":
            return program.rms_norm(x, self.g, self.eps)
        return program.layer_norm(x, self.g, self.b, self.eps)


class Dropout(_Around):
    """In training, zeroes each output of the core with probability p and scales the others by 1 / (1 - p).

    per="element": every element on its own. per="row": one mask for each row and scan, the same at all its time steps
    (Gal and Ghahramani, 2016). A step in training is a scan of one input. The recurrence inside sees nothing of it.

    >>> y, _ = Dropout(Dense(3, 4), 0.5).eval().scan(torch.ones(1, 5, 3))
    """

    def __init__(self, core: Core, p: float, *, per: str = "element") -> None:
        super().__init__(core)
        if per not in ("element", "row"):
            raise InputError(f"per is {per!r}; Dropout takes 'element' or 'row'")
        self.p = _checked_probability("Dropout", p)
        self.per = per

    def step(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        y, state = self.core.step(x, state)
        return F.dropout(y, self.p, self.training), state

    def _scan(self, x: Tensor, state: Any, lengths: Tensor, reset: Tensor) -> tuple[Tensor, Any]:
        y, state = self.core._scan(x, state, lengths, reset)
        if self.per == "element" or not self.training:
            return F.dropout(y, self.p, self.training), state
        return y * F.dropout(torch.ones_like(y[:, :1]), self.p), state

    def _stream(self, program: Program, x: Slot, state: Any) -> Slot:
        return program.core(self.core, x, state)  # a stream is evaluation

    def extra_repr(self) -> str:
        return f"p={self.p}, per={self.per!r}"


class Zoneout(_Around):
    """In training, each unit of the state keeps its value through a step with probability p (Krueger et al., 2017).

    state = d * state' + (1 - d) * new, d drawn afresh for each unit and step; in evaluation d is its mean, p.
    Where a core puts out the first leaf of its state, the output is that leaf after this.

    >>> from elman.cells import cell
    >>> y, state = Zoneout(cell("lstm", 3, 4), 0.1).scan(torch.ones(1, 5, 3))
    >>> bool((y[:, -1] == state.h).all())
    True
    """

    def __init__(self, core: Core, p: float) -> None:
        super().__init__(core)
        if not core.causal:
            raise InputError(
                f"Zoneout was given {_name(core)}, which reads the future and has no step: "
                "put it inside, Reverse(Zoneout(core))"
            )
        self.p = _checked_probability("Zoneout", p)
        self.emits_state = core.emits_state

    def step(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        y, new = self.core.step(x, state)
        state = states.map(self._zone, state, new)
        return (states.leaves(state)[0].to(x.dtype) if self.emits_state else y), state

    def _zone(self, old: Tensor, new: Tensor) -> Tensor:
        if self.training:
            return torch.where(torch.rand(new.shape, device=new.device) < self.p, old, new)
        return self.p * old + (1 - self.p) * new

    def extra_repr(self) -> str:
        return f"p={self.p}"


class WeightDrop(_Around):
    """In training, each scan runs with entries of the parameters called `names` zeroed, each with probability p.

    The others are scaled by 1 / (1 - p); the mask is the same at all time steps of a scan (Merity et al., 2018). The
    parameters themselves stay as they are, and get the gradient. Names may be dotted: "cores.0.W". A step in training
    is a scan of one input, so Zoneout, which steps, goes inside: WeightDrop(Zoneout(core), p, names=("core.W",)).

    >>> from elman.cells import cell
    >>> y, state = WeightDrop(cell("lstm", 3, 4), 0.5).scan(torch.ones(1, 5, 3))
    """

    def __init__(self, core: Core, p: float, *, names: Sequence[str] = ("W",)) -> None:
        super().__init__(core)
        self.p = _checked_probability("WeightDrop", p)
        known = [name for name, _ in core.named_parameters()]
        unknown = [name for name in names if name not in known]
        if unknown or isinstance(names, str) or not names:
            raise InputError(
                f"names is {names!r}; WeightDrop takes a tuple of parameters of the core: {', '.join(known)}"
            )
        self.names = tuple(names)
        self.emits_state = core.emits_state

    def step(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        return self._dropped(self.core.step, x, state)

    def _scan(self, x: Tensor, state: Any, lengths: Tensor, reset: Tensor) -> tuple[Tensor, Any]:
        return self._dropped(self.core._scan, x, state, lengths, reset)

    def _dropped(self, run: Callable[..., tuple[Tensor, Any]], *args: Any) -> tuple[Tensor, Any]:
        if not self.training:
            return run(*args)
        masked = {f"core.{name}": F.dropout(self.core.get_parameter(name), self.p) for name in self.names}
        return cast(tuple[Tensor, Any], torch.func.functional_call(_Call(self.core, run), masked, args))

    def _stream(self, program: Program, x: Slot, state: Any) -> Slot:
        return program.core(self.core, x, state)  # a stream is evaluation

    def extra_repr(self) -> str:
        return f"p={self.p}, names={self.names}"


class _Call(nn.Module):
    """A method of a core as a module: what functional_call can lend other parameters to."""

    def __init__(self, core: Core, run: Callable[..., tuple[Tensor, Any]]) -> None:
        super().__init__()
        self.core = core
        self.run = run

    def forward(self, *args: Any) -> tuple[Tensor, Any]:
        return self.run(*args)


def stack(
    cell: str,
    input_size: int,
    size: int,
    *,
    layers: int = 1,
    bidirectional: bool = False,
    residual: bool = False,
    norm: str | None = None,
    dropout: float = 0.0,
    **options: Any,
) -> Stack:
    """The usual network of cells called `cell`, built from the words above; `options` are the cell's.

    A layer is a cell of `size`, or two if bidirectional (then its output is 2 * size wide). `norm` ("layer" or "rms")
    stands before the cell; `dropout` behind every layer but the last; `residual` adds to that what the layer read,
    except where the widths differ: in layer 0, unless input_size is as wide as a layer's output.

    >>> stack("lstm", 8, 16, layers=3, bidirectional=True, residual=True, norm="layer", dropout=0.2).output_size
    32
    """
    if not isinstance(layers, int) or layers < 1:
        raise InputError(f"layers is {layers!r}; a stack takes a whole number of at least 1")
    _checked_probability("stack", dropout)
    parts: list[Core] = []
    for i in range(layers):
        width = parts[-1].output_size if parts else input_size
        layer: Core = build_cell(cell, width, size, **options)
        if bidirectional:
            layer = Bidirectional(layer, build_cell(cell, width, size, **options))
        if norm is not None:
            layer = Stack(Norm(width, kind=norm), layer)
        if dropout and i < layers - 1:
            layer = Dropout(layer, dropout)
        if residual and width == layer.output_size:
            layer = Residual(layer)
        parts.append(layer)
    return Stack(*parts)


def _parts(core: Stack | Parallel) -> Sequence[Core]:
    return cast(Sequence[Core], core.cores)


def _side_by_side(results: Sequence[tuple[Tensor, Any]]) -> tuple[Tensor, tuple[Any, ...]]:
    return torch.cat([y for y, _ in results], -1), tuple(state for _, state in results)


def _name(core: Core) -> str:
    return f"{type(core).__name__}({core.input_size}, {core.output_size})"


def _check_cores(word: str, cores: Sequence[Core]) -> None:
    if not cores:
        raise InputError(f"{word} was given no core; it takes one or more")
    for i, core in enumerate(cores):
        if not isinstance(core, Core):
            raise InputError(
                f"argument {i} of {word} is a {type(core).__name__}; it takes Cores: "
                "a cell, another word, or your own subclass"
            )


def _checked_probability(word: str, p: float) -> float:
    if isinstance(p, bool) or not isinstance(p, int | float) or not 0 <= p < 1:
        raise InputError(f"{word} was given the probability {p!r}; it takes a number of at least 0 and less than 1")
    return float(p)
