"""JSON lines: a record a line, with texts, or lists of them, in its fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import UnionType

from elman.errors import InputError
from elman.options import parse_json


def json_fields(line: str, where: str, fields: Sequence[str]) -> Mapping[str, object]:
    """The record of a line, which has these fields at least.

    >>> json_fields('{"source": "a", "target": "b"}', "line 1", ("source",))
    {'source': 'a', 'target': 'b'}
    """
    try:
        record: object = parse_json(line)
    except ValueError as error:
        raise InputError(f"{where} is not JSON: {error}") from error
    if not isinstance(record, dict) or any(field not in record for field in fields):
        known = f"; it has {', '.join(map(repr, record))}" if isinstance(record, dict) else ""
        raise InputError(f"{where} is not JSON with the fields {', '.join(map(repr, fields))}{known}")
    return record


def text_field(record: Mapping[str, object], field: str, where: str) -> str:
    """The text in a field."""
    text = record[field]
    if not isinstance(text, str):
        raise InputError(f"{where} has {text!r} in its field {field!r}, which is not a text")
    return text


def texts_field(record: Mapping[str, object], field: str, where: str, accepted: type | UnionType = str) -> list[str]:
    """The list of texts in a field; one text alone would be read letter by letter.

    >>> texts_field({"tokens": ["The", "cat"]}, "tokens", "line 1")
    ['The', 'cat']
    """
    texts = record[field]
    if not isinstance(texts, list) or not all(isinstance(value, accepted) for value in texts):
        raise InputError(f"{where} has {str(texts)[:60]!r} in its field {field!r}, which is not a list of texts")
    return [str(value) for value in texts]
