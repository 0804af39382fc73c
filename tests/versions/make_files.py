"""Makes the runs, states and the store in this folder, with whatever version is installed; see README.md."""

import json
import math
import shutil
import time
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path

import numpy as np
import torch

from elman import cli
from elman.tasks import open_model

TASKS = ("lm", "markov", "tag", "classify", "mean", "forecast", "translate", "hmm", "tree", "image")
STEPS, MORE = 4, 7


def data(folder):
    """A few rows for each task, from one seed."""
    random = np.random.default_rng(0)
    folder.mkdir()
    words = ["the", "cat", "sat", "on", "a", "mat", "dog", "ran", "fast", "home"]
    lines = [" ".join(random.choice(words, random.integers(2, 7))) for _ in range(60)]
    (folder / "text.txt").write_text("\n".join(lines) + "\n")
    tagged = [[f"{word}\t{'B-N' if word in ('cat', 'dog', 'mat') else 'O'}" for word in line.split()] for line in lines]
    (folder / "tagged.txt").write_text("\n".join("\n".join(rows) + "\n" for rows in tagged))
    (folder / "texts.tsv").write_text("text\tlabel\n" + "".join(f"{one}\t{'cat' in one}\n" for one in lines))
    rows = random.normal(size=(40, 6, 1)).astype(np.float32)
    np.savez(folder / "numbers.npz", x=rows, y=np.array(["up" if one.sum() > 0 else "down" for one in rows]))
    days = [str(np.datetime64("2024-01-01") + t) for t in range(90)]
    rows = [
        f"{name},{day},{10 * k + 3 * math.sin(t * math.pi / 3.5) + random.normal():.3f}"
        for k, name in enumerate("ab", 1)
        for t, day in enumerate(days)
    ]
    (folder / "series.csv").write_text("unique_id,ds,y\n" + "\n".join(rows) + "\n")
    (folder / "source.txt").write_text("\n".join(lines) + "\n")
    (folder / "target.txt").write_text("\n".join(" ".join(reversed(line.split())) for line in lines) + "\n")
    x = np.repeat([0.0, 5.0], 40) + random.normal(size=80)
    (folder / "readings.csv").write_text("value\n" + "\n".join(f"{v:.4f}" for v in x) + "\n")
    trees = ["(3 (2 a) (4 (2 very) (4 good)))", "(1 (2 a) (0 (2 very) (0 bad)))", "(2 (2 the) (2 film))"] * 8
    (folder / "trees.txt").write_text("\n".join(trees) + "\n")
    np.savez(folder / "images.npz", images=(random.random((24, 5, 5)) < 0.4).astype(np.uint8) * 255)


SETTINGS = {
    "lm": ["--data.train", "data/text.txt", "--data.window", "8", "--data.batch_size", "2", "--model.size", "6"],
    "markov": ["--data.train", "data/text.txt", "--model.order", "2"],
    "tag": ["--data.train", "data/tagged.txt", "--data.valid", "data/tagged.txt", "--model.size", "6",
            "--model.embedding_size", "5", "--model.char_size", "3", "--model.char_embedding_size", "4"],
    "classify": ["--data.train", "data/texts.tsv", "--model.size", "6", "--model.embedding_size", "5"],
    "mean": ["--data.train", "data/numbers.npz", "--model.size", "6", "--model.pool", "mean",
             "--model.bidirectional", "false", "--model.embedding_size", "4"],
    "forecast": ["--data.train", "data/series.csv", "--data.horizon", "3", "--data.seasonality", "7",
                 "--data.window", "16", "--data.batch_size", "2", "--model.size", "6", "--model.layers", "1"],
    "translate": ["--data.source", "data/source.txt", "--data.target", "data/target.txt", "--model.size", "6",
                  "--model.embedding_size", "5"],
    "hmm": ["--data.train", "data/readings.csv", "--model.n_components", "2"],
    "tree": ["--data.train", "data/trees.txt", "--model.size", "6", "--model.embedding_size", "5"],
    "image": ["--data.train", "data/images.npz", "--model.size", "4"],
}  # fmt: skip
FITTED = ("markov", "hmm")
PREDICT = {"tag": "data/tagged.txt", "classify": "data/texts.tsv", "mean": "data/numbers.npz", "forecast": "",
           "translate": "data/source.txt", "hmm": "data/readings.csv", "tree": "data/trees.txt"}  # fmt: skip
EVALUATE = {"lm": "data/text.txt", "markov": "data/text.txt", "tag": "data/tagged.txt", "classify": "data/texts.tsv",
            "mean": "data/numbers.npz", "translate": "data/source.txt data/target.txt", "hmm": "data/readings.csv",
            "tree": "data/trees.txt", "image": "data/images.npz"}  # fmt: skip


def command(*words):
    """What a command prints."""
    out = StringIO()
    with redirect_stdout(out):
        code = cli.main([str(word) for word in words])
    assert code == 0, (words, code)
    return out.getvalue()


def train(name):
    task = "classify" if name == "mean" else name
    more = [] if name in FITTED else ["--training.steps", STEPS, "--training.evaluate_every", 2]
    command("train", "--task", task, *SETTINGS[name], *more, "--seed", 3, "--out", f"runs/{name}")


def said(name):
    """What a run says: its fingerprint, its predictions and its scores, and its loss after some more steps."""
    found = {"fingerprint": getattr(open_model(f"runs/{name}")[1], "fingerprint", None)}
    if name in PREDICT:
        found["predict"] = command("predict", f"runs/{name}", *PREDICT[name].split()).splitlines()[:20]
    if name in EVALUATE:
        found["evaluate"] = json.loads(command("evaluate", f"runs/{name}", *EVALUATE[name].split(), "--json"))
    if name not in FITTED:
        shutil.copytree(f"runs/{name}", "resumed")
        command("train", "--out", "resumed", "--resume", "auto", "--training.steps", MORE)
        found["resumed"] = [json.loads(line) for line in Path("resumed/metrics.jsonl").read_text().splitlines()]
        shutil.rmtree("resumed")
    return found


SERVED = ("lm", "mean", "forecast", "hmm")
DAYS = [{"ds": str(np.datetime64("2024-06-01") + i), "y": 10.0 + i % 7} for i in range(9)]
FIRST = {"lm": "the cat ", "mean": [[0.5], [1.5], [-1.0]], "forecast": DAYS[:6], "hmm": [[0.1], [5.2]]}
THEN = {"lm": "sat ", "mean": [[2.0]], "forecast": DAYS[6:], "hmm": [[4.9], [0.0]]}


@contextmanager
def server(path, clock=time.time):
    """A server of the runs on a store."""
    try:
        from elman.serve.api.app import Service
        from elman.serve.store.sessions import Sessions
        from elman.serve.store.signing import Signer
        from elman.serve.store.sqlite import SqliteStore
    except ModuleNotFoundError:  # as it was at 867694c, where the files are made
        from elman.serve.app import Service
        from elman.serve.sessions import Sessions
        from elman.serve.signing import Signer
        from elman.serve.sqlite import SqliteStore
    from running import Running

    from elman.serve.limits import Limits

    models = {}
    for name in SERVED:
        task, model = open_model(f"runs/{name}")
        models[name] = task.serve(model)
    store = SqliteStore(path)
    run = Running(Service(Sessions(store, models, Limits(), clock), Signer.of_store(store), durability="process"))
    try:
        yield run
    finally:
        run.stop()


def requests(run, name, id):
    """What a session says when it is continued, forked and rolled back."""
    step = run.step(id, THEN[name]).json()
    back = run.post(f"/v1/sessions/{id}/rollback", {"version": "any", "position": 1}).json()
    again = run.step(id, FIRST[name][1:]).json()
    state = run.client.get(f"/v1/sessions/{id}/state").content
    return {"step": step, "rollback": back, "again": again, "state": len(state)}


def store():
    """A store with a session of each model, a stored response and an answered key; and a carried state."""
    with server("store.db") as run:
        ids = {}
        for name in SERVED:
            ids[name] = run.session(name, seed=7, checkpoints={"every": 1, "keep": 9}, log_inputs=True)
            assert run.step(ids[name], FIRST[name], headers={"idempotency-key": "once"}).status_code == 200
        keyed = run.post("/v1/sessions", {"model": "hmm"}, headers={"idempotency-key": "new"}).json()
        response = run.post("/v1/responses", {"model": "lm", "input": "the ", "max_output_tokens": 8}).json()
        body = {"model": "lm", "prompt": "a dog ", "max_tokens": 8, "seed": 3, "return_state": True}
        carried = run.post("/v1/completions", body).json()["choices"][0]
        state = run.client.get(f"/v1/sessions/{ids['lm']}/state").content
    Path("lm-state.safetensors").write_bytes(state)
    return {
        "made": time.time(), "sessions": ids, "keyed": keyed["id"], "response": response["id"],
        "carried": carried["state"],
    }  # fmt: skip


def continued(path, made):
    """What is answered when all that is in a store is continued."""
    with server(path, lambda: made["made"] + 60) as run:
        sessions = {name: requests(run, name, id) for name, id in made["sessions"].items()}
        body = {
            "model": "lm",
            "input": "mat",
            "previous_response_id": made["response"],
            "max_output_tokens": 8,
            "temperature": 0,
        }
        response = run.post("/v1/responses", body).json()
        body = {"model": "lm", "prompt": "", "max_tokens": 8, "temperature": 0, "state": made["carried"]}
        carried = run.post("/v1/completions", body).json()
        again = run.post("/v1/sessions", {"model": "hmm"}, headers={"idempotency-key": "new"}).json()
    return {
        "sessions": sessions, "response": response["output"][0]["content"][0]["text"],
        "carried": carried["choices"][0]["text"], "keyed": again["id"],
    }  # fmt: skip


if __name__ == "__main__":
    torch.set_num_threads(1)
    data(Path("data"))
    for name in TASKS:
        train(name)
    command("predict", "runs/forecast", "--save_state", "forecast-state.safetensors")
    made = store()
    shutil.copy("store.db", "copy.db")
    found = {"runs": {name: said(name) for name in TASKS}, "store": made, "continued": continued("copy.db", made)}
    Path("copy.db").unlink()
    Path("said.json").write_text(json.dumps(found, indent=1) + "\n")
