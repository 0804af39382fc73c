"""What tasks there are, what can be set in each and what flags the verbs take for its models, without Torch: for
`elman init`, `elman train --help` and completion.

The configs are defined next to the networks that they configure, and importing those takes seconds. Their descriptions
are kept in settings.json, which `make docs` writes; a test compares the two. If modules of a user were imported, which
may add tasks, the configs themselves are read.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from elman.errors import UnknownNameError
from elman.files.config import Setting, describe

if TYPE_CHECKING:
    from elman.cli.model_verb import Flags
    from elman.tasks.task import AnySettings, AnyTask

FILE = Path(__file__).with_name("settings.json")


class Argument(NamedTuple):
    """A flag of a verb, or what stands without one. It takes nothing, a number, or what its `takes` is called in help,
    such as RUN; one of the `choices` if there are any; several of them where `several` is true. Help lists it in its
    `group`, if it has one."""

    flag: str
    help: str
    takes: str
    choices: tuple[str, ...] = ()
    several: bool = False
    group: str = ""


class Described(NamedTuple):
    """A task: its title, its settings with their defaults, and the arguments of each verb that its models answer, of
    `export` and of `search`."""

    title: str
    settings: tuple[Setting, ...]
    verbs: dict[str, tuple[Argument, ...]]


def described() -> dict[str, Described]:
    """The tasks by name."""
    if "elman.tasks" in sys.modules:
        return live()
    content = json.loads(FILE.read_text(encoding="utf-8"))
    return {
        name: Described(title, _settings(settings), {verb: _arguments(known) for verb, known in verbs.items()})
        for name, (title, settings, verbs) in content.items()
    }


def live() -> dict[str, Described]:
    """The same, as the configs say it now."""
    from elman.tasks import TASKS

    return {name: Described(task.title, describe(defaults(name, task)), _verbs(task)) for name, task in TASKS.items()}


def _verbs(task: AnyTask) -> dict[str, tuple[Argument, ...]]:
    from elman.cli import VERBS, export, model_verb, search

    verbs = {}
    for verb, parser in (("export", export.parser()), ("search", search.parser())):
        verbs[verb] = arguments_of(parser, parser._get_formatter()._get_help_string)
    for verb, (kind, _) in task.requests.items():
        if verb not in VERBS:  # a task of a user may answer in Python alone
            continue
        parser = model_verb.parser(verb, task, "", import_module(f"elman.cli.{verb}").add_common)
        names = {named.name: named.option.choices for named in kind.options()}
        verbs[verb] = tuple(
            argument._replace(choices=argument.choices or names.get(argument.flag.lstrip("-"), ()))
            for argument in arguments_of(parser)
        )
    return verbs


def _own_help(action: argparse.Action) -> str:
    return action.help or ""


def arguments_of(
    parser: argparse.ArgumentParser, text_of: Callable[[argparse.Action], str | None] = _own_help
) -> tuple[Argument, ...]:
    """What a parser accepts: its flags, and what stands without one in order."""
    named = (parser._positionals, parser._optionals)
    return tuple(
        Argument(
            flag,
            text_of(action) or "",
            _takes(action),
            tuple(action.choices or ()),
            action.nargs in ("*", "+"),
            "" if group in named else str(group.title),
        )
        for group in parser._action_groups
        for action in group._group_actions
        if action.help != argparse.SUPPRESS
        for flag in ([name for name in action.option_strings if name.startswith("--")] or [""])
    )


def help_of(verb: str, parser: argparse.ArgumentParser) -> str:
    """What the parser of a verb prints as help, its arguments made of what is kept of them: `parser`, which has none
    yet, needs no Torch for that."""
    groups: dict[str, Flags] = {"": parser}
    for argument in next(iter(described().values())).verbs[verb]:
        if argument.flag == "--help":
            continue
        if argument.group not in groups:
            groups[argument.group] = parser.add_argument_group(argument.group)
        settings: dict[str, Any] = {"help": argument.help.replace("%", "%%")}
        if not argument.takes:
            settings["action"] = "store_true"
        else:
            settings |= {"choices": argument.choices or None, "nargs": "+" if argument.several else None}
            settings["metavar"] = None if argument.choices or argument.takes == "number" else argument.takes
        groups[argument.group].add_argument(argument.flag or argument.takes, **settings)
    return parser.format_help()


def _takes(action: argparse.Action) -> str:
    if action.nargs == 0:
        return ""
    return "number" if action.type in (int, float) else str(action.metavar or action.dest.upper())


def defaults(name: str, task: AnyTask) -> AnySettings:
    """The config of a task with the default of the command line for `out`: a folder in runs/."""
    config: AnySettings = task.Config()
    return config if config.out else replace(config, out=f"runs/{name}")


def find(name: str) -> Described:
    """The task called `name`."""
    tasks = described()
    if name not in tasks:
        raise UnknownNameError("task", name, tasks)
    return tasks[name]


def _settings(content: Sequence[Sequence[Any]]) -> tuple[Setting, ...]:
    return tuple(
        Setting(name, meaning, value, _settings(parts), tuple(choices))
        for name, meaning, value, parts, choices in content
    )


def _arguments(content: Sequence[Sequence[Any]]) -> tuple[Argument, ...]:
    return tuple(
        Argument(flag, text, takes, tuple(names), several, group)
        for flag, text, takes, names, several, group in content
    )


if __name__ == "__main__":
    FILE.write_text(json.dumps(live(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
