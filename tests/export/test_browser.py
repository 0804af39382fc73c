"""The guide's program for a browser, in chromium with onnxruntime-web: it generates the symbols that Python generates.

It runs in `make test-browser`, which sets ELMAN_BROWSER=1: it installs a package of the npm registry into build/.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import elman
from elman.onnx import Session

ROOT = Path(__file__).parent.parent.parent
PACKAGE = "onnxruntime-web@1.30.0"
PAGE = """<!doctype html><script src="ort.wasm.min.js"></script><script type="module">
ort.env.wasm.numThreads = 1;
const aboutText = await (await fetch("about.json")).text();
PROGRAM
const largest = (scores) => scores.reduce((best, score, i) => (score > scores[best] ? i : best), 0);
const symbols = [];
let symbol = FIRST;
for (let i = 0; i < 30; i++) symbols.push(symbol = largest(await step(symbol)));
document.title = JSON.stringify(symbols);
</script>"""


@pytest.fixture(scope="module")
def runtime() -> Path:
    """The folder with the files of onnxruntime-web."""
    if os.environ.get("ELMAN_BROWSER") != "1":
        pytest.skip("it needs the npm registry; `make test-browser` runs it")
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    folder = ROOT / "build" / "npm"
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "node_modules" / "onnxruntime-web").is_dir():
        subprocess.run(["npm", "install", "--no-save", "--prefix", str(folder), PACKAGE], check=True)
    return folder / "node_modules" / "onnxruntime-web" / "dist"


@pytest.fixture
def served(runtime: Path, tmp_path: Path) -> Iterator[str]:
    for name in runtime.glob("ort*wasm*"):
        (tmp_path / name.name).symlink_to(name)
    handler = functools.partial(SimpleHTTPRequestHandler, directory=tmp_path)
    handler.log_message = lambda *_: None  # type: ignore[attr-defined]
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.mark.slow
def test_a_browser_generates_the_same_symbols(served: str, tmp_path: Path, browser: object) -> None:
    [path] = elman.export.write(ROOT / "tests/versions/867694c/runs/lm", "onnx", tmp_path / "book.onnx", opset=21)
    session, first = Session(path), 1
    (tmp_path / "about.json").write_text(json.dumps(session.about))
    [program] = re.findall(r"^```js\n(.*?)^```", (ROOT / "docs/guides/export-onnx.md").read_text(), re.S | re.M)
    (tmp_path / "index.html").write_text(PAGE.replace("PROGRAM", program).replace("FIRST", str(first)))
    symbols, symbol, state = [], first, session.init_state(1)
    for _ in range(30):
        y, state = session.step([symbol], state)
        symbols.append(symbol := int(y[0].argmax()))
    page = browser.new_page()  # type: ignore[attr-defined]
    page.on("pageerror", lambda error: print(error))
    page.goto(served)
    page.wait_for_function("document.title.startsWith('[')", timeout=60_000)
    assert json.loads(page.title()) == symbols and len(set(symbols)) > 1
