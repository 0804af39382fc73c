"""What `elman export` writes, beside what others write or compute: `python -m bench.export` prints the tables of
docs/results/export.md.

    python -m bench.export --write          writes them into the page, with machine, versions and date
    python -m bench.export --run runs/demo/2    of a language model that is there already; otherwise that of
                                            recipes/demo.py is trained first, which takes a minute or two

Everything runs on one thread. What is compared runs in turns in one process, for each side the best of its rounds. The
graphs of others have no lengths; ours are given them, all of them whole. It needs gcc, chromium and the extra [wasm].
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import importlib.util
import math
import re
import shutil
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime
import torch
from torch import nn

import elman
from bench import inputs
from bench.kernels import processor
from bench.rows import MIDDLE, ONE, SMALL
from bench.tables import markdown
from bench.with_onnxruntime import _model, session_of
from elman.export.c import source
from elman.export.c.fixture import LANES
from elman.export.c.module import module_of
from elman.onnx import Session
from elman.tasks.text.data import open_splits
from elman.tasks.text.lm import LanguageModel, LMModelConfig, build
from recipes import demo

PAGE = Path(__file__).parent.parent / "docs/results/export.md"
BLOCK = re.compile(r"(<!-- export -->\n).*?(<!-- end of export -->)", re.DOTALL)
SECONDS = 0.6  # of each case
MATRICES = ("gla", "retnet", "deltanet", "gated_deltanet", "kda", "mamba2", "hgrn2", "mlstm")
Call = Callable[[], object]


class Line(NamedTuple):
    """A line of the table of goals."""

    what: str
    must: str
    aim: str
    measured: str


class Torch(nn.Module):
    """The language model of torch.nn that is as large as ours, for Torch's exporter."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.read = nn.Embedding(257, 256), nn.Linear(256, 257)
        self.core = nn.GRU(256, 256, 2, batch_first=True)

    def forward(self, x: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y, h = self.core(self.embed(x), h)
        return self.read(y), h


def once(call: Call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def in_turns(calls: dict[str, Call], seconds: float = SECONDS, rounds: int = 3) -> dict[str, float]:
    """The shortest time of each, in rounds of all of them, once each has been called."""
    for call in calls.values():
        call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(next(iter(times.values()))) < rounds:
        for name, call in calls.items():
            times[name].append(once(call))
    return {name: min(found) for name, found in times.items()}


def export_times(folder: Path) -> dict[str, float]:
    """Seconds for a language model of 2 x 256 GRU that is built, imports done."""
    model = build(LMModelConfig(cell="gru", size=256, layers=2), 257).eval()
    peer, x, h = Torch().eval(), torch.zeros(2, 7, dtype=torch.int64), torch.zeros(2, 2, 256)
    shapes = {"x": {0: "batch", 1: "time"}, "h": {1: "batch"}}
    free = {"x": {0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO}, "h": {1: torch.export.Dim.AUTO}}

    def ours() -> None:
        path = folder / "lm.onnx"
        path.unlink(missing_ok=True)
        elman.export.onnx(model, path)

    def theirs(dynamo: bool) -> None:
        more: dict[str, Any] = {"dynamic_shapes": free} if dynamo else {"dynamic_axes": shapes}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                peer, (x, h), str(folder / f"{dynamo}.onnx"), input_names=["x", "h"], dynamo=dynamo, verbose=False,
                **more,
            )  # fmt: skip

    calls: dict[str, Call] = {"elman": ours, "torch, legacy": lambda: theirs(False)}
    if importlib.util.find_spec("onnxscript"):  # which nothing else here needs
        calls["torch, dynamo"] = lambda: theirs(True)
    return in_turns(calls)


def forward(cell: str, B: int, T: int, D: int, K: int, folder: Path) -> dict[str, float]:
    """Seconds of ONNX Runtime: ours, a single node by hand (time first, no state), and Torch's export."""
    core = elman.cell(cell, D, K)
    path = folder / f"{cell}{B}{T}{D}{K}.onnx"
    elman.export.onnx(core, path)
    x = np.random.default_rng(0).normal(size=(B, T, D)).astype(np.float32)
    states = {f"state.{s}": np.zeros((B, K), np.float32) for s in core.init_state(1)._fields}
    peer = {"gru": nn.GRU, "lstm": nn.LSTM}[cell](D, K, batch_first=True).eval()
    h = torch.zeros(1, B, K)
    traced = folder / f"torch-{path.name}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        given = (torch.from_numpy(x), h if cell == "gru" else (h, h))
        names, free = ["x", "h0", "c0"][: 3 if cell == "lstm" else 2], {"x": {0: "B", 1: "T"}, "h0": {1: "B"}}
        torch.onnx.export(peer, given, str(traced), dynamo=False, input_names=names, dynamic_axes=free)
    case = {"cell": cell, "family": "gated", "B": B, "T": T, "D": D, "K": K}
    zeros = np.zeros((1, B, K), np.float32)
    graphs = {
        "elman": (onnx.load(path), {"x": x, "lengths": np.full(B, T), **states}),
        "by hand": (_model(case, inputs.gated(cell, B, T, D, K)), {"x": np.ascontiguousarray(x.swapaxes(0, 1))}),
        "torch": (onnx.load(traced), {"x": x, "h0": zeros, **({"c0": zeros} if cell == "lstm" else {})}),
    }
    sessions = {name: (session_of(model, 1), feeds) for name, (model, feeds) in graphs.items()}
    return in_turns({name: partial(session.run, None, feeds) for name, (session, feeds) in sessions.items()})


def matrices(cell: str, B: int, T: int, folder: Path) -> dict[str, float]:
    """Seconds of ONNX Runtime over a cell 256 wide: as a loop, and by its LinearAttention; and of `scan` here."""
    core = elman.cell(cell, 256, 256).eval()
    x = np.random.default_rng(0).normal(size=(B, T, 256)).astype(np.float32)
    calls: dict[str, Call] = {}
    for name, fast in (("Scan", False), ("LinearAttention", True)):
        path = folder / f"{cell}{B}{T}{name}.onnx"
        if not path.exists():
            elman.export.onnx(core, path, for_onnxruntime=fast)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        session = Session(path, sess_options=options)
        calls[name] = partial(session.scan, x, session.init_state(B))

    @torch.no_grad()
    def ours() -> None:
        core.scan(torch.from_numpy(x))

    return in_turns({**calls, "elman": ours}, SECONDS / 2)


def step_times(folder: Path) -> dict[str, float]:
    """Seconds a step of a GRU of 64: in C, called from C, and `Stream.step` from Python."""
    core = elman.cell("gru", 64, 64).eval()
    lanes, no_fma = LANES.get(elman.kernels.isa(), (4, 1))
    elman.export.write(core, "c", folder / "gru", name="gru")
    flags = ["-std=c99", "-O3", "-march=native", "-ffp-contract=off", f"-DLANES={lanes}", f"-DNO_FMA={no_fma}"]
    library, steps = folder / "gru.so", 2000
    subprocess.run(["gcc", *flags, "-fPIC", "-shared", folder / "gru/gru.c", "-o", library, "-lm"], check=True)
    scan = ctypes.CDLL(str(library)).gru_scan
    x = np.random.default_rng(0).standard_normal((steps, 1, 64)).astype(np.float32)
    y, state, stream = np.zeros((steps, 64), np.float32), np.zeros(64, np.float32), elman.Stream(core, 1)
    pointers = [ctypes.c_void_p(array.ctypes.data) for array in (state, x)]

    def in_c() -> None:
        scan(*pointers, ctypes.c_size_t(steps), ctypes.c_void_p(y.ctypes.data))

    def in_python() -> None:
        for each in x:
            stream.step(each)

    found = in_turns({"C": in_c, "Stream.step": in_python}, 2 * SECONDS)
    return {name: seconds / steps for name, seconds in found.items()}


def sizes(folder: Path) -> tuple[int, int]:
    """Lines of the runtime part, and bytes of a GRU of 64 compiled, less its weights."""
    lines = sum(len(source.text(name).splitlines()) for name in ("preamble.h", "runtime.c", "choice.c"))
    command = ["gcc", "-std=c99", "-O3", "-march=native", "-ffp-contract=off", "-c", folder / "gru/gru.c"]
    subprocess.run([*command, "-o", folder / "gru.o"], check=True)
    return lines, (folder / "gru.o").stat().st_size - weight_bytes(elman.cell("gru", 64, 64))


def weight_bytes(model: Any, stored: str | None = None) -> int:
    """Of all arrays that a C file of it has."""
    return sum(array.nbytes for _, array in module_of(model, "m", stored).program.weights.arrays())


WRITE = """([banned, count]) => {
  const { model } = globalThis.elman, how = { temperature: 0.8, banned };
  const carried = { state: model.start(), symbol: 0, seen: new Uint8Array(model.symbols), seed: 0, number: 0 };
  model.write(carried, how, 100);
  const began = performance.now();
  model.write(carried, how, count);
  return count / (performance.now() - began) * 1000;
}"""


def page(lm: LanguageModel, folder: Path) -> tuple[int, float]:
    """Bytes of the page of a model without its weights; symbols that it writes in chromium in a second."""
    from playwright.sync_api import sync_playwright

    from elman.tasks.text.generation import banned_symbols

    [path] = elman.export.write(lm, "html", folder / "page.html")
    banned = banned_symbols(lm.vocabulary, (), lm.unit == "text")
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        tab = browser.new_page()
        tab.goto(path.as_uri())
        tab.wait_for_selector("html[data-ready=yes]")
        speeds = [float(tab.evaluate(WRITE, [banned, 1000])) for _ in range(3)]
        browser.close()
    return path.stat().st_size - math.ceil(weight_bytes(lm) * 4 / 3), max(speeds)  # they are there in base64


def goals(run: Path, folder: Path) -> Iterator[Line]:
    exported = export_times(folder)
    peers = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in exported.items() if name != "elman")
    yield Line("time to export a language model of 2 x 256 GRU, imports taken off", "2 s", "1 s",
               f"{exported['elman']:.2f} s ({peers})")  # fmt: skip
    for cell in ("gru", "lstm"):
        for shape in (ONE, *SMALL, *MIDDLE):
            found = forward(cell, *shape, folder)
            ratios = {name: found[name] / found["elman"] for name in ("by hand", "torch")}
            text = ", ".join(f"{ratio:.2f} ({name})" for name, ratio in ratios.items())
            where = "B, T, D, H = " + ", ".join(map(str, shape))
            yield Line(f"ONNX Runtime, forward {cell}, {where}: time of the other graph over ours", "0.95", "1", text)
    times = step_times(folder)
    yield Line("C: a step of a GRU of 64, `gcc -O3 -march=native`, over `Stream.step` from Python", "faster", "twice",
               f"{times['Stream.step'] / times['C']:.2f} times ({1e6 * times['C']:.2f} and "
               f"{1e6 * times['Stream.step']:.2f} µs)")  # fmt: skip
    lines, size = sizes(folder)
    yield Line("C: lines of the runtime part, of which a model gets what it calls", "2,500", "1,500", f"{lines:,}")
    yield Line("C: bytes of a GRU of 64, compiled, without weights", "60,000", "30,000", f"{size:,}")
    lm, test = elman.load(run), open_splits(demo.DATA).test
    assert isinstance(lm, LanguageModel)
    size, speed = page(lm, folder)
    yield Line("page of the demo model: bytes without weights", "200,000", "100,000", f"{size:,}")
    yield Line("page of the demo model: characters a second in chromium", "200", "1,000", f"{speed:,.0f}")
    whole, all_bytes = lm.evaluate(test).nats_per_token, weight_bytes(lm)
    for stored, must, share in (("bfloat16", "0.002", "1/2"), ("int8", "0.01", "1/4")):
        lost = lm.evaluate(test, weights=stored).nats_per_token - whole
        part = weight_bytes(lm, stored) / all_bytes
        yield Line(f"{stored} weights: nats a character lost on the demo model, and size", f"{must}, {share}", "",
                   f"{lost:+.5f}, {part:.3f}")  # fmt: skip


def loops(folder: Path) -> Iterator[tuple[str, ...]]:
    """LinearAttention and Scan, per token."""
    for B, T in ((1, 1), (1, 256), (8, 256)):
        for cell in MATRICES:
            found = matrices(cell, B, T, folder)
            each = {name: 1e6 * seconds / (B * T) for name, seconds in found.items()}
            yield (f"`{cell}`, {B} x {T}", *(f"{each[name]:.3g}" for name in ("Scan", "LinearAttention", "elman")),
                   f"{each['Scan'] / each['LinearAttention']:.2f}")  # fmt: skip


def written(text: str, tables: str) -> str:
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "onnx", "onnxruntime"))
    where = f"{processor()}, one thread, kernels for {elman.kernels.isa()}; {versions}; {datetime.date.today()}"
    said = f"{where}.\n\n{tables}"
    return BLOCK.sub(lambda block: block[1] + said + block[2], text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, help="a run of the demo's GRU")
    parser.add_argument("--write", action="store_true", help="write the page")
    flags = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        run = flags.run or folder / "demo"
        if flags.run is None:
            elman.train(demo.network("gru, 2 x 256", str(run)), progress=False)
        tables = []
        for columns, rows in (
            (("what", "must", "aim", "measured"), goals(run, folder)),
            (("µs a token", "`Scan`", "`LinearAttention`", "`scan` in Python", "ratio"), loops(folder)),
        ):
            found = []
            for row in rows:
                print(*row, sep=" | ", flush=True)
                found.append(row)
            tables.append(markdown(columns, found))
    if flags.write:
        PAGE.write_text(written(PAGE.read_text(), "\n".join(tables)))


if __name__ == "__main__":
    main()
