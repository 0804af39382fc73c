"""check.c and the Makefile: what a Stream made of some inputs, and whether the C file makes the same bits of them."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from elman import kernels
from elman.errors import InputError
from elman.export.c.module import Parts, Projected, row_bytes
from elman.export.c.source import Module, template
from elman.kernels.rows import NativeRows
from elman.stream import described

MOST = 4096  # numbers of y in a fixture
LANES = {"avx2": (8, 0), "avx512": (16, 0)}  # numbers in a vector, and whether there is no fused multiply-add


class Fixture(NamedTuple):
    """Inputs of some steps, what a Stream makes of them, and its state after them."""

    inputs: NDArray[np.generic]
    outputs: NDArray[np.float32]
    state: bytes


@torch.no_grad()
def fixture(of: Parts, module: Module) -> Fixture:
    """Of the parts that were described to C as `module`."""
    if "native" not in kernels.available():
        raise InputError("a C file comes with what the native kernels compute, which this installation lacks")
    projects = isinstance(of.embed, Projected)  # before the program, by the same product
    program, x, y = described(of.core, None if projects else of.embed, module.program.weights.stored)
    program.finish(x, of.readout.describe_step(program, y) if of.readout else y)
    rows = NativeRows(program, of.core.init_state(1), 1)
    steps, random = min(32, max(2, MOST // max(1, module.y.width))), np.random.default_rng(0)
    inputs: NDArray[np.generic] = (
        random.integers(0, module.program.symbols, (steps, 1))
        if module.program.symbols
        else random.standard_normal((steps, 1, module.program.given)).astype(np.float32)
    )
    given = of.embed.linear(torch.from_numpy(inputs)).numpy() if isinstance(of.embed, Projected) else inputs
    outputs = np.concatenate([rows.step(x, None) for x in given])
    return Fixture(inputs, outputs, row_bytes(rows.take(np.arange(1))))


def check_source(module: Module, made: Fixture) -> str:
    """check.c."""
    reads, after = module.program.symbols > 0, np.frombuffer(made.state, np.uint32)
    inputs = made.inputs.ravel().tolist() if reads else [float(v).hex() + "f" for v in made.inputs.ravel()]
    return template("check.c").substitute(
        name=module.name, isa=kernels.isa(), kind="int32_t" if reads else "float", steps=len(made.inputs),
        each=1 if reads else module.program.given, output=module.y.width, words=max(1, len(after)), numbers=len(after),
        inputs=_lines(inputs), outputs=_lines(f"{v:#x}" for v in made.outputs.ravel().view(np.uint32)),
        state=_lines(f"{v:#x}" for v in after) or "  0",
    )  # fmt: skip


def makefile(module: Module) -> str:
    """The Makefile."""
    lanes, no_fma = LANES.get(kernels.isa(), (4, int(platform.machine() == "x86_64")))
    return template("Makefile").substitute(name=module.name, isa=kernels.isa(), lanes=lanes, no_fma=no_fma)


def _lines(words: Iterable[object]) -> str:
    found = [str(word) for word in words]
    return ",\n".join("  " + ", ".join(found[i : i + 8]) for i in range(0, len(found), 8))
