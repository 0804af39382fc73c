"""What the verbs about a trained model share: `elman VERB RUN ...`. What comes after RUN, the run's task says."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from elman.errors import InputError

if TYPE_CHECKING:
    from elman.tasks.task import AnyTask

Arguments = Callable[[argparse.ArgumentParser], None]


class Asked(NamedTuple):
    """The arguments as they were parsed, and what the task answers to them."""

    given: argparse.Namespace
    answer: Any


def ask(verb: str, arguments: Sequence[str], description: str, common: Arguments) -> Asked:
    """Load the run that a command line names, and put the verb's question to its task."""
    run = _run(arguments)
    if run is None:
        print(_help(verb, description, common), end="")
        raise SystemExit(0 if {"-h", "--help"} & set(arguments) else 2)
    task, face = _opened(verb, run)
    given = _parsed(verb, task, arguments, description, common)
    if given.run != run:  # what looked like the run was the value of an option
        task, face = _opened(verb, given.run)
        given = _parsed(verb, task, arguments, description, common)
    return Asked(given, task.verbs[verb].answer(face, given))


def _opened(verb: str, run: str) -> tuple[AnyTask, Any]:
    """The task and the model of a run, if it answers the verb."""
    from elman.saved import open_model

    task, face = open_model(run)
    if verb not in task.verbs:
        raise InputError(
            f"{run} is {task.title}, which does not answer `elman {verb}`; it answers "
            + ", ".join(f"`elman {name}`" for name in task.verbs)
        )
    return task, face


class Help(argparse.HelpFormatter):
    """Help that says the default of each option that has one."""

    def _get_help_string(self, action: argparse.Action) -> str:
        default, text = action.default, action.help or ""
        if not action.option_strings or action.nargs == 0 or default in (None, "", [], argparse.SUPPRESS):
            return text
        return f"{text} (default: {str(default).replace('%', '%%')})"


def _parsed(
    verb: str, task: AnyTask, arguments: Sequence[str], description: str, common: Arguments
) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=f"elman {verb}", description=description, allow_abbrev=False, formatter_class=Help
    )
    parser.add_argument("run", metavar="RUN", help="a run directory or a saved model")
    task.verbs[verb].arguments(parser)
    common(parser)
    return parser.parse_args(arguments)


def _run(arguments: Sequence[str]) -> str | None:
    """The argument that names a run: the first folder, else the first that is not an option."""
    words = [word for word in arguments if not word.startswith("-")]
    return next((word for word in words if Path(word).is_dir()), words[0] if words else None)


def _help(verb: str, description: str, common: Arguments) -> str:
    """What a verb takes for each of the tasks that answer it."""
    from elman.tasks import TASKS

    parts = [f"usage: elman {verb} RUN [arguments]\n\n{description}\n\nRUN is a run directory or a saved model.\n"]
    for task in TASKS.values():
        if verb in task.verbs:
            parser = argparse.ArgumentParser(prog=f"elman {verb} RUN", add_help=False, formatter_class=Help)
            task.verbs[verb].arguments(parser)
            common(parser)
            parts.append(f"\nwhere RUN is {task.title}:\n\n{parser.format_help()}")
    return "".join(parts)
