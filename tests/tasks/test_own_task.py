"""A task that no file of ours knows (counted_bits.py) goes through the command line: trained, killed, resumed, used."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PROGRAM = "import sys, counted_bits; from elman.cli import main; sys.exit(main())"
TRAIN = (
    "train", "--task", "bits", "--optim.lr", "0.02", "--training.steps", "400", "--training.evaluate_every", "100",
    "--training.checkpoint_every", "7", "--training.log_every", "5", "--resume", "auto",
)  # fmt: skip


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return tmp_path


def start(*arguments):
    command = [sys.executable, "-c", PROGRAM, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def elman(*arguments):
    process = start(*arguments)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def test_it_is_short():
    assert len((HERE / "counted_bits.py").read_text().splitlines()) < 80


@pytest.mark.slow
def test_it_is_trained_killed_resumed_evaluated_and_used(here):
    code, out, err = elman(*TRAIN, "--out", "whole")
    assert code == 0, err
    assert "a counter" in out and "Try: elman predict whole DATA" in err and "rows/s" in err
    process = start(*TRAIN, "--out", "killed")
    until = time.monotonic() + 90
    while not (here / "killed" / "last").exists() and time.monotonic() < until:
        time.sleep(0.01)
    time.sleep(0.3)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert json.loads((here / "killed/last/training.json").read_text())["advance"]["step"] < 400
    code, _, err = elman("train", "--out", "killed", "--resume", "auto", "--task", "bits")
    assert code == 0, err
    for name in ("metrics.jsonl", "best/model.safetensors", "last/model.safetensors", "last/optimiser.safetensors"):
        assert (here / "whole" / name).read_bytes() == (here / "killed" / name).read_bytes(), name

    lines = [json.loads(line) for line in (here / "whole" / "metrics.jsonl").open()]
    valid = [line["valid"] for line in lines if "valid" in line]
    training = json.loads((here / "whole/last/training.json").read_text())
    assert training["advance"]["best"] == max(valid) > 0.8  # larger is better; chance is one half
    code, out, _ = elman("evaluate", "killed", "77", "--json")
    assert code == 0 and json.loads(out)["accuracy"] > 0.8
    assert elman("predict", "killed", "1110111")[1:] == ("1\n", "")
    assert elman("predict", "killed", "0001000")[1] == "0\n"
    code, _, err = elman("generate", "killed")
    assert code == 2 and "a counter of bits" in err and "`elman predict`, `elman evaluate`" in err
