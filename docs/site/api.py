"""The pages of the Python reference: every public name, its signature and its docstring."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType

from md import code, docstring, escape, summary, table

import elman

# Page: its title, and the modules whose public names it has. `pages` fails if a module of ours is on none.
PAGES = {
    "core": ("Core, model, stream", ["elman.core", "elman.model", "elman.stream", "elman.convert"]),
    "state": ("elman.state", ["elman.state"]),
    "cells": ("elman.cells", ["elman.cells"]),
    "compose": ("elman.compose", ["elman.compose"]),
    "nn": (
        "Read-outs and distributions",
        ["elman.nn.embed", "elman.nn.readout", "elman.nn.distributions", "elman.nn.crf"],
    ),
    "train": (
        "Train, search and load",
        ["elman.run", "elman.run.search", "elman.tasks", "elman.tasks.text.pretrained.convert"],
    ),
    "models": (
        "Trained models",
        [
            "elman.tasks.text.lm", "elman.tasks.text.markov", "elman.tasks.tag.model", "elman.tasks.classify.model",
            "elman.tasks.forecast.model", "elman.tasks.translate.model", "elman.tasks.tree.model",
            "elman.tasks.image.model", "elman.run.estimators",
        ],
    ),
    "configs": (
        "Configs",
        [
            "elman.tasks.text.data", "elman.tasks.text.task", "elman.tasks.tag.task", "elman.tasks.classify.task",
            "elman.tasks.forecast.config", "elman.tasks.translate.task", "elman.tasks.hmm.data",
            "elman.tasks.hmm.task", "elman.tasks.tree.task", "elman.tasks.image.task", "elman.training.loop",
            "elman.training.optim",
        ],
    ),
    "hmm": ("elman.hmm", ["elman.hmm"]),
    "trees": ("elman.trees", ["elman.trees"]),
    "images": ("elman.images", ["elman.images"]),
    "lens": ("elman.lens", ["elman.lens"]),
    "online": ("elman.online", ["elman.online"]),
    "export": ("elman.export, elman.onnx", ["elman.export", "elman.onnx"]),
    "laws": ("elman.laws", ["elman.laws"]),
    "decoding": ("elman.decoding", ["elman.decoding"]),
    "data": ("elman.data", ["elman.data"]),
    "kernels": ("elman.kernels", ["elman.kernels"]),
    "errors": ("elman.errors", ["elman.errors"]),
}  # fmt: skip


def public_names() -> dict[str, list[str]]:
    """The names of each module that a user may import, and those of `elman` by the module that they come from."""
    modules = {f"elman.{name}": _names(import_module(f"elman.{name}")) for name in elman._MODULES}
    return {**{home: list(names) for home, names in elman._NAMES.items()}, **modules}


def pages() -> dict[str, str]:
    """Each page of reference/api/ by its name."""
    names = public_names()
    listed = [module for _, modules in PAGES.values() for module in modules]
    assert set(listed) == set(names), f"docs/site/api.py lists no page for {set(names) ^ set(listed)}"
    return {page: _page(title, {module: names[module] for module in of}) for page, (title, of) in PAGES.items()}


def index() -> str:
    """A table of all names by page, each with what it is in a line."""
    names, parts = public_names(), []
    for page, (title, modules) in PAGES.items():
        rows = [
            [f"[`{shown}`](api/{page}.md#{anchor(shown)})", escape(_summary(value))]
            for module in modules
            for shown, value in _values(module, names[module])
        ]
        parts.append(f"## {title}\n\n" + table(["name", "what it is"], rows))
    return "\n".join(parts)


def anchor(shown: str) -> str:
    return shown.replace(".", "-")


def _names(module: ModuleType) -> list[str]:
    """What a module exports: its __all__, or else what is defined in it."""
    own = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
    return sorted(getattr(module, "__all__", [name for name in own if not name.startswith("_")]))


def _values(module: str, names: list[str]) -> Iterator[tuple[str, object]]:
    """Each name as a user writes it, elman.GRU or elman.hmm.banded, and what it is."""
    home = import_module(module)
    for name in names:
        value = getattr(home, name) if hasattr(home, name) else import_module(f"{module}.{name}")
        short = name in elman.__all__ and getattr(elman, name) is value
        yield f"elman.{name}" if short else f"{module}.{name}", value


def _page(title: str, modules: dict[str, list[str]]) -> str:
    parts = [f"# {title}\n"] if len(modules) > 1 else []
    for module, names in modules.items():
        if module.rpartition(".")[2] in elman._MODULES:  # a module that users import
            parts.append(f"{'#' if len(modules) == 1 else '##'} {module} {{ #{anchor(module)} }}\n")
            parts.append(docstring(inspect.getdoc(import_module(module)) or ""))
        parts += [_entry(shown, value) for shown, value in _values(module, names)]
    return "\n".join(parts)


def _entry(shown: str, value: object) -> str:
    parts = [f"## `{shown}` {{ #{anchor(shown)} }}\n"]
    if inspect.isclass(value):
        parts += [_signature(shown, value), _bases(value), docstring(_doc(value)), _fields(value), *_methods(value)]
    elif inspect.ismodule(value):
        parts.append(docstring(value.__doc__ or ""))
        parts += [f"- `{name}`: {escape(_summary(getattr(value, name)))}" for name in _names(value)]
    elif callable(value):
        parts += [_signature(shown, value), docstring(_doc(value))]
    else:
        parts.append(_constant(value))
    return "\n".join(part for part in parts if part)


def _doc(value: object) -> str:
    """The docstring of a class or function; that which Python gives to every dataclass or tuple says nothing."""
    text = vars(value).get("__doc__") if inspect.isclass(value) else inspect.getdoc(value)
    name = getattr(value, "__name__", "")
    return "" if not text or text.startswith(f"{name}(") or text == "Alias for field number 0" else text


def _summary(value: object) -> str:
    if inspect.ismodule(value) or callable(value):
        return summary(_doc(value))
    return f"a {type(value).__name__} of {len(value)}" if isinstance(value, (dict, tuple, list)) else repr(value)


def _constant(value: object) -> str:
    if isinstance(value, dict):
        return f"A dict: {', '.join(code(repr(key)) for key in value)}.\n"
    return f"A constant: {code(repr(value))}\n"


def _signature(shown: str, value: object) -> str:
    """The call, on one line if that is short, otherwise one argument a line."""
    try:
        signature = inspect.signature(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return ""
    parameters = [_parameter(parameter) for parameter in _with_marks(signature)]
    silent = inspect.isclass(value) or signature.return_annotation in (signature.empty, "None", None)
    returns = "" if silent else f" -> {_type(signature.return_annotation)}"
    line = f"{shown}({', '.join(parameters)}){returns}"
    if len(line) > 88:
        line = "\n".join([f"{shown}(", *(f"    {each}," for each in parameters), f"){returns}"])
    return f"```python\n{line}\n```\n"


def _with_marks(signature: inspect.Signature) -> Iterator[inspect.Parameter | str]:
    """The parameters, with * before those that need their name."""
    named = False
    for parameter in signature.parameters.values():
        if parameter.name in ("self", "cls"):
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not named:
            yield "*"
        named |= parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        yield parameter


def _parameter(parameter: inspect.Parameter | str) -> str:
    if isinstance(parameter, str):
        return parameter
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    kind = "" if parameter.annotation is parameter.empty else f": {_type(parameter.annotation)}"
    default = "" if parameter.default is parameter.empty else f" = {_default(parameter.default)}"
    return f"{stars}{parameter.name}{kind}{default}"


def _type(annotation: object) -> str:
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return text.replace("elman.", "").replace("typing.", "").replace("torch.Tensor", "Tensor")


def _default(value: object) -> str:
    text = repr(value)
    return "..." if text.startswith("<") or len(text) > 60 else text


def _bases(value: type) -> str:
    bases = [base for base in value.__bases__ if base.__module__.startswith("elman")]
    return f"Derives from {', '.join(code(base.__name__) for base in bases)}.\n" if bases else ""


def _fields(value: type) -> str:
    """The fields of a named tuple, with their types; those of a dataclass are in its signature."""
    if dataclasses.is_dataclass(value) or not hasattr(value, "_fields"):
        return ""
    hints = vars(value).get("__annotations__", {})
    return table(["field", "type"], [[code(name), code(_type(hints.get(name, "")))] for name in value._fields])


def _methods(value: type) -> Iterator[str]:
    """Its own methods and properties that have a docstring; those of a class that it derives from are there."""
    for name, member in vars(value).items():
        function = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
        text = inspect.getdoc(function.fget if isinstance(function, property) else function)
        if name.startswith("_") or not text or not (callable(function) or isinstance(function, property)):
            continue
        call = f"```python\n{name}\n```\n" if isinstance(function, property) else _signature(name, function)
        yield f"### `{name}` {{ .member }}\n\n{call}\n{docstring(text)}"
