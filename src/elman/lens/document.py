"""The page: one HTML file with everything in it. It opens from the disk, and loads nothing from the network.

Numbers are JSON, large arrays are quantised to a byte per number; all of it is deflated and stored in the page as
base64, which a browser inflates (DecompressionStream). Strings reach the page as JSON alone and are inserted as text,
never as HTML; a content security policy allows the scripts and styles of the file, by their hashes, and nothing else.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Sequence
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from elman.errors import FileError
from elman.files import artifact

if TYPE_CHECKING:
    from elman.lens.report import Report, UnitTraces

SCRIPTS = ("uplot.js", "draw.js", "page.js", "panels.js", "own.js", "spectra.js")
LEVELS = 64  # of a colour; fewer than 256 deflate better
STYLES = ("uplot.css", "page.css")


def write(path: Path, reports: Sequence[Report]) -> None:
    """Write the page of one report or of several side by side. An existing file is replaced."""
    text = render(reports)
    try:
        artifact.replace(path, partial(_write, text))
    except OSError as error:
        raise FileError(f"cannot write the page to {path}: {error}") from error


def render(reports: Sequence[Report]) -> str:
    """The page."""
    scripts, styles = ([_read(name) for name in names] for names in (SCRIPTS, STYLES))
    policy = "; ".join([
        "default-src 'none'", f"script-src {_hashes(scripts)}", f"style-src {_hashes(styles)}", "img-src data: blob:",
        "base-uri 'none'", "form-action 'none'",
    ])  # fmt: skip
    parts = {
        "POLICY": policy,
        "STYLES": "\n".join(f"<style>{style}</style>" for style in styles),
        "DATA": pack(reports),
        "SCRIPTS": "\n".join(f"<script>{script}</script>" for script in scripts),
    }
    text = _read("page.html")
    for name, part in parts.items():
        text = text.replace(f"<!--{name}-->", part, 1)
    return text


def _write(text: str, path: Path) -> None:
    path.write_text(text, encoding="utf-8")


def _read(name: str) -> str:
    return files("elman.lens").joinpath("page", name).read_text(encoding="utf-8")


def _hashes(texts: Sequence[str]) -> str:
    digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts)
    return " ".join(f"'sha256-{digest}'" for digest in digests)


def pack(reports: Sequence[Report]) -> str:
    """Reports as base64 of deflated bytes: the length of the JSON (four bytes), the JSON, the arrays."""
    arrays: list[bytes] = []
    content = [{**report.to_json(), "shown": [_traces(part, arrays) for part in report.traces]} for report in reports]
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    whole = len(text).to_bytes(4, "little") + text + b"".join(arrays)
    return base64.b64encode(zlib.compress(whole, 9)).decode()


def _traces(part: UnitTraces, arrays: list[bytes]) -> dict[str, object]:
    logs = part.flow.double().clamp(min=1e-30).log10()
    top = float(logs.max()) if logs.numel() else 0.0
    return {
        "layer": part.layer, "leaf": part.leaf, "units": part.units, "values": _array(part.values.T, arrays),
        "flow": _array(logs.clamp(min=top - 6).T, arrays),
    }  # fmt: skip


def _array(values: Tensor, arrays: list[bytes]) -> dict[str, object]:
    """Append an array of bytes to the others: its offset, its shape, and the values of 0 and 255."""
    values = torch.nan_to_num(values.double())
    low, high = (float(values.min()), float(values.max())) if values.numel() else (0.0, 0.0)
    level = ((values - low) * ((LEVELS - 1) / (high - low) if high > low else 0.0)).round()
    at = sum(map(len, arrays))
    arrays.append((level * (255 / (LEVELS - 1))).round().to(torch.uint8).numpy().tobytes())
    return {"at": at, "shape": list(values.shape), "low": low, "high": high}
