"""`elman train` in processes that are killed, stopped by a signal, or several."""

import json
import os
import random
import resource
import signal
import time

import pytest
import torch
from processes import elman, start, wait_for_lines
from safetensors.torch import load_file

from elman.cli import main

CONFIG = """
task: lm
data: {batch_size: 4, window: 8}
model: {size: 12, layers: 2, dropout: 0.2}
optim: {lr: 0.02, warmup: 3}
training: {steps: 150, log_every: 3, evaluate_every: 50, checkpoint_every: 7}
preview: {tokens: 10}
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    (tmp_path / "text.txt").write_text("the cat sat on the mat; the dog sat on the log. " * 60)
    (tmp_path / "run.yaml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ELMAN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return tmp_path


# Kills the process in the middle of its n-th checkpoint: before the first rename, or between the two.
DYING = """
import os, signal, sys
from elman.files import artifact
from elman.cli import main
count, where = int(sys.argv[1]), sys.argv[2]
flush, sync = artifact._flush, artifact._sync
def dying_flush(folder):
    global count
    flush(folder)
    count -= folder.name == ".last.new"
    if count == 0 and where == "before":
        os.kill(os.getpid(), signal.SIGKILL)
rename = artifact.Path.rename
def dying_rename(self, target):
    rename(self, target)
    if count == 0 and where == "between" and self.name == "last":
        os.kill(os.getpid(), signal.SIGKILL)
artifact._flush = dying_flush
artifact.Path.rename = dying_rename
sys.exit(main(sys.argv[3:]))
"""


TRAIN = ("train", "--config", "run.yaml", "--data.train", "text.txt", "--resume", "auto")


@pytest.mark.slow
def test_a_killed_run_reaches_the_same_bytes(here):
    assert main([*TRAIN, "--out", "whole"]) == 0
    out = ("--out", "killed")
    for count, where in ((3, "before"), (2, "between")):
        assert elman(str(count), where, *TRAIN, *out, program=("-c", DYING))[0] == -signal.SIGKILL
    seed = int(os.environ.get("ELMAN_KILL_SEED", "0"))
    print(f"ELMAN_KILL_SEED={seed}")
    generator = random.Random(seed)
    instants = sorted(generator.sample(range(12, 50), 2))
    for lines in instants:
        process = start(*TRAIN, *out)
        wait_for_lines(here / "killed" / "metrics.jsonl", lines, process)
        time.sleep(generator.random() * 0.02)
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL, instants
    assert main([*TRAIN, *out]) == 0
    for name in (
        "metrics.jsonl",
        "samples.txt",
        "best/model.safetensors",
        "last/model.safetensors",
        "last/optimiser.safetensors",
    ):
        assert (here / "whole" / name).read_bytes() == (here / "killed" / name).read_bytes(), (name, instants)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="only Linux limits another process")
def test_a_full_disk_leaves_a_checkpoint_to_go_on_from(here):
    """No file may grow beyond 4 kB, while the run is going on: its next checkpoint does not fit."""
    assert main([*TRAIN, "--out", "whole", "--training.steps", "300"]) == 0
    process = start(*TRAIN, "--out", "run", "--training.steps", "300")
    wait_for_lines(here / "run" / "metrics.jsonl", 10, process)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (4096, 4096))
    _, err = process.communicate(timeout=120)
    assert process.returncode == 2 and "Traceback" not in err
    assert "cannot write" in err and "Free some space" in err
    assert not (here / "run" / ".last.new").exists()
    assert main([*TRAIN, "--out", "run", "--training.steps", "300"]) == 0
    for name in ("metrics.jsonl", "samples.txt", "best/model.safetensors", "last/model.safetensors"):
        assert (here / "whole" / name).read_bytes() == (here / "run" / name).read_bytes(), name


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_writes_a_checkpoint_and_says_how_to_go_on(here, number, code):
    process = start(*TRAIN, "--out", "run", "--training.steps", "100000")
    wait_for_lines(here / "run" / "metrics.jsonl", 5, process)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert "elman train --out run --resume auto" in err and "Traceback" not in err
    assert json.loads((here / "run" / "last" / "training.json").read_text())["advance"]["step"] >= 15


TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


@pytest.mark.slow
def test_two_processes_that_were_killed_reach_the_same_bytes(here):
    """Dropout is on: each process has random numbers of its own. The states are complex numbers."""
    (here / "dying.py").write_text(DYING)
    changes = ("--model.cell", "lru", "--model.size", "7", "--training.steps", "30", "--training.evaluate_every", "15")
    assert elman(*TRAIN, *changes, "--out", "whole", program=(*TORCHRUN, "-m", "elman"))[0] == 0
    dead = elman("3", "before", *TRAIN, *changes, "--out", "killed", program=(*TORCHRUN, "dying.py"))
    assert dead[0] != 0 and json.loads((here / "killed/last/training.json").read_text())["advance"]["step"] < 30
    code, _, err = elman("train", "--out", "killed", "--resume", "auto", program=(*TORCHRUN, "-m", "elman"))
    assert code == 0, err
    for name in ("metrics.jsonl", "samples.txt", "best/model.safetensors", "last/optimiser.safetensors"):
        assert (here / "whole" / name).read_bytes() == (here / "killed" / name).read_bytes(), name


@pytest.mark.slow
def test_two_processes_give_what_one_gives(here):
    torchrun = (*TORCHRUN, "-m", "elman")
    changes = (
        "--model.dropout",
        "0",
        "--model.dtype",
        "float64",
        "--training.steps",
        "20",
        "--training.accumulate",
        "2",
    )
    code, _, err = elman(*TRAIN, *changes, "--out", "two", program=torchrun)
    assert code == 0, err
    assert main([*TRAIN, *changes, "--out", "one"]) == 0
    one, two = (load_file(here / name / "last" / "model.safetensors") for name in ("one", "two"))
    torch.testing.assert_close(two, one, rtol=1e-9, atol=1e-12)
    lines = [[json.loads(line) for line in (here / name / "metrics.jsonl").open()] for name in ("one", "two")]
    assert [list(line) for line in lines[0]] == [list(line) for line in lines[1]]
    more = ("--training.steps", "20", "--out", "two")
    assert main([*TRAIN, *changes, *more]) == 2  # written by two, resumed by one: refused


STARTED = """
import gc, sys
from elman.cli import main
code = main(sys.argv[1:])
slow = {"torch._dynamo", "sympy"} & set(sys.modules)
print(code, sorted(slow), gc.isenabled(), gc.get_freeze_count() > 100_000)
"""


@pytest.mark.slow
def test_a_run_does_not_import_torchs_compiler():
    """That takes longer than all else that is done before the first step."""
    settings = ("train", "--config", "run.yaml", "--data.train", "text.txt", "--training.steps", "2")
    _, out, err = elman(*settings, program=("-c", STARTED))
    assert out.splitlines()[-1] == "0 [] True True", err
