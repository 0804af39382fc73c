"""Every cell at one width: `python -m bench.cells` prints the table of docs/guides/choosing-a-cell.md.

    python -m bench.cells --write            writes it into the page, with commit, machine and date
    python -m bench.cells --only gru lstm    some cells alone

Microseconds a token, the best of some rounds, each cell as `elman.cell(name, D, D)` with its default options: reading a
batch without gradients, training on it (forward, backward, no optimiser), and one step of one stream. The size of the
state is that of one row in bytes, as a file, a server's memory and a beam hold it.
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

import elman
from bench.all import commit
from bench.kernels import processor
from bench.tables import markdown

PAGE = Path(__file__).parent.parent / "docs/guides/choosing-a-cell.md"
BLOCK = re.compile(r"(<!-- cells -->\n).*?(<!-- end of cells -->)", re.DOTALL)
ROWS, STEPS = 4, 256
COLUMNS = ("cell", "parameters", "state, bytes", "reading, µs", "training, µs", "a streaming step, µs")


class Timed(NamedTuple):
    """Of a cell: how large it is, and microseconds a token."""

    parameters: int
    state: int
    reading: float
    training: float
    streaming: float


def measure(name: str, size: int, seconds: float) -> Timed:
    torch.manual_seed(0)
    core = elman.cell(name, size, size)
    x = torch.randn(ROWS, STEPS, size)
    stream = elman.Stream(core, 1)
    one = np.zeros((1, size), np.float32)

    def read() -> None:
        with torch.no_grad():
            core.scan(x)

    def train() -> None:
        core.zero_grad()
        core.scan(x)[0].sum().backward()

    return Timed(
        parameters=sum(p.numel() for p in core.parameters()),
        state=len(elman.state.to_rows(core.init_state(1)).tobytes()),
        reading=best(read, seconds) / (ROWS * STEPS) * 1e6,
        training=best(train, seconds) / (ROWS * STEPS) * 1e6,
        streaming=best(lambda: [stream.step(one) for _ in range(50)], seconds) / 50 * 1e6,
    )


def best(call: Callable[[], object], seconds: float) -> float:
    """The shortest time of a call, once it has been called."""
    call()
    times, end = [], time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def table(found: dict[str, Timed]) -> str:
    link = "[{0}](../reference/cells/{0}.md)"
    rows = [
        (link.format(name), f"{t.parameters:,}", f"{t.state:,}", *(f"{us:.3g}" for us in t[2:]))
        for name, t in found.items()
    ]
    return markdown(COLUMNS, rows)


def written(page: str, found: dict[str, Timed], size: int, where: str) -> str:
    said = (
        f"Width {size}, {ROWS} rows of {STEPS} steps, float32, {torch.get_num_threads()} threads, kernels for "
        f"{elman.kernels.isa()}; {where}.\n\n"
    )
    return BLOCK.sub(lambda block: block[1] + said + table(found) + block[2], page)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=elman.CELLS, metavar="CELL", help="some cells")
    parser.add_argument("--size", type=int, default=128, help="the width D")
    parser.add_argument("--seconds", type=float, default=0.25, help="for each of the three times of a cell")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--write", action="store_true", help="write the page")
    flags = parser.parse_args()
    torch.set_num_threads(flags.threads)
    found = {}
    for name in flags.only or elman.CELLS:
        found[name] = measure(name, flags.size, flags.seconds)
        print(name, *(f"{number:.4g}" for number in found[name]), flush=True)
    print(table(found), end="")
    if flags.write:
        where = f"commit {commit(('src', 'csrc'))}, {processor()}, {os.cpu_count()} cores, {datetime.date.today()}"
        PAGE.write_text(written(PAGE.read_text(), found, flags.size, where))


if __name__ == "__main__":
    main()
