"""The config of a run: written as YAML with a comment on every line, read back, and compared when the run goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from elman.errors import FileError, InputError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

NAME = "config.yaml"  # in a run directory
WHERE = ("out", "resume", "device")  # where a run is and how it was called: not what it is
Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
Identity = dict[str, dict[str, Json]]


def render(config: DataclassInstance) -> str:
    """A config as YAML, every line with what its docstring says it means."""
    return "\n".join(_lines(config, "")) + "\n"


def _lines(config: DataclassInstance, indent: str) -> Iterator[str]:
    from docstring_parser import parse  # comes with jsonargparse[signatures]

    meanings = {param.arg_name: param.description for param in parse(type(config).__doc__ or "").params}
    for name in (part.name for part in fields(config)):
        value = getattr(config, name)
        if name in meanings:
            yield f"{indent}# {meanings[name]}"
        if is_dataclass(value) and not isinstance(value, type):
            yield f"{indent}{name}:"
            yield from _lines(value, indent + "  ")
        else:
            yield f"{indent}{name}: {json.dumps(value, ensure_ascii=False, default=str)}"


def read(path: Path) -> dict[str, Json]:
    """The settings in a YAML file; a FileError if it is not one."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        content = YAML(typ="safe").load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, YAMLError) as error:
        raise FileError(f"cannot read the config {path}: {error}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise FileError(f"{path} is not a config: it holds a {type(content).__name__}, not settings by name")
    return content


def identity(config: DataclassInstance, data: Mapping[str, str]) -> Identity:
    """What must be the same for a run to be the same: every setting, and in place of files their fingerprints.

    `data` has the fingerprint of what each setting named in it stands for, such as `data.train`.
    """
    settings = {name: value for name, value in _flat(asdict(config)).items() if name not in (*WHERE, *data)}
    return {"settings": json.loads(json.dumps(settings)), "data": dict(data)}


def check_same(stored: Identity, given: Identity, where: Path) -> None:
    """Raise an InputError that names the first setting that differs from that of the run in `where`."""
    name = _first_difference(stored.get("settings", {}), given["settings"])
    if name is not None:
        before, now = (part["settings"].get(name) for part in (stored, given))
        raise InputError(
            f"{where} was started with {name} = {before}, not {now}; a resumed run must be the same run. "
            f"Leave {name} as it was, or start another run with another --out."
        )
    name = _first_difference(stored.get("data", {}), given["data"])
    if name is not None:
        raise InputError(
            f"{where} was started with other data: what {name} stands for has changed, or how it is split. "
            "A resumed run must be the same run: name the data that it had, or choose another --out."
        )


def _first_difference(a: Mapping[str, Json], b: Mapping[str, Json]) -> str | None:
    return next((name for name in sorted({*a, *b}) if a.get(name) != b.get(name)), None)


def _flat(config: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    flat: dict[str, object] = {}
    for name, value in config.items():
        if isinstance(value, dict):
            flat.update(_flat(value, f"{prefix}{name}."))
        else:
            flat[f"{prefix}{name}"] = value
    return flat
