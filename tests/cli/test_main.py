"""The command as a person meets it: in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

import elman
from elman.cli import VERBS, main

SCRIPT = """
import sys
from elman.cli import main
try:
    main({arguments})
finally:
    {after}
"""


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "elman", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, timeout=120)


def test_help_names_every_verb_and_does_not_import_torch(capsys: pytest.CaptureFixture[str]) -> None:
    code = SCRIPT.format(arguments=["--help"], after="print(sorted(sys.modules), file=sys.stderr)")
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    with capsys.disabled():  # a figure, not a test: a busy machine takes longer
        print(f"\nelman --help: {time.perf_counter() - start:.2f} s")
    assert done.returncode == 0
    assert all(f"  {verb} " in done.stdout for verb in VERBS)
    assert "'elman.cli'" in done.stderr
    for heavy in ("torch", "numpy", "rich", "jsonargparse"):
        assert f"'{heavy}'" not in done.stderr


@pytest.mark.parametrize("verb", ["doctor", "laws"])
def test_help_for_a_verb_does_not_import_torch(verb: str) -> None:
    code = SCRIPT.format(arguments=[verb, "--help"], after="assert 'torch' not in sys.modules")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"usage: elman {verb}")


def test_version() -> None:
    assert run("--version").stdout == f"elman {elman.__version__}\n"


def test_without_a_verb_there_is_help_and_an_error_code() -> None:
    done = run()
    assert done.returncode == 2 and not done.stdout and "verbs:" in done.stderr


def test_an_unknown_verb_is_an_error_that_names_the_nearest() -> None:
    done = run("dokter")
    assert done.returncode == 2 and not done.stdout
    assert (
        done.stderr
        == f"elman: error: unknown verb 'dokter'; there are {', '.join(sorted(VERBS))}. Did you mean 'doctor'?\n"
    )


@pytest.mark.slow
def test_a_key_press_ends_it_quietly() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "elman", "laws"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell starts jobs in the background deaf to it, and so would be these tests and all their children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stderr is not None
    process.stderr.readline()  # progress: it is at work
    process.send_signal(signal.SIGINT)
    output, messages = process.communicate(timeout=60)
    assert process.returncode == 130 and not output and "Traceback" not in messages


@pytest.mark.slow
def test_a_reader_that_goes_away_is_no_error() -> None:
    command = f"{sys.executable} -m elman doctor --json | head -n 1"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True, timeout=120)
    assert done.stdout == "{\n" and not done.stderr


def test_an_error_is_one_line_and_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["laws", "lstn"]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.startswith("elman: error: unknown cell 'lstn'; there are ") and "Did you mean 'lstm'?" in err
