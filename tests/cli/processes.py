"""Commands in processes of their own."""

import subprocess
import sys
import time


def start(*arguments, program=("-m", "elman")):
    """A command of its own process: `python -m elman`, or another program."""
    return subprocess.Popen(
        [sys.executable, *program, *arguments], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def elman(*arguments, program=("-m", "elman")):
    process = start(*arguments, program=program)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def wait_for_lines(path, lines, process):
    until = time.monotonic() + 90
    while process.poll() is None and time.monotonic() < until:
        if path.exists() and path.read_bytes().count(b"\n") >= lines:
            return
        time.sleep(0.002)
