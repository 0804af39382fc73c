"""Run what `elman export --to onnx` wrote, with NumPy and ONNX Runtime alone: Torch is not imported.

A session has the methods of a Core. The state is a value: a mapping from the names of the graph's inputs to arrays,
batch on axis 0 of each. So is the memory that a decoder reads; a Translator has an encoder, which makes one, and a
decoder.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from elman.errors import FileError, InputError, MissingExtraError

__all__ = ["Session", "State", "Translator"]

LENGTHS = "memory.lengths"
BOUNDARY = 0  # the symbol before every translation, and after it
KEY = "elman"  # of the metadata that an exported file has
FORMAT = "elman-onnx-1"
Array = NDArray[Any]


class State(Mapping[str, Array]):
    """The state of some rows, or their memory, by the names that the graph has; and which model it belongs to."""

    def __init__(self, arrays: Mapping[str, Array], fingerprint: str) -> None:
        self._arrays, self.fingerprint = dict(arrays), fingerprint

    def __getitem__(self, name: str) -> Array:
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __repr__(self) -> str:
        return f"State({', '.join(f'{name} {list(array.shape)}' for name, array in self.items())})"


class Session:
    """An exported model: `init_state`, `step` and `scan`, and `take` and `repeat` for the rows of a state.

    >>> import tempfile
    >>> [file] = elman.export.onnx(elman.cell("gru", 3, 4), tempfile.mkdtemp() + "/gru.onnx")
    >>> session = Session(file)
    >>> y, state = session.step(np.zeros((2, 3), np.float32), session.init_state(2))
    >>> y.shape, session.take(state, [0])
    ((2, 4), State(state.h [1, 4]))
    """

    def __init__(self, path: str | os.PathLike[str], **options: Any) -> None:
        """`options` are those of onnxruntime.InferenceSession; without any, it computes on the processor."""
        self._session, self.about = _opened(path, options)
        if self.about.get("part") == "encoder":
            raise InputError(f"{path} is the encoder of a translator: open it with its decoder, as a Translator")
        self._leaves: list[dict[str, Any]] = self._packed() if self.about["packed"] else self.about["state"]
        self.fingerprint: str = self.about["fingerprint"]
        self._dtype = np.float64 if self._session.get_outputs()[0].type == "tensor(double)" else np.float32  # of y

    def _packed(self) -> list[dict[str, Any]]:
        """The one leaf of a state in one tensor."""
        leaves = self.about["state"]
        first = [number for leaf in leaves for number in np.broadcast_to(_first(leaf), leaf["shape"]).ravel().tolist()]
        dtype = np.result_type(*(np.dtype(leaf["dtype"]) for leaf in leaves))
        return [{"name": "state", "next": "next", "shape": [len(first)], "dtype": str(dtype), "first": first}]

    def init_state(self, batch_size: int) -> State:
        """The state before the first input, `batch_size` rows of it."""
        if batch_size < 0:
            raise InputError(f"batch_size is {batch_size}; it must be at least 0")
        self._check_causal("initial state")
        arrays = {
            leaf["name"]: np.broadcast_to(_first(leaf), (batch_size, *leaf["shape"])).copy() for leaf in self._leaves
        }
        return State(arrays, self.fingerprint)

    def step(self, x: ArrayLike, state: State, *, memory: Mapping[str, ArrayLike] | None = None) -> tuple[Array, State]:
        """One input for each row, x (B, D), or (B,) of symbols: y (B, H), and the state after it."""
        self._check_causal("step")
        y, state = self.scan(np.asarray(x)[:, None], state, memory=memory)
        return y[:, 0], state

    def scan(
        self,
        x: ArrayLike | Mapping[str, ArrayLike],
        state: State | None = None,
        *,
        lengths: ArrayLike | None = None,
        reset: ArrayLike | None = None,
        memory: Mapping[str, ArrayLike] | None = None,
    ) -> tuple[Array, State]:
        """Sequences x (B, T, D), or (B, T) of symbols: y (B, T, H), and the state after each row's last valid input.

        `lengths` (B,) are whole numbers in [0, T]; `reset` (B, T) says where an episode begins, in a file that was
        exported with it. A tagger reads several arrays: x is a mapping from the names of its inputs to them. A decoder
        reads a memory: memory.keys (B, S, A), memory.values (B, S, M) and memory.lengths (B,), by these names.
        """
        inputs = self._checked_x(x)
        B, T = inputs["x"].shape[:2]
        n = _lengths(lengths, B, T)
        _check_finite(inputs["x"], n)
        feeds = {**inputs, "lengths": n, **self._checked_reset(reset, B, T)}
        feeds |= self._checked_memory({} if memory is None else memory, B)
        if self.about["causal"]:
            before = self.init_state(B) if state is None else state
            feeds |= self._checked_state(before, B)
        elif state is not None:
            self._check_causal("state")
        y, *after = self._session.run(["y", *(leaf["next"] for leaf in self._leaves)], feeds)
        names = [leaf["name"] for leaf in self._leaves]
        return y, State(dict(zip(names, after, strict=True)), self.fingerprint)

    def parts(self, y: Array) -> dict[str, Array]:
        """y by what its columns are: the logits, or the mean and the std, of the distribution of the next target."""
        ends = np.cumsum(list(self.about["outputs"].values()))
        return dict(zip(self.about["outputs"], np.split(y, ends[:-1], -1), strict=True))

    def best_path(self, y: Array, lengths: ArrayLike | None = None) -> Array:
        """The most probable tags (B, T) given what a tagger put out, by Viterbi's algorithm; -1 past the lengths."""
        B, T, K = y.shape
        n = _lengths(lengths, B, T)
        chain = self.about["chain"] or {"start": [0.0] * K, "stop": [0.0] * K, "transition": [[0.0] * K] * K}
        start, stop, S = (np.asarray(chain[name], y.dtype) for name in ("start", "stop", "transition"))
        best, came_from = start + y[:, 0] if T else y[:, :0].sum(1), np.zeros((B, T, K), np.int64)
        for t in range(1, T):
            ways = best[:, :, None] + S  # (B, from, to)
            came_from[:, t] = ways.argmax(1)
            best = np.where((t < n)[:, None], ways.max(1) + y[:, t], best)
        tag, path = (best + stop).argmax(1) if T else n, np.full((B, T), -1)
        for t in range(T - 1, -1, -1):
            inside = t < n
            path[:, t] = np.where(inside, tag, -1)
            tag = np.where(inside & (t > 0), came_from[np.arange(B), t, tag], tag)
        return path

    def take(self, state: State, rows: Sequence[int] | Array) -> State:
        """The rows of a state that `rows` names, in that order; a row may be named twice."""
        numbers = np.asarray(rows)
        if numbers.size and numbers.dtype.kind not in "iu":
            raise InputError(f"rows is {rows!r}; take names rows by their numbers: [0, 2]")
        return State({name: leaf[numbers.astype(np.int64)] for name, leaf in state.items()}, state.fingerprint)

    def repeat(self, state: State, times: int) -> State:
        """Each row `times` times in a row."""
        return State({name: leaf.repeat(times, 0) for name, leaf in state.items()}, state.fingerprint)

    def _check_causal(self, what: str) -> None:
        if not self.about["causal"]:
            raise InputError(f"this model reads the future, so it has no {what}: scan whole sequences, without a state")

    def _checked_x(self, x: ArrayLike | Mapping[str, ArrayLike]) -> dict[str, Array]:
        """The inputs by their names; of a model that has one, it may be the array itself."""
        wanted = self.about["inputs"]
        names = [each["name"] for each in wanted]
        if not isinstance(x, Mapping) and names != ["x"]:
            raise InputError(f"x is a {type(x).__name__}; this model reads a mapping with {', '.join(names)}")
        given = x if isinstance(x, Mapping) else {"x": x}
        if sorted(given) != sorted(names):
            raise InputError(f"the inputs are {', '.join(given)}; this model reads a mapping with {', '.join(names)}")
        return {each["name"]: _read(each, np.asarray(given[each["name"]]), self._dtype) for each in wanted}

    def _checked_reset(self, reset: ArrayLike | None, B: int, T: int) -> dict[str, Array]:
        if not self.about["reset"]:
            if reset is None:
                return {}
            raise InputError("this file has no input for reset; export the model again with --with_reset")
        found = np.zeros((B, T), np.bool_) if reset is None else np.asarray(reset)
        if found.shape != (B, T) or found.dtype != np.bool_:
            raise InputError(f"reset is {found.dtype}{list(found.shape)}; it must be bool[{B}, {T}]")
        return {"reset": found}

    def _checked_memory(self, memory: Mapping[str, ArrayLike], B: int) -> dict[str, Array]:
        widths = self.about["memory"]
        names = [*widths, LENGTHS] if widths else []
        if sorted(memory) != sorted(names):
            raise InputError(
                f"the memory has {', '.join(memory) or 'nothing'}; this model reads {', '.join(names) or 'none'}"
            )
        if isinstance(memory, State):
            self._check_own("memory", memory)
        found = {name: np.asarray(memory[name]) for name in widths}
        sizes = {array.shape[1] for array in found.values() if array.ndim == 3}
        for name, array in found.items():
            if len(sizes) != 1 or array.shape != (B, *sizes, widths[name]) or array.dtype.kind != "f":
                raise InputError(
                    f"{name} is {array.dtype}{list(array.shape)}; for {B} rows of x it must be numbers "
                    f"({B}, S, {widths[name]}), with one S for all that the memory has"
                )
        if not widths:
            return {}
        lengths = _lengths(memory[LENGTHS], B, sizes.pop(), LENGTHS)
        return {LENGTHS: lengths, **{name: array.astype(self._dtype, copy=False) for name, array in found.items()}}

    def _check_own(self, what: str, state: State) -> None:
        if state.fingerprint != self.fingerprint:
            raise InputError(
                f"the {what} is of another model, {state.fingerprint[:12]}; this is {self.fingerprint[:12]}: use "
                f"its own, or open the file that the {what} came from"
            )

    def _checked_state(self, state: State, B: int) -> dict[str, Array]:
        names = [leaf["name"] for leaf in self._leaves]
        if not isinstance(state, State):
            raise InputError(f"the state is a {type(state).__name__}; pass what init_state, step or scan returned")
        self._check_own("state", state)
        if list(state) != names:
            raise InputError(f"the state has {', '.join(state) or 'nothing'}; this model needs {', '.join(names)}")
        for leaf in self._leaves:
            array, wanted = state[leaf["name"]], (B, *leaf["shape"])
            if array.shape != wanted or array.dtype != leaf["dtype"]:
                raise InputError(
                    f"{leaf['name']} is {array.dtype}{list(array.shape)}; for {B} rows of x it must be "
                    f"{leaf['dtype']}{list(wanted)}"
                )
        return dict(state)


class Translator:
    """A translator's two files: sources in, translations out, both as the numbers of symbols.

    `encode` makes the memory of sources and the state of the `decoder`, a Session, before its first input, which is the
    boundary; `translate` writes the most probable symbol each time.

    >>> import tempfile
    >>> from elman.nn.embed import Embedding
    >>> from elman.tasks.translate.seq2seq import EncoderDecoder
    >>> source, target = Embedding(5, 3), Embedding(6, 2)
    >>> network = EncoderDecoder(source, elman.cell("gru", 3, 4), target, elman.cell("gru", 2, 4), elman.Softmax(4, 6))
    >>> translator = Translator(*elman.export.onnx(network, tempfile.mkdtemp() + "/a.onnx"))
    >>> len(translator.translate([[1, 2, 3], [4]]))
    2
    """

    def __init__(self, encoder: str | os.PathLike[str], decoder: str | os.PathLike[str], **options: Any) -> None:
        """The paths of both; `options` as a Session has them."""
        self._encoder, self.about = _opened(encoder, options)
        self.decoder = Session(decoder, **options)
        for path, about, part in ((encoder, self.about, "encoder"), (decoder, self.decoder.about, "decoder")):
            if about.get("part") != part:
                raise InputError(f"{path} is not the {part} of a translator; name the encoder, and then the decoder")
        if self.about["fingerprint"] != self.decoder.fingerprint:
            raise InputError(f"{encoder} and {decoder} are of two translators; name two files of one export")

    def encode(self, x: ArrayLike, lengths: ArrayLike | None = None) -> tuple[State, State]:
        """Of sources x (B, S), of each row as much as `lengths` (B,) says: their memory, and the decoder's first state.

        `decoder.take` and `decoder.repeat` are for the rows of both. The memory of a decoder that reads none is empty.
        """
        [wanted] = self.about["inputs"]
        source = np.asarray(x)
        feeds = {"x": _read(wanted, source, np.int64), "lengths": _lengths(lengths, *source.shape)}
        names = [output.name for output in self._encoder.get_outputs()]
        found = dict(zip(names, self._encoder.run(names, feeds), strict=True))
        memory = {name: found.pop(name) for name in names if name.startswith("memory.")}
        return State(memory, self.decoder.fingerprint), State(found, self.decoder.fingerprint)

    def translate(self, sources: Sequence[Sequence[int]], max_ratio: float = 3.0) -> list[list[int]]:
        """The most probable symbol after each other, until the boundary, which is left out; the same alone and in any
        batch. A translation has at most `max_ratio` times the symbols of its source, and 10 more; of nothing it is
        nothing."""
        sizes = np.array([len(row) for row in sources], np.int64)
        x = np.zeros((len(sizes), sizes.max(initial=0)), np.int64)
        for row, symbols in zip(x, sources, strict=True):
            row[: len(symbols)] = symbols
        memory, state = self.encode(x, sizes)
        most, banned = np.floor(max_ratio * sizes) + 10, self.decoder.about.get("banned", [])
        written: list[list[int]] = [[] for _ in sizes]
        rows, keep = np.arange(len(sizes)), sizes > 0
        symbol = np.full(len(sizes), BOUNDARY)
        while keep.any():
            if not keep.all():
                rows, symbol = rows[keep], symbol[keep]
                memory, state = (self.decoder.take(each, np.flatnonzero(keep)) for each in (memory, state))
            y, state = self.decoder.step(symbol, state, memory=memory)
            y[:, banned] = -np.inf
            symbol = y.argmax(1)
            keep = symbol != BOUNDARY
            for row, number in zip(rows[keep], symbol[keep], strict=True):
                written[row].append(int(number))
            keep &= np.array([len(written[row]) for row in rows]) < most[rows]
        return written


def _opened(path: str | os.PathLike[str], options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The session of a file, and what the file says about itself."""
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingExtraError("onnxruntime", "onnx") from error
    if not os.path.isfile(path):
        raise FileError(f"there is no file {path}")
    try:
        session = onnxruntime.InferenceSession(os.fspath(path), **{"providers": ["CPUExecutionProvider"], **options})
        about = json.loads(session.get_modelmeta().custom_metadata_map[KEY])
    except KeyError as error:
        raise FileError(f"{path} is not a file that elman export wrote: it says nothing about its state") from error
    except Exception as error:  # whatever ONNX Runtime raises: its errors have no class in common
        raise FileError(f"{path} cannot be opened by ONNX Runtime: {error}") from error
    if about.get("format") != FORMAT:
        raise FileError(f"{path} has the format {about.get('format')!r}; this version reads {FORMAT!r}")
    return session, about


def _first(leaf: dict[str, Any]) -> Array:
    """The first value of a leaf; infinities are strings in JSON."""
    return np.asarray(0.0 if leaf["first"] is None else leaf["first"]).astype(leaf["dtype"])


def _read(wanted: dict[str, Any], x: Array, dtype: Any) -> Array:
    """An input as the metadata describes it; `dtype` is that of numbers."""
    shape, V = wanted["shape"], wanted["symbols"]
    name, sizes = wanted["name"], ", ".join(["B", "T", *("C" if size is None else str(size) for size in shape)])
    fits = x.ndim == 2 + len(shape) and all(size in (None, n) for size, n in zip(shape, x.shape[2:], strict=False))
    found = f"{name} is {x.dtype}{list(x.shape)}; this model reads"
    if V is None:
        if not fits or x.dtype.kind != "f":
            raise InputError(f"{found} numbers ({sizes}), features last")
        with np.errstate(over="ignore"):  # _check_finite says it
            return x.astype(dtype)
    if not fits or x.dtype.kind not in "iu" or bool(((x < 0) | (x >= np.asarray(V))).any()):
        most = " or ".join(str(each - 1) for each in (V if isinstance(V, list) else [V]))  # column by column
        raise InputError(f"{found} symbols, whole numbers ({sizes}) from 0 to {most}")
    return x.astype(np.int64)


def _check_finite(x: Array, lengths: Array) -> None:
    """ONNX Runtime's GRU, LSTM and RNN make a plausible answer of a NaN; past the lengths anything may stand."""
    if x.dtype.kind == "f" and not (fine := np.isfinite(x)).all():
        counts = np.less(np.arange(x.shape[1]), lengths[:, None]).reshape(*x.shape[:2], *(1,) * (x.ndim - 2))
        where = np.argwhere(~fine & counts)
        if len(where):
            at = tuple(where[0].tolist())
            raise InputError(f"x{list(at)} is {x[at]}; this model reads finite {x.dtype} alone")


def _lengths(lengths: ArrayLike | None, B: int, T: int, name: str = "lengths") -> Array:
    found = np.full(B, T) if lengths is None else np.asarray(lengths)
    if found.shape != (B,) or found.dtype.kind not in "iu" or (found.size and not 0 <= found.min() <= found.max() <= T):
        raise InputError(f"{name} is {found.tolist()}; it must be {B} whole numbers from 0 to {T}")
    return found.astype(np.int64)
