"""What a search tries: for some settings a range of numbers or a choice of values.

As text, on the command line and in YAML: `uniform(low, high)`, `log(low, high)`, evenly on a logarithmic scale, and
`choice(a, b, ...)`, which a list stands for too. Of a setting that is a whole number, ranges have whole numbers, both
ends included.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, NamedTuple, Union, get_args, get_origin, get_type_hints

from elman.errors import InputError, UnknownNameError
from elman.files import config
from elman.files.config import WHERE, Json
from elman.tasks.task import AnySettings

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

WORDS = ("uniform", "log", "choice")
SYNTAX = "uniform(0, 0.5), log(1e-4, 1e-2) or choice(64, 128, 256)"
KINDS: dict[object, str] = {int: "whole numbers", float: "numbers", bool: "true or false", str: "texts"}


class Range(NamedTuple):
    """Numbers from `low` to `high`."""

    low: float
    high: float
    log: bool
    whole: bool

    def distribution(self) -> BaseDistribution:
        from optuna.distributions import FloatDistribution, IntDistribution

        if self.whole:
            return IntDistribution(int(self.low), int(self.high), log=self.log)
        return FloatDistribution(self.low, self.high, log=self.log)

    def value(self, drawn: Any) -> Json:
        return drawn

    def __str__(self) -> str:
        return f"{'log' if self.log else 'uniform'}({self.low!r}, {self.high!r})"


class Choice(NamedTuple):
    """One of some values."""

    values: tuple[Json, ...]

    def distribution(self) -> BaseDistribution:
        from optuna.distributions import CategoricalDistribution

        return CategoricalDistribution([json.dumps(value) for value in self.values])  # a value may be a list

    def value(self, drawn: Any) -> Json:
        return json.loads(drawn)

    def __str__(self) -> str:
        return f"choice({', '.join(map(json.dumps, self.values))})"


Space = dict[str, Range | Choice]


def read_space(path: Path) -> dict[str, Json]:
    """The space in a YAML file, by dotted names; sections may be nested, as in a config."""
    return config.flat(config.read(path))


def open_space(settings: AnySettings, given: Mapping[str, Any]) -> Space:
    """The space that was given for a config; an InputError at the first part of it that cannot be searched.

    >>> from elman.tasks.text.lm import LMConfig
    >>> space = open_space(LMConfig(), {"optim.lr": "log(1e-4, 0.01)", "model.size": [64, 128]})
    >>> [str(part) for part in space.values()]
    ['log(0.0001, 0.01)', 'choice(64, 128)']
    """
    if not isinstance(given, Mapping) or not given:
        raise InputError(f"the space is {given!r}; it must name settings with what to try of each, as {SYNTAX}")
    known = config.settings_of(settings)
    for name in given:
        if name not in known:
            raise UnknownNameError("setting to search", str(name), known)
        if name in (*WHERE, "task"):
            raise InputError(
                f"{name} cannot be searched: it says where or what a run is. Search what a run is made of."
            )
    return {name: _open(name, value, _hint(settings, name)) for name, value in given.items()}


def with_values(settings: AnySettings, values: Mapping[str, Json]) -> AnySettings:
    """The config with other values of some settings, by dotted names."""
    for name, value in values.items():
        section, _, last = name.rpartition(".")
        if section:
            settings = replace(settings, **{section: replace(getattr(settings, section), **{last: value})})
        else:
            settings = replace(settings, **{name: value})  # type: ignore[arg-type]
    return settings


def _hint(settings: AnySettings, name: str) -> object:
    section, _, last = name.rpartition(".")
    return get_type_hints(type(getattr(settings, section) if section else settings))[last]


def _open(name: str, given: Any, hint: object) -> Range | Choice:
    word, values = _parse(name, given)
    if word == "choice":
        return _choice(name, values, hint)
    whole = not _accepts(hint, 0.5)
    if not _accepts(hint, 1):
        raise InputError(f"{name} takes {_kinds(hint)}, not a range; name the values: choice(a, b)")
    if len(values) != 2 or not all(_is_number(value) for value in values):
        raise InputError(f"{name} is {given!r}; {word} takes two numbers, the least and the largest: {SYNTAX}")
    low, high = values
    if whole and not all(isinstance(value, int) for value in values):
        raise InputError(f"{name} is {given!r}; it is a whole number, so both ends must be whole numbers")
    if not low < high:
        raise InputError(f"{name} is {given!r}; the first number must be below the second")
    if word == "log" and low <= 0:
        raise InputError(
            f"{name} is {given!r}; the logarithm needs numbers above 0. Use uniform, or a larger least one"
        )
    return Range(low, high, word == "log", whole)


def _parse(name: str, given: Any) -> tuple[str, list[Any]]:
    if isinstance(given, list | tuple):
        return "choice", list(given)
    match = re.fullmatch(r"\s*(\w+)\s*\((.*)\)\s*", given, re.DOTALL) if isinstance(given, str) else None
    if match is None or match[1] not in WORDS:
        raise InputError(f"{name} is {given!r}; what to try is written {SYNTAX}")
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        values = YAML(typ="safe", pure=True).load(f"[{match[2]}]")
    except YAMLError as error:
        raise InputError(f"{name} is {given!r}, which cannot be read; what to try is written {SYNTAX}") from error
    return match[1], values


def _choice(name: str, values: Sequence[Any], hint: object) -> Choice:
    if len(values) < 2:
        raise InputError(f"{name} has a choice of {len(values)} values; a search needs two at least")
    wrong = [value for value in values if not _accepts(hint, value)]
    if wrong:
        raise InputError(f"{name} has the choice {wrong[0]!r}; it takes {_kinds(hint)}")
    if len({json.dumps(value) for value in values}) < len(values):
        raise InputError(f"{name} has a choice twice: {', '.join(map(json.dumps, values))}; name each value once")
    return Choice(tuple(values))


def _members(hint: object) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _accepts(hint: object, value: object) -> bool:
    """Whether a setting of a type takes a value, as far as types tell; its own checks know the rest."""
    for kind in _members(hint):
        origin = get_origin(kind) or kind
        if kind is Any or (kind is NoneType and value is None):
            return True
        if kind is float and _is_number(value):
            return True
        if origin in (list, tuple) and isinstance(value, list):
            return True
        if origin in (int, str, bool, dict) and type(value) is origin:
            return True
    return False


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _kinds(hint: object) -> str:
    names = [KINDS.get(kind, "null" if kind is NoneType else str(get_origin(kind) or kind)) for kind in _members(hint)]
    return " or ".join(names)
