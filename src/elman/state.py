"""The state of a recurrence is a value: a tensor, or a (named) tuple of states. Batch is axis 0 of every leaf.

Only this module knows the structure of a state. All other code passes it on, and cuts, joins, selects or saves it here.
The empty tuple is the state of a core that remembers nothing.

A state file is one safetensors file. Its header has the checksum of its content, and the fingerprint of the model
that wrote it, if that was given: a state means nothing to another model, though it may have the same shape.
"""

from __future__ import annotations

import builtins
import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import load as load_bytes
from safetensors.torch import save as save_bytes
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from elman.errors import FileError, InputError
from elman.files import artifact
from elman.options import parse_json

State = Tensor | tuple["State", ...]
AnyState = Any  # a state in a signature of a base class, where a subclass names its own NamedTuple

FORMAT = "elman-state-2"

# Fields of running sums (pools, scales). They were float32, which loses digits as a sum grows, and are float64 now:
# what was written before is widened as it is read.
SUMS = frozenset(("sum", "number", "weight"))

# The dtype of a complex number's parts. (Dynamo cannot trace dtype.to_real.)
REAL = {torch.complex64: torch.float32, torch.complex128: torch.float64}


def leaves(state: State) -> list[Tensor]:
    """The tensors of a state, in order.

    >>> len(leaves((torch.zeros(2, 3), (torch.zeros(2, 4), ()))))
    2
    """
    return [leaf for _, leaf in _walk(state, "")]


def map(fn: Callable[..., Tensor], state: State, *others: State) -> State:
    """Apply `fn` leaf by leaf to one or more states of the same structure.

    >>> map(lambda a, b: a + b, (torch.ones(1, 2),), (torch.ones(1, 2),))
    (tensor([[2., 2.]]),)
    """
    if isinstance(state, Tensor):
        return fn(state, *others)
    for other in others:
        if isinstance(other, Tensor) or len(other) != len(state):
            raise InputError(f"the states have different structures: {describe(state)} and {describe(other)}")
    return _rebuild(state, [map(fn, *parts) for parts in zip(state, *others, strict=True)])


def take(state: State, rows: Tensor | Sequence[int]) -> State:
    """The rows of a batched state that `rows` names, in that order; a row may be named twice (beam search forks so).

    >>> take((torch.arange(3.)[:, None],), [2, 0])
    (tensor([[2.],
            [0.]]),)
    """

    numbers = _row_numbers(rows)
    return map(lambda leaf: leaf.index_select(0, numbers.to(leaf.device)), state)


def put(slab: State, rows: Tensor | Sequence[int], state: State) -> State:
    """A copy of `slab` whose rows `rows` are those of `state`; the inverse of `take`.

    >>> put(torch.zeros(3, 1), [1], torch.ones(1, 1)).flatten().tolist()
    [0.0, 1.0, 0.0]
    """

    numbers = _row_numbers(rows)
    return map(lambda leaf, new: leaf.index_copy(0, numbers.to(leaf.device), new), slab, state)


def _row_numbers(rows: Tensor | Sequence[int]) -> Tensor:
    numbers = torch.as_tensor(rows)
    if numbers.dtype in (torch.bool, torch.uint8):  # Torch took masks of bytes too
        raise InputError(
            f"rows is a mask, {describe(numbers)}; take and put name rows by their numbers: mask.nonzero()[:, 0]"
        )
    if isinstance(rows, list | builtins.tuple) and any(isinstance(row, bool) for row in rows):
        raise InputError(f"rows is {rows}, with True or False in it; take and put name rows by their numbers: [0, 2]")
    if (numbers.is_floating_point() or numbers.is_complex()) and numbers.numel():
        raise InputError(f"rows is {describe(numbers)}; take and put name rows by their numbers: [0, 2]")
    return numbers.long()


def repeat(state: State, times: int) -> State:
    """Each row `times` times in a row: (B, ...) -> (B * times, ...).

    >>> repeat(torch.tensor([[1.], [2.]]), 2).flatten().tolist()
    [1.0, 1.0, 2.0, 2.0]
    """
    return map(lambda leaf: leaf.repeat_interleave(times, 0), state)


def where(rows: Tensor, chosen: State, other: State) -> State:
    """Row by row: `chosen` where `rows` (B,) is true, `other` where it is not.

    >>> where(torch.tensor([True, False]), torch.ones(2, 1), torch.zeros(2, 1)).flatten().tolist()
    [1.0, 0.0]
    """

    def choose(a: Tensor, b: Tensor) -> Tensor:
        return torch.where(rows.reshape(-1, *(1,) * (b.dim() - 1)), a, b)

    return map(choose, chosen, other)


def learnable(state: State) -> list[bool]:
    """For each leaf of an initial state whether a core may learn it: those of real or complex numbers, unless they are
    infinite, or a NamedTuple names them in `fixed_start`, as it does with what counts, sums or normalises.

    >>> import elman
    >>> learnable(elman.cell("rglru", 3, 4).init_state(1))      # h, window and t, how many inputs came before
    [True, True, False]
    """
    if isinstance(state, Tensor):
        numbers = state.is_floating_point() or state.is_complex()
        return [numbers and state.numel() > 0 and bool(state.isfinite().all())]
    fields, fixed = getattr(state, "_fields", range(len(state))), getattr(state, "fixed_start", ())
    parts = zip(fields, state, strict=True)
    return [chosen and field not in fixed for field, part in parts for chosen in learnable(part)]


def detach(state: State) -> State:
    """The same values, cut off from the graph: what truncated BPTT carries from window to window."""
    return map(lambda leaf: leaf.detach(), state)


def concat(states: Sequence[State]) -> State:
    """Join states along the batch.

    >>> concat([torch.zeros(1, 2), torch.ones(2, 2)]).shape
    torch.Size([3, 2])
    """
    if not states:
        raise InputError("concat was given no state; it needs at least one, since an empty list has no structure")
    return map(lambda *parts: torch.cat(parts, 0), *states)


def describe(state: State) -> str:
    """The structure of a state as text, for messages.

    >>> describe((torch.zeros(2, 3), ()))
    '(float32[2, 3], ())'
    """
    if isinstance(state, Tensor):
        return f"{str(state.dtype).removeprefix('torch.')}{list(state.shape)}"
    if isinstance(state, tuple):
        fields = getattr(state, "_fields", None)
        parts = [describe(part) for part in state]
        if fields is None:
            return f"({', '.join(parts)})"
        named = [f"{field}={part}" for field, part in zip(fields, parts, strict=True)]
        return f"{type(state).__name__}({', '.join(named)})"
    return f"a {type(state).__name__}"


def check(state: State, like: State, batch_size: int) -> None:
    """Raise an InputError unless `state` has `batch_size` rows, and the structure, shapes, device and dtypes of `like`.

    Dtypes are equal, not only as wide: a kernel reads a leaf as what `init_state` says it is.
    """
    actual, wanted = names(state), names(like)
    if actual != wanted:
        raise InputError(
            f"the state has the structure {describe(state)}; this core's is {describe(like)} with {batch_size} rows. "
            "Pass what init_state or an earlier scan of the same core returned; of what torch.nn returned, "
            "elman.state_from_torch(core, state) makes such a state."
        )
    for (name, leaf), (_, model) in zip(_walk(state, ""), _walk(like, ""), strict=True):
        where_ = f"leaf {name or 'of the state'}"
        if leaf.dim() == 0 or leaf.shape[0] != batch_size or leaf.shape[1:] != model.shape[1:]:
            raise InputError(
                f"{where_} has shape {list(leaf.shape)}; expected {[batch_size, *model.shape[1:]]}, batch first. "
                "Use state.take or state.repeat to change the rows of a state."
            )
        if leaf.device != model.device:
            raise InputError(f"{where_} is on {leaf.device}, the core on {model.device}; move one with .to(device)")
        if leaf.dtype != model.dtype:
            raise InputError(f"{where_} is {leaf.dtype}, this core's state is {model.dtype}; convert it with .to")


def name_for_export(kind: type[tuple[State, ...]]) -> None:
    """Give a NamedTuple of leaves the name under which `torch.export.save` and AOTInductor write it down.

    A Core does it for the state that its `init_state` says it returns.
    """
    if kind not in pytree.SUPPORTED_SERIALIZED_TYPES:
        pytree._register_namedtuple(kind, serialized_type_name=f"{kind.__module__}.{kind.__qualname__}")
        torch.serialization.add_safe_globals([kind])  # example inputs are read back without running code


def to_rows(state: State) -> NDArray[np.uint8]:
    """The rows of a state as bytes (B, W), leaf after leaf: what a store keeps of a session.

    >>> to_rows((torch.zeros(2, 3), torch.zeros(2, 1, dtype=torch.int64))).shape
    (2, 20)
    """
    parts = [_as_real(leaf.detach()).contiguous().numpy() for leaf in leaves(state)]
    if not parts:
        raise InputError("the state is (), that of a core which remembers nothing: it has no bytes, and no rows")
    return np.concatenate([part.reshape(len(part), math.prod(part.shape[1:])).view(np.uint8) for part in parts], axis=1)


def row_bytes(state: State) -> int:
    """How many bytes a row of a state has.

    >>> row_bytes((torch.zeros(2, 3), torch.zeros(2, 1, dtype=torch.complex64)))
    20
    """
    return sum(leaf.shape[1:].numel() * leaf.element_size() for leaf in leaves(state))


def from_rows(rows: NDArray[np.uint8], like: State) -> State:
    """The state whose `to_rows` are these; `like` is one of the same core, with any number of rows.

    >>> from_rows(to_rows(torch.ones(2, 3)), torch.zeros(0, 3)).sum()
    tensor(6.)
    """
    at = 0

    def leaf(model: Tensor) -> Tensor:
        nonlocal at
        shape, dtype = _as_real(model).shape[1:], REAL.get(model.dtype, model.dtype)
        width = shape.numel() * dtype.itemsize
        part = np.array(rows[:, at : at + width], order="C")  # a copy, aligned
        at += width
        if not part.size:  # which cannot be viewed as anything
            return torch.zeros(len(rows), *model.shape[1:], dtype=model.dtype)
        numbers = torch.from_numpy(part).view(dtype).reshape(len(rows), *shape)
        return torch.view_as_complex(numbers) if model.is_complex() else numbers

    return map(leaf, like)


def widen_row(row: bytes, like: State) -> bytes:
    """A row of `to_rows` as it is now, of one that was written when running sums were float32.

    >>> import elman
    >>> now = elman.Pool("mean", 2).init_state(1)
    >>> before = to_rows(map(lambda leaf: leaf.float(), now)).tobytes()
    >>> len(before), len(widen_row(before, now))
    (12, 24)
    """
    if len(row) == row_bytes(like):
        return row
    narrow = iter([_narrow(name, leaf) for name, leaf in _walk(like, "")])
    before = map(lambda _: next(narrow), like)
    if len(row) != row_bytes(before):
        raise FileError(f"the stored state has {len(row)} bytes, this model's has {row_bytes(like)}: another wrote it")
    state = from_rows(np.frombuffer(row, np.uint8)[None], before)
    return to_rows(map(lambda leaf, now: leaf.to(now.dtype), state, like)).tobytes()


def _narrow(name: str, leaf: Tensor) -> Tensor:
    """A leaf as it was before running sums were widened."""
    return leaf.float() if _is_sum(name, leaf) else leaf


def has_sums(kind: type[tuple[State, ...]]) -> bool:
    """Whether a NamedTuple has running sums, which are wider than what they are sums of."""
    return not SUMS.isdisjoint(getattr(kind, "_fields", ()))


def _is_sum(name: str, leaf: Tensor) -> bool:
    return leaf.dtype == torch.float64 and name.rpartition(".")[2] in SUMS


def fingerprint(module: nn.Module) -> str:
    """The identity of a model: sha256 of its parameters and buffers with their names, dtypes and shapes.

    >>> one, other = nn.Linear(2, 2), nn.Linear(2, 2)
    >>> fingerprint(one) == fingerprint(one), fingerprint(one) == fingerprint(other)
    (True, False)
    """
    return artifact.digest({**dict(module.named_parameters()), **dict(module.named_buffers())})


def save(path: str | os.PathLike[str], state: State, *, fingerprint: str = "") -> None:
    """Write a state to one safetensors file, complex leaves as pairs of reals. An existing file is replaced whole.

    `fingerprint` is that of the model whose state it is; then no other model can load it by mistake.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "here.safetensors"
    >>> save(path, (torch.ones(1, 2), torch.ones(1, 2, dtype=torch.complex64)))
    >>> load(path, like=(torch.zeros(0, 2), torch.zeros(0, 2, dtype=torch.complex64)))[1].dtype
    torch.complex64
    """
    tensors, header = _serialise(state, fingerprint)
    try:
        artifact.replace(Path(path), lambda new: artifact.write_tensors(new, tensors, header))
    except OSError as error:
        raise FileError(f"cannot write the state to {path}: {error}") from error


def dump(state: State, *, fingerprint: str = "") -> bytes:
    """The bytes that `save` would write: what a state is sent as.

    >>> parse(dump(torch.ones(1, 2)), like=torch.zeros(0, 2))
    tensor([[1., 1.]])
    """
    tensors, header = _serialise(state, fingerprint)
    return save_bytes({name: tensor.contiguous() for name, tensor in tensors.items()}, header)


def parse(data: bytes, like: State, *, fingerprint: str = "") -> State:
    """The state in the bytes of `dump` or of a state file; a FileError if they are anything else."""
    return _restore("what was sent", *_parse_bytes(data), like, fingerprint)


def load(path: str | os.PathLike[str], like: State, *, fingerprint: str = "") -> State:
    """Read a state that `save` wrote. `like` is a state of the core that will continue from it: `core.init_state(0)`.

    With a `fingerprint`, only a state of the model that has it is taken.
    """
    return _restore(path, *_read(path), like, fingerprint)


def _serialise(state: State, fingerprint: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a state file, and its header."""
    tensors = {f"state{name}": _as_real(leaf.detach()) for name, leaf in _walk(state, "")}
    header = json.dumps({"format": FORMAT, "sha256": artifact.digest(tensors), "fingerprint": fingerprint})
    # One key: safetensors writes several in any order, and runs could not be compared byte by byte.
    return tensors, {"header": header}


def _restore(
    path: str | os.PathLike[str], header: dict[str, str], tensors: dict[str, Tensor], like: State, fingerprint: str
) -> State:
    if fingerprint:
        _check_fingerprint(path, header, fingerprint)
    stored = sorted(name.removeprefix("state") for name in tensors)
    if stored != sorted(names(like)):
        raise FileError(
            f"{path} has a state with the leaves {stored}; this core's has {names(like)}. Another core wrote it: read "
            "the earlier inputs again, and save the state again."
        )
    loaded = iter([_as_leaf(name, tensors[f"state{name}"], leaf) for name, leaf in _walk(like, "")])
    state = map(lambda _: next(loaded), like)
    batch_size = len(leaves(state)[0]) if stored else 0
    try:
        check(state, like, batch_size)
    except InputError as error:
        raise FileError(f"{path} has the state of another core: {error}") from error
    return state


def _read(path: str | os.PathLike[str]) -> tuple[dict[str, str], dict[str, Tensor]]:
    """The header and the tensors of a state file, undamaged."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata: dict[str, str] = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (safe_open is not a dict)
        header = _header(metadata)
    except FileNotFoundError as error:
        raise FileError(f"there is no state file {path}") from error
    except (SafetensorError, OSError, ValueError, TypeError) as error:
        raise FileError(f"{path} is not a readable state file ({error}); it may be truncated") from error
    return _verify(path, header, tensors)


def _parse_bytes(data: bytes) -> tuple[dict[str, str], dict[str, Tensor]]:
    """The header and the tensors of a state file that is in memory, undamaged."""
    try:
        tensors = load_bytes(data)  # checks that the header is one, and that it fits the bytes
        length = int.from_bytes(data[:8], "little")
        header = _header(dict(parse_json(data[8 : 8 + length]).get("__metadata__") or {}))
    except (SafetensorError, ValueError, TypeError, KeyError) as error:
        raise FileError(f"the data are not a readable state file ({error}); they may be truncated") from error
    return _verify("the file", header, tensors)


def _header(metadata: dict[str, str]) -> dict[str, str]:
    return dict(parse_json(metadata["header"])) if "header" in metadata else metadata


def _verify(
    path: str | os.PathLike[str], header: dict[str, str], tensors: dict[str, Tensor]
) -> tuple[dict[str, str], dict[str, Tensor]]:
    if header.get("format") != FORMAT:
        raise FileError(
            f"{path} has the format {header.get('format')!r}, not {FORMAT!r}: not a state that this version knows. "
            "Read the earlier inputs again, and save the state again."
        )
    if header.get("sha256") != artifact.digest(tensors):
        raise FileError(
            f"{path} is damaged: its content is not what Elman wrote. Restore a copy, or start from the initial state "
            "and read the earlier inputs again."
        )
    return header, tensors


def _check_fingerprint(path: str | os.PathLike[str], header: dict[str, str], wanted: str) -> None:
    written = header.get("fingerprint")
    if not written:
        raise FileError(
            f"{path} does not say which model wrote it: it was saved without a fingerprint. Read the earlier inputs "
            "again with this model, and save the state again."
        )
    if written != wanted:
        raise FileError(
            f"{path} is a state of another model of the same shape: it was written by the model {written[:12]}, this "
            f"is {wanted[:12]}. Load the model that wrote it, or start from the initial state."
        )


def _walk(state: State, name: str) -> Iterator[tuple[str, Tensor]]:
    """Each leaf with its name: '.0.h' is field h of the first part."""
    if isinstance(state, Tensor):
        yield name, state
        return
    if not isinstance(state, tuple):
        raise InputError(f"a state is a tensor or a tuple of states, not {describe(state)}")
    fields: Sequence[object] = getattr(state, "_fields", range(len(state)))
    for field, part in zip(fields, state, strict=True):
        yield from _walk(part, f"{name}.{field}")


def names(state: State) -> list[str]:
    """What each leaf is called: '.0.h' is field h of the first part.

    >>> names((torch.zeros(1, 2), ()))
    ['.0']
    """
    return [name for name, _ in _walk(state, "")]


def _rebuild(model: tuple[State, ...], parts: list[State]) -> State:
    return type(model)(*parts) if hasattr(model, "_fields") else builtins.tuple(parts)


def _as_real(leaf: Tensor) -> Tensor:
    return torch.view_as_real(leaf) if leaf.is_complex() else leaf


def _as_leaf(name: str, stored: Tensor, model: Tensor) -> Tensor:
    stored = stored.to(model.device, copy=True)  # a file aligns to 8 bytes; Torch's complex kernels crash below 16
    if stored.dtype == torch.float32 and _is_sum(name, model):
        return stored.double()
    return torch.view_as_complex(stored) if model.is_complex() and stored.shape[-1:] == (2,) else stored
