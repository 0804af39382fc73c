"""The kernels on the other instruction sets that the machine has: some of their tests again, in another process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

native = pytest.importorskip("elman.kernels.native")

HERE = Path(__file__).parent
TESTS = {
    HERE / "test_gated.py": "test_bits",
    HERE / "test_scan.py": "test_loop or test_bits or test_nothing_leaks",
    HERE / "test_product.py": "equals_torch or neighbours",
    HERE / "test_norm.py": "oracle or any_number or bits or ordinary",
    HERE / "test_selective.py": "test_loop or test_bits or test_nothing_leaks or test_decays or test_what_is_not",
    HERE / "test_tape.py": "functions or sums or trace_step",
    HERE.parent / "test_bits.py": "batch_chunks",
    Path(__file__): "the_one_that_was_asked_for",
}


def test_it_is_the_one_that_was_asked_for() -> None:
    assert os.environ.get("ELMAN_ISA", native.isa()) == native.isa()


@pytest.mark.slow
@pytest.mark.parametrize("isa", ["baseline", "avx2", "avx512"])
def test_every_other_instruction_set(isa: str) -> None:
    if isa not in native.isas() or isa == native.isa():
        pytest.skip("the other tests run on it" if isa == native.isa() else "the machine does not have it")
    which = " or ".join(f"({path.name} and ({names}))" for path, names in TESTS.items())
    command = [sys.executable, "-m", "pytest", "-vv", "-p", "no:cacheprovider", "-p", "no:xdist", *map(str, TESTS)]
    env = {**os.environ, "ELMAN_ISA": isa}
    ran = subprocess.run([*command, "-k", which], env=env, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stdout[-3000:]
    for path in TESTS:
        assert f"{path.name}::" in ran.stdout, f"no test of {path.name} ran"
