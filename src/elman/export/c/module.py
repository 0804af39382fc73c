"""What can be exported to C: a core, or a model whose embedding and read-out describe themselves too."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import torch
from torch import nn

from elman import state as states
from elman.core import Core
from elman.errors import InputError
from elman.export.c.builder import CProgram
from elman.export.c.source import Module
from elman.export.c.weights import Weights
from elman.kernels.builder import WEIGHTS, Builder, Slot, Unstreamable
from elman.model import SequenceModel
from elman.nn.embed import Embed
from elman.nn.readout import Linear, Readout, Softmax
from elman.options import choice
from elman.stream import describe, frozen
from elman.tasks.hmm.predictor import HiddenMarkovPredictor
from elman.tasks.predictor import AnyPredictor, Predictor

Source = nn.Module | AnyPredictor
# Words that no function of C, and of C++, can begin with.
NAME = re.compile(r"[a-z][a-z0-9_]*")
TAKEN = ("check", "float", "math", "stddef", "stdint", "stdio", "stdlib", "string")  # check.c, and headers of C
REMEDY = "where elman.Stream may scan in its place"


class Projected(Embed):
    """Numbers that go through an affine map before the core: what a classifier of series does."""

    def __init__(self, linear: Linear) -> None:
        super().__init__()
        self.linear = linear

    def describe_step(self, builder: Builder) -> Slot:
        return builder.linear(builder.input(self.linear.input_size), self.linear.weight, self.linear.bias)


class Parts(NamedTuple):
    """A model in parts that all describe themselves."""

    embed: Embed | None
    core: Core
    readout: Readout[Any] | None


def parts(source: Source) -> Parts:
    """The parts of what is to be exported; an InputError of what cannot be."""
    model = source if isinstance(source, HiddenMarkovPredictor | nn.Module) else source.model
    if isinstance(model, nn.Module) and any(part.training for part in model.modules()):
        model = frozen(model)  # without dropout
    if isinstance(model, Core):
        return Parts(None, model, None)
    if not isinstance(model, SequenceModel):
        raise InputError(
            f"a {type(source).__name__} is not exported to C; cores are, and models over symbols or plain numbers"
        )
    embed = Projected(model.embed) if isinstance(model.embed, Linear) else model.embed
    if not isinstance(embed, Embed | nn.Identity):
        raise InputError(f"a {type(embed).__name__} is not exported to C; export the core alone: model.core")
    if not isinstance(model.readout, Readout):
        raise InputError(f"a {type(model.readout).__name__} is not exported to C; export the core alone: model.core")
    return Parts(embed if isinstance(embed, Embed) else None, model.core, model.readout)


def module_of(source: Source, name: str, weights: str | None = None) -> Module:
    """What `source` is in C, its functions called by `name`."""
    if not NAME.fullmatch(name):
        raise InputError(f"name is {name!r}; functions of C are called by it: small letters, digits and _")
    if name in TAKEN:
        raise InputError(f"name is {name!r}, and a file of that name is there already; choose another name")
    if weights is not None:
        choice("weights", weights, WEIGHTS)
    embed, core, readout = parts(source)

    def make(dtype: torch.dtype) -> CProgram:
        if dtype != torch.float32:
            raise Unstreamable(f"a step in {dtype}, where C has float32; convert it first, by .float()")
        return CProgram(Weights(weights))

    try:
        program, x, y = describe(core, embed, make)
        y = readout.describe_step(program, y) if readout is not None else y
    except Unstreamable as error:
        raise InputError(f"this cannot be a step in C, {REMEDY}: {error}") from error
    return Module(
        name, program, y, row_bytes(core.init_state(1)), fingerprint(source),
        _title(source, core), chooses=program.symbols > 0 and isinstance(readout, Softmax),
    )  # fmt: skip


def fingerprint(source: Source) -> str:
    """The identity of what is exported."""
    return source.fingerprint if isinstance(source, Predictor) else states.fingerprint(source)


def row_bytes(state: states.State) -> bytes:
    """The bytes of the one row of a state; none where it has no leaves."""
    return states.to_rows(state).tobytes() if states.leaves(state) else b""


def _title(source: Source, core: Core) -> str:
    cores = [part for part in core.modules() if isinstance(part, Core)]
    alone = (part for part in cores if not any(isinstance(inner, Core) for inner in [*part.modules()][1:]))
    outer, inner = type(source).__name__, type(next(alone)).__name__
    return f"A {outer}" if outer == inner else f"A {outer} of {inner}"
