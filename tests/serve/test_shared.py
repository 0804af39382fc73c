"""A model that is served is shared by all tenants: what one of them is answered, or does, never depends on another.

Of every task that answers `elman predict`: two tenants in turn, a resend, many at once; then the model is what it was.
"""

import hashlib
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
from elman.saved import open_model
from elman.serve.keys import Keys
from elman.serve.predicting import predictor
from elman.tasks import TASKS

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
        (text([head, *series("a", 40, [9, 9, 9])]), "csv", {"samples": "5"}),
        (text([head, *series("a", 40, [7])]), "csv", {"samples": "5"}),
        (text([head, *series("mine", 0, range(30))]), "csv", {"from_start": True, "samples": "5"}),
        (text([head, *series("b", 40, [0, 0])]), "csv", {"samples": "6", "seed": "1"}),
    ]
    return options, asks, text([head, *series("a", 40, [1, 2, 0]), *series("b", 40, [51, 52, 50])]), "csv"


def hidden(folder):
    values = np.random.default_rng(0).normal(np.repeat([0, 5], 30)).round(3).tolist()
    data = text(["value", *map(str, values)])
    (folder / "data.csv").write_text(data)
    asks = [(text(["value", *map(str, values[i::3])]), "csv", {"posteriors": True} if i else {}) for i in range(3)]
    return ["--model.n_components", "2"], asks, data, "csv"


def classes(folder):
    random = np.random.default_rng(1)
    rows = [f"{i % 2}\t{' '.join(random.choice(['good', 'bad', 'film'], 4))}" for i in range(40)]
    data = [text(["label\ttext", *part]) for part in (rows, *(rows[i::4] for i in range(4)))]
    (folder / "data.tsv").write_text(data[0])
    asks = [(part, "tsv", {"batch_size": "2", "probabilities": True}) for part in data[1:]]
    return ["--model.size", "6", "--model.embedding_size", "4", "--model.dropout", "0.5", *SHORT], asks, data[0], "tsv"


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
        ("\n".join(sentences[i::3]), "txt", {"num_beams": beams, "probabilities": True})
        for i, beams in enumerate(("1", "4", "2"))
    ]
    small = ["--model.size", "6", "--model.embedding_size", "4", "--model.char_size", "0", "--model.crf", "false"]
    return [*small, "--model.feedback", "true", *SHORT], asks, "\n".join(sentences), "txt"


def translations(folder):
    random = np.random.default_rng(3)
    pairs = [(words, words[::-1]) for words in ("".join(random.choice(list("abcd"), 5)) for _ in range(40))]
    (folder / "data.tsv").write_text(text([f"{a}\t{b}" for a, b in pairs]))
    sources = [text([a for a, _ in pairs[i::8]]) for i in range(3)]
    settings = ({}, {"num_beams": "3", "n_best": "2"}, {"temperature": "0.7", "seed": "5"})
    asks = [(source, "txt", options) for source, options in zip(sources, settings, strict=True)]
    small = ["--model.size", "6", "--model.embedding_size", "4", "--data.vocabulary", "char"]
    return [*small, *SHORT], asks, text([f"{a}\t{b}" for a, b in pairs[:9]]), "tsv"


def trees(folder):
    random = np.random.default_rng(4)
    rows = [f"({k} ({k} {random.choice(['it', 'he'])}) ({k} {random.choice(['works', 'fails'])}))" for k in (0, 1) * 20]
    (folder / "data.txt").write_text(text(rows))
    asks = [(text(rows[i::5]), "txt", {}) for i in range(3)]
    return ["--model.size", "6", "--model.embedding_size", "4", *SHORT], asks, text(rows), "txt"


MADE = {
    "forecast": forecasts, "hmm": hidden, "classify": classes, "tag": tags, "translate": translations, "tree": trees,
}  # fmt: skip


def test_every_task_that_predicts_is_here():
    own = {name: task for name, task in TASKS.items() if type(task).__module__.startswith("elman.")}
    assert sorted(MADE) == sorted(name for name, task in own.items() if "predict" in task.verbs)


@pytest.fixture(scope="module", params=sorted(MADE))
def made(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    options, asks, judged, ending = MADE[request.param](folder)
    (data,) = folder.glob("data.*")
    part = "--data.source" if request.param == "translate" else "--data.train"
    assert cli.main(["train", "--task", request.param, part, str(data), "--out", str(folder / "run"), *options]) == 0
    (folder / f"judged.{ending}").write_text(judged)
    return request.param, folder / "run", asks, folder / f"judged.{ending}"


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
    name, run, asks, _ = made
    task, face = open_model(run)
    alone = [predictor(task, open_model(run)[1])(*ask) for ask in asks]
    assert len({tuple(lines) for lines in alone}) == len(asks)  # or nothing could be mixed up
    before, fingerprint = snapshot(face), elman.state.fingerprint(face.model) if hasattr(face, "model") else ""
    (tmp_path / "keys").write_text("".join(f"{n} {hashlib.sha256(n.encode()).hexdigest()}\n" for n in ("ann", "bob")))
    bodies = [{"model": name, "data": data, "ending": end, "options": options} for data, end, options in asks]
    models = {name: task.serve(face)} if name == "forecast" else None
    with running(models, keys=Keys(str(tmp_path / "keys")), predictors={name: predictor(task, face)}) as server:

        def ask(given):
            tenant, number = given
            header = {"authorization": f"Bearer {tenant}"}
            answer = httpx.post(f"{server.url}/v1/predict", json=bodies[number], headers=header, timeout=60)
            return number, answer.status_code, answer.json().get("lines", answer.text)

        wanted = {number: (number, 200, lines) for number, lines in enumerate(alone)}
        turns = [(tenant, n) for n in range(len(asks)) for tenant in ("ann", "bob", "ann")]
        assert [ask(turn) for turn in turns] == [wanted[n] for _, n in turns]
        with ThreadPoolExecutor(6) as pool:
            many = [(("ann", "bob")[i % 2], i % len(asks)) for i in range(4 * len(asks))]
            assert [*pool.map(ask, many)] == [wanted[n] for _, n in many]
        unknown = {"model": name, "data": "unique_id,ds,y\nother,2024-02-10,1\n", "ending": "csv"}
        refused = httpx.post(f"{server.url}/v1/predict", json=unknown, headers={"authorization": "Bearer bob"}).text
        assert "mine" not in refused  # the series of another
    assert snapshot(face) == before
    assert not fingerprint or elman.state.fingerprint(face.model) == fingerprint


def test_evaluate_changes_nothing(made):
    name, run, _, judged = made
    task, face = open_model(run)
    before = snapshot(face)
    assert before == snapshot(deepcopy(face))  # it is of what a face holds, not of where
    parser = cli_parser(task, "evaluate")
    task.verbs["evaluate"].answer(face, parser.parse_args([str(judged)]))
    assert snapshot(face) == before


def cli_parser(task, verb):
    from argparse import ArgumentParser

    parser = ArgumentParser()
    task.verbs[verb].arguments(parser)
    return parser


def test_a_snapshot_sees_what_changes(made):
    """The judge is judged: a mode, a weight, an attribute."""
    face = deepcopy(open_model(made[1])[1])
    before = snapshot(face)
    face.extra = Path("x")
    assert snapshot(face) != before
    del face.extra
    if hasattr(face, "model"):
        face.model.train()
        assert snapshot(face) != before
        face.model.eval()
        with torch.no_grad():
            next(face.model.parameters()).flatten()[0] += 1
    else:
        face.startprob_ = face.startprob_[::-1].copy() + 1e-9
    assert snapshot(face) != before
