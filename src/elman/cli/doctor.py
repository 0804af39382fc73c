"""elman doctor: what is installed, which kernels run, and whether they compute the right thing."""

from __future__ import annotations

import argparse
import math
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from elman import __version__
from elman.cli.output import brief, print_json, print_table
from elman.tables import Table

if TYPE_CHECKING:
    from torch import Tensor

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

Problem = Callable[[str], "list[Tensor]"]  # the name of a dtype -> outputs and gradients

TOLERANCE = {"float32": 1e-5, "float64": 1e-12}

# The cell that each gated kernel belongs to.
GATED: dict[str, tuple[str, Content]] = {
    "elman_tanh": ("elman", {}),
    "elman_relu": ("elman", {"phi": "relu"}),
    "indrnn_tanh": ("indrnn", {"phi": "tanh"}),
    "indrnn_relu": ("indrnn", {"phi": "relu"}),
    "rate_tanh": ("rate", {"phi": "tanh"}),
    "rate_relu": ("rate", {"phi": "relu"}),
    "gru": ("gru", {}),
    "gru_before": ("gru", {"reset_after": False}),
    "gru, normed": ("gru", {"layer_norm": True}),
    "gru_before, normed": ("gru", {"reset_after": False, "layer_norm": True}),
    "lstm": ("lstm", {}),
    "lstm_logistic": ("lstm", {"candidate": "logistic"}),
    "lstm_coupled": ("lstm", {"coupled": True}),
    "lstm_coupled_logistic": ("lstm", {"coupled": True, "candidate": "logistic"}),
    "lstm, all options": ("lstm", {"peephole": True, "projection": 4, "layer_norm": True}),
    "mgu": ("mgu", {}),
}


def run(arguments: Sequence[str]) -> int:
    """Print the report; 1 if a kernel is wrong."""
    parser = argparse.ArgumentParser(prog="elman doctor", description=__doc__.partition(": ")[2] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="the report as JSON on standard output")
    given = parser.parse_args(arguments)
    here = machine()  # before the checks, which load it
    checks = list(self_check())
    ok = all(check["ok"] for check in checks)
    report = {
        "versions": versions(), "machine": here, "notes": notes(here), "kernels": kernels_in_use(), "checks": checks,
        "ok": ok,
    }  # fmt: skip
    if given.json:
        print_json(report)
    else:
        _print(report)
    return 0 if ok else 1


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
        f"and go on with one. --threads {max(1, int(cores - load))} leaves room.",
        FORK,
    ]


def kernels_in_use() -> Content:
    """Which kernels and which instruction set, and why not the native ones."""
    from elman import kernels

    return {
        "in_use": kernels.active(),
        "available": list(kernels.available()),
        "instruction_set": kernels.isa(),
        "instruction_sets": list(kernels.isas()),
        "why_not_native": kernels.why_not_native(),
    }


def self_check() -> Iterator[Content]:
    """Each kernel in use, gradients included, against the reference in double precision: a row per kernel and dtype."""
    from elman import kernels

    for name, problem in _problems():
        with kernels.use("reference"):
            expected = problem("float64")
        for dtype in TOLERANCE:
            if kernels.active() == "reference" and dtype == "float64":
                continue  # it would be compared with itself
            before = kernels.calls()
            worst, error = _worst(problem, dtype, expected)
            yield {
                "kernel": name,
                "dtype": dtype,
                "runs_on": "native" if _called(name, before) else "reference",
                "worst_error": worst if math.isfinite(worst) else None,  # JSON has no infinity
                "ok": worst <= TOLERANCE[dtype],
                "error": error,
            }


def _called(name: str, before: dict[str, int]) -> bool:
    """Whether the native operation that the row `name` is about has run since `before` was counted."""
    from elman import kernels

    family = name.partition(",")[0]
    return any(op.startswith(family) and count > before.get(op, 0) for op, count in kernels.calls().items())


def _worst(problem: Problem, dtype: str, expected: list[Tensor]) -> tuple[float, str]:
    try:
        return _distance(problem(dtype), expected), ""
    except Exception as error:  # whatever a broken installation raises, the report must get written
        return math.inf, f"{type(error).__name__}: {error}"


def _problems() -> Iterator[tuple[str, Problem]]:
    """Each kernel with a small problem: rows of different lengths, one empty; resets; a state that is not zero."""
    import torch

    from elman import kernels

    draw = torch.Generator().manual_seed(0)
    B, T, C = 5, 9, 7

    def random(*shape: int, complex_: bool = False) -> Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.complex64 if complex_ else torch.float32)

    lengths = torch.tensor([T, 4, 0, T, 1])
    reset = torch.zeros(B, T, dtype=torch.bool)
    reset[0, 4] = reset[1, 0] = reset[3, T - 1] = True

    yield "linear", _problem(kernels.linear, random(B, T, C), random(3, C), random(3))
    for name in ("sigmoid", "tanh", "softplus", "silu"):
        yield name, _problem(getattr(kernels, name), random(B, T, C))
    yield "log", _problem(kernels.log, torch.rand(B, T, C, generator=draw))
    yield "norm, layer", _problem(lambda x, g, b: kernels.layer_norm(x, g, b, 1e-5), random(B, C), random(C), random(C))
    yield "norm, rms", _problem(lambda x, gain: kernels.rms_norm(x, gain, 1e-5), random(B, C), random(C))
    yield "reverse", _problem(lambda x: kernels.reverse(x, lengths), random(B, T, C))
    for name, complex_ in (("linear_scan", False), ("linear_scan, complex", True)):
        a, b, h0 = (random(*shape, complex_=complex_) for shape in ((B, T, C), (B, T, C), (B, C)))
        a = a / (1 + a.abs())  # a recurrence that does not grow
        yield name, _problem(lambda a, b, h0: kernels.linear_scan(a, b, h0, lengths, reset), a, b, h0)
        yield (
            f"{name}, constant",
            _problem(lambda a, b, h0: kernels.linear_scan(a, b, h0, lengths, reset), a[0, 0], b, h0),
        )
    yield (
        "convolution",
        _problem(
            lambda x, w, b, before: kernels.convolution(x, w, b, before, lengths, reset),
            *(random(*shape) for shape in ((B, T, C), (4, C), (C,), (B, 3, C))),
        ),
    )
    yield (
        "selective_scan",
        _problem(
            lambda x, delta, A, b, c, h0: kernels.selective_scan(
                x, delta.sigmoid(), -A.exp(), b, c, h0, lengths, reset
            ),
            *(random(*shape) for shape in ((B, T, C), (B, T, C), (C, 3), (B, T, 3), (B, T, 3), (B, C, 3))),
        ),
    )
    yield (
        "bank_scan",
        _problem(
            lambda x, a, b, c, h0: kernels.bank_scan(x, a.tanh() / 2, b, c, h0, lengths, reset),
            *(random(*shape) for shape in ((B, T, C), (C, 3, 2), (C, 3, 2), (C, 3, 2), (B, C, 3, 2))),
        ),
    )
    start, transition, state = random(C).softmax(-1), random(C, C).softmax(-1), random(B, C).softmax(-1)
    yield (
        "hmm_filter",
        _problem(
            lambda x, s, t, p: kernels.hmm_filter(x, s, t, p, lengths, reset), random(B, T, C), start, transition, state
        ),
    )
    yield (
        "viterbi",
        _problem(lambda x, s, t: kernels.viterbi(x, s, t, lengths, reset), random(B, T, C), start, transition),
    )
    draws = torch.tensor([[7, 0], [2**40, 3]])
    # The upper halves of the words, which a double holds exactly.
    yield "philox", lambda dtype: [(kernels.philox(draws, 5) >> 32).double()]
    yield "student_t", lambda dtype: [kernels.student_t(draws, torch.tensor([[2.5, 7.0], [3.0, 1e3]]).double())]
    for name, (cell, options) in GATED.items():
        yield f"gated, {name}", _gated_problem(cell, options, random(B, T, C), lengths, reset)
    sizes = torch.tensor([3, 1, 0, 2, 3])  # of memories
    shapes = ((B, T, C), (B, 3, C), (B, 3, 4))
    yield "attend, dot", _problem(lambda q, k, m: kernels.attend(q, k, m, sizes, None), *(random(*n) for n in shapes))
    yield (
        "attend, additive",
        _problem(lambda q, k, m, v: kernels.attend(q, k, m, sizes, v), *(random(*n) for n in (*shapes, (C,)))),
    )
    for name in ("recursive", "binary_tree_lstm", "child_sum_tree_lstm"):
        yield f"gathered, {name}", _tree_problem(name, random(6, C))
    for cell in ("gru", "lstm"):
        for name in ("additive", "fed"):
            given = random(B, T, C), random(B, 3, 4), sizes, lengths, reset
            yield f"attended, {name} {cell}", _attended_problem(name, cell, *given)


def _problem(function: Callable[..., Tensor | tuple[Tensor, ...]], *inputs: Tensor) -> Problem:
    def solve(dtype: str) -> list[Tensor]:
        given = [_cast(x, dtype).requires_grad_() for x in inputs]
        outputs = function(*given)
        return _with_gradients(list(outputs) if isinstance(outputs, tuple) else [outputs], given)

    return solve


def _attended_problem(
    name: str, cell: str, x: Tensor, memory: Tensor, sizes: Tensor, lengths: Tensor, reset: Tensor
) -> Problem:
    import torch

    from elman import state as states
    from elman.attention import Additive, Luong
    from elman.cells import CELLS

    C, M = x.shape[-1], memory.shape[-1]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = CELLS[cell](C + (M if name == "additive" else 6), 6)
        decoder = Additive(made, M) if name == "additive" else Luong(made, M, feeding=True)

    def solve(dtype: str) -> list[Tensor]:
        model = decoder.to(getattr(torch, dtype))
        given, seen = _cast(x, dtype).requires_grad_(), _cast(memory, dtype).requires_grad_()
        state = states.map(lambda leaf: (leaf + 0.5).requires_grad_(), model.init_state(len(x)))
        y, last = model.given(seen, sizes).scan(given, state, lengths=lengths, reset=reset)
        return _with_gradients([y, *states.leaves(last)], [given, seen, *states.leaves(state), *model.parameters()])

    return solve


def _tree_problem(name: str, x: Tensor) -> Problem:
    """Two trees, one of them a single node; a node with one child."""
    import torch

    from elman import state as states
    from elman.trees import Forest, shape, tree

    forest = Forest.of([shape([2, 2, 4, 4, -1]), shape([-1])])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        core = tree(name, x.shape[-1], 6)

    def solve(dtype: str) -> list[Tensor]:
        model = core.to(getattr(torch, dtype))
        given = _cast(x, dtype).requires_grad_()
        return _with_gradients(states.leaves(model.scan(given, forest)[1]), [given, *model.parameters()])

    return solve


def _gated_problem(cell: str, options: Content, x: Tensor, lengths: Tensor, reset: Tensor) -> Problem:
    import torch

    from elman import state as states
    from elman.cells import CELLS

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        core = CELLS[cell](x.shape[-1], 6, **options)

    def solve(dtype: str) -> list[Tensor]:
        model = core.to(getattr(torch, dtype))
        given = _cast(x, dtype).requires_grad_()
        state = states.map(lambda leaf: (leaf + 0.5).requires_grad_(), model.init_state(len(x)))
        y, last = model.scan(given, state, lengths=lengths, reset=reset)
        return _with_gradients([y, *states.leaves(last)], [given, *states.leaves(state), *model.parameters()])

    return solve


def _cast(x: Tensor, dtype: str) -> Tensor:
    import torch

    real = getattr(torch, dtype)
    return x.detach().to(real.to_complex() if x.is_complex() else real, copy=True)


def _with_gradients(outputs: list[Tensor], inputs: list[Tensor]) -> list[Tensor]:
    """The outputs, and the gradients of half their squared norm: each output matters, and each differently."""
    import torch

    values = [y.detach() for y in outputs]
    smooth = [y for y in outputs if y.requires_grad]  # the states that Viterbi finds are not
    if not smooth:
        return values
    gradients = torch.autograd.grad(smooth, inputs, [y.detach() for y in smooth], allow_unused=True)
    return [*values, *(torch.zeros_like(x) if g is None else g for g, x in zip(gradients, inputs, strict=True))]


def _distance(given: list[Tensor], expected: list[Tensor]) -> float:
    """The largest difference, relative to the largest value of its tensor where that is above 1. NaN is infinite."""
    import torch

    worst = 0.0
    for a, b in zip(given, expected, strict=True):
        error = (a.to(b.dtype) - b).abs() / b.abs().max().clamp(min=1)
        worst = max(worst, float(torch.nan_to_num(error, nan=torch.inf).max()))
    return worst


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
    if report["kernels"]["why_not_native"]:
        print(f"The native kernels do not run: {report['kernels']['why_not_native']}. {_remedy()}")
    rows = [(c["kernel"], c["dtype"], c["runs_on"], brief(c["worst_error"]), _result(c)) for c in report["checks"]]
    header = ("kernel", "dtype", "runs on", "worst error", "result")
    print_table(Table("Kernels in use against the reference in double precision, gradients included", header, rows))


def _text(value: object) -> str:
    return ", ".join(value) if isinstance(value, list) else str(value)


def _remedy() -> str:
    """What to do about it: first whatever the environment forbids."""
    forced = [f"{name}={os.environ[name]}" for name in ("ELMAN_NATIVE", "ELMAN_ISA") if name in os.environ]
    return f"Run without {' and '.join(forced)} in the environment." if forced else REMEDY


def _result(check: Content) -> str:
    return "ok" if check["ok"] else f"FAIL {check['error']}".rstrip()
