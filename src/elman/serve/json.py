"""JSON: what it is as types, and how it is written."""

from __future__ import annotations

from typing import Any

import msgspec

AnyJson = Any  # any JSON value
JsonObject = dict[str, AnyJson]
to_json = msgspec.json.Encoder().encode
