"""What the tests of C share: cores of every kind, and modules that gcc has compiled for this machine's kernels."""

from __future__ import annotations

import ctypes
import platform
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from elman import kernels
from elman.cells import CELLS, cell
from elman.compose import Dense, Norm, Parallel, Pool, Residual, Stack, stack
from elman.core import Core
from elman.export.c.fixture import LANES
from elman.export.c.module import module_of
from elman.export.c.source import Module, runtime, text
from elman.kernels.builder import WEIGHTS
from elman.model import SequenceModel
from elman.nn.embed import Embedding
from elman.nn.readout import Softmax

needs_gcc = [
    pytest.mark.skipif("native" not in kernels.available(), reason="the bits are those of the native kernels"),
    pytest.mark.skipif(shutil.which("gcc") is None, reason="without gcc"),
]
FLAGS = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-O1", "-ffp-contract=off"]
V = 23  # symbols of the language model
POOLS = ("last", "mean")
CORES: dict[str, Callable[[], Core]] = {
    **{
        f"{name} {options} {size}": lambda name=name, options=options, size=size: cell(name, size, size, **options)
        for name, kind in CELLS.items()
        for options in kind.variants
        for size in (5, 19)
    },
    **{f"hmm {size}": lambda size=size: cell("hmm", size, size) for size in (4, 8, 9, 16, 17, 33, 70, 130)},
    "stack": lambda: stack("gru", 5, 9, layers=3, residual=True, norm="layer", dropout=0.2),
    "rms": lambda: stack("lstm", 5, 9, layers=2, norm="rms"),
    "inputs": lambda: Stack(cell("elman", 5, 3), cell("lru", 8, 4), inputs="all"),
    "parallel": lambda: Parallel(cell("gru", 5, 3), Stack(Norm(5), Dense(5, 5, activation="silu"))),
    "residual": lambda: Residual(Stack(cell("mgu", 5, 7), Dense(7, 5, activation="softplus"))),
    "wide": lambda: cell("gru", 70, 45),
    **{f"pool {kind}": lambda kind=kind: Stack(cell("gru", 3, 5), Pool(kind, 5)) for kind in POOLS},
}


def random_core(name: str, seed: int = 0) -> Core:
    """With gains that are not one, and biases that are not zero."""
    torch.manual_seed(seed)
    core = CORES[name]().eval()
    for parameter in core.parameters():
        nn.init.normal_(parameter, std=0.2)
    return core


def language_model() -> SequenceModel:
    torch.manual_seed(0)
    return SequenceModel(Embedding(V, 6), stack("lstm", 6, 11, layers=2), Softmax(11, V)).eval()


def everything() -> list[Module]:
    """Every core that is small, stored as it is and in fewer bits, and a language model that chooses."""
    names = [name for name in CORES if not name.endswith(" 19")]
    sources = [*((random_core(name), None) for name in names), (language_model(), None)]
    sources += [(random_core(name), stored) for name in ("stack", "wide") for stored in WEIGHTS]
    return [module_of(source, f"m{i}", stored) for i, (source, stored) in enumerate(sources)]


def arch() -> list[str]:
    """What makes C compute as the kernels do on this machine."""
    lanes, no_fma = LANES.get(kernels.isa(), (4, int(platform.machine() == "x86_64")))
    fma = ["-mfma", "-mavx2"] if platform.machine() == "x86_64" and not no_fma else []
    return [*fma, f"-DLANES={lanes}", f"-DNO_FMA={no_fma}"]


def together(modules: list[Module], *more: str) -> str:
    """All of them in one file."""
    functions = set[str]().union(*(module.functions() for module in modules))
    before = ["#include <math.h>", "#include <string.h>", text("preamble.h"), runtime(functions)]
    before += [m.named(text("choice.c")) for m in modules if m.chooses]  # of one of them, for its helpers have one name
    return "\n".join([*(m.header() for m in modules), *before, *(m.body() for m in modules), *more])


def compiled(modules: list[Module], folder: Path) -> ctypes.CDLL:
    """All of them in one library, whose compiler was not allowed a single warning."""
    (folder / "all.c").write_text(together(modules))
    command = ["gcc", *FLAGS, *arch(), "-fPIC", "-shared", folder / "all.c", "-o", folder / "all.so", "-lm"]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(folder / "all.so"))


class InC:
    """A model that was compiled, and its state."""

    def __init__(self, library: ctypes.CDLL, module: Module) -> None:
        self.module, self.library, self.run = module, library, getattr(library, f"{module.name}_step")
        self.state = np.zeros(len(module.start) // 4 + 1, np.float32)
        getattr(library, f"{module.name}_reset")(ctypes.c_void_p(self.state.ctypes.data))

    def step(self, x: np.ndarray) -> np.ndarray:
        y = np.full(self.module.y.width, 7, np.float32)
        pointers = (ctypes.c_void_p(array.ctypes.data) for array in (self.state, x, y))
        self.run(*pointers)
        return y

    def scan(self, x: np.ndarray) -> np.ndarray:
        y = np.full((len(x), self.module.y.width), 7, np.float32)
        pointers = [ctypes.c_void_p(array.ctypes.data) for array in (self.state, x)]
        scan = getattr(self.library, f"{self.module.name}_scan")
        scan(*pointers, ctypes.c_size_t(len(x)), ctypes.c_void_p(y.ctypes.data))
        return y

    @property
    def bytes(self) -> bytes:
        return self.state.tobytes()[: len(self.module.start)]
