"""The flags of every verb: a cell of one's own on the command line, trained, resumed and used by its name; threads."""

import json
import os
import platform
import subprocess
import sys

import pytest
import torch

import elman
from elman.cells import CELLS
from elman.cli import flags, main
from elman.errors import FileError, InputError
from elman.files import plugins

LEAKY = """
import torch
from elman import CELLS, Core, kernels


class Leaky(Core):
    def __init__(self, input_size, size):
        super().__init__(input_size, size)
        self.U = torch.nn.Parameter(torch.randn(size, input_size))

    def init_state(self, batch_size):
        return self.zeros(batch_size, self.output_size)

    def step(self, x, h):
        h = 0.9 * h + kernels.tanh(kernels.linear(x, self.U))
        return h, h


CELLS["leaky"] = Leaky
"""
TRAIN = (
    "train", "--model.cell", "leaky", "--model.size", "8", "--model.layers", "1", "--training.steps", "2",
    "--out", "run", "--data.batch_size", "2", "--data.window", "8", "--preview.tokens", "0", "--data.train", "text.txt",
)  # fmt: skip


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    (tmp_path / "text.txt").write_text("the cat sat on the mat. " * 40)
    (tmp_path / "leaky.py").write_text(LEAKY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ELMAN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    monkeypatch.setattr(plugins, "_loaded", [])
    monkeypatch.setitem(CELLS, "leaky", elman.Core)  # so that it is as it was afterwards
    forget()
    yield tmp_path
    forget()


def forget():
    """As in a new process."""
    sys.modules.pop("leaky", None)
    CELLS.pop("leaky", None)
    plugins._loaded.clear()


def test_a_cell_of_ones_own_is_trained_resumed_and_used(here, capfd):
    assert main(list(TRAIN)) == 2
    assert "unknown cell 'leaky'" in capfd.readouterr().err
    assert main([*TRAIN, "--import", "leaky"]) == 0
    assert json.loads((here / "run/best/model.json").read_text())["imports"] == ["leaky"]
    forget()
    capfd.readouterr()
    assert main(["train", "--out", "run", "--resume", "auto"]) == 0
    assert "elman: importing leaky, which run" in capfd.readouterr().err
    for verb in (["generate", "run"], ["evaluate", "run", "text.txt"]):
        forget()
        assert main(verb) == 2, verb
        assert "import it first, on the command line by --import leaky" in capfd.readouterr().err
        assert "leaky" not in sys.modules
        assert main([*verb, "--import", "leaky"]) == 0, verb
    forget()
    capfd.readouterr()
    with pytest.raises(FileError, match="run needs what leaky adds: import it first"):
        elman.load("run")
    assert "leaky" not in sys.modules  # loading a file runs no code
    (here / "leaky.py").unlink()
    assert main(["generate", "run", "--import", "leaky"]) == 2
    assert "cannot import leaky: there is no module leaky on the path" in capfd.readouterr().err


def test_every_verb_takes_it(here, capfd):
    assert main(["laws", "leaky", "--kernels", "reference", "--import=leaky"]) == 0
    assert "leaky" in capfd.readouterr().out
    assert main(["init", "lm", "--import", "leaky"]) == 0
    assert 'imports: ["leaky"]' in capfd.readouterr().out


@pytest.mark.parametrize(
    ("text", "message"),
    [("import nothing_such", "no module nothing_such"), ("1 / 0", "ZeroDivisionError"), ("(", "SyntaxError")],
)
def test_a_module_that_cannot_be_imported_is_one_line(here, capfd, text, message):
    (here / "leaky.py").write_text(text)
    assert main(["init", "lm", "--import", "leaky"]) == 2
    said = capfd.readouterr().err
    assert said.startswith("elman: error: cannot import leaky: ") and message in said and said.count("\n") == 1
    assert main(["init", "lm", "--import"]) == 2
    assert "expected one argument" in capfd.readouterr().err
    (here / "run.yaml").write_text("imports: leaky\n")
    assert main(["train", "--config", "run.yaml"]) == 2
    assert "imports in run.yaml is 'leaky'; it must be a list" in capfd.readouterr().err


@pytest.fixture(autouse=True)
def as_before():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_a_verb_does_not_see_it_and_a_run_does(capsys):
    assert flags.pop_flags("evaluate", ["run", "--threads", "2", "text.txt"]) == ["run", "text.txt"]
    assert torch.get_num_threads() == 2
    assert flags.pop_flags("laws", ["--threads=1"]) == [] and torch.get_num_threads() == 1
    assert flags.pop_flags("train", ["--threads", "2"]) == ["--threads", "2"] and torch.get_num_threads() == 1
    with pytest.raises(InputError, match="threads is '-1'"):
        flags.pop_flags("laws", ["--threads=-1"])
    for many in "257", "100000":  # OpenMP would crash
        with pytest.raises(InputError, match=f"threads is {many}; it must be .* at least 1 and at most 256"):
            flags.pop_flags("laws", ["--threads", many])
    assert torch.get_num_threads() == 1
    assert main([*TRAIN, "--threads", "100000", "--import", "leaky"]) == 2
    assert "threads is 100000; it must be a whole number of at least 0 and at most 256" in capsys.readouterr().err


KEEPING = """
from pathlib import Path
from elman.cli import flags
resident = lambda: int(Path("/proc/self/statm").read_text().split()[1]) * 4096 >> 20
flags.keep_memory()
before = resident()
blocks = [bytes(1) * (30 << 20) for _ in range(6)]
there = resident() - before
del blocks[:3]
del blocks
print(there, resident() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is glibc that is asked")
@pytest.mark.parametrize(
    ("named", "kept"),
    [({}, True), ({"MALLOC_ARENA_MAX": "1"}, True), ({"MALLOC_TOP_PAD_": "0"}, False),
     ({"GLIBC_TUNABLES": "glibc.malloc.tcache_count=7"}, False), ({"GLIBC_TUNABLES": "glibc.rtld.nns=4"}, True)],
)  # fmt: skip
def test_memory_of_large_tensors_is_kept_unless_someone_says_otherwise(named, kept):
    """180 MB of which 256 may be free at the end of the heap; by itself glibc gives blocks of 30 MB back at once."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    command = [sys.executable, "-c", KEEPING]
    done = subprocess.run(command, env=environment | named, capture_output=True, text=True, check=True)
    there, left = map(int, done.stdout.split())
    assert there >= 175 and (left >= 170 if kept else left <= 40), done.stdout


def test_what_trains_keeps_memory(monkeypatch):
    asked = []
    monkeypatch.setattr(flags, "keep_memory", lambda: asked.append(1))
    for verb in ("evaluate", "serve", "train", "search", "predict"):
        flags.pop_flags(verb, [])
    assert len(asked) == 2


def test_idle_threads_sleep_early_unless_someone_says_otherwise(monkeypatch):
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.delenv(name, raising=False)
    flags.sleep_early()
    assert "GOMP_SPINCOUNT" not in os.environ  # Torch is there already: too late
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    flags.sleep_early()
    assert "GOMP_SPINCOUNT" not in os.environ
    monkeypatch.delenv("OMP_WAIT_POLICY")
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    flags.sleep_early()
    assert os.environ["GOMP_SPINCOUNT"] == "7"
    monkeypatch.delenv("GOMP_SPINCOUNT")
    flags.sleep_early()
    assert os.environ.pop("GOMP_SPINCOUNT") == "1000"
