"""elman doctor: check what is installed, which kernels run, and whether they compute the right thing."""

from __future__ import annotations

import argparse
import math
import os
import platform
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from elman import __version__
from elman.cli.output import brief, print_json, print_table
from elman.errors import KernelError
from elman.tables import Table

if TYPE_CHECKING:
    from elman.files.artifact import Content

# What decides which kernels can run, of all that a processor can do.
FEATURES = ("sse4_2", "avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl", "asimd", "sve")

REMEDY = (
    "Install a C++ compiler (g++ or clang) and then Elman again, with ELMAN_NATIVE=1 in the environment, so that a "
    "build error is shown. Until then everything works on the reference kernels, only slower."
)

FORK = (
    "A process that is forked after Torch has computed on several threads hangs in Torch's own operations (native "
    "kernels run on one thread there). Start processes with multiprocessing's spawn, or call torch.set_num_threads(1) "
    "first thing in the child."
)


def run(arguments: Sequence[str]) -> int:
    """Print the report; 1 if a kernel is wrong, or none can run."""
    parsed = parser().parse_args(arguments)
    here = machine()  # before the checks, which load it
    kernels = kernels_in_use()
    checks = list(self_check()) if kernels["in_use"] else []
    ok = bool(checks) and all(check["ok"] for check in checks)
    report = {
        "versions": versions(), "machine": here, "notes": notes(here), "kernels": kernels, "checks": checks, "ok": ok,
    }  # fmt: skip
    if parsed.json:
        print_json(report)
    else:
        _print(report)
    return 0 if ok else 1


def parser() -> argparse.ArgumentParser:
    """What it takes."""
    parser = argparse.ArgumentParser(prog="elman doctor", description=__doc__.partition(": ")[2] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="the report as JSON on standard output")
    return parser


def versions() -> dict[str, str]:
    """What runs here."""
    import numpy
    import torch

    return {
        "elman": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
    }


def machine() -> Content:
    """The processor and how much of it Torch uses."""
    import torch

    info = _cpuinfo()
    flags = info.get("flags", info.get("Features", "")).split()
    affinity = getattr(os, "sched_getaffinity", None)  # Linux only: what this process may use, in a container too
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": info.get("model name") or platform.processor() or "unknown",
        "features": [feature for feature in FEATURES if feature in flags],
        "cores": len(affinity(0)) if affinity else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    }


def notes(machine: Content) -> list[str]:
    """What to know about several threads on this machine."""
    load, cores, threads = machine["load"], machine["cores"], machine["threads"]
    if threads < 2:
        return []
    if load is None or load + threads <= cores + 0.5:
        return [FORK]
    return [
        f"The machine is loaded: {load:.1f} other threads wanted its {cores} cores in the last minute, on average, and "
        f"Torch would run {threads} more. Threads that wait for each other lose time; the native kernels notice that "
        f"and continue with one. --threads {max(1, int(cores - load))} leaves room.",
        FORK,
    ]


def kernels_in_use() -> Content:
    """Which kernels and which instruction set, and why not the native ones; none in use where ELMAN_ISA is wrong."""
    try:
        from elman import kernels
    except KernelError as error:
        nothing: Content = {"in_use": "", "available": [], "instruction_set": "", "instruction_sets": []}
        return {**nothing, "why_not_native": str(error)}
    return {
        "in_use": kernels.active(),
        "available": list(kernels.available()),
        "instruction_set": kernels.isa(),
        "instruction_sets": list(kernels.isas()),
        "why_not_native": kernels.why_not_native(),
    }


def self_check() -> Iterator[Content]:
    """What was found of each kernel in use, a row per kernel and dtype."""
    from elman.laws.kernels import check_kernels

    for row in check_kernels():
        worst = row.worst_error if math.isfinite(row.worst_error) else None  # JSON has no infinity
        yield {**asdict(row), "worst_error": worst}


def _cpuinfo() -> dict[str, str]:
    """The first processor's lines of /proc/cpuinfo; empty where there is none."""
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return {}
    lines = path.read_text().partition("\n\n")[0].splitlines()
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}


def _print(report: Content) -> None:
    for title in ("versions", "machine", "kernels"):
        facts = [(name.replace("_", " "), _text(value)) for name, value in report[title].items()]
        print_table(Table(title.capitalize(), ("what", "value"), [(name, value) for name, value in facts if value]))
    for note in report["notes"]:
        print(note)
    if not report["kernels"]["in_use"]:
        print(f"FAIL No kernels run: {report['kernels']['why_not_native']}")
        return
    if report["kernels"]["why_not_native"]:
        print(f"The native kernels do not run: {report['kernels']['why_not_native']}. {_remedy()}")
    rows = [(c["kernel"], c["dtype"], c["runs_on"], brief(c["worst_error"]), _result(c)) for c in report["checks"]]
    header = ("kernel", "dtype", "runs on", "worst error", "result")
    print_table(Table("Kernels in use against the reference in double precision, gradients included", header, rows))


def _text(value: object) -> str:
    return ", ".join(value) if isinstance(value, list) else str(value)


def _remedy() -> str:
    """What to do about it: first whatever the environment forbids."""
    forced = os.environ.get("ELMAN_NATIVE")
    return f"Run without ELMAN_NATIVE={forced} in the environment." if forced else REMEDY


def _result(check: Content) -> str:
    return "ok" if check["ok"] else f"FAIL {check['error']}".rstrip()
