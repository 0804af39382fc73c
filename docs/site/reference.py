"""What the pages of the reference list: every cell, every verb, every setting, every route."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress

from md import code, escape, summary, table

from elman.cells import CELLS
from elman.cli import VERBS, main
from elman.cli.described import described
from elman.files.config import Setting
from elman.serve.api.openapi import openapi
from elman.serve.api.routes import ROUTES
from elman.trees import TREES

TASK_HELP = "\nif RUN is "  # how the help of a verb goes on to the next task


def cells() -> str:
    """Every cell and every tree cell, with its equation."""
    return "\n".join(
        f"## {title}\n\n" + table(["cell", "equation"], [_cell(folder, *cell) for cell in found.items()])
        for title, folder, found in (("For sequences", "cells", CELLS), ("For trees", "trees", TREES))
    )


def _cell(folder: str, name: str, cell: type) -> list[str]:
    return [f"[`{name}`]({folder}/{name}.md)", code(summary(cell.__doc__ or "").partition(";")[0])]


def commands() -> str:
    """The help of every verb, as `elman VERB --help` prints it."""
    return "\n".join(f"## `elman {verb}` {{ #{verb} }}\n\n{_help(verb)}" for verb in VERBS)


def _help(verb: str) -> str:
    os.environ["COLUMNS"] = "92"
    out = io.StringIO()
    with redirect_stdout(out), suppress(SystemExit):
        main([verb, "--help"])
    first, *tasks = out.getvalue().split(TASK_HELP)
    parts = [f"```text\n{first.strip()}\n```\n"]
    if verb == "train":
        head = first[: first.index("\ndata:")]
        return f"```text\n{head.strip()}\n```\n\n[The settings](config.md) lists all settings of all tasks.\n"
    for task in tasks:
        title, _, usage = task.partition(":\n")
        parts.append(f"### If the run is {title} {{ #{verb}-{title.split(' ', 1)[1].replace(' ', '-').lower()} }}\n")
        parts.append(f"```text\n{usage.strip()}\n```\n")
    return "\n".join(parts)


def config() -> str:
    """Every setting of every task, as `elman init TASK` writes them."""
    parts = []
    for task, (title, settings, _) in described().items():
        parts.append(f"## `{task}`: {title} {{ #{task} }}\n")
        rows = [(setting, setting.name) for setting in settings if not setting.parts]
        parts.append(_settings(rows))
        for section in settings:
            if section.parts:
                title = f"### `{task}`: {section.name} {{ #{task}-{section.name} }}\n"
                parts += [title, escape(section.meaning) + "\n"]
                parts.append(_settings([(setting, f"{section.name}.{setting.name}") for setting in section.parts]))
    return "\n".join(parts)


def _settings(rows: list[tuple[Setting, str]]) -> str:
    flat = [line for setting, name in rows for line in _flat(setting, name)]
    lines = [[code(name), code(_value(setting.value)), escape(setting.meaning)] for setting, name in flat]
    return table(["setting", "default", "what it means"], lines)


def _flat(setting: Setting, name: str) -> Iterator[tuple[Setting, str]]:
    """A setting, or those in it."""
    if setting.parts:
        for inner in setting.parts:
            yield from _flat(inner, f"{name}.{inner.name}")
    else:
        yield setting, name


def _value(value: object) -> str:
    return json.dumps(value) if value not in ("", None) else '""' if value == "" else "null"


def server() -> str:
    """Every route with what it takes and gives, then the objects that they name, from the OpenAPI document."""
    document = openapi(ROUTES, keys=True)
    parts = ["## Routes\n", table(["route", "what it does"], _routes(document))]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            parts.append(_operation(method.upper(), path, operation))
    parts.append("## Objects { #objects }\n")
    for name, schema in document["components"]["schemas"].items():
        about = escape(schema.get("description", ""))
        parts.append(f"### `{name}` {{ #{name.lower()} }}\n\n{about}\n\n{_properties(schema)}")
    return "\n".join(parts)


def _routes(document: dict) -> Iterator[list[str]]:
    documented = {(m.upper(), path): o for path, ms in document["paths"].items() for m, o in ms.items()}
    for route in ROUTES:
        operation = documented.get((route.method, route.path))
        name = f"`{route.method} {route.path}`"
        link = f"[{name}](#{operation['operationId'].lower()})" if operation else name
        yield [link, escape(operation["summary"]) if operation else "not in the OpenAPI document"]


def _operation(method: str, path: str, operation: dict) -> str:
    parts = [f"## `{method} {path}` {{ #{operation['operationId'].lower()} }}\n\n{escape(operation['summary'])}.\n"]
    headers = [code(each["name"]) for each in operation["parameters"] if each["in"] == "header"]
    body = operation.get("requestBody")
    status, answer = next(iter(operation["responses"].items()))
    rows = [["headers it reads", ", ".join(headers)]]
    rows += [["body", _contents(body["content"])]] if body else []
    rows += [[f"answer, {status}", _contents(answer["content"])]]
    return "\n".join([*parts, table(["", ""], rows)])


def _contents(content: dict) -> str:
    return ", ".join(f"{_kind(each['schema'])} ({code(kind)})" for kind, each in content.items())


def _properties(schema: dict) -> str:
    required = schema.get("required", [])
    rows = []
    for name, each in schema.get("properties", {}).items():
        default = "required" if name in required else code(json.dumps(each["default"])) if "default" in each else ""
        rows.append([code(name), _kind(each), default, escape(each.get("description", ""))])
    return table(["field", "type", "default", ""], rows) if rows else ""


def _kind(schema: dict) -> str:
    """A JSON schema in a few words, with links to the objects that it names."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[`{name}`](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(_kind(each) for each in schema["anyOf"])
    if "enum" in schema:
        return " or ".join(code(json.dumps(value)) for value in schema["enum"])
    kind = schema.get("type", "anything")
    if kind == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    limits = {"minimum": "from", "exclusiveMinimum": "above", "maximum": "to", "exclusiveMaximum": "below"}
    bounds = [f"{word} {schema[key]}" for key, word in limits.items() if key in schema]
    return " ".join([str(kind), *bounds])
