"""Two threads on one core wait for each other longer than they work: they give up, and the bits are the same."""

import json
import subprocess
import sys

import pytest

from elman import kernels

pytestmark = [
    pytest.mark.skipif("native" not in kernels.available(), reason="a promise of the native kernels"),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux pins a process to a core"),
]

# What the kernels make of rows divided among threads, and of units, with all saved and with checkpoints: a digest for
# each; and how many teams were dissolved meanwhile.
SCRIPT = """
import hashlib, json, os, sys
cores, threads = int(sys.argv[1]), int(sys.argv[2])
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
import torch
from elman import _native, state as states
from elman.cells import cell
from elman.compose import Recompute, stack

def digest(tensors):
    return hashlib.sha256(b"".join(t.detach().numpy().tobytes() for t in tensors)).hexdigest()

found = {}
for name, options in (("gru", {}), ("gru", {"reset_after": False}), ("lstm", {}), ("mgu", {}), ("indrnn", {})):
    for rows in (1, 3, 16):
        for every in (None, 40):
            torch.set_num_threads(1)  # of several, LAPACK makes other orthogonal matrices
            torch.manual_seed(0)
            core = cell(name, 128, 128, **options)
            x = torch.randn(rows, 150, 128, requires_grad=True)
            torch.set_num_threads(threads)
            lengths = torch.tensor([150, 0, 77, *[150] * 13])[:rows]
            y, state = (core if every is None else Recompute(core, every=every)).scan(x, lengths=lengths)
            key = f"{name} {options} {rows} {every}"
            found[key] = digest([y, *states.leaves(state)])
            gradients = torch.autograd.grad(y.square().sum(), [x, *core.parameters()])
            found[key + " back"] = digest(gradients)
print(json.dumps([found, _native.teams_dissolved()]))
"""


def results(cores: int, threads: int) -> tuple[dict[str, str], int]:
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(cores), str(threads)], capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr
    found, dissolved = json.loads(run.stdout)
    return found, dissolved


@pytest.mark.slow
def test_threads_that_wait_for_each_other_give_up_and_change_no_bit() -> None:
    free, _ = results(2, 2)
    pinned, dissolved = results(1, 2)
    assert dissolved  # two threads had one core
    assert pinned == free  # gradients too: their sums are divided as before
    alone, _ = results(1, 1)
    assert all(digest == free[key] for key, digest in alone.items() if not key.endswith("back"))
