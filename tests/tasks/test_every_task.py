"""What every task promises, over TASKS: a model is a value, which no verb and no server changes.

The models are those of tests/versions, which 867694c wrote: what is saved of their weights now are the same bytes.
"""

import json
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import pytest

from elman import lens
from elman.errors import ElmanError, FrozenError, InputError
from elman.serve.api.predicting import predictor
from elman.tasks import TASKS, open_model, respond
from elman.tasks.request import Files

THERE = Path(__file__).parents[1] / "versions" / "867694c"
FEW = {"rows": 2, "steps": 12}


def files(*names):
    return Files(str(THERE / "data" / name) for name in names)


TEXT, SERIES, PAIRS = files("text.txt"), files("series.csv"), files("source.txt", "target.txt")
REQUESTS = {
    "lm": {"generate": {"prompt": "the ", "max_new_tokens": 9}, "evaluate": {"data": TEXT}, "inspect": {"data": TEXT}},
    "markov": {"generate": {"prompt": "the ", "seed": 3}, "evaluate": {"data": TEXT}},
    "tag": {
        "predict": {"data": [["the", "cat"], ["a", "dog", "ran"]], "probabilities": True},
        "evaluate": {"data": files("tagged.txt"), "strict": True}, "inspect": {"data": files("tagged.txt")},
    },
    "classify": {
        "predict": {"data": ["the cat", "a dog ran"], "probabilities": True},
        "evaluate": {"data": files("texts.tsv")}, "inspect": {"data": files("texts.tsv")},
    },
    "forecast": {
        "predict": {"data": [{"unique_id": "a", "ds": "2024-03-31", "y": 9.5}], "samples": 5},
        "evaluate": {"data": SERIES, "from_start": True, "samples": 5}, "inspect": {"data": SERIES},
    },
    "translate": {
        "predict": {"data": ["the cat sat", "a mat"], "num_beams": 2},
        "evaluate": {"data": PAIRS}, "inspect": {"data": PAIRS},
    },
    "hmm": {
        "predict": {"data": [[0.1], [5.2], [None]], "posteriors": True}, "evaluate": {"data": files("readings.csv")},
        "generate": {"observations": 5}, "inspect": {"data": files("readings.csv")},
    },
    "tree": {
        "predict": {"data": ["(2 (2 a) (2 film))"]}, "evaluate": {"data": files("trees.txt")},
        "inspect": {"data": files("trees.txt")},
    },
    "image": {
        "generate": {"count": 2}, "evaluate": {"data": files("images.npz")}, "inspect": {"data": files("images.npz")},
    },
}  # fmt: skip
OURS = sorted(name for name, task in TASKS.items() if type(task).__module__.startswith("elman."))
numbers = count()


def test_every_verb_of_every_task_is_here():
    assert {name: {*verbs} for name, verbs in REQUESTS.items()} == {name: {*TASKS[name].requests} for name in OURS}


@pytest.fixture(params=OURS)
def opened(request):
    return request.param, *open_model(THERE / "runs" / request.param)


def said(model, name, verb, folder):
    """What a model answers to a verb, as JSON; of what the lens looks at, the names of inputs and the panels."""
    keywords = {**REQUESTS[name][verb], **(FEW if verb == "inspect" else {})}
    if (name, verb) == ("image", "generate"):
        keywords["out"] = str(folder / f"{next(numbers)}.npz")
    answer = respond(model, verb, **keywords)
    if verb == "predict":
        return [*answer]
    if verb == "evaluate":
        return answer.to_json()
    if verb == "inspect":
        return [answer.sample.names, answer.sample.panels]
    pieces = "".join(answer.pieces())
    return {
        key: value for key, value in {**answer.to_json(), "pieces": pieces}.items() if name != "image" or key == "nats"
    }


def everything(model, name, folder):
    return {verb: said(model, name, verb, folder) for verb in REQUESTS[name]}


def written(model, folder):
    model.save(folder)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_no_verb_and_no_server_changes_a_model(opened, tmp_path):
    name, task, model = opened
    before, fingerprint = written(model, tmp_path / "before"), model.fingerprint
    stored = {path.name: path.read_bytes() for path in (THERE / "runs" / name / "best").iterdir()}
    assert before["model.safetensors"] == stored["model.safetensors"]
    assert json.loads(before["model.json"]).keys() == json.loads(stored["model.json"]).keys()
    first = everything(model, name, tmp_path)
    if "inspect" in REQUESTS[name]:
        looked = respond(model, "inspect", **REQUESTS[name]["inspect"], **FEW)
        lens.inspect(looked.model, looked.sample, title=name)
    assert json.dumps(everything(model, name, tmp_path)) == json.dumps(first)
    if "predict" in REQUESTS[name]:
        predict, body = predictor(task, model), json.dumps({"model": name, **REQUESTS[name]["predict"]}).encode()
        assert predict(body) == predict(body) == [line.rstrip("\n") for line in first["predict"]]
    try:
        served = task.serve(model)
    except InputError:
        served = None  # it answers /v1/predict alone, or nothing
    if served is not None:
        work = served.probe()
        work.begin(served.start(0))
        served.advance([work])
    assert written(model, tmp_path / "after") == before and model.fingerprint == fingerprint


def test_two_threads_at_once_are_each_answered_as_alone(opened, tmp_path):
    name, _, model = opened
    alone = json.dumps(everything(model, name, tmp_path))
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(everything, model, name, tmp_path) for _ in range(2)]
        assert [json.dumps(one.result()) for one in both] == [alone, alone]


def test_it_is_frozen(opened):
    _, _, model = opened
    for name in ("model", "config", "state", "anything_new"):
        with pytest.raises(FrozenError, match=f"{name} of this {type(model).__name__} cannot be set"):
            setattr(model, name, None)
    with pytest.raises(FrozenError):
        del model.anything
    assert issubclass(FrozenError, AttributeError) and issubclass(FrozenError, ElmanError)


def test_save_and_load_give_the_same_bytes(opened, tmp_path):
    name, task, model = opened
    once = written(model, tmp_path / "once")
    again = task.load(tmp_path / "once")
    assert written(again, tmp_path / "again") == once
    assert again.fingerprint == model.fingerprint and repr(again) == repr(model)
    assert [*map(str, again.describe())] == [*map(str, model.describe())] and again.parameter_count > 0


def test_what_is_not_a_model_is_refused_with_one_message(opened, tmp_path):
    name, task, model = opened
    model.save(tmp_path / "model")
    (tmp_path / "model" / "checksums.json").unlink()
    content = json.loads((tmp_path / "model" / "model.json").read_text())
    kept = {key: content[key] for key in ("format", "version", "task")}
    (tmp_path / "model" / "model.json").write_text(json.dumps(kept))
    with pytest.raises(ElmanError, match=r"model\.json is not a model that this version knows"):
        task.load(tmp_path / "model")
