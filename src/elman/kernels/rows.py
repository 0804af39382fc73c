"""The rows of a stream where a step is native: the state of each lies in one stretch of memory (csrc/stream.cpp)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from elman import state as states
from elman.errors import InputError
from elman.kernels.reference.choice import Choice
from elman.state import State

if TYPE_CHECKING:
    from elman.kernels.native.program import Program

Rows = Sequence[int] | np.ndarray | Tensor
Inputs = np.ndarray | Tensor


def row_numbers(rows: Rows) -> np.ndarray:
    numbers = np.asarray(rows)
    if numbers.ndim != 1 or (numbers.dtype.kind not in "iu" and len(numbers)):
        raise InputError(f"rows is {numbers.dtype}{list(numbers.shape)}; it names rows by their numbers: [0, 2, 5]")
    return np.ascontiguousarray(numbers, np.int64)


def check_inside(rows: np.ndarray, batch_size: int) -> np.ndarray:
    if len(rows) and not 0 <= rows.min() <= rows.max() < batch_size:
        raise InputError(f"the rows {rows.tolist()} were named; the stream has the rows 0 to {batch_size - 1}")
    return rows


def check_distinct(rows: np.ndarray) -> np.ndarray:
    if len(np.unique(rows)) < len(rows):
        raise InputError(f"the rows {rows.tolist()} were named; none may be named twice")
    return rows


class NativeRows:
    """The rows of a stream, stepped, read and written by csrc/stream.cpp."""

    def __init__(self, program: Program, start: State, batch_size: int) -> None:
        """`start` is the state before the first input, one row of it: where all rows begin."""
        self._program, self._rows = program, program.stream(batch_size)
        self._numpy = program.numpy_dtype
        self._run = self._rows.step_symbols if program.looks_up else self._rows.step
        self._outputs = program.outputs()
        self._batch_size, self._shape = batch_size, (batch_size, program.output_size)
        self._alone = 1 if self._rows.divides else 2  # a step of fewer rows than this is one thread's
        self.like = states.map(lambda leaf: leaf.detach().clone(), start)  # later changes of a module do not reach it
        self.row_bytes = states.row_bytes(self.like)
        # Leaves begin at cache lines; where each is as wide as some, there is nothing between them.
        self._dense = self.row_bytes == self._rows.state_row * self._numpy.itemsize
        self._aside: NativeRows | None = None
        self.put(np.arange(batch_size), states.repeat(self.like, batch_size))

    def share(self, batch_size: int) -> NativeRows:
        return NativeRows(self._program, self.like, batch_size)

    def step(self, x: np.ndarray, rows: np.ndarray | None) -> np.ndarray:
        count = self._batch_size if rows is None else len(rows)
        try:  # checked where it costs least, in the call
            return self._run(x, rows, self._outputs, 1 if count < self._alone else torch.get_num_threads())
        except IndexError:
            if rows is not None:
                check_distinct(check_inside(rows, self._batch_size))
            raise InputError(f"a step was given the symbols {x.tolist()}; the model has no such symbol") from None
        except (TypeError, ValueError):
            return self.step(self._converted(x, count), rows)

    def _converted(self, x: np.ndarray, count: int) -> np.ndarray:
        """x as a step takes it, if it has such numbers of another type, or in another order or at odd addresses."""
        symbols = self._program.looks_up
        dtype, kinds = (np.dtype(np.int64), "iu") if symbols else (self._numpy, "fiu")
        shape = (count,) if symbols else (count, self._program.input_size)
        converts = x.dtype != dtype or not (x.flags.c_contiguous and x.flags.aligned)
        if x.dtype.kind in kinds and x.shape == shape and converts:
            return np.require(x, dtype, ["C", "A"])
        raise InputError(f"a step was given {x.dtype}{list(x.shape)}; it needs {dtype}{list(shape)}") from None

    def tensors(self, x: Tensor, rows: np.ndarray | None) -> Tensor:
        return torch.from_numpy(self.step(x.detach().numpy(), rows))

    def carry(self, x: Inputs, before: bytes) -> tuple[np.ndarray, bytes]:
        x = x.detach().numpy() if isinstance(x, Tensor) else x
        if self._program.looks_up:
            return self._carry_symbols(x, before)
        n, threads = len(x), 1 if len(x) == 1 else torch.get_num_threads()
        y = np.empty((n, self._program.output_size), self._numpy)
        after = np.empty((n, self._rows.state_row), self._numpy)
        try:
            self._rows.carry(x, before if self._dense else self._spread(before).tobytes(), after, y, threads)
        except (TypeError, ValueError):
            needs = f"{self._numpy}[n, {self._program.input_size}]"
            raise InputError(f"a step was given {x.dtype}{list(x.shape)}; it needs {needs}") from None
        return y, self._packed(after)

    def _carry_symbols(self, x: np.ndarray, before: bytes) -> tuple[np.ndarray, bytes]:
        """The native call carries numbers: symbols are read by rows that are set aside for them."""
        if self._aside is None or self._aside._batch_size < len(x):
            self._aside = self.share(max(1, 2 * len(x)))
        aside, rows = self._aside._rows, np.arange(len(x))
        stretches = np.frombuffer(before, self._numpy) if self._dense else self._spread(before)
        aside.put(rows.ctypes.data, len(rows), stretches.ctypes.data)
        y = self._aside.step(x, rows)
        after = np.empty((len(rows), aside.state_row), self._numpy)
        aside.take(rows.ctypes.data, len(rows), after.ctypes.data)
        return y, self._packed(after)

    def take(self, rows: np.ndarray) -> State:
        stretches = torch.empty((len(rows), self._rows.state_row), dtype=self._program.dtype)
        self._rows.take(rows.ctypes.data, len(rows), stretches.data_ptr())
        return self._leaves(stretches)

    def put(self, rows: np.ndarray, state: State) -> None:
        stretches = torch.zeros((len(rows), self._rows.state_row), dtype=self._program.dtype)
        states.map(lambda leaf, new: leaf.copy_(new.detach()), self._leaves(stretches), state)
        self._rows.put(rows.ctypes.data, len(rows), stretches.data_ptr())

    def _packed(self, stretches: np.ndarray) -> bytes:
        """The leaves as bytes, without what is between them."""
        if self._dense:
            return stretches.tobytes()
        return np.concatenate([stretches[:, part] for part in self._program.columns], axis=1).tobytes()

    def _spread(self, packed: bytes) -> np.ndarray:
        """The inverse."""
        numbers = np.frombuffer(packed, self._numpy).reshape(-1, self.row_bytes // self._numpy.itemsize)
        stretches, at = np.zeros((len(numbers), self._rows.state_row), self._numpy), 0
        for part in self._program.columns:
            stretches[:, part] = numbers[:, at : at + part.stop - part.start]
            at += part.stop - part.start
        return stretches

    def read(self, symbols: np.ndarray, row: int) -> None:
        """A row reads symbols (T,), of which it leaves out what follows."""
        self._rows.read(symbols, row, torch.get_num_threads())

    def write(self, choice: Choice, pending: dict[str, Tensor], rows: np.ndarray, n: int, end: int) -> np.ndarray:
        """What the rows write, n symbols each, or fewer of one row alone that ends with `end`: (n, rows)."""
        self._check_pending(pending)
        written = np.empty((n, len(rows)), np.int64)
        return written[: self._rows.write(choice.fields(), pending, rows, written, end, torch.get_num_threads())]

    def _check_pending(self, pending: dict[str, Tensor]) -> None:
        """Native code gets no more than where they begin."""
        B, V = self._shape
        needed = {"symbols": (torch.int64, (B,)), "seen": (torch.bool, (B, V)), "draws": (torch.int64, (B, 2))}
        for name, (dtype, shape) in needed.items():
            t = pending[name]
            if t.dtype != dtype or t.shape != shape or not t.is_contiguous():
                lies = "" if t.is_contiguous() else ", not contiguous"
                raise InputError(
                    f"`{name}` is {t.dtype}{list(t.shape)}{lies}; writing needs {dtype}{list(shape)}, contiguous"
                )

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
            leaf = numbers.view(len(stretches), *shape)
            return torch.view_as_complex(leaf) if like.is_complex() else leaf

        return states.map(view, self.like)
