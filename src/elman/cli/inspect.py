"""elman inspect: where the gradient dies, what the state holds, how long it remembers."""

from __future__ import annotations

import os
import shlex
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elman.cli.output import print_json, print_table
from elman.errors import InputError

if TYPE_CHECKING:
    from elman.lens import Report
    from elman.tasks.request import Request
    from elman.tasks.task import Inspection

ABOUT = "Look into a model with some data: sentences and a table here, everything on a page with --out."


def run(arguments: Sequence[str]) -> int:
    """Print the verdict and a table, and write the page."""
    from elman.cli.asking import ask

    given, request, looked = ask("inspect", arguments, ABOUT, _common)
    given.out = given.out and os.path.expanduser(given.out)
    if given.out and Path(given.out).exists() and not given.force:
        raise InputError(f"{given.out} exists; choose another --out, or pass --force to replace it")
    command = "elman inspect " + shlex.join(arguments)
    reports = [_report(looked, given.run, given.run, command), *_others(given, request, looked, command)]
    if given.out:
        reports[0].save(given.out, reports[1:])
    if given.json:
        print_json([report.to_json() for report in reports] if reports[1:] else reports[0].to_json())
        return 0
    for report in reports:
        print_table(report.table())
        if report.about:
            print(f"  {report.about}")
        print("\n".join(f"  {sentence}" for sentence in report.verdict))
        for name, why in report.missing.items():
            print(f"  Left out: {name}, since {why}.")
    return 0


def _others(given: Namespace, request: Request, looked: Inspection, command: str) -> list[Report]:
    """What stands beside the report: another run, the same network with fresh weights."""
    from elman.lens.fresh import fresh, rebound

    found = []
    if given.against:
        from elman.tasks import open_model

        task, predictor = open_model(given.against)
        if "inspect" not in task.requests:
            raise InputError(f"{given.against} is {task.title}, which does not answer `elman inspect`")
        kind, respond = task.requests["inspect"]
        shared = {name: value for name, value in vars(request).items() if name in kind.__dataclass_fields__}
        other = respond(predictor, kind(**{**shared, "run": given.against}))
        found.append(_report(other, given.against, given.against, command))
    if given.at:
        if looked.begun is not None:
            begun = looked.begun()
        else:
            model = fresh(looked.model)  # what the task shows is of the trained weights, and left out
            begun = looked._replace(model=model, sample=replace(rebound(model, looked.sample), panels=()))
        found.append(_report(begun, given.run, f"{given.run} at init", command))
    return found


def _report(looked: Inspection, run: str, title: str, command: str) -> Report:
    from elman.lens import inspect

    report = inspect(looked.model, looked.sample, title=title)
    return replace(report, command=command, config=_config(Path(run)), training=_training(Path(run)))


def _config(run: Path) -> dict[str, Any]:
    from elman.files import config

    return config.flat(config.read(run / config.NAME)) if (run / config.NAME).exists() else {}


def _training(run: Path) -> list[dict[str, float]]:
    """What a run noted for the lens at its evaluations, as far as it has come."""
    from elman.training.record import read_metrics

    if not (run / "metrics.jsonl").exists():
        return []
    return [line for line in read_metrics(run) if "update_ratio" in line or any(n.startswith("lens") for n in line)]


def _common(parser: ArgumentParser) -> None:
    parser.add_argument("--out", help="write the page to this HTML file")
    parser.add_argument("--force", action="store_true", help="let --out replace a file")
    parser.add_argument("--against", metavar="RUN", help="another run beside it, with the same data")
    parser.add_argument("--at", choices=["init"], help="the same network beside it, with fresh weights")
    parser.add_argument("--json", action="store_true", help="the numbers as JSON")
