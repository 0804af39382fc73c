"""The config that a command line describes: the settings of YAML files, overridden by flags."""

from __future__ import annotations

import argparse
import difflib
import json
import os
import re
import shutil
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, get_type_hints

from elman.cli.described import defaults
from elman.errors import FileError, InputError

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser, Namespace

    from elman.files.config import Json
    from elman.tasks.task import AnySettings

    Files = Sequence[tuple[Path, dict[str, Json]]]  # configs; later ones override earlier ones

USAGE = "usage: elman train [--config FILE] [--SETTING VALUE ...]"
DEFAULT = "lm"  # the task if none is named
TRAINS_ON = ("train", "source")  # the settings of `data` that name the training data, whatever the task
KINDS = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "a string"}


def read_config(arguments: Sequence[str]) -> AnySettings:
    """The config of a command line. A resumed run has a config, and so has a model that a run starts from."""
    named = parse_named(arguments)
    files = [(Path(path), _content(Path(path))) for path in named.config]
    named.task = named.task or _last(files, "task")
    if {"-h", "--help"} & set(arguments):
        print(help_text(named.task or DEFAULT), end="")
        raise SystemExit(0)
    from elman import tasks

    own = _own(named, files) if (named.resume or _last(files, "resume")) == "auto" else []
    files = [*own, *files]
    name = named.task or _last(own, "task") or DEFAULT
    task = tasks.find(name)
    parser = _parser(task.Config)
    parser.set_defaults({"out": defaults(name, task).out})
    source = named.init_from or _last(files, "init_from")
    if source and not own:
        from elman.tasks import open_source

        parser.set_defaults(task.settings(open_source(source, task)))
    for path, content in files:
        _check_sections(path, content, task.Config)
    words = [word for _, content in files for word in ("--config", json.dumps(content))]
    settings: AnySettings = _instance(parser, task.Config, _parse(parser, [*words, *_lists(named.rest, task.Config)]))
    if not settings.out:
        raise InputError("out is empty; name the run directory: --out runs/NAME")
    return replace(settings, out=os.path.expanduser(settings.out))  # a shell does not expand the ~ of `--out=~/run`


def parse_named(arguments: Sequence[str]) -> argparse.Namespace:
    """What must be known before the rest can be read: the task decides which settings there are."""
    parser = argparse.ArgumentParser(prog="elman train", add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--config", action="append", default=[])
    for name in ("--task", "--out", "--resume", "--init_from"):
        parser.add_argument(name, nargs="?")
    try:
        named, _ = parser.parse_known_args(arguments)
        only = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
        only.add_argument("--config", action="append")
        _, named.rest = only.parse_known_args(arguments)
    except argparse.ArgumentError as error:
        raise InputError(str(error)) from error
    return named


def _own(named: argparse.Namespace, files: Files) -> Files:
    """The config of the run to resume, if it exists."""
    from elman import tasks
    from elman.files import artifact, config

    name = named.task or DEFAULT
    out = Path(named.out or _last(files, "out") or defaults(name, tasks.find(name)).out).expanduser()
    path = out / config.NAME
    if path.exists():
        content = _content(path)
        if named.task and named.task != content.get("task", named.task):
            raise InputError(f"{out} is a run of the task {content['task']}, not of {named.task}; choose another --out")
        return [(path, content)]
    if artifact.find(out / "last") and not files:
        raise FileError(
            f"{out} has a checkpoint but no {config.NAME}; restore that file, or pass the config that the run was "
            "started with as --config"
        )
    if not (named.task and (_names_data(named.rest, files) or not _reads_data(tasks.find(named.task).Config))):
        raise InputError(
            f"there is no run in {out} to resume, and this command does not say what to train: {_lacking(named)}. To "
            "resume a run, name its folder with --out. To start one here, or resume it if it exists, name both: "
            f"elman train --task TASK --data.train FILE --out {out} --resume auto"
        )
    return []


def _reads_data(config: type) -> bool:
    """Whether runs of a task read training data; a task of a user may generate its own."""
    data = getattr(config(), "data", None)
    return any(hasattr(data, name) for name in TRAINS_ON)


def _names_data(arguments: Sequence[str], files: Files) -> bool:
    """Whether a command line, or a config on it, says what to train on."""
    typed = {word.partition("=")[0] for word in arguments}
    written = [data for _, content in files if isinstance(data := content.get("data"), dict)]
    return any(f"--data.{name}" in typed or any(name in data for data in written) for name in TRAINS_ON)


def _lacking(named: argparse.Namespace) -> str:
    return "it names no data" if named.task else "it names no task"


def _content(path: Path) -> dict[str, Json]:
    """The settings in a file, after importing the modules that it names."""
    from elman.cli.flags import load_from_config
    from elman.files import config, plugins

    content = config.read(path)
    load_from_config(plugins.noted(content, str(path)), str(path))
    return {name: value for name, value in content.items() if name != "imports"}


def _last(files: Files, name: str) -> str:
    """The value of a setting in the last of the files that have it."""
    return next((str(content[name]) for _, content in reversed(files) if content.get(name)), "")


def _sections(config: type) -> dict[str, type]:
    """The parts of a config that are configs themselves."""
    hints: dict[str, object] = get_type_hints(config)
    return {name: kind for name, kind in hints.items() if isinstance(kind, type) and is_dataclass(kind)}


def _check_sections(path: Path, content: Mapping[str, Json], config: type) -> None:
    for name in _sections(config):
        if name in content and not isinstance(content[name], dict):
            raise FileError(
                f"in {path}, {name} is {content[name]!r}, which is not a mapping; it is a section of settings, such as "
                f"{name}: {{{next(iter(get_type_hints(_sections(config)[name])))}: ...}}"
            )


def _lists(arguments: Sequence[str], config: type) -> list[str]:
    """Several words after a setting that takes a list, such as a shell's expansion of `*.txt`, become one list."""
    parts: list[list[str]] = []
    for word in arguments:
        if word.startswith("--") or not parts:
            parts.append([word])
        else:
            parts[-1].append(word)
    takes = dict(_takes_lists(config, ""))
    for part in parts:
        name, *words = part
        if len(words) > 1 and name in takes:
            part[1:] = [takes[name](words)]
    return [word for part in parts for word in part]


def _takes_lists(config: type, prefix: str) -> Iterator[tuple[str, Callable[[list[str]], str]]]:
    """The settings that take lists, and how the words of one are written."""
    sections = _sections(config)
    for name, kind in get_type_hints(config).items():
        if name in sections:
            yield from _takes_lists(sections[name], f"{prefix}{name}.")
        elif "list[" in str(kind) or "tuple[" in str(kind):
            yield f"--{prefix}{name}", json.dumps if "str" in str(kind) else _numbers


def _numbers(words: list[str]) -> str:
    return f"[{', '.join(words)}]"


def _parse(parser: ArgumentParser, arguments: Sequence[str]) -> Namespace:
    from jsonargparse import ArgumentError

    try:
        return parser.parse_args(list(arguments))
    except ArgumentError as error:
        raise InputError(_explain(str(error), parser)) from error
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"cannot read the config: {error}") from error


def _parser(config: type) -> ArgumentParser:
    from jsonargparse import ArgumentParser

    parser = ArgumentParser(prog="elman train", exit_on_error=False, allow_abbrev=False)
    parser.add_argument("--config", action="config")
    parser.add_class_arguments(config, as_group=False)
    return parser


def _instance(parser: ArgumentParser, config: type[AnySettings], parsed: Namespace) -> AnySettings:
    parts = vars(parser.instantiate(parsed))
    return config(**{name: value for name, value in parts.items() if name != "config"})


def _explain(message: str, parser: ArgumentParser) -> str:
    """What jsonargparse says, without Python's types, and the nearest setting if one was named that does not exist."""
    wrong = re.match(r"Parser key \"([\w.]+)\":\s+Expected a <class '(\w+)'>\. Got value: (.*)", message, re.DOTALL)
    if wrong:
        name, kind, value = wrong.groups()
        return f"{name} is {value!r}; it must be {KINDS.get(kind, kind)}"
    unknown = re.search(r"Group '([\w.]+)' does not accept option '([\w.]+)'|Option '([\w.]+)'|--([\w.]+)", message)
    named = ".".join(part for part in unknown.groups() if part) if unknown else ""
    settings = list(vars(parser.get_defaults().as_flat()))
    # `lr` alone means the only setting that ends with it; otherwise a similar name.
    ends = [name for name in settings if name.endswith(f".{named.rpartition('.')[2]}")]
    if named == "training.tensorboard":
        return "training.tensorboard is now a log: --log tensorboard, or `log: tensorboard` in a config"
    near = ends if len(ends) == 1 and named not in settings else difflib.get_close_matches(named, settings, n=1)
    return " ".join(message.split()) + (f" Did you mean {near[0]!r}?" if near and named not in settings else "")


def help_text(name: str) -> str:
    """The flags of `elman train` for a task: first those of every run, then section by section."""
    from elman.cli.described import described, find

    task = find(name)
    others = "\n".join(
        f"  elman train --task {other} --help{'':<{11 - len(other)}}{t.title}" for other, t in described().items()
    )
    parts = [
        f"{USAGE}\n\nTrain {task.title}. `elman init {name} > run.yaml` writes a config with all of these.\n"
        f"Help for each task:\n{others}\n\nthe run:\n",
        *_entry("config", "a YAML file of settings; flags override it", None),
        *_entry("import", "a module of your own to import first, which adds cells or tasks", None),
    ]
    for setting in task.settings:
        if not setting.parts:
            parts.extend(_entry(setting.name, setting.meaning, setting.value))
    for section in task.settings:
        if section.parts:
            parts.append(f"\n{section.name}: {section.meaning}\n")
            for part in section.parts:
                parts.extend(_entry(f"{section.name}.{part.name}", part.meaning, part.value))
    return "".join(parts)


def _entry(name: str, meaning: str, default: object) -> list[str]:
    """A setting, what it means, and its default if it has one."""
    suffix = "" if default in (None, "", [], {}) else f" ({_plain(default)})"
    lines = textwrap.wrap(f"{meaning}{suffix}", width=max(40, min(shutil.get_terminal_size().columns, 120) - 33))
    return [f"  --{name:<28} {lines[0] if lines else ''}\n", *(f"{'':<33}{line}\n" for line in lines[1:])]


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return " ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
