"""C: one file of C99 that steps a model, with its weights in it; of <math.h> it needs fma and sqrt alone.

The builder of builder.py records a step as calls of the functions of runtime.c, which are those of csrc/ for one row:
the same polynomials, and sums in the same order. So the bits are those of a Stream.
"""

from __future__ import annotations

from pathlib import Path

from elman.export.c.fixture import check_source, fixture, makefile
from elman.export.c.module import Source, module_of, parts
from elman.export.c.wasm import write_html, write_wasm
from elman.export.c.write import refuse_existing, write_folder

__all__ = ["write_c", "write_html", "write_wasm"]


def write_c(source: Source, path: str | Path, *, name: str = "model", weights: str | None = None) -> list[Path]:
    """Write a folder: NAME.h, NAME.c, and for `make check` check.c and a Makefile.

    >>> import tempfile, elman
    >>> [file.name for file in write_c(elman.cell("gru", 3, 4), tempfile.mkdtemp() + "/gru")]
    ['Makefile', 'check.c', 'model.c', 'model.h']
    """
    module = module_of(source, name, weights)
    refuse_existing(Path(path))
    made = fixture(parts(source), module)
    files = {
        "Makefile": makefile(module), "check.c": check_source(module, made),
        f"{name}.c": module.source(), f"{name}.h": module.header(),
    }  # fmt: skip

    def fill(folder: Path) -> None:
        for file, text in files.items():
            (folder / file).write_text(text, encoding="utf-8")

    return write_folder(Path(path), fill)
