"""The config of a run: written as YAML with a comment on every line, read, and compared when the run is resumed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, field, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from elman.errors import FileError, InputError, UnknownNameError
from elman.files import plugins

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from ruamel.yaml.error import MarkedYAMLError

NAME = "config.yaml"  # in a run directory
ALIASES = 10  # of YAML, in a config: ten levels of ten would be ten thousand million settings
DEPTH = 20  # of mappings and lists in each other
# Where a run is and how it was called: not what it is. `training.tensorboard` is what `log` was at first.
WHERE = ("out", "resume", "device", "threads", "log", "training.tensorboard")
Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
Identity = dict[str, dict[str, Json]]
LENGTH = ("training.steps", "training.patience")  # how long a run is, which may change when it is resumed


V = TypeVar("V")


class Change(NamedTuple):
    """A setting as it was, and as it is."""

    before: Json
    now: Json


class Sections:
    """A config whose sections may be given as mappings too: LMConfig(training={"steps": 8}).

    What is neither the section nor a mapping of its settings is refused at once.
    """

    def __post_init__(self) -> None:
        assert is_dataclass(self)
        for part in fields(self):
            kind, value = part.default_factory, getattr(self, part.name)
            if isinstance(kind, type) and is_dataclass(kind) and not isinstance(value, kind):
                object.__setattr__(self, part.name, _section(part.name, kind, value))


def _section(name: str, kind: type, value: object) -> object:
    if not isinstance(value, Mapping):
        raise InputError(f"{name} is {value!r}; it must be a {kind.__name__}, or a mapping of settings of one")
    known = [part.name for part in fields(kind)]
    for setting in value:
        if setting not in known:
            raise UnknownNameError(f"setting of {name}", setting, known)
    return kind(**value)


def one_of(default: str | None, names: Iterable[str] | Callable[[], Iterable[str]]) -> Any:
    """The field of a setting that is one of some names, which completion offers; a function where to know them takes an
    import. Whoever uses the setting checks it.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Paint:
    ...     colour: str = one_of("red", ("red", "blue"))
    >>> describe(Paint())[0].choices
    ('red', 'blue')
    """
    return field(default=default, metadata={"choices": names})


class Setting(NamedTuple):
    """A setting, what its docstring says it means, its value and the names that it may be, where there are such; or a
    section, and the settings in it."""

    name: str
    meaning: str
    value: Json
    parts: tuple[Setting, ...] = ()
    choices: tuple[str, ...] = ()


def describe(config: DataclassInstance) -> tuple[Setting, ...]:
    """The settings of a config as a person reads them, with their values as JSON has them."""
    meaning, settings = meanings(type(config)), []
    choices = {part.name: _choices(part.metadata.get("choices", ())) for part in fields(config)}
    for name in ordered(config):
        value, about = getattr(config, name), meaning.get(name, "")
        if is_dataclass(value) and not isinstance(value, type):
            settings.append(Setting(name, about, None, describe(value)))
        else:
            plain = json.loads(json.dumps(value, default=str))
            settings.append(Setting(name, about, plain, choices=choices[name]))
    return tuple(settings)


def _choices(names: Iterable[str] | Callable[[], Iterable[str]]) -> tuple[str, ...]:
    return tuple(names() if callable(names) else names)


def render(config: DataclassInstance) -> str:
    """A config as YAML, every line with what its docstring says it means."""
    return render_settings(describe(config))


def render_settings(settings: Sequence[Setting]) -> str:
    """The same, of settings that were described."""
    own, lines = plugins.loaded(), list(_lines(settings, ""))
    if own:
        lines += ["# modules of your own that are imported first", f"imports: {json.dumps(own)}"]
    return "\n".join(lines) + "\n"


def meanings(config: type) -> dict[str, str]:
    """What each setting of a config means, as its docstring has it, or that of a class that it derives from."""
    from docstring_parser import parse  # comes with jsonargparse[signatures]

    params = [param for kind in reversed(config.__mro__) for param in parse(kind.__doc__ or "").params]
    return {param.arg_name: " ".join((param.description or "").split()) for param in params}


def ordered(config: DataclassInstance) -> list[str]:
    """The names of the settings as a person reads them: the task, its own sections, those of all tasks, then the rest.

    >>> from elman.tasks.text.lm import LMConfig
    >>> ordered(LMConfig())[:6]
    ['task', 'data', 'model', 'preview', 'optim', 'training']
    """
    own = vars(type(config)).get("__annotations__", {})

    def place(name: str) -> int:
        if name == "task":
            return 0
        return (1 if name in own else 2) if is_dataclass(getattr(config, name)) else 3

    return sorted((part.name for part in fields(config)), key=place)


def _lines(settings: Sequence[Setting], indent: str) -> Iterator[str]:
    for name, meaning, value, parts, _ in settings:
        if meaning:
            yield f"{indent}# {meaning}"
        if parts:
            yield f"{indent}{name}:"
            yield from _lines(parts, indent + "  ")
        else:
            yield f"{indent}{name}: {json.dumps(value, ensure_ascii=False)}"


def read(path: Path) -> dict[str, Json]:
    """The settings in a YAML file; a FileError if it is not one."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError
    from ruamel.yaml.events import AliasEvent, CollectionEndEvent, CollectionStartEvent

    try:
        text, yaml = path.read_text(encoding="utf-8-sig"), YAML(typ="safe", pure=True)
        aliases, depth = 0, 0
        for event in yaml.parse(text):
            aliases += isinstance(event, AliasEvent)
            depth += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)
            if aliases > ALIASES or depth > DEPTH:
                raise FileError(
                    f"the config {path} has more than {ALIASES} aliases (*name) or {DEPTH} levels; write it plainly"
                )
        content = yaml.load(text)
    except MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise FileError(f"cannot read the config {path}{line}: {_problem(error)}") from error
    except (OSError, UnicodeDecodeError, YAMLError, RecursionError) as error:
        raise FileError(f"cannot read the config {path}: {error}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise FileError(f"{path} is not a config: it holds a {type(content).__name__}, not settings by name")
    return _current(content)


def _current(content: dict[str, Json]) -> dict[str, Json]:
    """The settings as they are called now: `training.tensorboard` of earlier versions is a `log`."""
    training = content.get("training")
    if not isinstance(training, dict) or "tensorboard" not in training:
        return content
    others = {name: value for name, value in training.items() if name != "tensorboard"}
    log: dict[str, Json] = {"log": ["tensorboard"]} if training["tensorboard"] else {}
    return {**log, **content, "training": others}


def _problem(error: MarkedYAMLError) -> str:
    """What is wrong, without the advice to programmers that follows it."""
    return str(error.problem or error.context).partition(" with value ")[0]


def identity(config: DataclassInstance, data: Mapping[str, str]) -> Identity:
    """What must be the same for a run to be the same: every setting, and in place of files their fingerprints.

    `data` has the fingerprint of the data that each setting names, such as `data.train`.
    """
    settings = {name: value for name, value in settings_of(config).items() if name not in (*WHERE, *data)}
    return {"settings": settings, "data": dict(data)}


def settings_of(config: DataclassInstance) -> dict[str, Json]:
    """Every setting by its dotted name, as JSON has it."""
    settings: dict[str, Json] = json.loads(json.dumps(flat(asdict(config)), default=str))
    return settings


def resumed(stored: Identity, config: DataclassInstance, data: Mapping[str, str], where: Path) -> dict[str, Change]:
    """What `config` changes in the run in `where`; an InputError that names the first change that is not allowed.

    How long it is may change. A setting that the run was started without, for it is newer, had its default.
    """
    current, defaults = identity(config, data), settings_of(type(config)())
    before = {
        **{name: defaults[name] for name in current["settings"] if name in defaults},
        **{name: value for name, value in stored.get("settings", {}).items() if name not in WHERE},
    }
    changes = _changes(before, current["settings"])
    for name, change in changes.items():
        if name not in LENGTH:
            raise InputError(
                f"{where} was started with {name} = {change.before}, not {change.now}; a resumed run must be the same "
                f"run. Leave {name} as it was, or start another run with another --out."
            )
    for name in _changes(stored.get("data", {}), current["data"]):
        raise InputError(
            f"{where} was started with other data: the content of {name} has changed, or how it is split. "
            "A resumed run must be the same run: name the data that it had, or choose another --out."
        )
    return changes


def _changes(before: Mapping[str, Json], now: Mapping[str, Json]) -> dict[str, Change]:
    every = {name: Change(before.get(name), now.get(name)) for name in sorted({*before, *now})}
    return {name: change for name, change in every.items() if change.before != change.now}


def flat(config: Mapping[str, V], prefix: str = "") -> dict[str, V]:
    """Nested settings by dotted names.

    >>> flat({"model": {"size": 8}, "seed": 0})
    {'model.size': 8, 'seed': 0}
    """
    values: dict[str, V] = {}
    for name, value in config.items():
        if isinstance(value, dict):
            values.update(flat(value, f"{prefix}{name}."))
        else:
            values[f"{prefix}{name}"] = value
    return values
