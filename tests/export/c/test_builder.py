"""Every cell and word in C: its steps and its state are, bit for bit, those of a Stream on the same instruction set."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from in_c import CORES, InC, compiled, needs_gcc, random_core

from elman import kernels
from elman import state as states
from elman.core import Core
from elman.export.c.calls import KINDS
from elman.export.c.module import module_of
from elman.stream import Stream

pytestmark = needs_gcc


def differing(names: list[str], folder: Path, steps: int, weights: str | None = None) -> list[str]:
    """The cores whose steps in C are not those of a Stream."""
    cores = {name: random_core(name) for name in names}
    modules = {name: module_of(core, f"m{i}", weights) for i, (name, core) in enumerate(cores.items())}
    library, wrong = compiled([*modules.values()], folder), []
    for name, core in cores.items():
        stream, here = Stream(core, 1, weights), InC(library, modules[name])
        assert stream.native
        x = np.random.default_rng(0).standard_normal((steps, 1, core.input_size)).astype(np.float32)
        same = all(stream.step(given)[0].tobytes() == here.step(given).tobytes() for given in x)
        state = stream.state
        after = states.to_rows(state).tobytes() if states.leaves(state) else b""
        if not (same and here.bytes == after):
            wrong.append(name)
    return wrong


@pytest.mark.parametrize("size", [pytest.param("5", marks=pytest.mark.slow), "19"])
def test_every_cell_and_word_has_the_bits_of_a_stream(tmp_path: Path, size: str) -> None:
    """In 19 units there are whole vectors and a rest, in 5 a rest alone."""
    other = "} 5" if size == "19" else "} 19"
    assert differing([name for name in CORES if not name.endswith(other)], tmp_path, 12) == []


@pytest.mark.parametrize("weights", ["bfloat16", "int8"])
def test_weights_in_fewer_bits(tmp_path: Path, weights: str) -> None:
    names = ["gru {} 19", "lstm {} 19", "stack", "mgu {} 5", "wide"]
    assert differing([name for name in names if name in CORES], tmp_path, 12, weights) == []


def test_the_kinds_of_gated_cells_are_those_of_the_kernels() -> None:
    from elman.kernels.native.gated import KINDS as wanted

    assert {name: (kind.gates, kind.matrix) for name, kind in KINDS.items()} == {
        name: (kind.gates, kind.matrix) for name, kind in wanted.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("isa", ["baseline", "avx2", "avx512"])
def test_every_other_instruction_set(isa: str) -> None:
    if isa not in kernels.isas() or isa == kernels.isa():
        pytest.skip("the other tests run on it" if isa == kernels.isa() else "the machine does not have it")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", __file__, "-k", "bits or fewer"]
    ran = subprocess.run(command, env={**os.environ, "ELMAN_ISA": isa}, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stdout[-3000:]


SMALL = [name for name in CORES if name.endswith("} 5")]


def over_many_steps(names: list[str], steps: int, folder: Path) -> list[str]:
    """The cores that do not have the bits of a scan, which are those of a Stream, over so many steps. Of those without
    a kernel for scans it is a Stream itself, which does not walk through Torch."""
    cores = {name: random_core(name) for name in names}
    modules = [module_of(core, f"m{i}") for i, core in enumerate(cores.values())]
    library, wrong, rng = compiled(modules, folder), [], np.random.default_rng(0)
    for (name, core), module in zip(cores.items(), modules, strict=True):
        here, state, stream = InC(library, module), core.init_state(1), Stream(core, 1)
        for first in range(0, steps, 10_000):
            x = rng.standard_normal((1, min(10_000, steps - first), 5)).astype(np.float32)
            if type(core)._scan is Core._scan:
                wanted = np.concatenate([stream.step(given[None]) for given in x[0]])
            else:
                with torch.no_grad():
                    y, state = core.scan(torch.from_numpy(x), state)
                wanted = y.numpy()
            if here.scan(x[0]).tobytes() != wanted.tobytes():
                wrong.append(f"{name}, before step {first + 10_000}")
                break
    return wrong


@pytest.mark.slow
def test_every_cell_has_the_bits_of_a_scan(tmp_path: Path) -> None:
    assert over_many_steps(SMALL, 300, tmp_path) == []


if __name__ == "__main__":  # python tests/export/c/test_builder.py 1_000_000 [CELL ...]
    from tempfile import TemporaryDirectory

    for name in [name for name in SMALL if name.split()[0] in sys.argv[2:] or len(sys.argv) == 2]:
        with TemporaryDirectory() as temporary:
            print(name, over_many_steps([name], int(sys.argv[1]), Path(temporary)) or "equal", flush=True)
