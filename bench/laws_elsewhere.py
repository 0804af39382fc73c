"""Elman's laws on the recurrent models of other libraries: `python -m bench.laws_elsewhere` prints what comes out.

    pip install transformers mambapy; pip install --no-deps rwkv
    python -m bench.laws_elsewhere --write      writes docs/results/state-in-other-libraries.md

Each model is tiny and has random weights, as the library makes them; nothing is downloaded. What is compared are its
outputs (logits) with its own outputs when it reads the same symbols at once, on the CPU, in float32; the largest
difference, relative to the largest output:

    steps     9 symbols at once, then one at a time, each call given the state that the last one returned
    chunks    9, 6 and 6 symbols
    left      two rows, one of which has 6 symbols of padding before it, marked in the attention mask: as alone
    continue  two rows, one padded after its end, marked in the mask; then one more symbol for each: as alone
    fork      a copy of the state (copy.deepcopy) continues elsewhere, after the original has gone on
    kept      the state that a call was given still is what it was: used twice, it gives the same

A law that a library does not offer, for want of an argument, is not counted against it. The small programs in
bench/elsewhere show each failure by itself, in about ten lines, and what they print is on the page.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import datetime
import io
import logging
import runpy
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import torch
from torch import Tensor

from bench.models_elsewhere import CUT, NotOffered, Subject, T, V, subjects

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/results/state-in-other-libraries.md"
REPRODUCERS = ROOT / "bench/elsewhere"
PADDING = 6
HOLDS = 1e-5  # an error up to here, relative to the largest output, is rounding in float32
LAWS = ("steps", "chunks", "left", "continue", "fork", "kept")


Result = dict[str, float | str]


@torch.no_grad()
def check(subject: Subject) -> Result:
    """The largest error by law; "" where it offers no such thing, the error's name where it raises one."""
    x = torch.randint(3, V - 4, (subject.rows, T), generator=torch.Generator().manual_seed(0))
    whole = subject.feed(x, None, None)[0]
    laws: dict[str, Callable[[], float]] = {
        "steps": lambda: _carried(subject, x, [CUT, *range(CUT + 1, T + 1)], whole),
        "fork": lambda: _fork(subject, x, whole),
        "kept": lambda: _kept(subject, x),
    }
    if subject.chunks:
        laws["chunks"] = lambda: _carried(subject, x, [CUT, 15, T], whole)
    if subject.masks:
        laws |= {"left": lambda: _left(subject, x), "continue": lambda: _continue(subject, x)}
    return {law: _tried(laws[law]) if law in laws else "" for law in LAWS}


def _tried(law: Callable[[], float]) -> float | str:
    try:
        return law()
    except NotOffered:
        return ""
    except Exception as error:  # what it raises is a result
        return f"{type(error).__name__}: {str(error).splitlines()[0][:60]}"


def _error(a: Tensor, b: Tensor) -> float:
    if a.shape != b.shape:
        raise ValueError(f"shape {list(a.shape)}, not {list(b.shape)}")
    return float((a - b).abs().max() / b.abs().max())


def _carried(subject: Subject, x: Tensor, cuts: list[int], whole: Tensor) -> float:
    parts, state, start = [], None, 0
    for end in cuts:
        y, state = subject.feed(x[:, start:end], state, None)
        if y.shape[:2] != (len(x), end - start):
            raise ValueError(f"shape {list(y.shape)}, not {[len(x), end - start, V]}")
        parts.append(y)
        start = end
    return _error(torch.cat(parts, 1), whole)


def _left(subject: Subject, x: Tensor) -> float:
    mask = torch.ones_like(x)
    mask[1, :PADDING] = 0
    padded = subject.feed(x, None, mask)[0][1, PADDING:]
    return _error(padded, subject.feed(x[1:, PADDING:], None, None)[0][0])


def _continue(subject: Subject, x: Tensor) -> float:
    mask = torch.ones_like(x[:, :-1])
    mask[1, -PADDING:] = 0
    _, state = subject.feed(x[:, :-1], None, mask)
    with_next = torch.cat([mask, torch.ones_like(mask[:, :1])], 1)
    after = subject.feed(x[:, -1:], state, with_next)[0][1]
    _, own = subject.feed(x[1:, : -1 - PADDING], None, None)
    return _error(after, subject.feed(x[1:, -1:], own, None)[0][0])


def _fork(subject: Subject, x: Tensor, whole: Tensor) -> float:
    _, state = subject.feed(x[:, :CUT], None, None)
    if state is None:
        raise NotOffered
    copied = copy.deepcopy(state)
    for t in range(CUT, T):
        _, state = subject.feed(x[:, t : t + 1] * 0 + 5, state, None)
    return _error(subject.feed(x[:, CUT : CUT + 1], copied, None)[0], whole[:, CUT : CUT + 1])


def _kept(subject: Subject, x: Tensor) -> float:
    _, state = subject.feed(x[:, :CUT], None, None)
    if state is None:
        raise NotOffered
    first = subject.feed(x[:, CUT : CUT + 1], state, None)[0].clone()
    return _error(subject.feed(x[:, CUT : CUT + 1], state, None)[0], first)


# The page.


def text_of(result: float | str) -> str:
    if isinstance(result, str):
        return result.replace("|", "/") or "not offered"
    return f"{result:.0e}".replace("0e+00", "0") if result <= HOLDS else f"**{result:.1e}**"


def table(results: dict[str, Result]) -> str:
    lines = [f"| model | {' | '.join(LAWS)} |", "|---|" + "---|" * len(LAWS)]
    lines += [f"| {name} | {' | '.join(text_of(result[law]) for law in LAWS)} |" for name, result in results.items()]
    return "\n".join(lines)


def run_reproducer(path: Path) -> str:
    """What one of them prints."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        runpy.run_path(str(path), run_name="__main__")
    return said.getvalue().strip()


def reproducers() -> list[Path]:
    return sorted(REPRODUCERS.glob("*.py"))


def section(path: Path, said: str) -> str:
    first, _, code = path.read_text().partition("\n")
    return f"### {first.removeprefix('# ')}\n\n```py\n{code.strip()}\n```\n\nIt prints:\n\n```\n{said}\n```\n"


def page(results: dict[str, Result], said: dict[Path, str]) -> str:
    """The page: what stands before the first table and after the last is written by hand."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "mambapy", "rwkv"))
    today = datetime.date.today().isoformat()
    made = f"Run on {today}, on the CPU, with {versions}.\n\n{table(results)}\n\n## Each by itself\n\n"
    made += "\n".join(section(path, text) for path, text in said.items())
    before, _, rest = PAGE.read_text().partition("<!-- laws elsewhere -->\n")
    return f"{before}<!-- laws elsewhere -->\n{made}<!-- end of laws -->{rest.partition('<!-- end of laws -->')[2]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the page")
    parser.add_argument("--only", choices=subjects(), help="one model")
    flags = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    results: dict[str, Result] = {}
    for name, make in subjects().items():
        if flags.only in (None, name):
            subject = make()
            results[subject.name] = check(subject)
            print(subject.name, {law: text_of(result) for law, result in results[subject.name].items()}, flush=True)
    if flags.only:
        return
    said = {path: run_reproducer(path) for path in reproducers()}
    print("\n".join(f"{path.name}: {text}" for path, text in said.items()))
    if flags.write:
        PAGE.write_text(page(results, said))


if __name__ == "__main__":
    main()
