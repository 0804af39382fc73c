"""WebAssembly: the bits of a Stream without fused multiply-add, in node; and the page, in a browser."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
import torch

import elman
from elman import export, kernels
from elman.data import VOCABULARIES
from elman.errors import InputError
from elman.tasks.text.lm import LanguageModel, LMModelConfig, build

pytest.importorskip("ziglang")
GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "export-web.md"
needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="without node")

# In another process, whose kernels have no fused multiply-add: what a Stream makes of the inputs, as bits.
STREAM = """
import json, sys
import numpy as np, torch, elman
from elman import state as states
torch.manual_seed(0)
core = elman.stack("lstm", 5, 11, layers=2, norm="layer").eval()
stream = elman.Stream(core, 1)
y = [stream.step(x[None]) for x in np.random.default_rng(0).standard_normal((9, 5)).astype(np.float32)]
print(json.dumps([np.concatenate(y).ravel().view(np.uint32).tolist(), list(states.to_rows(stream.state).tobytes())]))
"""
NODE = """
import {{ Model }} from "{folder}/model.js";
import {{ readFileSync }} from "node:fs";
const model = await Model.load(readFileSync("{folder}/model.wasm")), state = model.start(), y = [];
for (const x of {x}) y.push(...new Uint32Array(model.step(state, x).buffer));
console.log(JSON.stringify([y, Array.from(state)]));
"""
WRITE = """
import {{ Model }} from "{folder}/model.js";
import {{ readFileSync }} from "node:fs";
const model = await Model.load(readFileSync("{folder}/model.wasm"));
const carried = {{ state: model.start(), symbol: 0, seen: new Uint8Array(model.symbols), seed: 7, number: 0 }};
const first = model.write(carried, {{ banned: [0] }}, 20), kept = structuredClone(carried);
const then = model.write(carried, {{ banned: [0] }}, 30), again = model.write(kept, {{ banned: [0] }}, 30);
const how = {{ banned: [0], temperature: 0.7, top_p: 0.9, top_k: 9, repetition_penalty: 1.5 }};
const other = {{ state: model.start(), symbol: 0, seen: new Uint8Array(model.symbols), seed: 7, number: 0 }};
const fresh = structuredClone(other);
model.read(other, {prompt});
const asked = model.write(other, how, 40), ended = model.write(fresh, {{ banned: [0], end: first[4] }}, 20);
console.log(JSON.stringify([first, then, again, asked, ended]));
"""


def language_model() -> LanguageModel:
    torch.manual_seed(0)
    config = LMModelConfig(cell="gru", size=24, layers=2)
    symbols = VOCABULARIES["char"].fit(["the quick brown fox jumps over the lazy dog.\n<\"'&>"], 1, 0)
    return LanguageModel(build(config, symbols.size), symbols, config)


def in_node(folder: Path, source: str) -> list[list[int]]:
    (folder / "run.mjs").write_text(source)
    ran = subprocess.run(["node", folder / "run.mjs"], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    found: list[list[int]] = json.loads(ran.stdout)
    return found


@needs_node
@pytest.mark.slow
@pytest.mark.skipif("baseline" not in kernels.isas(), reason="the machine has no kernels without FMA")
def test_it_has_the_bits_of_the_kernels_without_fma(tmp_path: Path) -> None:
    torch.manual_seed(0)
    folder = tmp_path / "lstm"
    export.write(elman.stack("lstm", 5, 11, layers=2, norm="layer").eval(), "wasm", folder)
    x = np.random.default_rng(0).standard_normal((9, 5)).astype(np.float32)
    env = {**os.environ, "ELMAN_ISA": "baseline"}
    wanted = subprocess.run([sys.executable, "-c", STREAM], env=env, capture_output=True, text=True, check=True)
    assert in_node(folder, NODE.format(folder=folder, x=x.tolist())) == json.loads(wanted.stdout)


@needs_node
@pytest.mark.slow
def test_it_writes_what_python_writes_and_a_state_is_a_value(tmp_path: Path) -> None:
    lm, folder = language_model(), tmp_path / "book"
    export.write(lm, "wasm", folder)
    assert lm.fingerprint in (folder / "model.js").read_text()
    prompt = lm.vocabulary.encode("the fox").tolist()
    first, then, again, asked, ended = in_node(folder, WRITE.format(folder=folder, prompt=prompt))
    text = lm.generate("", seed=7, max_new_tokens=50, allow=["unknown"])
    assert lm.vocabulary.decode(first + then) == text and then == again
    how = {"temperature": 0.7, "top_p": 0.9, "top_k": 9, "repetition_penalty": 1.5}
    text = lm.generate("the fox", seed=7, max_new_tokens=40, allow=["unknown"], **how)
    assert lm.vocabulary.decode(asked) == text and ended == first[: first.index(first[4]) + 1]


@pytest.mark.slow
def test_a_page_types_continues_forks_and_goes_back(tmp_path: Path, browser) -> None:
    lm, file = language_model(), tmp_path / "book.html"
    export.write(lm, "html", file)
    page, wrong, asked = browser.new_page(), [], []
    page.on("console", lambda m: wrong.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda e: wrong.append(str(e)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(file.as_uri())
    page.wait_for_selector("html[data-ready=yes]")
    page.fill("#typed", "the fox")
    page.fill("#temperature", "1")
    page.click("#write")
    written = page.text_content("#text")
    assert written == "the fox" + lm.generate("the fox", seed=0, max_new_tokens=200)
    page.click("#fork")
    page.click("#write")
    assert page.text_content("#text").startswith(written) and page.locator("#branches button").count() == 2
    page.click("#branches button >> nth=0")
    assert page.text_content("#text") == written
    page.click("#back")
    assert page.text_content("#text") == "" and page.is_disabled("#back")
    page.fill("#typed", "\u00e9")
    page.click("#write")
    assert "does not know" in page.inner_text("#message") and page.text_content("#text") == ""
    assert wrong == [] and asked == [file.as_uri()], (wrong, asked)
    page.close()


@pytest.mark.slow
def test_the_page_of_the_guide(tmp_path: Path, browser) -> None:
    torch.manual_seed(0)
    core = elman.cell("gru", 3, 4).eval()
    export.write(core, "wasm", tmp_path / "vad")
    (example,) = re.findall(r"```html\n(.*?)```", GUIDE.read_text(), re.S)
    (tmp_path / "index.html").write_text(example)
    page = browser.new_page()
    page.route("**/*", lambda route: route.fulfill(path=tmp_path / urlsplit(route.request.url).path[1:]))
    page.goto("http://elman.test/index.html")
    page.wait_for_function("document.querySelector('#y').textContent")
    stream = elman.Stream(core, 1)
    for x in ([0.1, 0.2, 0.3], [0.4, 0.5, 0.6]):
        y = stream.step(np.array([x], np.float32))
    assert np.allclose([float(word) for word in page.text_content("#y").split()], y[0], atol=1e-6)
    page.close()


def test_a_page_is_for_characters_and_bytes(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="continues a text"):
        export.write(elman.cell("gru", 3, 4), "html", tmp_path / "page.html")
    assert list(tmp_path.iterdir()) == []
