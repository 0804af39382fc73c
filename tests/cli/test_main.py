"""The command as a person meets it: in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

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


@pytest.mark.parametrize("verb", ["convert", "doctor", "export", "laws", "search"])
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


def hear_key_presses() -> None:
    """A shell starts jobs in the background deaf to them, and so would be these tests and all their children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.slow
def test_a_key_press_ends_it_quietly() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "elman", "laws"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=hear_key_presses,
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


def closed(stream: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command with one of its streams closed, or full, as a shell does it."""
    command = f"{sys.executable} -m elman {' '.join(arguments)} {stream}"
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    ("stream", "message"),
    [(">&-", "elman: error: standard output is closed"), (">/dev/full", "elman: error: [Errno 28] No space left")],
)
def test_a_standard_output_that_takes_nothing_is_one_line(stream: str, message: str) -> None:
    done = closed(stream, "init", "lm")
    assert done.returncode == 2 and done.stderr.startswith(message) and done.stderr.count("\n") == 1


@pytest.mark.slow
def test_a_closed_standard_error_or_input(tmp_path: Path) -> None:
    done = closed("2>&-", "init", "lm")
    assert done.returncode == 0 and done.stdout.startswith("# what is trained")
    done = closed("<&-", "train", "--data.train", "-", "--out", str(tmp_path / "run"))
    assert done.returncode == 2 and done.stderr.startswith("elman: error: standard input is closed")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), "not enough memory for this; --num_beams is 1000000: try a smaller one"),
        (
            RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"),
            "--num_beams is 1000000",
        ),
        (RuntimeError("Storage size calculation overflowed with sizes=[3, 4]"), "--num_beams is 1000000"),
        (RecursionError(), "nested too deeply"),
        (OSError(36, "File name too long", "xxx"), "File name too long: 'xxx'"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_the_last_net(
    error: Exception, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(arguments: object) -> int:
        raise error

    monkeypatch.setattr("elman.cli.laws.run", fail)
    assert main(["laws", "--num_beams=1000000", "--seed", "7"]) == 2
    assert said in capsys.readouterr().err
    monkeypatch.setattr(error, "args", ("a bug of ours",))
    if type(error) is RuntimeError:
        with pytest.raises(RuntimeError, match="a bug"):
            main(["laws"])


SWALLOWS = """
import os, signal
try:
    os.kill(os.getpid(), signal.SIGINT)
except BaseException:
    pass
"""


def test_a_key_press_during_an_import_is_not_swallowed(tmp_path: Path) -> None:
    (tmp_path / "swallows.py").write_text(SWALLOWS)
    code = "from elman.cli import interruptible\nwith interruptible():\n    import swallows\nprint('went on')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=60,
        preexec_fn=hear_key_presses,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_an_error_is_one_line_and_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["laws", "lstn"]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.startswith("elman: error: unknown cell 'lstn'; there are ") and "Did you mean 'lstm'?" in err
