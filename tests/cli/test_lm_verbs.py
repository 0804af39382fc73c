"""The language-model verbs as a person types them, in processes of their own."""

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from elman.cli import main

TEXT = "the cat sat on the mat; the dog sat on the log. " * 60

CONFIG = """
task: lm
data: {batch_size: 4, window: 8}
model: {size: 12, layers: 2, dropout: 0.2}
optim: {lr: 0.02, warmup: 3}
training: {steps: 150, log_every: 3, evaluate_every: 50, checkpoint_every: 7}
preview: {tokens: 10}
"""

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


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "text.txt").write_text(TEXT)
    (tmp_path / "run.yaml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ELMAN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return tmp_path


def start(*arguments, program=("-m", "elman")):
    return subprocess.Popen(
        [sys.executable, *program, *arguments], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def elman(*arguments, program=("-m", "elman")):
    process = start(*arguments, program=program)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


COUNT = ("train", "--task", "markov", "--data.train", "text.txt")
TRAIN = ("train", "--config", "run.yaml", "--data.train", "text.txt", "--resume", "auto")


def wait_for_lines(path, lines, process):
    until = time.monotonic() + 90
    while process.poll() is None and time.monotonic() < until:
        if path.exists() and path.read_bytes().count(b"\n") >= lines:
            return
        time.sleep(0.002)


@pytest.mark.slow
def test_a_killed_run_reaches_the_same_bytes(here):
    assert elman(*TRAIN, "--out", "whole")[0] == 0
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
    assert elman(*TRAIN, *out)[0] == 0
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
    assert elman(*TRAIN, "--out", "whole", "--training.steps", "300")[0] == 0
    process = start(*TRAIN, "--out", "run", "--training.steps", "300")
    wait_for_lines(here / "run" / "metrics.jsonl", 10, process)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (4096, 4096))
    _, err = process.communicate(timeout=120)
    assert process.returncode == 2 and "Traceback" not in err
    assert "cannot write" in err and "Free some space" in err
    assert not (here / "run" / ".last.new").exists()
    assert elman(*TRAIN, "--out", "run", "--training.steps", "300")[0] == 0
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
@pytest.mark.parametrize("cell", ["gru", "lru"])
def test_two_processes_that_were_killed_reach_the_same_bytes(here, cell):
    """Dropout is on: each process has random numbers of its own."""
    (here / "dying.py").write_text(DYING)
    changes = ("--model.cell", cell, "--model.size", "7", "--training.steps", "30", "--training.evaluate_every", "15")
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


@pytest.mark.slow
def test_a_terminal_that_knows_only_ascii_shows_question_marks(here, monkeypatch):
    (here / "text.txt").write_text("né à côté " * 300)
    assert main([*COUNT, "--model.order", "2", "--out", "run"]) == 0
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    code, out, err = elman("generate", "run", "--prompt", "né", "--max_new_tokens", "3")
    assert (code, err) == (0, "") and out.startswith("n? ")


def test_what_evaluate_says_about_invalid_text_can_be_done(here, capfd):
    assert main([*COUNT, "--model.order", "2", "--out", "run"]) == 0
    (here / "bad.txt").write_bytes(b"the \xff cat")
    assert main(["evaluate", "run", "bad.txt"]) == 2
    assert "Pass --data.errors replace" in capfd.readouterr().err
    assert main(["evaluate", "run", "bad.txt", "--data.errors", "replace"]) == 0


def test_the_verbs_together(here, capfd):
    assert main(["init", "lm"]) == 0
    Path("full.yaml").write_text(capfd.readouterr().out)
    small = ("--model.size", "8", "--training.steps", "80", "--data.batch_size", "2", "--data.window", "8")
    assert main(["train", "--config", "full.yaml", "--data.train", "text.txt", "--out", "run", *small]) == 0
    capfd.readouterr()
    assert main(["evaluate", "run", "text.txt", "--json"]) == 0
    score = json.loads(capfd.readouterr().out)
    assert score["tokens"] == len(TEXT) and score["nats_per_token"] == pytest.approx(score["nats"] / len(TEXT))
    assert main(["evaluate", "run", "text.txt", "text.txt", "--chunk", "5"]) == 0
    assert "perplexity" in capfd.readouterr().out
    common = ["generate", "run", "--prompt", "the ", "--seed", "7", "--temperature", "0.3"]
    assert main([*common, "--max_new_tokens", "20"]) == 0
    whole = capfd.readouterr().out
    assert main([*common, "--max_new_tokens", "8", "--save_state", "here.safetensors"]) == 0
    first = capfd.readouterr().out
    assert main([*common, "--max_new_tokens", "9", "--save_state", "here.safetensors"]) == 2
    assert "here.safetensors exists" in capfd.readouterr().err
    assert main([*common, "--max_new_tokens", "8", "--save_state", "here.safetensors", "--force"]) == 0
    assert capfd.readouterr().out == first
    go_on = ["generate", "run", "--temperature", "0.3", "--state", "here.safetensors", "--max_new_tokens", "12"]
    assert main(go_on) == 0
    assert first.removesuffix("\n") + capfd.readouterr().out == whole
    assert main(["generate", "run", "--num_beams", "3", "--prompt", "the", "--json", "--max_new_tokens", "3"]) == 0
    made = json.loads(capfd.readouterr().out)
    assert (made["prompt"], len(made["text"]), made["finish_reason"]) == ("the", 3, "length")
    assert main(["train", "--out", "run", "--resume", "auto"]) == 0  # it has its own config


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--model.siz", "3", "--training.steps", "1"], "model.size"),
        (["train", "--config", "bad.yaml"], "model.size"),
        (["train", "--config", "top.yaml"], "model.size"),
        (["train", "--config", "list.yaml"], "in list.yaml, data is [1], which is not a mapping"),
        (["train", "--data.train", "text.txt", "--out", "x" * 300], "File name too long"),
        (
            ["train", "--data.train", "text.txt", "--out", "a", "--model.size", "1000000000"],
            "--model.size is 1000000000",
        ),
        (["train", "--config", "none.yaml"], "none.yaml"),
        (["train", "--config", "latin.txt"], "cannot read the config latin.txt"),
        (["train", "--model.size", "large"], "large"),
        (["train", "--lr", "0.1"], "Did you mean 'optim.lr'?"),
        (["train", "--model.lr", "0.1"], "Did you mean 'optim.lr'?"),
        (["train", "--data.train", "none.txt"], "no file or folder none.txt"),
        (["train", "--data.train", "latin.txt"], "byte 3 (line 1) is 0xe9"),
        (["train", "--data.train", "empty.txt"], "empty"),
        (["train", "--data.train", "text.txt", "--out", "."], "exists"),
        (["evaluate", "nothing", "text.txt"], "no folder nothing"),
        (["evaluate", ".", "text.txt"], "no elman-model"),
        (["generate", "nothing"], "no folder nothing"),
        (["init", "lmm"], "Did you mean 'lm'"),
    ],
)
def test_bad_input_is_one_clear_line(here, capfd, arguments, message):
    (here / "latin.txt").write_bytes("café au lait".encode("latin-1"))
    (here / "empty.txt").write_bytes(b"")
    (here / "bad.yaml").write_text("model: {siz: 3}\n")
    (here / "top.yaml").write_text("modle: {size: 3}\n")
    (here / "list.yaml").write_text("data: [1]\n")
    assert main(arguments) == 2
    captured = capfd.readouterr()
    assert message in captured.err and "Traceback" not in captured.err and captured.out == ""


def test_generate_says_what_a_user_would_wonder_about(here, capfd):
    (here / "text.txt").write_text("to be\nor not to be\n" * 40)
    words = ("--data.vocabulary", "word", "--data.unit", "lines", "--model.order", "2")
    assert main([*COUNT, *words, "--out", "run"]) == 0
    capfd.readouterr()
    assert main(["generate", "run", "--prompt", "zebra to", "--temperature", "0"]) == 0
    out, err = capfd.readouterr()
    assert out == "zebra to be\n"
    assert err.splitlines() == [
        "elman: warning: the prompt has 'zebra', which the vocabulary lacks: the model reads <unk> in its place",
        "the model ended the text here",
    ]
