"""elman inspect: where the gradient dies, what the state holds, how long it remembers."""

from __future__ import annotations

import os
import shlex
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from elman.cli.output import print_json, print_table
from elman.errors import InputError
from elman.options import ending

if TYPE_CHECKING:
    from elman.tasks.request import Request
    from elman.tasks.task import Inspection

ABOUT = "Inspect a model on some data: print a summary and a table; --out writes a page with everything."


def run(arguments: Sequence[str]) -> int:
    """Print the verdict and a table, and write the page."""
    from elman.cli.model_verb import dispatch
    from elman.tasks import report

    parsed, request, inspection = dispatch("inspect", arguments, ABOUT, add_common, _check)
    command = "elman inspect " + shlex.join(arguments)
    reports = [report(inspection, parsed.run, command=command)]
    if parsed.against:
        reports.append(report(_other(parsed.against, request), parsed.against, command=command))
    if parsed.at:
        reports.append(report(inspection, parsed.run, at_init=True, command=command))
    if parsed.out:
        reports[0].save(parsed.out, reports[1:])
    if parsed.json:
        print_json([one.to_json() for one in reports] if reports[1:] else reports[0].to_json())
        return 0
    for one in reports:
        print_table(one.table())
        if one.about:
            print(f"  {one.about}")
        print("\n".join(f"  {sentence}" for sentence in one.verdict))
        for name, why in one.missing.items():
            print(f"  Left out: {name}, since {why}.")
    return 0


def _other(run: str, request: Request) -> Inspection:
    """What another run's model shows for the same request, as far as its task has the same options."""
    from elman.tasks import open_model

    task, predictor = open_model(run)
    if "inspect" not in task.requests:
        raise InputError(f"{run} is {task.title}, which `elman inspect` does not support")
    kind, respond = task.requests["inspect"]
    shared = {name: value for name, value in vars(request).items() if name in kind.__dataclass_fields__}
    other: Inspection = respond(predictor, kind(**{**shared, "run": run}))
    return other


def _check(flags: Namespace) -> None:
    if flags.out is None:
        return
    flags.out = os.path.expanduser(flags.out)
    ending("--out", flags.out, (".html", ".htm"))
    if Path(flags.out).exists() and not flags.force:
        raise InputError(f"{flags.out} exists; choose another --out, or pass --force to replace it")


def add_common(parser: ArgumentParser) -> None:
    parser.add_argument("--out", help="write the page to this HTML file")
    parser.add_argument("--force", action="store_true", help="let --out overwrite a file")
    parser.add_argument("--against", metavar="RUN", help="another run to compare with, on the same data")
    parser.add_argument("--at", choices=["init"], help="compare with the same network with fresh weights")
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
