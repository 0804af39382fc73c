"""`Stream`: one input at a time, at the speed of the arithmetic. Equal to `scan` in steps of one, bit for bit.

A module describes one step of itself (kernels/builder.py) to a native program, once: weights are packed (a frozen
snapshot), the state of a row lies in one stretch of memory, and a step of any of the rows is one call. Where the core,
or the embedding, says that it cannot be described, the core is scanned in steps of one. A read-out that cannot be
described, and an embedding that is a module like any other, are called behind and before the core.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from elman import kernels
from elman import state as states
from elman.core import Core
from elman.errors import InputError
from elman.kernels.builder import Slot, Slots, Unstreamable
from elman.kernels.trace import slot_of, traced
from elman.model import SequenceModel
from elman.nn.distributions import Distribution, StudentT
from elman.nn.embed import Embed
from elman.nn.readout import Readout
from elman.options import whole
from elman.state import REAL, State

if TYPE_CHECKING:
    from elman.kernels.native.program import Program

Array = TypeVar("Array", np.ndarray, Tensor)
Rows = Sequence[int] | np.ndarray | Tensor | None


class Stream:
    """A module that is fed one input of some sessions at a time, and keeps the states of all: a row is a session.

    `module` is a Core, or a whole model, which takes what its embedding takes. Later changes of the module do not reach
    the stream. Not for several threads at once; `share` gives a second stream on the same packed weights.

    >>> import elman
    >>> stream = Stream(elman.cell("gru", 3, 4), batch_size=2)
    >>> stream.step(np.zeros((2, 3), np.float32)).shape
    (2, 4)
    >>> stream.step(np.zeros((1, 3), np.float32), rows=[1]).shape      # the second session alone
    (1, 4)
    >>> saved = stream.take([1])        # its state, a value
    >>> stream.put([0], saved)          # the first session goes on from there
    """

    def __init__(self, module: Core | SequenceModel, batch_size: int) -> None:
        if not isinstance(module, Core | SequenceModel):
            raise InputError(
                f"Stream was given a {type(module).__name__}; it takes a Core or a SequenceModel. "
                "elman.from_torch makes a Core of an nn.RNN, nn.GRU or nn.LSTM."
            )
        self.batch_size = batch_size = whole("batch_size", batch_size)
        model = _frozen(module) if any(part.training for part in module.modules()) else module
        self._whole = isinstance(model, SequenceModel)
        core, embed, readout = _parts(model)
        if not core.causal:
            raise InputError(
                f"{type(core).__name__} reads the future, so it cannot be streamed; stream a core without Reverse in it"
            )
        self._looks_up = False
        # Packing copies the weights; what is not packed has to be copied here.
        try:
            program, x, y = _described(core, embed)
        except Unstreamable:
            self._engine: _Native | _Scanned = _Scanned(_frozen(core), batch_size)
            self._embed: Callable[[Tensor], Tensor] = _frozen(embed)
            self._finish: Callable[[Tensor], Distribution] = _frozen(readout)
            return
        self._looks_up, self._embed = program.looks_up, _symbols if program.looks_up else _frozen(embed)
        try:
            y = readout.describe_step(program, y) if isinstance(readout, Readout) else y
            self._finish = readout.distribution if isinstance(readout, Readout) else _frozen(readout)
        except Unstreamable:
            self._finish = _frozen(readout)  # it is called on y
        program.finish(x, y)
        self._engine = _Native(program, core.init_state, batch_size)

    @property
    def native(self) -> bool:
        """Whether a step is one native call, rather than a scan of length one."""
        return isinstance(self._engine, _Native)

    def share(self, batch_size: int) -> Stream:
        """Another stream on the same weights, which are not packed again, with rows of its own."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.batch_size = whole("batch_size", batch_size)
        other._engine = self._engine.share(other.batch_size)
        return other

    def __deepcopy__(self, memo: dict[int, Any]) -> Stream:
        """A stream of its own that stands where this one stands; packed weights, which nobody changes, are shared.

        >>> import copy, elman
        >>> stream = Stream(elman.cell("gru", 3, 4), batch_size=2)
        >>> copy.deepcopy(stream).batch_size
        2
        """
        twin = self.share(self.batch_size)
        twin.state = self.state
        return twin

    def __getstate__(self) -> object:
        raise InputError(
            "a Stream cannot be pickled, nor copied by copy.copy: two streams would move one state. share(batch_size) "
            "and copy.deepcopy give another; elman.state.save keeps its state in a file."
        )

    def step(self, x: Array, rows: Rows = None) -> Array:
        """One input for each of the rows, all by default: x (n, D) -> y (n, H), array to array and tensor to tensor.

        The states of these rows move on; the others do not. No row may be named twice.
        """
        if self._whole:
            raise InputError("the stream has a whole model: ask for `distribution(x)`, or for `logits(symbols)`")
        if isinstance(x, np.ndarray):
            return self._engine.step(x, None if rows is None else _numbers(rows))
        if not isinstance(x, Tensor):
            raise InputError(
                f"a step was given a {type(x).__name__}; it takes a numpy array or a tensor (n, D): "
                "np.asarray(x, np.float32)"
            )
        return self._engine.tensors(x, _numbers(rows))

    @torch.no_grad()
    def distribution(self, x: Any, rows: Rows = None) -> Any:
        """What a whole model says of what follows one input for each of the rows."""
        if not self._whole:
            raise InputError("the stream has a core, which gives no distribution: ask for `step(x)`")
        return self._finish(self._engine.tensors(self._embed(torch.as_tensor(x)), _numbers(rows)))

    def logits(self, symbols: np.ndarray, rows: Rows = None) -> np.ndarray:
        """The logits (n, V) of a model that ends in a softmax for symbols (n,) int64, if possible without Torch."""
        symbols = np.asarray(symbols)
        if symbols.dtype != np.int64:  # 0.5 is not the symbol 0
            given = f"{symbols.dtype}{list(symbols.shape)}"
            raise InputError(f"logits was given {given}; it needs int64[{self.batch_size if rows is None else 'n'}]")
        if self._looks_up:
            return self._engine.step(symbols, None if rows is None else _numbers(rows))
        logits: np.ndarray = self.distribution(symbols, rows).logits.numpy()
        return logits

    @torch.no_grad()
    def carry(self, x: Any, given: bytes) -> tuple[Any, bytes]:
        """One input for each of n states that are kept elsewhere, and the states after it. No row is touched.

        The states are bytes, one behind the other, each as `elman.state.to_rows` has it; n is any number. What comes
        first is y (n, H), or the distribution of a whole model. It is what `write`, a step and `read` would give.

        >>> import elman
        >>> stream = Stream(elman.cell("gru", 3, 4), batch_size=1)
        >>> y, after = stream.carry(np.ones((2, 3), np.float32), stream.read().tobytes() * 2)
        >>> y.shape, len(after) == 2 * stream.row_bytes
        ((2, 4), True)
        """
        if len(given) != len(x) * self.row_bytes:
            raise InputError(f"{len(x)} inputs were given, and {len(given)} bytes; a state has {self.row_bytes}")
        if not self._whole:
            if not isinstance(x, np.ndarray):
                raise InputError(f"carry was given a {type(x).__name__}; it takes a numpy array (n, D)")
            return self._engine.carry(x, given)
        y, after = self._engine.carry(self._embed(torch.as_tensor(x)).numpy(), given)
        return self._finish(torch.from_numpy(y)), after

    def take(self, rows: Rows = None) -> State:
        """The states of the rows, all by default, as a value: changing it does not change the stream."""
        return self._engine.take(self._checked(rows))

    def put(self, rows: Rows, state: State) -> None:
        """The rows, or all if that is None, go on from these states: the inverse of `take`."""
        numbers = _distinct(self._checked(rows))
        like = states.map(lambda leaf: leaf.new_empty((len(numbers), *leaf.shape[1:])), self._engine.like)
        if states.describe(states.map(torch.empty_like, state)) != states.describe(like):
            raise InputError(f"the state is {states.describe(state)}, but the stream's is {states.describe(like)}")
        self._engine.put(numbers, state)

    def read(self, rows: Rows = None) -> np.ndarray:
        """The states of the rows as bytes (n, W), as `elman.state.to_rows` has them."""
        return self._engine.read(self._checked(rows))

    def write(self, rows: Rows, given: np.ndarray) -> None:
        """The rows, or all if that is None, go on from these bytes: the inverse of `read`."""
        numbers = _distinct(self._checked(rows))
        if given.dtype != np.uint8 or given.shape != (len(numbers), self.row_bytes):
            raise InputError(
                f"the states are {given.dtype}{list(given.shape)}; it takes uint8[{len(numbers)}, {self.row_bytes}]"
            )
        self._engine.write(numbers, given)

    @property
    def row_bytes(self) -> int:
        """How many bytes the state of a row has."""
        return self._engine.row_bytes

    def reorder(self, parents: Rows) -> None:
        """Row i goes on from where row parents[i] stands, one copy a row: what a beam search does at each step."""
        numbers = self._checked(parents)
        if len(numbers) != self.batch_size:
            raise InputError(f"{len(numbers)} parents were named; each of the {self.batch_size} rows has one")
        self._engine.reorder(numbers)

    @property
    def state(self) -> State:
        """The state of every row: take() and put() of all."""
        return self.take()

    @state.setter
    def state(self, state: State) -> None:
        self.put(None, state)

    def _checked(self, rows: Rows) -> np.ndarray:
        numbers = _numbers(rows)
        return np.arange(self.batch_size) if numbers is None else _inside(numbers, self.batch_size)


class Paths:
    """What a model draws for the steps ahead, reading each value that it has drawn: native, or Unstreamable is raised.

    `paths(state, x, draws)` begins at the states of B rows, x (B, H, D) being what the core reads. The first C columns
    of all steps but the first do not count: the C numbers that were drawn for the step before stand there. draws
    (B * S, 2) has S paths of the first row, then those of the second: (B * S, H, C), in float64. A path is what
    `Stream.distribution` and `sample` would give, step by step, to the bit.
    """

    def __init__(self, model: SequenceModel) -> None:
        core, _, readout = _parts(_frozen(model))
        program, x, y = _described(core, None)
        if not isinstance(readout, Readout):
            raise Unstreamable(f"{type(readout).__name__} does not describe its step")
        said = readout.distribution(traced(program, readout.describe_step(program, y)))
        if not isinstance(said, StudentT):
            raise Unstreamable(f"a draw from a {type(said).__name__}")
        program.finish(x, program.student_t(*(slot_of(program, part) for part in (said.df, said.mean, said.scale))))
        self._program, self._init_state = program, core.init_state

    def __call__(self, state: State, x: Tensor, draws: Tensor) -> Tensor:
        rows = _Native(self._program, self._init_state, len(x))
        rows.put(np.arange(len(x)), state)
        return rows.paths(x, draws)


def _numbers(rows: Rows) -> np.ndarray | None:
    if rows is None:
        return None
    numbers = np.asarray(rows)
    if numbers.ndim != 1 or (numbers.dtype.kind not in "iu" and len(numbers)):
        raise InputError(f"rows is {numbers.dtype}{list(numbers.shape)}; it names rows by their numbers: [0, 2, 5]")
    return np.ascontiguousarray(numbers, np.int64)


def _inside(rows: np.ndarray, batch_size: int) -> np.ndarray:
    if len(rows) and not 0 <= rows.min() <= rows.max() < batch_size:
        raise InputError(f"the rows {rows.tolist()} were named; the stream has the rows 0 to {batch_size - 1}")
    return rows


def _distinct(rows: np.ndarray) -> np.ndarray:
    if len(np.unique(rows)) < len(rows):
        raise InputError(f"the rows {rows.tolist()} were named; none may be named twice")
    return rows


class _Native:
    """The rows of a stream, stepped, read and written by csrc/stream.cpp."""

    def __init__(self, program: Program, init_state: Callable[[int], State], batch_size: int) -> None:
        self._program, self._init_state, self._rows = program, init_state, program.stream(batch_size)
        self._numpy = np.dtype(str(program.dtype).removeprefix("torch."))
        self._run = self._rows.step_symbols if program.looks_up else self._rows.step
        self._batch_size, self._shape = batch_size, (batch_size, program.output_size)
        self.like = init_state(1)
        self.row_bytes = states.row_bytes(self.like)
        # Leaves begin at cache lines; where each is as wide as some, there is nothing between them.
        self._dense = self.row_bytes == self._rows.state_row * self._numpy.itemsize
        self.put(np.arange(batch_size), init_state(batch_size))

    def share(self, batch_size: int) -> _Native:
        return _Native(self._program, self._init_state, batch_size)

    def step(self, x: np.ndarray, rows: np.ndarray | None) -> np.ndarray:
        y = np.empty(self._shape if rows is None else (len(rows), self._program.output_size), self._numpy)
        try:  # checked where it costs least, in the call
            self._run(x, rows, y, 1 if len(y) == 1 else torch.get_num_threads())
        except IndexError:
            if rows is not None:
                _distinct(_inside(rows, self._batch_size))
            raise InputError(f"a step was given the symbols {x.tolist()}; the model has no such symbol") from None
        except (TypeError, ValueError):
            width = self._program.input_size
            needs = f"int64[{len(y)}]" if self._program.looks_up else f"{self._numpy}[{len(y)}, {width}]"
            raise InputError(f"a step was given {x.dtype}{list(x.shape)}; it needs {needs}") from None
        return y

    def tensors(self, x: Tensor, rows: np.ndarray | None) -> Tensor:
        return torch.from_numpy(self.step(x.detach().numpy(), rows))

    def carry(self, x: np.ndarray, given: bytes) -> tuple[np.ndarray, bytes]:
        n, threads = len(x), 1 if len(x) == 1 else torch.get_num_threads()
        if self._program.looks_up:
            raise InputError("the stream reads symbols, which are not carried: write, ask for logits, and read")
        y = np.empty((n, self._program.output_size), self._numpy)
        after = np.empty((n, self._rows.state_row), self._numpy)
        if not self._dense:
            width = self.row_bytes // self._numpy.itemsize
            given = self._spread(np.frombuffer(given, self._numpy).reshape(n, width)).tobytes()
        try:
            self._rows.carry(x, given, after, y, threads)
        except (TypeError, ValueError):
            needs = f"{self._numpy}[n, {self._program.input_size}]"
            raise InputError(f"a step was given {x.dtype}{list(x.shape)}; it needs {needs}") from None
        return y, (after if self._dense else self._packed(after)).tobytes()

    def take(self, rows: np.ndarray) -> State:
        stretches = torch.empty((len(rows), self._rows.state_row), dtype=self._program.dtype)
        self._rows.take(rows.ctypes.data, len(rows), stretches.data_ptr())
        return self._leaves(stretches)

    def put(self, rows: np.ndarray, state: State) -> None:
        stretches = torch.zeros((len(rows), self._rows.state_row), dtype=self._program.dtype)
        states.map(lambda leaf, new: leaf.copy_(new.detach()), self._leaves(stretches), state)
        self._rows.put(rows.ctypes.data, len(rows), stretches.data_ptr())

    def read(self, rows: np.ndarray) -> np.ndarray:
        stretches = np.empty((len(rows), self._rows.state_row), self._numpy)
        self._rows.take(rows.ctypes.data, len(rows), stretches.ctypes.data)
        return (stretches if self._dense else self._packed(stretches)).view(np.uint8)

    def write(self, rows: np.ndarray, given: np.ndarray) -> None:
        numbers = np.ascontiguousarray(given).view(self._numpy)
        stretches = numbers if self._dense else self._spread(numbers)
        self._rows.put(rows.ctypes.data, len(rows), stretches.ctypes.data)

    def _packed(self, stretches: np.ndarray) -> np.ndarray:
        """The leaves without what is between them."""
        return np.concatenate([stretches[:, part] for part in self._program.columns], axis=1)

    def _spread(self, numbers: np.ndarray) -> np.ndarray:
        """The inverse."""
        stretches, at = np.zeros((len(numbers), self._rows.state_row), self._numpy), 0
        for part in self._program.columns:
            stretches[:, part] = numbers[:, at : at + part.stop - part.start]
            at += part.stop - part.start
        return stretches

    def reorder(self, parents: np.ndarray) -> None:
        self._rows.reorder(parents.ctypes.data)

    def paths(self, x: Tensor, draws: Tensor) -> Tensor:
        y = torch.empty((len(draws), x.shape[1], self._program.output_size), dtype=torch.float64)
        given = x.detach().to(self._program.dtype).contiguous()
        self._rows.paths(given.numpy(), draws.contiguous().numpy(), y.numpy(), torch.get_num_threads())
        return y

    def _leaves(self, stretches: Tensor) -> State:
        """The leaves of the states, each a view of its columns."""
        columns = iter(self._program.columns)

        def view(like: Tensor) -> Tensor:
            numbers = stretches[:, next(columns)]
            if like.dtype == torch.float64:  # of a float32 program too
                numbers = numbers.view(torch.float64)
            shape = (*like.shape[1:], 2) if like.is_complex() else like.shape[1:]
            leaf = numbers.unflatten(1, shape)
            return torch.view_as_complex(leaf) if like.is_complex() else leaf

        return states.map(view, self.like)


class _Scanned:
    """What has no native form: scans of length one."""

    def __init__(self, core: Core, batch_size: int) -> None:
        self._core, self._batch_size, self._all = core, batch_size, np.arange(batch_size)
        self.like, self._state = core.init_state(1), core.init_state(batch_size)
        self.row_bytes = states.row_bytes(self.like)
        self._bound = (
            self._all,
            core,
        )  # the core of the rows that were named last: a memory is not copied in each step

    def share(self, batch_size: int) -> _Scanned:
        return _Scanned(self._core, batch_size)

    def step(self, x: np.ndarray, rows: np.ndarray | None) -> np.ndarray:
        after: np.ndarray = self.tensors(torch.from_numpy(np.ascontiguousarray(x)), rows).numpy()
        return after

    @torch.no_grad()
    def tensors(self, x: Tensor, rows: np.ndarray | None) -> Tensor:
        if rows is None or np.array_equal(rows, self._all):
            y, self._state = self._core.scan(x.unsqueeze(1), self._state)
        else:
            before = self.take(_distinct(_inside(rows, self._batch_size)))
            y, moved = self._core_of(rows).scan(x.unsqueeze(1), before)
            self.put(rows, moved)
        return y.squeeze(1)

    def carry(self, x: np.ndarray, given: bytes) -> tuple[np.ndarray, bytes]:
        before = states.from_rows(np.frombuffer(given, np.uint8).reshape(len(x), self.row_bytes), self.like)
        y, after = self._core.scan(torch.from_numpy(np.ascontiguousarray(x)).unsqueeze(1), before)
        return y.squeeze(1).numpy(), states.to_rows(after).tobytes()

    def _core_of(self, rows: np.ndarray) -> Core:
        if not np.array_equal(rows, self._bound[0]):
            self._bound = (rows.copy(), self._core.take(torch.from_numpy(rows)))
        return self._bound[1]

    def take(self, rows: np.ndarray) -> State:
        return states.take(self._state, torch.from_numpy(rows))

    def put(self, rows: np.ndarray, state: State) -> None:
        self._state = states.put(self._state, torch.from_numpy(rows), state)

    def read(self, rows: np.ndarray) -> np.ndarray:
        return states.to_rows(self.take(rows))

    def write(self, rows: np.ndarray, given: np.ndarray) -> None:
        self.put(rows, states.from_rows(given, self.like))

    def reorder(self, parents: np.ndarray) -> None:
        self._state = self.take(parents)


def _frozen(module: Any) -> Any:
    """A copy that later changes of the module do not reach."""
    return None if module is None else copy.deepcopy(module).eval().requires_grad_(False)


def _symbols(x: Tensor) -> Tensor:
    if x.is_floating_point() or x.is_complex():
        raise InputError(f"a step was given {x.dtype}{list(x.shape)}; the model reads symbols, which are integers")
    return x.long()


def _parts(model: Core | SequenceModel) -> tuple[Core, nn.Module | None, nn.Module | None]:
    return (model.core, model.embed, model.readout) if isinstance(model, SequenceModel) else (model, None, None)


def _described(core: Core, embed: nn.Module | None) -> tuple[Program, Slot, Slot]:
    """A program of one step, and the slots of what it is given and of what the core makes of it."""
    like = core.init_state(1)
    # A core without parameters says its dtype by a buffer; its sums, which grow long, are float64 all the same.
    weights = [*core.parameters(), *(buffer for buffer in core.buffers() if buffer.is_floating_point())]
    leaves = [leaf for leaf in states.leaves(like) if leaf.dtype != torch.float64 or not weights]
    dtypes = {REAL.get(t.dtype, t.dtype) for t in (*weights, *leaves)}
    if len(dtypes) != 1:
        raise Unstreamable(f"a core of the dtypes {dtypes}")
    program = kernels.program(dtypes.pop())
    x = embed.describe_step(program) if isinstance(embed, Embed) else program.input(core.input_size)
    state = states.map(lambda leaf: cast(Tensor, program.state(_width(leaf, program.dtype))), like)
    return program, x, core.describe_step(program, x, cast(Slots, state))


def _width(leaf: Tensor, dtype: torch.dtype) -> int:
    """How many numbers of a program's dtype a leaf is."""
    return leaf[0].numel() * leaf.element_size() // dtype.itemsize
