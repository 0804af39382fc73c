"""Whether an installation works: the native kernels, the laws, and every verb, as `elman` on the command line.

`make test-wheel` runs it with the Python of the environment that is tested, which needs nothing but Elman.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.request import urlopen

import torch
from safetensors.torch import save_file

import elman
from elman.cli import VERBS

TEXT = "the cat sat on the mat; the dog sat on the log. " * 60
SMALL = ["--model.size", "8", "--training.steps", "20", "--data.batch_size", "2", "--data.window", "8"]
ELMAN = str(Path(sys.executable).with_name("elman"))


def main() -> None:
    assert not any(shutil.which(name) for name in ("cc", "gcc", "g++", "clang", "clang++", "c++", "cmake", "ninja"))
    assert Path(elman.__file__).is_relative_to(sys.prefix), elman.__file__
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        checks = {verb: globals()[f"check_{verb}"] for verb in ordered()}
        for verb, check in checks.items():
            check(here)
            print(f"{verb}: ok", flush=True)


def ordered() -> list[str]:
    """Every verb, what makes models first."""
    first = ["doctor", "laws", "init", "train"]
    return [*first, *(verb for verb in VERBS if verb not in first)]


def run(here: Path, *words: str) -> str:
    """What a command prints; it must succeed."""
    done = subprocess.run([ELMAN, *words], cwd=here, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"elman {' '.join(words)} failed:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def check_doctor(here: Path) -> None:
    report = json.loads(run(here, "doctor", "--json"))
    assert report["ok"] and report["kernels"]["in_use"] == "native", report["kernels"]


def check_laws(here: Path) -> None:
    assert "native" in json.dumps(json.loads(run(here, "laws", "--json")))


def check_init(here: Path) -> None:
    (here / "run.yaml").write_text(run(here, "init", "lm"))


def check_train(here: Path) -> None:
    (here / "text.txt").write_text(TEXT)
    (here / "readings.csv").write_text("x\n" + "0.1\n0.2\n5.1\n5.2\n" * 30)
    run(here, "train", "--config", "run.yaml", "--data.train", "text.txt", "--out", "lm", *SMALL)
    run(here, "train", "--task", "markov", "--data.train", "text.txt", "--model.order", "3", "--out", "markov")
    run(here, "train", "--task", "hmm", "--data.train", "readings.csv", "--model.n_components", "2", "--out", "hmm")


def check_evaluate(here: Path) -> None:
    assert json.loads(run(here, "evaluate", "lm", "text.txt", "--json"))["tokens"] == len(TEXT)


def check_predict(here: Path) -> None:
    states = [line.split(",")[-1] for line in run(here, "predict", "hmm", "readings.csv").splitlines()[1:]]
    assert len(states) == 120 and states[0] == states[1] != states[2] == states[3], states[:4]


def check_generate(here: Path) -> None:
    text = json.loads(run(here, "generate", "markov", "--prompt", "the ", "--max_new_tokens", "9", "--json"))["text"]
    assert len(text) == 9, text


def check_inspect(here: Path) -> None:
    run(here, "inspect", "lm", "text.txt", "--out", "report.html")
    assert "<html" in (here / "report.html").read_text()


def check_stream(here: Path) -> None:
    rows = "".join(json.dumps({"t": t % 3, "y": t % 3}) + "\n" for t in range(20))
    command = [ELMAN, "stream", "learner", "--learn", "--task", "regress", "--size", "4"]
    done = subprocess.run(command, cwd=here, input=rows, capture_output=True, text=True, check=True)
    assert len(done.stdout.splitlines()) == 20 and (here / "learner").is_dir(), done.stderr


def check_search(here: Path) -> None:
    """Where there is no optuna, what to install for it."""
    words = ["search", "--config", "run.yaml", "--data.train", "text.txt", "--out", "search", *SMALL, "--trials", "2"]
    done = subprocess.run(
        [ELMAN, *words, "--set", "optim.lr=log(1e-3,1e-1)"], cwd=here, capture_output=True, text=True, check=False
    )
    missing = done.returncode == 2 and "pip install 'elman[search]'" in done.stderr
    assert missing or (done.returncode == 0 and (here / "search" / "best.yaml").exists()), done.stderr


def check_convert(here: Path) -> None:
    """A pretrained model in the smallest: one layer of Mamba, with the tokens of RWKV, which no other package reads."""
    D, V = 4, 257
    shapes = {
        "embeddings.weight": (V, D), "norm_f.weight": (D,), "layers.0.norm.weight": (D,),
        "layers.0.mixer.in_proj.weight": (4 * D, D), "layers.0.mixer.conv1d.weight": (2 * D, 1, 4),
        "layers.0.mixer.conv1d.bias": (2 * D,), "layers.0.mixer.x_proj.weight": (5, 2 * D),
        "layers.0.mixer.dt_proj.weight": (2 * D, 1), "layers.0.mixer.dt_proj.bias": (2 * D,),
        "layers.0.mixer.A_log": (2 * D, 2), "layers.0.mixer.D": (2 * D,), "layers.0.mixer.out_proj.weight": (D, 2 * D),
    }  # fmt: skip
    (here / "theirs").mkdir()
    save_file(
        {f"backbone.{name}": torch.ones(shape) for name, shape in shapes.items()}, here / "theirs/model.safetensors"
    )
    config = {"model_type": "mamba", "vocab_size": V, "hidden_size": D, "num_hidden_layers": 1, "state_size": 2}
    (here / "theirs" / "config.json").write_text(json.dumps(config))
    tokens = "".join(f"{byte + 1} {bytes([byte])!r} 1\n" for byte in range(256))
    (here / "theirs" / "rwkv_vocab_v20230424.txt").write_text(tokens)
    assert json.loads(run(here, "convert", "theirs", "--out", "ours", "--json"))["family"] == "mamba"
    assert json.loads(run(here, "evaluate", "ours", "text.txt", "--json"))["tokens"] == len(TEXT)


def check_compare(here: Path) -> None:
    assert "markov" in run(here, "compare", "lm", "markov")


def check_export(here: Path) -> None:
    """Where there is no onnx, what to install for it."""
    words = ["export", "lm", "--to", "onnx", "--out", "lm.onnx"]
    done = subprocess.run([ELMAN, *words], cwd=here, capture_output=True, text=True, check=False)
    missing = done.returncode == 2 and "pip install 'elman[onnx]'" in done.stderr
    assert missing or (done.returncode == 0 and (here / "lm.onnx").exists()), done.stderr


def check_serve(here: Path) -> None:
    command = [ELMAN, "serve", "lm", "--port", "0", "--store", "store.db"]
    with subprocess.Popen(command, cwd=here, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        assert server.stdout is not None
        said = []
        try:
            for line in server.stdout:
                said.append(line)
                if found := re.search(r"http://\S+:\d+", line):
                    with urlopen(f"{found[0]}/readyz", timeout=30) as answer:
                        assert answer.status == 200
                    break
            else:
                raise AssertionError("".join(said))
        finally:
            server.terminate()


def check_completion(here: Path) -> None:
    assert "complete -o default" in run(here, "completion", "bash")
    assert run(here, "completion", "bash", "--line", "elman train --model.cell gr") == "gru\n"


if __name__ == "__main__":
    main()
