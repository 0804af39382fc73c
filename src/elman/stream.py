"""`Stream`: one input at a time, at the speed of the arithmetic. Equal to `scan` in steps of one, bit for bit.

A module describes one step of itself (kernels/builder.py) to a native program, once: weights are packed (a frozen
snapshot), the state of a row lies in one stretch of memory, and a step of any of the rows is one call. Where the core,
or the embedding, says that it cannot be described, the core is scanned in steps of one. A read-out that cannot be
described, and an embedding that is a module like any other, are called behind and before the core.

This is the one place that knows whether a model is streamed or scanned: sampling, beam search, forecast paths and the
server step rows of a stream.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, NoReturn, Protocol, Self, TypeVar, cast, overload
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from elman import kernels
from elman import state as states
from elman.core import Core
from elman.errors import InputError
from elman.kernels.builder import WEIGHTS, Builder, Slot, Slots, Unstreamable
from elman.kernels.reference.choice import Choice
from elman.kernels.rows import Inputs, NativeRows, Rows, check_distinct, check_inside, row_numbers
from elman.model import SequenceModel
from elman.nn.distributions import Categorical, Discrete, Distribution
from elman.nn.embed import Embed
from elman.nn.readout import Readout, Softmax
from elman.options import choice, whole
from elman.state import REAL, State

if TYPE_CHECKING:
    from elman.kernels.native.program import Program

Array = TypeVar("Array", np.ndarray, Tensor)
Y_co = TypeVar("Y_co", covariant=True)
Y = TypeVar("Y")
M = TypeVar("M", bound=nn.Module)
B = TypeVar("B", bound=Builder)
Symbols = NDArray[np.int64]
Scores = NDArray[np.float32] | NDArray[np.float64]
PLAIN = (bool, int, float, str, type(None), torch.dtype)  # settings of a module that cannot change in place
REGISTERED = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")  # what a module has besides them


class Steps(Protocol[Y_co]):
    """What has a state and a step: a SequenceModel, or anything like it."""

    def init_state(self, batch_size: int) -> State: ...
    def step(self, x: Tensor, state: State) -> tuple[Y_co, State]: ...


class Stream:
    """A module that is fed one input of some sessions at a time, and keeps the states of all: a row is a session.

    `Stream(core, batch_size)` is a CoreStream, `Stream(model, batch_size)` a ModelStream, which takes what the model's
    embedding takes. Later changes of the module do not reach the stream. Not for several threads at once; `share` gives
    a second stream on the same packed weights. With `weights` "bfloat16" or "int8" those of products are stored in so
    few bits, which a float32 module on native kernels can do; sums and states stay in float32.

    >>> import elman
    >>> stream = Stream(elman.cell("gru", 3, 4), batch_size=2)
    >>> stream.step(np.zeros((2, 3), np.float32)).shape
    (2, 4)
    >>> stream.step(np.zeros((1, 3), np.float32), rows=[1]).shape      # the second session alone
    (1, 4)
    >>> saved = stream.take([1])        # its state, a value
    >>> stream.put([0], saved)          # the first session continues from there
    """

    batch_size: int
    _engine: NativeRows | _Scanned[Tensor] | _Scanned[Distribution]

    @overload
    def __new__(cls, module: Core, batch_size: int, weights: str | None = None) -> CoreStream: ...
    @overload
    def __new__(cls, module: SequenceModel, batch_size: int, weights: str | None = None) -> ModelStream: ...
    def __new__(cls, module: object, batch_size: int, weights: str | None = None) -> Stream:
        if cls is not Stream:
            return super().__new__(cls)
        if isinstance(module, Core):
            return super().__new__(CoreStream)
        if isinstance(module, SequenceModel):
            return super().__new__(ModelStream)
        raise InputError(
            f"Stream was given a {type(module).__name__}; it takes a Core or a SequenceModel. "
            "elman.from_torch makes a Core of an nn.RNN, nn.GRU or nn.LSTM."
        )

    @property
    def native(self) -> bool:
        """Whether a step is one native call, rather than a scan of length one."""
        return isinstance(self._engine, NativeRows)

    def share(self, batch_size: int) -> Self:
        """Another stream on the same weights, which are not packed again, with rows of its own."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.batch_size = whole("batch_size", batch_size)
        other._engine = self._engine.share(other.batch_size)
        return other

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        """A stream of its own that stands where this one stands; packed weights, which nobody changes, are shared.

        >>> import copy, elman
        >>> stream = Stream(elman.cell("gru", 3, 4), batch_size=2)
        >>> copy.deepcopy(stream).batch_size
        2
        """
        twin = self.share(self.batch_size)
        twin.state = self.state
        return twin

    def __getstate__(self) -> NoReturn:
        raise InputError(
            "a Stream cannot be pickled, nor copied by copy.copy: two streams would move one state. share(batch_size) "
            "and copy.deepcopy give another; elman.state.save keeps its state in a file."
        )

    @property
    def state(self) -> State:
        """The states of all rows, a value: changing it does not change the stream. They can be set, too."""
        return self._engine.take(np.arange(self.batch_size))

    @state.setter
    def state(self, state: State) -> None:
        self.put(np.arange(self.batch_size), state)

    def take(self, rows: Rows) -> State:
        """The states of some rows, a value."""
        return self._engine.take(self._inside(rows))

    def put(self, rows: Rows, state: State) -> None:
        """These rows continue from these states: the inverse of `take`."""
        numbers = check_distinct(self._inside(rows))
        states.check(state, self._engine.like, len(numbers))
        self._engine.put(numbers, state)

    def reorder(self, parents: Rows) -> None:
        """Row i continues from where row parents[i] stands, one copy a row: what a beam search does at each step."""
        numbers = self._inside(parents)
        if len(numbers) != self.batch_size:
            raise InputError(f"{len(numbers)} parents were named; each of the {self.batch_size} rows has one")
        self._engine.reorder(numbers)

    def _inside(self, rows: Rows) -> np.ndarray:
        return check_inside(row_numbers(rows), self.batch_size)

    def _check_carried(self, inputs: int, before: bytes) -> None:
        if len(before) != inputs * self._engine.row_bytes:
            raise InputError(
                f"{inputs} inputs were given, and {len(before)} bytes; a state has {self._engine.row_bytes}"
            )


class CoreStream(Stream):
    """A core: numbers in, numbers out."""

    _engine: NativeRows | _Scanned[Tensor]

    def __init__(self, core: Core, batch_size: int, weights: str | None = None) -> None:
        self.batch_size = batch_size = whole("batch_size", batch_size)
        core = _snapshot(core)
        try:
            program, x, y = described(core, None, weights)
        except Unstreamable as error:
            _must_scan(weights, error)
            self._engine = _Scanned(_ScanOfOne(frozen(core)), batch_size)
            return
        program.finish(x, y)
        self._engine = NativeRows(program, core.init_state(1), batch_size)

    def step(self, x: Array, rows: Rows | None = None) -> Array:
        """One input for each of the rows, all by default: x (n, D) -> y (n, H), array to array and tensor to tensor.

        The states of these rows move on; the others do not. No row may be named twice.
        """
        if isinstance(x, np.ndarray):
            return self._engine.step(x, None if rows is None else row_numbers(rows))
        if not isinstance(x, Tensor):
            raise InputError(
                f"a step was given a {type(x).__name__}; it takes a numpy array or a tensor (n, D): "
                "np.asarray(x, np.float32)"
            )
        return self._engine.tensors(x, None if rows is None else row_numbers(rows))

    def carry(self, x: np.ndarray, before: bytes) -> tuple[np.ndarray, bytes]:
        """One input for each of n states that are kept elsewhere, and the states after it. No row is touched.

        The states are bytes, one behind the other, each as `elman.state.to_rows` has it; n is any number. What comes
        first is y (n, H). It is what `put`, a step and `take` would give.

        >>> import elman
        >>> stream = Stream(elman.cell("gru", 3, 4), batch_size=1)
        >>> before = elman.state.to_rows(stream.state).tobytes()
        >>> y, after = stream.carry(np.ones((2, 3), np.float32), before * 2)
        >>> y.shape, len(after) == 2 * len(before)
        ((2, 4), True)
        """
        if not isinstance(x, np.ndarray):
            raise InputError(f"carry was given a {type(x).__name__}; it takes a numpy array (n, D)")
        self._check_carried(len(x), before)
        y, after = self._engine.carry(x, before)
        return y.numpy() if isinstance(y, Tensor) else y, after


class ModelStream(Stream):
    """A whole model: what its embedding takes in, a distribution of what follows out.

    A SequenceModel, or anything else with `init_state` and `step`, which is stepped as it is.
    """

    _embed: Callable[[Tensor], Tensor]
    _finish: Callable[..., Distribution]
    _softmax = False  # whether the native program looks symbols up and ends in logits

    def __init__(self, model: SequenceModel | Steps[Distribution], batch_size: int, weights: str | None = None) -> None:
        self.batch_size = batch_size = whole("batch_size", batch_size)
        if not isinstance(model, SequenceModel):
            _must_scan(weights, f"a {type(model).__name__} is stepped as it is")
            self._engine, self._embed, self._finish = _Scanned(model, batch_size), _same, _same
            return
        model = _snapshot(model)
        core, embed, readout = model.core, model.embed, model.readout
        # Packing copies the weights; what is not packed has to be copied here.
        try:
            program, x, y = described(core, embed, weights)
        except Unstreamable as error:
            _must_scan(weights, error)
            self._engine = _Scanned(_ScanOfOne(frozen(core)), batch_size)
            self._embed, self._finish = frozen(embed), frozen(readout)
            return
        program.states_known()
        self._embed = _symbols if program.looks_up else frozen(embed)
        try:
            y = readout.describe_step(program, y) if isinstance(readout, Readout) else y
            self._finish = readout.distribution if isinstance(readout, Readout) else frozen(readout)
            self._softmax = program.looks_up and isinstance(readout, Softmax)
        except Unstreamable:
            self._finish = frozen(readout)  # it is called on y
        program.finish(x, y)
        self._engine = NativeRows(program, core.init_state(1), batch_size)

    @torch.no_grad()
    def step(self, x: Inputs, rows: Rows | None = None) -> Distribution:
        """What the model says of what follows one input for each of the rows, all by default."""
        features = self._embed(torch.as_tensor(x))
        return self._finish(self._engine.tensors(features, None if rows is None else row_numbers(rows)))

    def logits(self, symbols: Symbols, rows: Rows | None = None) -> Scores:
        """The logits (n, V) of what follows symbols (n,) int64, of a model over symbols; if possible without Torch.

        Where the model does not end in a softmax, they are its log-probabilities.
        """
        symbols = np.asarray(symbols)
        if symbols.dtype != np.int64:  # 0.5 is not the symbol 0
            given = f"{symbols.dtype}{list(symbols.shape)}"
            raise InputError(f"logits was given {given}; it needs int64[{self.batch_size if rows is None else 'n'}]")
        if self._softmax and isinstance(self._engine, NativeRows):
            return self._engine.step(symbols, None if rows is None else row_numbers(rows))
        return logits_of(self.step(symbols, rows))

    def log_probs(self, symbols: Symbols, rows: Rows | None = None) -> Scores:
        """The log-probabilities (n, V) of what follows symbols (n,), of a model over symbols."""
        if self._softmax:
            return torch.log_softmax(torch.from_numpy(self.logits(symbols, rows)), -1).numpy()
        return _discrete(self.step(symbols, rows)).log_probs().cpu().numpy()

    @property
    def writes(self) -> bool:
        """Whether `read` and `write` are there: of a model over symbols whose whole step is native."""
        return self._softmax and self.native

    def read(self, symbols: Symbols, row: int) -> None:
        """A row reads symbols (T,): what `logits` of one after the other does to its state."""
        self._writer().read(symbols, int(self._inside([row])[0]))

    def write(self, how: Choice, pending: dict[str, Tensor], rows: Symbols, n: int, end: int) -> Symbols:
        """n symbols (n, rows) of each of the rows, or fewer of one row alone that ends with the symbol `end`.

        Each is chosen by `kernels.choose` and read in the next step. `pending` has what all rows go on from, and is
        changed: `symbols` (B,), which have not been read yet, `seen` (B, V) and `draws` (B, 2).
        """
        return self._writer().write(how, pending, self._inside(rows), n, end)

    def _writer(self) -> NativeRows:
        assert self.writes and isinstance(self._engine, NativeRows)
        return self._engine

    @torch.no_grad()
    def carry(self, x: Inputs, before: bytes) -> tuple[Distribution, bytes]:
        """One input for each of n states that are kept elsewhere, and the states after it, as in CoreStream.carry."""
        self._check_carried(len(x), before)
        y, after = self._engine.carry(self._embed(torch.as_tensor(x)), before)
        return self._finish(torch.from_numpy(y) if isinstance(y, np.ndarray) else y), after


def logits_of(predicted: Distribution) -> Scores:
    """The logits (..., V) of a softmax; of another distribution over symbols the log-probabilities."""
    scores = predicted.logits if isinstance(predicted, Categorical) else _discrete(predicted).log_probs()
    return scores.cpu().numpy()


def _discrete(predicted: Distribution) -> Discrete:
    if not hasattr(predicted, "log_probs"):
        raise InputError(
            f"the model predicts with a {type(predicted).__name__}, which is not over symbols: use step(x)"
        )
    return cast(Discrete, predicted)


class _Scanned(Generic[Y]):
    """What has no native form: rows of states, stepped by the module itself."""

    def __init__(self, module: Steps[Y], batch_size: int) -> None:
        self._module, self._batch_size, self._all = module, batch_size, np.arange(batch_size)
        self.like, self._state = module.init_state(1), module.init_state(batch_size)
        self.row_bytes = states.row_bytes(self.like)
        self._bound = self._all, module  # the rows that were named last: their memory is not copied in each step

    def share(self, batch_size: int) -> _Scanned[Y]:
        return _Scanned(self._module, batch_size)

    def step(self: _Scanned[Tensor], x: np.ndarray, rows: np.ndarray | None) -> np.ndarray:
        return self.tensors(torch.from_numpy(np.ascontiguousarray(x)), rows).numpy()

    @torch.no_grad()
    def tensors(self, x: Tensor, rows: np.ndarray | None) -> Y:
        if rows is None or np.array_equal(rows, self._all):
            y, self._state = self._module.step(x, self._state)
        else:
            before = self.take(check_distinct(check_inside(rows, self._batch_size)))
            y, after = self._module_of(rows).step(x, before)
            self.put(rows, after)
        return y

    @torch.no_grad()
    def carry(self, x: Inputs, before: bytes) -> tuple[Y, bytes]:
        rows = np.frombuffer(before, np.uint8).reshape(len(x), self.row_bytes)
        y, after = self._module.step(torch.as_tensor(x), states.from_rows(rows, self.like))
        return y, states.to_rows(after).tobytes()

    def _module_of(self, rows: np.ndarray) -> Steps[Y]:
        if isinstance(self._module, _ScanOfOne) and not np.array_equal(rows, self._bound[0]):
            self._bound = rows.copy(), cast(Steps[Y], self._module.take(torch.from_numpy(rows)))
        return self._bound[1]

    def take(self, rows: np.ndarray) -> State:
        return states.take(self._state, torch.from_numpy(rows))

    def put(self, rows: np.ndarray, state: State) -> None:
        self._state = states.put(self._state, torch.from_numpy(rows), state)

    def reorder(self, parents: np.ndarray) -> None:
        self._state = self.take(parents)


class _ScanOfOne:
    """A core whose steps are scans of length one: unlike those of `step`, their bits do not depend on the batch."""

    def __init__(self, core: Core) -> None:
        self._core, self.init_state = core, core.init_state

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        y, state = self._core.scan(x.unsqueeze(1), state)
        return y.squeeze(1), state

    def take(self, rows: Tensor) -> _ScanOfOne:
        return _ScanOfOne(self._core.take(rows))


def frozen(module: M) -> M:
    """A copy that later changes of the module do not reach."""
    return copy.deepcopy(module).eval().requires_grad_(False)


def _snapshot(module: M) -> M:
    """The module without dropout."""
    return frozen(module) if any(part.training for part in module.modules()) else module


def _same(x: Y) -> Y:
    return x


def _symbols(x: Tensor) -> Tensor:
    if x.is_floating_point() or x.is_complex():
        raise InputError(f"a step was given {x.dtype}{list(x.shape)}; the model reads symbols, which are integers")
    return x.long()


def _must_scan(weights: str | None, why: Unstreamable | str) -> None:
    """What is scanned computes with the weights that the module has."""
    if weights is not None:
        raise InputError(f"weights is {weights!r}, for which every step must be native, but: {why}; leave it out")


_made: WeakKeyDictionary[nn.Module, tuple[object, dict[str | None, ModelStream]]] = WeakKeyDictionary()


def stream_of(model: SequenceModel | Steps[Distribution], batch_size: int, weights: str | None = None) -> ModelStream:
    """A ModelStream. What it has packed is kept with the model until any number or setting in that changes."""
    contents = _contents(model) if isinstance(model, SequenceModel) else None
    if not isinstance(model, SequenceModel) or contents is None:
        return ModelStream(model, batch_size, weights)
    found, streams = _made.get(model, (None, {}))
    if found != contents:
        _made[model] = contents, (streams := {})
    if weights not in streams:
        streams[weights] = ModelStream(model, 1, weights)
    return streams[weights].share(batch_size)


def _contents(model: nn.Module) -> object:
    """What tells a model from itself before a change, also one that Torch does not count; None if it takes long, or if
    a module has settings of other types than PLAIN: tensors, functions, what can change in place."""
    settings = [(type(part), _settings(part)) for part in model.modules()]
    # A parameter that two modules have counts twice: which ones have it in common is told by where it stands.
    tensors = [t for _, t in (*model.named_parameters(remove_duplicate=False), *model.named_buffers("", True, False))]
    if not tensors or any(found is None for _, found in settings):
        return None
    digests = [kernels.digest(tensor) for tensor in tensors]
    return None if None in digests else (kernels.active(), settings, [(t.dtype, t.shape) for t in tensors], digests)


def _settings(part: nn.Module) -> list[tuple[str, type, object]] | None:
    """Of a module; None if one of them is not plain."""
    found = [(name, type(value), value) for name, value in vars(part).items() if name not in REGISTERED]
    found = [setting for setting in found if setting[1] is not OrderedDict or setting[2]]  # hooks, where there are any
    return found if all(_plain(value) for _, _, value in found) else None


def _plain(value: object) -> bool:
    return all(map(_plain, value)) if type(value) is tuple else type(value) in PLAIN


def described(core: Core, embed: nn.Module | None, weights: str | None = None) -> tuple[Program, Slot, Slot]:
    """A program of one step, and the slots of what it is given and of what the core makes of it."""
    if weights is not None:
        choice("weights", weights, WEIGHTS)

    def program(dtype: torch.dtype) -> Program:
        if weights is not None and dtype != torch.float32:
            raise Unstreamable(f"weights of {dtype} cannot be stored in fewer bits, only those of torch.float32")
        return kernels.program(dtype, weights)

    return describe(core, embed, program)


def describe(core: Core, embed: nn.Module | None, make: Callable[[torch.dtype], B]) -> tuple[B, Slot, Slot]:
    """A step described to a builder that is made for its dtype; the slots of what it is given and of the core's y."""
    if not core.causal:
        raise InputError(
            f"{type(core).__name__} reads the future, so it cannot be streamed; stream a core without Reverse in it"
        )
    like = core.init_state(1)
    # A core without parameters says its dtype by a buffer; its sums, which grow long, are float64 all the same.
    numbers = [*core.parameters(), *(buffer for buffer in core.buffers() if buffer.is_floating_point())]
    leaves = [leaf for leaf in states.leaves(like) if leaf.dtype != torch.float64 or not numbers]
    dtypes = {REAL.get(t.dtype, t.dtype) for t in (*numbers, *leaves)}
    if len(dtypes) != 1 or any(number.device.type != "cpu" for number in numbers):
        raise Unstreamable(f"a core of the dtypes {dtypes}, or not on the CPU")
    builder = make(dtypes.pop())
    x = embed.describe_step(builder) if isinstance(embed, Embed) else builder.input(core.input_size)
    state = states.map(lambda leaf: cast(Tensor, builder.state(_width(leaf, builder.dtype))), like)
    return builder, x, core.describe_step(builder, x, cast(Slots, state))


def _width(leaf: Tensor, dtype: torch.dtype) -> int:
    """How many numbers of a program's dtype a leaf is."""
    return leaf[0].numel() * leaf.element_size() // dtype.itemsize
