"""What the verbs about a trained model share: `elman VERB RUN ...`.

The arguments after RUN depend on the run's task: flags and help are made from its requests."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, get_args, get_origin

from elman.errors import InputError

if TYPE_CHECKING:
    from elman.tasks.predictor import AnyPredictor
    from elman.tasks.request import Named, Request
    from elman.tasks.task import AnyTask

Arguments = Callable[[argparse.ArgumentParser], None]
Check = Callable[[argparse.Namespace], None]


class Flags(Protocol):
    """An argument parser, or a group of its arguments."""

    def add_argument(self, *flags: str, **settings: Any) -> argparse.Action: ...


class Invocation(NamedTuple):
    """The parsed flags, the request made of them, and the response of the run's model, whose type is the verb's."""

    flags: argparse.Namespace
    request: Request
    response: Any


def dispatch(
    verb: str, arguments: Sequence[str], description: str, common: Arguments, check: Check = lambda flags: None
) -> Invocation:
    """Load the run that a command line names, and send the verb's request to its model, after a check of the flags."""
    run = run_of(arguments)
    if run is None:
        print(_help(verb, description, common), end="")
        raise SystemExit(0 if {"-h", "--help"} & set(arguments) else 2)
    task, predictor = _open(verb, run)
    flags = parser(verb, task, description, common).parse_args(arguments)
    if flags.run != run:  # what looked like the run was the value of an option
        task, predictor = _open(verb, flags.run)
        flags = parser(verb, task, description, common).parse_args(arguments)
    check(flags)
    kind, respond = task.requests[verb]
    request = _request(kind, flags)
    return Invocation(flags, request, respond(predictor, request))


def _open(verb: str, run: str) -> tuple[AnyTask, AnyPredictor]:
    """The task and the model of a run, if the task supports the verb."""
    from elman.tasks import open_model

    task, predictor = open_model(run)
    if verb not in task.requests:
        raise InputError(
            f"{run} is {task.title}, which `elman {verb}` does not support; use "
            + ", ".join(f"`elman {name}`" for name in task.requests)
        )
    return task, predictor


def _request(kind: type[Request], flags: argparse.Namespace) -> Request:
    """The request that a command line makes; a field without a flag may be another argument, such as the run."""
    from elman.tasks.request import Files

    values = {field.name: getattr(flags, field.name) for field in fields(kind) if hasattr(flags, field.name)}
    if "data" in values:
        values["data"] = Files(values["data"])
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})


class Help(argparse.HelpFormatter):
    """Help that names the default of each option that has one."""

    def _get_help_string(self, action: argparse.Action) -> str:
        default, text = action.default, action.help or ""
        if not action.option_strings or action.nargs == 0 or default in (None, "", [], (), argparse.SUPPRESS):
            return text
        return f"{text} (default: {str(default).replace('%', '%%')})"


def add_arguments(parser: argparse.ArgumentParser, kind: type[Request]) -> None:
    """The data and the flags that a request takes."""
    data = kind.reads()
    if data is not None:
        parser.add_argument("data", nargs="+" if data.least else "*", metavar=data.metavar, help=data.help)
    groups: dict[str, Flags] = {"": parser}
    for named in kind.options():
        group = named.option.group
        if group not in groups:
            groups[group] = parser.add_argument_group(group)
        if not named.option.inside:
            _add_flag(groups[group], named)


def _add_flag(parser: Flags, named: Named) -> None:
    name, kind, _, default, option = named
    flags = [f"--{flag}" for flag in (name, option.also) if flag]
    several = get_origin(kind) is tuple
    inner = get_args(kind)[0] if several else kind
    settings: dict[str, object] = {"dest": name, "help": option.help, "default": default}
    if kind is bool:
        settings["action"] = argparse.BooleanOptionalAction if default else "store_true"
    elif several and inner is float:  # separated by commas, as help shows them
        settings |= {"type": _numbers, "default": ",".join(f"{value:g}" for value in default)}
    elif several:
        settings |= {"nargs": "+"} if option.together else {"action": "append"}
        settings |= {"default": list(default), "type": inner}
    else:
        settings["type"] = inner
    if option.metavar:
        settings["metavar"] = option.metavar
    parser.add_argument(*flags, **settings)


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers, as 0.1,0.5,0.9") from None


def parser(verb: str, task: AnyTask, description: str, common: Arguments) -> argparse.ArgumentParser:
    """The arguments of a verb for the models of a task."""
    parser = argparse.ArgumentParser(
        prog=f"elman {verb}", description=description, allow_abbrev=False, formatter_class=Help
    )
    parser.add_argument("run", metavar="RUN", help="a run directory or a saved model")
    add_arguments(parser, task.requests[verb][0])
    common(parser)
    return parser


def run_of(arguments: Sequence[str]) -> str | None:
    """The argument that names a run: the first folder, otherwise the first that is not an option."""
    words = [word for word in arguments if not word.startswith("-")]
    return next((word for word in words if Path(word).is_dir()), words[0] if words else None)


def _help(verb: str, description: str, common: Arguments) -> str:
    """The arguments of a verb for each of the tasks that support it."""
    from elman.tasks import TASKS

    parts = [f"usage: elman {verb} RUN [arguments]\n\n{description}\n\nRUN is a run directory or a saved model.\n"]
    for task in TASKS.values():
        if verb in task.requests:
            parser = argparse.ArgumentParser(prog=f"elman {verb} RUN", add_help=False, formatter_class=Help)
            add_arguments(parser, task.requests[verb][0])
            common(parser)
            parts.append(f"\nif RUN is {task.title}:\n\n{parser.format_help()}")
    return "".join(parts)
