"""elman search: train a config with many values of its settings, and find the best."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elman.cli.model_verb import Help, add_arguments
from elman.errors import InputError

if TYPE_CHECKING:
    from elman.run.search import SearchRequest

USAGE = (
    "elman search --config run.yaml --set 'optim.lr=log(1e-4,1e-2)' 'model.size=choice(64,128,256)' --trials 20 "
    "--out runs/search"
)
ABOUT = """\
Train a config with many values of its settings, and find the best by the score that `elman train` chooses by.

A space names settings and what to try of each:
  log(1e-4, 1e-2)      numbers, evenly on a logarithmic scale
  uniform(0, 0.5)      numbers, evenly
  choice(gru, lstm)    one of these; in YAML a list will do
Of a setting that is a whole number, log and uniform draw whole numbers, both ends included.
Settings of `elman train` (--optim.lr 0.01, --task tag ...) apply to every run.

Every trial is a run in OUT/trials, which `elman compare OUT/trials/*` compares. OUT/best.yaml is the config of the
best: `elman train --config OUT/best.yaml`. A search that was stopped continues: elman search --out OUT --resume auto"""


def run(arguments: Sequence[str]) -> int:
    """Search; 128 plus the signal if one stopped it."""
    if {"-h", "--help"} & set(arguments):
        print(help_text(), end="")
        return 0
    from elman.run.search import SearchRequest

    known = parser()
    flags, rest = known.parse_known_args(arguments)
    out = Path(flags.out).expanduser()
    resumed = flags.resume == "auto" and _continue(known, flags, rest, out, SearchRequest)
    if not resumed and not (flags.space or flags.set):
        raise InputError("there is no space to search: give --set 'optim.lr=log(1e-4,1e-2)', or --space FILE")
    from elman.cli.output import print_json, print_table
    from elman.cli.settings import read_config
    from elman.run.search import search
    from elman.training.interrupt import Interrupted

    base = ["--config", str(out / "base.yaml")] if resumed else []
    settings = read_config([*base, *rest, "--out", str(out)])
    space = _space(flags, out if resumed else None)
    if both := [name for name in space if any(word.partition("=")[0] == f"--{name}" for word in rest)]:
        raise InputError(f"{both[0]} is searched, and --{both[0]} gives it one value; leave one of the two out")
    options = {named.name: getattr(flags, named.name) for named in SearchRequest.options()}
    try:
        found = search(settings, space, out=out, resume=flags.resume, **options)
    except KeyboardInterrupt as stop:
        print(f"elman: stopped; to resume: elman search --out {out} --resume auto", file=sys.stderr)
        return stop.exit_code if isinstance(stop, Interrupted) else 130
    if flags.json:
        trials = [asdict(one) for one in found.trials]
        print_json({"score": found.score, "larger_is_better": found.larger_is_better, "trials": trials})
    else:
        print_table(found.table())
    print(f"The best config is {out / 'best.yaml'}. Try: elman train --config {out / 'best.yaml'}", file=sys.stderr)
    return 0


class _Help(Help, argparse.RawDescriptionHelpFormatter):
    """Defaults beside options, and the text as it is."""


def help_text() -> str:
    """What `parser` prints as help, made of what is kept of it (described.py), for it imports Torch."""
    from elman.cli.described import help_of

    return help_of("search", _empty())


def _empty() -> argparse.ArgumentParser:
    return argparse.ArgumentParser(
        prog="elman search", usage=USAGE, description=ABOUT, allow_abbrev=False, formatter_class=_Help
    )


def parser() -> argparse.ArgumentParser:
    """What it takes beside the settings of `elman train`."""
    from elman.run.search import SearchRequest

    parser = _empty()
    parser.add_argument(
        "--set", nargs="+", action="extend", default=[], metavar="NAME=SPACE", help="what to try of a setting"
    )
    parser.add_argument("--space", metavar="FILE", help="a YAML file of such lines: optim.lr: log(1e-4, 1e-2)")
    parser.add_argument("--out", default="runs/search", help="the folder of the search")
    parser.add_argument("--resume", default="never", choices=("never", "auto"), help="auto: continue the one in OUT")
    parser.add_argument("--json", action="store_true", help="the trials as JSON, the best first")
    add_arguments(parser, SearchRequest)
    return parser


def _continue(
    parser: argparse.ArgumentParser,
    flags: argparse.Namespace,
    rest: Sequence[str],
    out: Path,
    kind: type[SearchRequest],
) -> bool:
    """Whether there is a search in the folder; what the command line leaves open is then as it was started with."""
    from elman.run.search import REQUEST, read_request

    if not (out / REQUEST).exists():
        if not (flags.space or flags.set):
            raise InputError(f"there is no search in {out} to resume; name its folder with --out")
        return False
    before = read_request(out)
    for named in kind.options():
        if getattr(flags, named.name) == parser.get_default(named.name):
            setattr(flags, named.name, before.get(named.name, named.default))
    return True


def _space(flags: argparse.Namespace, resumed: Path | None) -> dict[str, Any]:
    """The space of a command line: that of a search that is resumed, of a file, of --set, later ones first."""
    from elman.run.search import SPACE
    from elman.run.space import SYNTAX, read_space

    space: dict[str, Any] = {}
    for path in filter(None, (resumed and resumed / SPACE, flags.space)):
        space |= read_space(Path(path).expanduser())
    named = set()
    for text in flags.set:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals:
            raise InputError(f"--set has {json.dumps(text)}; it must be a setting, = and what to try, as {SYNTAX}")
        if name in named:
            raise InputError(f"--set names {name} twice; give one space for it")
        named.add(name)
        space[name] = value
    return space
