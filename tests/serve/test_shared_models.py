"""A model that is served is shared by all tenants: what one of them is answered, or does, never depends on another.

Of every task that answers `elman predict`: two tenants in turn, a resend, many at once; then the model is what it was.
"""

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from running import running

import elman
from elman import cli
from elman.progress import cancellable
from elman.serve.api.predicting import predictor
from elman.serve.errors import Disconnected
from elman.serve.net.keys import Keys
from elman.tasks import TASKS, open_model

SHORT = ["--training.steps", "2", "--training.evaluate_every", "2"]


def text(lines):
    return "\n".join(lines) + "\n"


def series(name, first, values):
    days = (str(np.datetime64("2024-01-01") + first + i) for i in range(len(values)))
    return [f"{name},{day},{value}" for day, value in zip(days, values, strict=True)]


def forecasts(folder):
    head = "unique_id,ds,y"
    rows = [*series("a", 0, [t % 3 for t in range(40)]), *series("b", 0, [50 + t % 3 for t in range(40)])]
    (folder / "data.csv").write_text(text([head, *rows]))
    options = ["--data.horizon", "3", "--data.seasonality", "3", "--model.kind", "seasonal_naive"]
    asks = [
        {"data": text([head, *series("a", 40, [9, 9, 9])]), "samples": 5},
        {"data": [{"unique_id": "a", "ds": "2024-02-10", "y": 7}], "samples": 5, "quantiles": [0.25, 0.75]},
        {"data": text([head, *series("mine", 0, range(30))]), "from_start": True, "samples": 5},
        {"data": text([head, *series("b", 40, [0, 0])]), "samples": 6, "seed": 1, "series": ["b"]},
        {"samples": 4},
    ]
    return options, asks


def hidden(folder):
    values = np.random.default_rng(0).normal(np.repeat([0, 5], 30)).round(3).tolist()
    data = text(["value", *map(str, values)])
    (folder / "data.csv").write_text(data)
    asks = [{"data": text(["value", *map(str, values[i::3])]), "posteriors": bool(i)} for i in range(3)]
    asks.append({"data": [[value] for value in values[5:25]]})
    return ["--model.n_components", "2"], asks


def classes(folder):
    random = np.random.default_rng(1)
    rows = [f"{i % 2}\t{' '.join(random.choice(['good', 'bad', 'film'], 4))}" for i in range(40)]
    data = [text(["label\ttext", *part]) for part in (rows, *(rows[i::4] for i in range(4)))]
    (folder / "data.tsv").write_text(data[0])
    asks = [{"data": part, "format": "table", "batch_size": 2, "probabilities": True} for part in data[1:]]
    asks.append({"data": ["good film", "bad"], "probabilities": True})
    return ["--model.size", "6", "--model.embedding_size", "4", "--model.dropout", "0.5", *SHORT], asks


def tags(folder):
    random = np.random.default_rng(2)
    sentences = [
        "".join(
            f"{w} {t}\n" for w, t in zip(random.choice(list("abcde"), 6), random.choice(list("XYZ"), 6), strict=True)
        )
        for _ in range(30)
    ]
    (folder / "data.txt").write_text("\n".join(sentences))
    asks = [
        {"data": "\n".join(sentences[i::3]), "format": "columns", "num_beams": beams, "probabilities": True}
        for i, beams in enumerate((1, 4, 2))
    ]
    asks.append({"data": [["a", "b"], ["c"]]})
    small = ["--model.size", "6", "--model.embedding_size", "4", "--model.char_size", "0", "--model.crf", "false"]
    return [*small, "--model.feedback", "true", *SHORT], asks


def translations(folder):
    random = np.random.default_rng(3)
    pairs = [(words, words[::-1]) for words in ("".join(random.choice(list("abcd"), 5)) for _ in range(40))]
    (folder / "data.tsv").write_text(text([f"{a}\t{b}" for a, b in pairs]))
    sources = [text([a for a, _ in pairs[i::8]]) for i in range(3)]
    settings = ({}, {"num_beams": 3, "n_best": 2}, {"temperature": 0.7, "seed": 5, "prefix": "a"})
    asks = [{"data": source, **options} for source, options in zip(sources, settings, strict=True)]
    asks.append({"data": ["abc", "dcba"]})
    small = ["--model.size", "6", "--model.embedding_size", "4", "--data.vocabulary", "char"]
    return [*small, *SHORT], asks


def trees(folder):
    random = np.random.default_rng(4)
    rows = [f"({k} ({k} {random.choice(['it', 'he'])}) ({k} {random.choice(['works', 'fails'])}))" for k in (0, 1) * 20]
    (folder / "data.txt").write_text(text(rows))
    asks = [{"data": text(rows[i::5])} for i in range(3)]
    asks.append({"data": rows[:2]})
    return ["--model.size", "6", "--model.embedding_size", "4", *SHORT], asks


MADE = {
    "forecast": forecasts, "hmm": hidden, "classify": classes, "tag": tags, "translate": translations, "tree": trees,
}  # fmt: skip


def test_every_task_that_predicts_is_here():
    own = {name: task for name, task in TASKS.items() if type(task).__module__.startswith("elman.")}
    assert sorted(MADE) == sorted(name for name, task in own.items() if "predict" in task.requests)


@pytest.fixture(scope="module", params=sorted(MADE))
def made(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    options, asks = MADE[request.param](folder)
    (data,) = folder.glob("data.*")
    part = "--data.source" if request.param == "translate" else "--data.train"
    assert cli.main(["train", "--task", request.param, part, str(data), "--out", str(folder / "run"), *options]) == 0
    return request.param, folder / "run", [{"model": request.param, **ask} for ask in asks]


def snapshot(value):
    """All that an object holds, its modules' modes and tensors included, as text."""
    if isinstance(value, torch.nn.Module):
        modes = {name: part.training for name, part in value.named_modules()}
        own = {name: sorted(vars(part)) for name, part in value.named_modules()}
        return snapshot([modes, own, dict(value.named_parameters()), dict(value.named_buffers())])
    if isinstance(value, torch.Tensor):
        value = value.detach().numpy()
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value.shape}{hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()}"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key!r}:{snapshot(part)}" for key, part in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(snapshot, value)) + "]"
    if hasattr(value, "__dict__") and type(value).__module__.startswith("elman"):
        return type(value).__name__ + snapshot(vars(value))
    return repr(value)


def test_two_tenants_a_resend_and_many_at_once(made, tmp_path):
    name, run, asks = made
    task, model = open_model(run)
    alone = [predictor(task, open_model(run)[1])(json.dumps(ask).encode()) for ask in asks]
    assert len({tuple(lines) for lines in alone}) == len(asks)  # or nothing could be mixed up
    before, fingerprint = snapshot(model), elman.state.fingerprint(model.model) if hasattr(model, "model") else ""
    (tmp_path / "keys").write_text("".join(f"{n} {hashlib.sha256(n.encode()).hexdigest()}\n" for n in ("ann", "bob")))
    models = {name: task.serve(model)} if name == "forecast" else None
    with running(models, keys=Keys(str(tmp_path / "keys")), predictors={name: predictor(task, model)}) as server:

        def ask(given):
            tenant, number = given
            header = {"authorization": f"Bearer {tenant}"}
            answer = httpx.post(f"{server.url}/v1/predict", json=asks[number], headers=header, timeout=60)
            return number, answer.status_code, answer.json().get("lines", answer.text)

        wanted = {number: (number, 200, lines) for number, lines in enumerate(alone)}
        turns = [(tenant, n) for n in range(len(asks)) for tenant in ("ann", "bob", "ann")]
        assert [ask(turn) for turn in turns] == [wanted[n] for _, n in turns]
        with ThreadPoolExecutor(6) as pool:
            many = [(("ann", "bob")[i % 2], i % len(asks)) for i in range(4 * len(asks))]
            assert [*pool.map(ask, many)] == [wanted[n] for _, n in many]
        unknown = {"model": name, "data": "unique_id,ds,y\nother,2024-02-10,1\n"}
        refused = httpx.post(f"{server.url}/v1/predict", json=unknown, headers={"authorization": "Bearer bob"}).text
        assert "mine" not in refused  # the series of another
    assert snapshot(model) == before
    assert not fingerprint or elman.state.fingerprint(model.model) == fingerprint


def test_a_prediction_can_be_left(made, monkeypatch):
    """Before its next batch; between the lines that it answers every one can, whatever computes them."""
    name, run, asks = made
    predict = predictor(*open_model(run))
    if name != "hmm":  # which computes in one native call
        monkeypatch.setattr("elman.serve.api.predicting.check_cancelled", lambda: None)

    def leave():
        raise Disconnected

    for ask in asks:
        with cancellable(leave), pytest.raises(Disconnected):
            predict(json.dumps(ask).encode())


def test_a_snapshot_sees_what_changes(made):
    """The judge is judged: a mode, a weight, an attribute."""
    model = deepcopy(open_model(made[1])[1])
    before = snapshot(model)
    vars(model)["extra"] = Path("x")
    assert snapshot(model) != before
    del vars(model)["extra"]
    if hasattr(model, "model"):
        model.model.train()
        assert snapshot(model) != before
        model.model.eval()
        with torch.no_grad():
            next(model.model.parameters()).flatten()[0] += 1
    else:
        model.startprob_ = model.startprob_[::-1].copy() + 1e-9
    assert snapshot(model) != before
