"""A task that no file of ours knows (counted_bits.py) goes through the command line: trained, killed, resumed, used."""

import json
import signal
import time
from pathlib import Path

import pytest
from interrupting import same_files
from processes import start

from elman.cli import main
from elman.tasks import TASKS

HERE = Path(__file__).parent
PROGRAM = "import sys, counted_bits; from elman.cli import main; sys.exit(main())"
TRAIN = (
    "train", "--task", "bits", "--optim.lr", "0.02", "--training.steps", "400", "--training.evaluate_every", "100",
    "--training.checkpoint_every", "7", "--training.log_every", "5", "--resume", "auto",
)  # fmt: skip


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.setitem(TASKS, "bits", None)  # to be forgotten afterwards
    import counted_bits

    TASKS["bits"] = counted_bits.task
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return tmp_path


@pytest.mark.slow
def test_it_is_trained_killed_resumed_evaluated_and_used(here, capfd):
    assert main([*TRAIN, "--out", "whole"]) == 0
    said = capfd.readouterr()
    assert "a counter" in said.out and "Try: elman predict whole DATA" in said.err and "rows/s" in said.err
    process = start(*TRAIN, "--out", "killed", program=("-c", PROGRAM))
    until = time.monotonic() + 90
    while not (here / "killed" / "last").exists() and time.monotonic() < until:
        time.sleep(0.01)
    time.sleep(0.3)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert json.loads((here / "killed/last/training.json").read_text())["advance"]["step"] < 400
    assert main(["train", "--out", "killed", "--resume", "auto", "--task", "bits"]) == 0
    assert same_files("whole", "killed")

    lines = [json.loads(line) for line in (here / "whole" / "metrics.jsonl").open()]
    valid = [line["valid"] for line in lines if "valid" in line]
    training = json.loads((here / "whole/last/training.json").read_text())
    assert training["advance"]["best"] == max(valid) > 0.8  # larger is better; chance is one half
    capfd.readouterr()
    assert main(["evaluate", "killed", "77", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["accuracy"] > 0.8
    for bits, answer in (("1110111", "1\n"), ("0001000", "0\n")):
        assert main(["predict", "killed", bits]) == 0 and capfd.readouterr() == (answer, "")
    assert main(["generate", "killed"]) == 2
    said = capfd.readouterr().err
    assert "a counter of bits" in said and "`elman predict`, `elman evaluate`" in said
