"""What is written around a step: symbols, choices by chance, states from Python and back, and what no input may do."""

from __future__ import annotations

import ctypes
import platform
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from in_c import CORES, FLAGS, InC, V, arch, compiled, everything, language_model, needs_gcc, random_core, together

from elman import random
from elman import state as states
from elman.decoding.sample import Sampling
from elman.export.c.module import module_of
from elman.export.c.source import Module
from elman.stream import Stream

pytestmark = needs_gcc
SETTINGS = [
    Sampling(), Sampling(temperature=0), Sampling(temperature=0.7, top_k=5), Sampling(top_p=0.8),
    Sampling(temperature=1.5, top_k=9, top_p=0.6, banned=(0, 3)), Sampling(repetition_penalty=1.3, banned=(1,)),
    Sampling(top_k=V, top_p=0.01),
]  # fmt: skip


class Choice(ctypes.Structure):
    """What model.h has under this name."""

    _fields_ = [
        ("temperature", ctypes.c_double), ("top_p", ctypes.c_double), ("repetition_penalty", ctypes.c_double),
        ("top_k", ctypes.c_int32), ("banned_count", ctypes.c_int32), ("banned", ctypes.POINTER(ctypes.c_int32)),
    ]  # fmt: skip


class LanguageModelInC:
    """Symbols in, logits and choices out."""

    def __init__(self, library: ctypes.CDLL, module: Module) -> None:
        self.module, self.library = module, library
        library.m_uniform.restype = ctypes.c_double
        library.m_uniform.argtypes = [ctypes.c_int64, ctypes.c_int64]
        library.m_choose.argtypes = [*[ctypes.c_void_p] * 3, ctypes.c_double, ctypes.c_void_p]
        self.state = np.zeros(len(module.start) // 4, np.float32)

    def step(self, symbol: int) -> np.ndarray:
        y = np.zeros(V, np.float32)
        done = self.library.m_step(
            ctypes.c_void_p(self.state.ctypes.data), ctypes.c_int32(symbol), ctypes.c_void_p(y.ctypes.data)
        )
        assert done == (0 if 0 <= symbol < V else -1)
        return y

    def choose(self, how: Sampling, logits: np.ndarray, seen: np.ndarray, u: float) -> int:
        banned = (ctypes.c_int32 * len(how.banned))(*how.banned)
        choice = Choice(
            how.temperature, how.top_p, how.repetition_penalty, how.top_k, len(how.banned), banned
        )  # fmt: skip
        room = np.zeros(V + (V + 1) // 2)
        pointers = (array.ctypes.data for array in (logits, seen))
        return int(self.library.m_choose(ctypes.addressof(choice), *pointers, u, room.ctypes.data))


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> LanguageModelInC:
    module = module_of(language_model(), "m")
    folder = tmp_path_factory.mktemp("lm")
    (folder / "m.h").write_text(module.header())
    (folder / "m.c").write_text(module.source())
    flags = [*FLAGS, *arch(), "-fPIC", "-shared"]
    subprocess.run(["gcc", *flags, folder / "m.c", "-o", folder / "m.so", "-lm"], check=True)
    return LanguageModelInC(ctypes.CDLL(str(folder / "m.so")), module)


def test_symbols_have_the_logits_of_a_stream(here: LanguageModelInC) -> None:
    stream = Stream(language_model(), 1)
    for symbol in [0, 7, V - 1, 7]:
        assert stream.logits(np.array([symbol]))[0].tobytes() == here.step(symbol).tobytes()
    before = here.state.copy()
    for outside in (-1, V, 2**31 - 1, -(2**31)):
        here.step(outside)
    assert here.state.tobytes() == before.tobytes()


@pytest.mark.parametrize("how", SETTINGS, ids=str)
def test_choices_are_those_of_python(here: LanguageModelInC, how: Sampling) -> None:
    rng = np.random.default_rng(0)
    for number in range(200):
        logits = (rng.standard_normal((1, V)) * 3).astype(np.float32)
        if number % 10 == 9:
            logits[0, ::2] = logits[0, 0]  # of equal ones the first
        seen = rng.random((1, V)) < 0.3
        u = random.ahead(torch.tensor([[2**40 + 5, number]]), 1).numpy()
        assert here.library.m_uniform(2**40 + 5, number) == u[0, 0]
        assert here.choose(how, logits, seen, u[0, 0]) == how.choose(logits, seen, u)[0]


@pytest.mark.parametrize("what", [np.nan, np.inf, -np.inf])
def test_a_choice_of_what_is_no_number_is_a_symbol(here: LanguageModelInC, what: float) -> None:
    for how in SETTINGS:
        logits = np.full((1, V), what, np.float32)
        assert 0 <= here.choose(how, logits, np.ones((1, V), bool), 0.5) < V


def test_a_state_of_python_goes_on_in_c_and_back(tmp_path: Path) -> None:
    names = ["lstm {} 19", "stack", "pool mean", "mamba {} 5", "hmm 9"]
    cores = [random_core(name) for name in names if name in CORES]
    modules = [module_of(core, f"m{i}") for i, core in enumerate(cores)]
    library = compiled(modules, tmp_path)
    for core, module in zip(cores, modules, strict=True):
        stream, here = Stream(core, 1), InC(library, module)
        x = np.random.default_rng(1).standard_normal((9, 1, core.input_size)).astype(np.float32)
        for given in x[:3]:
            stream.step(given)
        row = states.to_rows(stream.state)
        here.state = np.frombuffer(row.tobytes(), np.float32).copy()
        for given in x[3:6]:
            assert here.step(given).tobytes() == stream.step(given).tobytes()
        carried = states.from_rows(np.frombuffer(here.bytes, np.uint8)[None], core.init_state(1))
        other = Stream(core, 1)
        other.put([0], carried)
        for given in x[6:]:
            assert other.step(given).tobytes() == stream.step(given).tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_no_compiler_has_a_warning(compiler: str, tmp_path: Path) -> None:
    """Each file as it is exported; and all of them together, optimised, with and without fused multiply-adds."""
    if shutil.which(compiler) is None:
        pytest.skip(f"without {compiler}")
    modules = everything()
    for module in modules:
        (tmp_path / f"{module.name}.h").write_text(module.header())
        (tmp_path / f"{module.name}.c").write_text(module.source())
    (tmp_path / "all.c").write_text(together(modules))
    alone = ["-fsyntax-only", *(tmp_path / f"{module.name}.c" for module in modules)]
    for what in (
        alone,
        *(["-O2", kind, "-S", tmp_path / "all.c", "-o", "/dev/null"] for kind in ("-DNO_FMA=0", "-DNO_FMA=1")),
    ):
        ran = subprocess.run([compiler, *FLAGS, *what], capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr[:2000]


SUMS = """
#include <stdio.h>
static float x[256], y[4096], s[4096];
static uint32_t hash = 2166136261u;
static void add_bytes(const void *from, size_t bytes) {
  size_t i;
  for (i = 0; i < bytes; ++i) hash = (hash ^ ((const unsigned char *)from)[i]) * 16777619u;
}
static uint32_t seed = 1;
static float number(void) {
  seed = seed * 1664525u + 1013904223u;
  return ((float)(seed >> 8) / 16777216.0f - 0.5f) * 6.0f;
}
int main(void) {
  int t, i;
%s
  return 0;
}
"""
SUM = """  {n}_reset(s);
  for (t = 0; t < 30; ++t) {{
    for (i = 0; i < {input}; ++i) x[i] = number();
    {n}_step(s, x, y), add_bytes(y, 4 * {output}), add_bytes(s, {n}_state_bytes());
  }}
  printf("{n} %08x\\n", (unsigned)hash);"""


@pytest.mark.slow
@pytest.mark.parametrize("flag", ["-DLANES=8", "-DLANES=4", "-DNO_FMA=1"])
def test_another_processor_has_the_same_bits(flag: str, tmp_path: Path) -> None:
    """An ARM of 64 bits under qemu: outputs and states after every step, of every cell and word."""
    cross, qemu = shutil.which("aarch64-linux-gnu-gcc"), shutil.which("qemu-aarch64")
    if cross is None or qemu is None or platform.machine() != "x86_64":
        pytest.skip("without a compiler for aarch64 and qemu-user on x86-64")
    modules = [module for module in everything() if not module.program.symbols]
    sums = [SUM.format(n=m.name, input=m.program.given, output=m.y.width) for m in modules]
    (tmp_path / "sums.c").write_text(together(modules, SUMS % "\n".join(sums)))
    found = []
    for run, compiler, more in ([], "gcc", ["-mfma", "-mavx2"]), ([qemu], cross, ["-static"]):
        program = tmp_path / f"sums-{Path(compiler).name}"
        command = [compiler, *FLAGS, "-O2", flag, *more, tmp_path / "sums.c", "-o", program, "-lm"]
        subprocess.run(command, check=True)
        found.append(subprocess.run([*run, program], capture_output=True, text=True, check=True).stdout.splitlines())
    assert len(found[0]) == len(modules) and found[0] == found[1]


MAIN = """
#include <stdio.h>
#include <stdlib.h>
static float x[256], y[4096];
static void fill(void *to, size_t bytes, int kind) {
  size_t i;
  for (i = 0; i < bytes / 4; ++i) {
    uint32_t bits = (uint32_t)rand() << 16 ^ (uint32_t)rand();
    if (kind == 1) bits = 0x7FC00000u;
    if (kind == 2) bits = i %% 2 ? 0x7F800000u : 0xFF800000u;
    memcpy((char *)to + 4 * i, &bits, 4);
  }
}
int main(void) {
  int round;
  for (round = 0; round < 60; ++round) {
%s
  }
  return 0;
}
"""
CHOICE = """    {{ static unsigned char seen[{n}_OUTPUT]; static double room[{n}_CHOICE_ROOM]; static int32_t banned[3];
      float *s = malloc({m}_state_bytes() + 1); {m}_choice how; int32_t symbol;
      fill(s, {m}_state_bytes(), round % 3); fill(&how, sizeof how, round % 4); fill(banned, sizeof banned, 0);
      fill(y, sizeof y, round % 5); memcpy(&symbol, y, sizeof symbol);
      how.banned = banned, how.banned_count = round % 4, {m}_step(s, symbol, y), {m}_step(s, round % 23, y);
      symbol = {m}_choose(&how, y, seen, {m}_uniform(symbol, round), room); free(s);
      if (symbol < 0 || symbol >= {n}_OUTPUT) return 1; }}"""
CALL = """    {{ void *s = malloc({n}_state_bytes() + 1);
      fill(x, sizeof x, round % 4); {n}_reset(s); {n}_step(s, x, y);
      fill(s, {n}_state_bytes(), round % 3); {n}_step(s, x, y); {n}_step(s, x, y); free(s); }}"""


def test_no_state_makes_it_do_what_is_undefined(tmp_path: Path) -> None:
    """Random bytes, NaN and infinities as inputs and states, under the sanitizers of addresses and of the language."""
    modules = everything()
    calls = "\n".join(
        CHOICE.format(m=module.name, n=module.name.upper()) if module.chooses else CALL.format(n=module.name)
        for module in modules
    )
    (tmp_path / "fuzz.c").write_text(together(modules, MAIN % calls))
    sanitizers = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g1"]
    command = ["gcc", *FLAGS, *arch(), *sanitizers, tmp_path / "fuzz.c", "-o", tmp_path / "fuzz", "-lm"]
    subprocess.run(command, check=True)
    ran = subprocess.run([tmp_path / "fuzz"], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-2000:]
