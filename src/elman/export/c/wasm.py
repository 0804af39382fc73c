"""WebAssembly: the same C file, compiled by the package ziglang; and a page with a language model in it.

WebAssembly has no fused multiply-add, so the bits are those of a Stream with ELMAN_ISA=baseline on x86-64.
"""

from __future__ import annotations

import base64
import html
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from elman.errors import FileError, InputError, MissingExtraError
from elman.export.c.module import Source, module_of
from elman.export.c.source import Module, template
from elman.export.c.write import refuse_existing, write_folder
from elman.files import artifact
from elman.tasks.text.generation import banned_symbols
from elman.tasks.text.lm import LanguageModel

FLAGS = [
    "-target", "wasm32-wasi", "-std=c99", "-O3", "-msimd128", "-ffp-contract=off", "-mexec-model=reactor",
    "-nostartfiles", "-Wl,--no-entry", "-Wl,--strip-all", "-Wl,-z,stack-size=262144",
]  # fmt: skip
KINDS = ("char", "byte")  # vocabularies that the page can read


def write_wasm(source: Source, path: str | Path, *, name: str = "model", weights: str | None = None) -> list[Path]:
    """Write a folder: NAME.wasm, and NAME.js, a module of JavaScript that exports the class Model."""
    module = module_of(source, name, weights)
    refuse_existing(Path(path))
    binary = compiled(module)

    def fill(folder: Path) -> None:
        (folder / f"{name}.wasm").write_bytes(binary)
        (folder / f"{name}.js").write_text(f"{script(module)}\nexport {{ Model }};\n", encoding="utf-8")

    return write_folder(Path(path), fill)


def write_html(source: Source, path: str | Path, *, weights: str | None = None) -> list[Path]:
    """Write one page with a language model in it, which asks for nothing from anywhere."""
    if not isinstance(source, LanguageModel):
        raise InputError(f"a page continues a text, and this is a {type(source).__name__}; export it --to wasm")
    kind = source.vocabulary.kind
    if kind not in KINDS:
        raise InputError(f"a page reads characters or bytes; this model's vocabulary is {kind}: export it --to wasm")
    module, file = module_of(source, "model", weights), Path(path)
    refuse_existing(file)
    text = page(module, source)

    def fill(new: Path) -> None:
        new.write_text(text, encoding="utf-8")

    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        artifact.replace(file, fill)
    except OSError as error:
        raise FileError(f"cannot write {file}: {error}") from error
    return [file]


def page(module: Module, lm: LanguageModel) -> str:
    """The page of a language model."""
    characters = list(lm.vocabulary.content().get("characters", ""))
    config = lm.config
    about = f"A language model of {lm.parameter_count:,} parameters ({config.layers} x {config.cell} {config.size})."
    return template("page.html").substitute(
        title="A model that continues your text", about=html.escape(about), script=script(module),
        vocabulary=_json({"kind": lm.vocabulary.kind, "characters": characters}),
        banned=_json(banned_symbols(lm.vocabulary, (), lm.unit == "text")),
        wasm=base64.b64encode(compiled(module)).decode(),
    )  # fmt: skip


def _json(value: object) -> str:
    """JSON inside a script: nothing in it may end that."""
    return json.dumps(value).replace("<", "\\u003c")


def script(module: Module) -> str:
    """The class Model of a module."""
    program, name = module.program, module.name
    functions = {f"name_{f}": f"{name}_{f}" for f in ("state_bytes", "reset", "step", "uniform", "choose")}
    return template("model.js").substitute(
        functions, name=name, inputs=0 if program.symbols else program.given, symbols=program.symbols,
        outputs=module.y.width, fingerprint=module.fingerprint,
    )  # fmt: skip


def compiled(module: Module) -> bytes:
    """The .wasm of a module."""
    if importlib.util.find_spec("ziglang") is None:
        raise MissingExtraError("ziglang", "wasm")
    functions = ["state_bytes", "reset", "step", "scan", *(["uniform", "choose"] if module.chooses else [])]
    exported = [f"-Wl,--export={symbol}" for symbol in ("__heap_base", *(f"{module.name}_{f}" for f in functions))]
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        source, out = folder / f"{module.name}.c", folder / "out.wasm"
        source.write_text(module.source())
        source.with_suffix(".h").write_text(module.header())
        command = [sys.executable, "-m", "ziglang", "cc", *FLAGS, *exported, str(source), "-o", str(out)]
        ran = subprocess.run(command, capture_output=True, text=True)
        if ran.returncode != 0:
            raise FileError(f"ziglang could not compile the model: {ran.stderr.strip()[-500:]}")
        return out.read_bytes()
