"""elman doctor: it reports what is there, and finds a kernel that computes something else."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch

import elman
from elman import kernels
from elman.cli import doctor, main

native = pytest.mark.skipif("native" not in kernels.available(), reason="the native kernels are not built")


def test_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is True
    assert report["versions"]["elman"] == elman.__version__ and report["versions"]["torch"] == torch.__version__
    assert report["machine"]["threads"] == torch.get_num_threads()
    assert report["kernels"]["in_use"] == kernels.active()
    assert report["kernels"]["instruction_set"] == kernels.isa()
    assert all(check["ok"] and check["worst_error"] < 1e-5 for check in report["checks"])


@native
def test_every_native_operation_is_checked() -> None:
    ours = {
        name.removeprefix("elman::") for name in torch._C._dispatch_get_all_op_names() if name.startswith("elman::")
    }
    before = kernels.calls()
    rows = list(doctor.self_check())
    called = {op for op, count in kernels.calls().items() if count > before.get(op, 0)}
    assert called == ours, "an operation that elman doctor does not try"
    assert {row["runs_on"] for row in rows} == {"native"}


def test_without_native_kernels_it_says_why_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("ELMAN_NATIVE", raising=False)
    monkeypatch.setenv("ELMAN_ISA", "baseline")  # of kernels that are not there: it forbids nothing
    monkeypatch.setattr(kernels, "_native", None)
    monkeypatch.setattr(kernels, "_table", kernels.reference)
    monkeypatch.setattr(kernels, "_why", "the native module is not built")
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "the native module is not built. Install a C++ compiler" in out and "ELMAN_NATIVE=1" in out


@native
@pytest.mark.parametrize("isa", ["foo", kernels.isa().upper()])
def test_an_unknown_instruction_set_is_an_error_and_not_the_reference_kernels(isa: str) -> None:
    env = {name: value for name, value in os.environ.items() if name != "ELMAN_NATIVE"} | {"ELMAN_ISA": isa}
    say = f"ELMAN_ISA is '{isa}', but this machine runs only: {', '.join(kernels.isas())}."
    python = [sys.executable, "-c", "import elman; elman.cell('gru', 2, 3)"]
    for command, code in ([sys.executable, "-m", "elman", "laws"], 2), (python, 1):
        ran = subprocess.run(command, env=env, capture_output=True, text=True)
        assert ran.returncode == code and say in ran.stderr, command
    ran = subprocess.run([sys.executable, "-m", "elman", "doctor"], env=env, capture_output=True, text=True)
    assert ran.returncode == 1 and f"No kernels run: {say}" in ran.stdout and not ran.stderr
    assert "not built" not in ran.stdout and "Kernels in use against" not in ran.stdout


@pytest.mark.parametrize("broken", ["linear", "linear_scan", "tanh", "reverse"])
def test_a_wrong_kernel_is_found(
    broken: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = getattr(kernels, broken)

    def wrong(*arguments: torch.Tensor) -> object:
        result = right(*arguments)
        if kernels.active() == "reference" and arguments[0].dtype in (torch.float64, torch.complex128):
            return result  # the oracle stays right
        return (result[0] * 1.001, result[1]) if isinstance(result, tuple) else result * 1.001

    monkeypatch.setattr(kernels, broken, wrong)
    assert main(["doctor"]) == 1
    assert "FAIL" in capsys.readouterr().out


def test_a_kernel_that_raises_does_not_stop_the_report(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = kernels.silu

    def raises(x: torch.Tensor) -> torch.Tensor:
        if x.dtype == torch.float32:
            raise RuntimeError("illegal instruction")
        return right(x)

    monkeypatch.setattr(kernels, "silu", raises)
    assert main(["doctor", "--json"]) == 1
    (failed,) = [check for check in json.loads(capsys.readouterr().out)["checks"] if not check["ok"]]
    assert failed["error"] == "RuntimeError: illegal instruction" and failed["worst_error"] is None


@pytest.mark.parametrize(
    ("load", "threads", "says"),
    [(0.3, 2, False), (0.5, 2, False), (1.4, 2, True), (1.4, 1, False), (None, 2, False)],
)
def test_it_says_when_the_machine_is_loaded(load: float | None, threads: int, says: bool) -> None:
    notes = doctor.notes({"load": load, "cores": 2, "threads": threads})
    assert any("The machine is loaded: 1.4 other threads" in note and "--threads 1 " in note for note in notes) == says


@pytest.mark.slow
def test_it_knows_what_a_fork_does(capsys: pytest.CaptureFixture[str]) -> None:
    before = torch.get_num_threads()
    try:
        assert main(["doctor", "--json", "--threads", "2"]) == 0
    finally:
        torch.set_num_threads(before)
    report = json.loads(capsys.readouterr().out)
    assert report["machine"]["threads"] == 2
    assert any("forked" in note and "spawn" in note and "set_num_threads(1)" in note for note in report["notes"])


@pytest.mark.parametrize("given", [["--threads", "0"], ["--threads=two"], ["--threads"]])
def test_threads_that_are_no_number_are_refused(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", *given]) == 2
    assert "threads" in capsys.readouterr().err
