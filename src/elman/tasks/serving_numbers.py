"""Models that read numbers, served: a bare core, or a model with a distribution for each step.

An input is D numbers. One input for each of many sessions is one native call, `ServedNumbers.together`; several inputs
of a session are scanned in pieces, beside those of others.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from elman import kernels
from elman import state as states
from elman.core import Core
from elman.errors import InputError
from elman.files.config import Json
from elman.model import SequenceModel
from elman.stream import CoreStream, ModelStream, Stream
from elman.tasks.serving import (
    NOT_FINITE,
    PIECE,
    ROWS,
    Bytes,
    Outputs,
    ServedRows,
    Work,
    cut,
    finite,
    joined,
    one_row,
)

NUMBERS, LISTS = frozenset((int, float)), frozenset((list,))


class NumberWork(Work):
    """Rows of numbers x (T, D) to read; an output for each."""

    def __init__(self, x: NDArray[np.generic]) -> None:
        self.x = x

    def begin(self, state: bytes) -> None:
        super().begin(state)
        self.done = not len(self.x)

    def record(self) -> bytes:
        return self.x.tobytes()

    def __len__(self) -> int:
        return len(self.x)


@dataclass
class ServedNumbers(ServedRows):
    """A core, or a model with a distribution for each step, that reads numbers.

    Args:
        module: the core or the model
        about: what a client wants to know
        fingerprint: of the weights
        width: D, numbers in an input
        dtype: of an input
        encode: inputs as they were sent to x (T, D), or an InputError
        outputs: what is answered for each row of y (T, H), or of the distribution
        possible: whether each of some states, as bytes (n, W), can continue; those that are not finite cannot

    >>> import elman
    >>> served = ServedNumbers.of_core(elman.cell("gru", 1, 4))
    >>> work = served.reading([[0.5], [0.25]])
    >>> work.begin(served.start(0))
    >>> served.advance([work])
    >>> work.done, len(work.answer()["outputs"])
    (True, 2)
    """

    module: Core | SequenceModel
    about: dict[str, Json]
    fingerprint: str
    width: int
    dtype: np.dtype[np.generic]
    encode: Callable[[object], NDArray[np.generic]]
    outputs: Callable[[Any], Outputs]
    possible: Callable[[Bytes], NDArray[np.bool_]] | None = None
    stream: CoreStream | ModelStream = field(init=False)

    def __post_init__(self) -> None:
        self.module.eval()
        self.stream = Stream(self.module, 1)
        self.core = self.module.core if isinstance(self.module, SequenceModel) else self.module
        self.like = self.core.init_state(1)
        self.row_bytes = states.row_bytes(self.like)
        if not self.row_bytes:
            raise InputError("the model remembers nothing, so there is no session to keep; use `elman predict`")
        self.blank = states.to_rows(self.like).tobytes()

    @classmethod
    def of_core(cls, core: Core) -> ServedNumbers:
        """A bare core: y is the output."""
        dtype, D = np.dtype(str(next(core.parameters()).dtype).removeprefix("torch.")), core.input_size
        about: dict[str, Json] = {"reads": "numbers", "input": f"{D} numbers", "writes": False}

        def encode(given: object) -> NDArray[np.generic]:
            return rows_of_numbers(given, D, dtype)

        return cls(core, about, states.fingerprint(core), D, dtype, encode, _spelt)

    def reading(self, inputs: object) -> Work:
        return NumberWork(self.encode(inputs))

    def probe(self) -> Work:
        return NumberWork(np.zeros((1, self.width), self.dtype))

    def replaying(self, records: Sequence[bytes], most: int) -> Work:
        x = np.frombuffer(b"".join(records), self.dtype).reshape(-1, self.width)
        return NumberWork(x[:most])

    def parse(self, data: bytes) -> bytes:
        return one_row(states.parse(data, self.core.init_state(0), fingerprint=self.fingerprint), self.like)

    def encoded(self, inputs: list[object]) -> NDArray[np.generic] | None:
        try:
            return self.encode(inputs)
        except InputError:
            return None

    def together(self, x: NDArray[np.generic], before: list[bytes]) -> tuple[list[bytes], Outputs, list[bool]]:
        joint = b"".join(before)
        if len(joint) != len(before) * self.row_bytes:
            joint = b"".join(map(self.current, before))
        y, after = self.stream.carry(x, joint)
        rows = np.frombuffer(after, np.uint8).reshape(len(before), self.row_bytes)
        return cut(after, self.row_bytes), self.outputs(y), self._good(rows)

    def _good(self, rows: Bytes) -> list[bool]:
        good = finite(rows, self.like)
        return good if self.possible is None else (self.possible(rows) & good).tolist()

    def advance(self, works: Sequence[Work]) -> None:
        own = [work for work in works if isinstance(work, NumberWork)]
        for at in range(0, len(own), ROWS):
            self._scan(own[at : at + ROWS])

    @torch.inference_mode()
    def _scan(self, works: list[NumberWork]) -> None:
        pieces = [work.x[work.taken : work.taken + PIECE] for work in works]
        lengths = torch.tensor([len(piece) for piece in pieces])
        x = np.zeros((len(works), int(lengths.max()), *pieces[0].shape[1:]), pieces[0].dtype)
        for row, piece in zip(x, pieces, strict=True):
            row[: len(piece)] = piece
        given = torch.from_numpy(x)
        features = self.module.embed(given) if isinstance(self.module, SequenceModel) else given
        state = states.from_rows(joined([self.current(work.core) for work in works]), self.like)
        y, state = self.core.scan(features, state, lengths=lengths)
        after = states.to_rows(state)
        good, cores = self._good(after), cut(after.tobytes(), self.row_bytes)
        for i, work in enumerate(works):
            work.apply(self._add, work, cores[i], y[i, : len(pieces[i])], good[i])

    def _add(self, work: NumberWork, core: bytes, y: torch.Tensor, is_good: bool) -> None:
        """A work has read as many rows as y (t, H) has."""
        outputs = self.outputs(self.module.readout(y) if isinstance(self.module, SequenceModel) else y)
        work.core, work.taken = core, work.taken + len(outputs)
        work.outputs += outputs
        if not is_good:
            work.failed = NOT_FINITE
        work.done = work.taken == len(work.x) or not is_good


def rows_of_numbers(given: object, width: int, dtype: np.dtype[np.generic]) -> NDArray[np.generic]:
    """Inputs as they were sent, as x (T, D): a list of rows of D numbers, or of numbers where D is 1.

    >>> rows_of_numbers([1, 2.5], 1, np.dtype(np.float32)).shape
    (2, 1)
    """
    rows: list[Any] = given if isinstance(given, list) else [None]
    if width != 1 or not NUMBERS.issuperset(map(type, rows)):
        if not (LISTS.issuperset(map(type, rows)) and {width}.issuperset(map(len, rows))):
            raise _not_rows(width)
        rows = [*chain.from_iterable(rows)]
    if not NUMBERS.issuperset(map(type, rows)):
        raise _not_rows(width)
    try:
        if not all(map(math.isfinite, rows)):
            raise OverflowError
        packed = struct.pack(f"={len(rows)}{dtype.char}", *rows)  # "=" refuses what a float32 cannot hold
    except OverflowError:
        raise InputError("an input is not a finite number") from None
    return np.frombuffer(bytearray(packed), dtype).reshape(-1, width)


def _not_rows(width: int) -> InputError:
    return InputError(f"inputs must be a list of rows, each a list of {width} number{'s' * (width != 1)}")


def _spelt(y: NDArray[np.generic] | torch.Tensor) -> Outputs:
    """Rows of outputs; float32 is spelt natively."""
    found = np.asarray(y)
    return list(kernels.json_rows(found)) if found.dtype == np.float32 else found.tolist()
