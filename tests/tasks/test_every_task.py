"""What every task promises, over TASKS, by the table in tables.py: it trains; stopped and resumed it ends in the same
bytes; it refuses bad settings by name; its model is a value, which no verb and no server changes, and which answers the
same when it is saved and loaded, in any batch, from the command line and from Python.

The models that are asked are those of tests/versions, which 867694c wrote.
"""

import json
import re
from argparse import ArgumentParser
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from functools import cache
from itertools import count

import pytest
import torch
from interrupting import contents, train_stopping_at
from tables import RUNS, TABLE, config, flags, merged, with_files

import elman
from elman import lens
from elman.cli import main
from elman.cli.model_verb import add_arguments
from elman.errors import ElmanError, FrozenError, InputError
from elman.run import train
from elman.serve.api.predicting import predictor
from elman.tasks import TASKS, load, open_model, plots, respond
from elman.tasks.request import Files
from elman.tasks.tree import plots as tree_plots
from elman.training.record import Preview

FEW = {"rows": 2, "steps": 12}
OURS = sorted(name for name, task in TASKS.items() if type(task).__module__.startswith("elman."))
numbers = count()


def test_every_verb_of_every_task_is_here():
    assert {name: {*one.requests} for name, one in TABLE.items()} == {name: {*TASKS[name].requests} for name in OURS}


# Runs


@pytest.fixture(scope="module", autouse=True)
def no_pictures(tmp_path_factory):
    """They have tests of their own, and take longer than such short runs."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (plots, tree_plots):
            patch.setattr(module, "preview", lambda *found: Preview())
        patch.setattr(plots, "alignment", lambda *found: b"")
        patch.setattr(plots, "grid", lambda *found: b"")
        patch.setenv("ELMAN_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nobody stopped, of a task with one of its variants: its folder, its model and its history."""

    @cache
    def trained(name, number):
        out = tmp_path_factory.mktemp(name) / "run"
        return out, *train(config(name, out, TABLE[name].variants[number]))

    return trained


@pytest.mark.slow
@pytest.mark.parametrize("name", OURS)
def test_a_run_leaves_what_was_promised(whole, name):
    out, model, history = whole(name, 0)
    fitted = TASKS[name].fitted
    files = {"config.yaml", "metrics.jsonl", "timings.jsonl", "samples.txt", "best"} | (
        {"last"} if not fitted else set()
    )
    assert {path.name for path in out.iterdir()} - {"previews"} == files
    assert [json.loads(line) for line in (out / "metrics.jsonl").open()] == history
    assert not {"seconds", "time"} & {key for line in history for key in line}  # no clock, so that runs can be compared
    assert any("valid" in line for line in history)
    again = load(out)
    assert type(again) is type(model) and again.fingerprint == model.fingerprint


VARIANTS = [(name, number) for name in OURS for number in range(len(TABLE[name].variants))]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "number"), VARIANTS)
def test_a_run_that_is_stopped_and_resumed_gives_the_same_bytes(whole, name, number, tmp_path, monkeypatch):
    out, *_ = whole(name, number)
    again = config(name, tmp_path / "again", TABLE[name].variants[number], resume="auto")
    if TASKS[name].fitted:
        train(again)
    else:
        train_stopping_at([3, 4, 8], again, monkeypatch)
    first, second = contents(out), contents(again.out)
    assert first.keys() == second.keys() and [file for file in first if first[file] != second[file]] == []


@pytest.mark.parametrize("name", ["lm", "tag", "classify", "forecast", "translate"])
def test_a_model_that_learns_its_start_answers_every_verb(name, tmp_path):
    variant = {"model": {"learn_initial_state": True}, "training": {"steps": 2, "lens": True}}
    model, _ = train(config(name, tmp_path / "run", variant))
    starts = [start for part, start in model.model.named_parameters() if part.endswith("initial_state")]
    assert starts and all(start.any() for start in starts)
    for verb in TABLE[name].requests:
        assert said(load(tmp_path / "run"), name, verb, tmp_path) == said(model, name, verb, tmp_path)


BAD = [(name, what) for name in OURS for what in TABLE[name].bad]


@pytest.mark.parametrize(("name", "what"), BAD, ids=[f"{name}: {what}" for name, what in BAD])
def test_bad_settings_are_named_and_leave_nothing_behind(name, what, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    changes, message = TABLE[name].bad[what]
    settings = with_files(merged(TABLE[name].settings, changes), tmp_path)
    code = main(["train", "--task", name, *flags(settings), "--out", "run"])
    said = " ".join(capsys.readouterr().err.split())
    assert code == 2 and re.search(message, said) and "Traceback" not in said, said
    if what != "three children":  # of which the run knows only when it has begun
        assert not (tmp_path / "run").exists() or not [*(tmp_path / "run").iterdir()]


@pytest.mark.parametrize("verb", ["evaluate", "predict", "inspect"])
@pytest.mark.parametrize("name", OURS)
def test_the_message_about_bad_utf_8_says_what_every_verb_takes(name, verb):
    """`--data.errors replace`, and `--errors` for short."""
    request, _ = TASKS[name].requests.get(verb, (None, None))
    if request and "errors" in {one.name for one in fields(request)}:
        for option in ("--errors", "--data.errors"):
            parser = ArgumentParser()
            add_arguments(parser, request)
            assert parser.parse_args(["file", option, "replace"]).errors == "replace"
    else:
        assert name in ("forecast", "image") or request is None  # whose files are numbers


# Models


@pytest.fixture(params=OURS)
def opened(request):
    return request.param, *open_model(RUNS / request.param)


@pytest.mark.slow
def test_numbers_do_not_depend_on_the_batch(opened):
    name, task, model = opened
    if compute := TABLE[name].outputs:
        assert compute(model, 1) == compute(model, 7) == compute(model, 60)  # to the bit
    for verb in ("evaluate", "predict"):
        if verb in task.requests and "batch_size" in {one.name for one in fields(task.requests[verb][0])}:
            keywords = TABLE[name].requests[verb]
            found, *others = (respond(model, verb, **keywords, batch_size=size) for size in (1, 7, 60))
            for other in others:
                if verb == "predict":
                    assert [*other] == (found := [*found])
                elif name in ("lm", "markov"):  # sums of logarithms in another order
                    assert other.to_json() == pytest.approx(found.to_json(), rel=1e-6)
                else:
                    assert other.to_json() == found.to_json()


def test_a_row_is_answered_in_company_as_it_is_alone(opened):
    name, _, model = opened
    if name in ("tag", "classify", "translate", "tree"):  # where a row of data is a sequence of its own
        rows, *options = TABLE[name].requests["predict"].items()
        options = {key: value for key, value in options if key != "probabilities"}  # which have a header
        alone = "".join(line for row in rows[1] for line in respond(model, "predict", data=[row], **options))
        assert len(rows[1]) > 1 and "".join(respond(model, "predict", data=rows[1], **options)) == alone
        assert alone.strip()


@pytest.mark.slow
def test_a_verb_answers_on_the_command_line_as_in_python(opened, tmp_path, capsys):
    name, _, model = opened
    for verb, keywords in TABLE[name].requests.items():
        keywords = {**keywords, **({"data": TABLE[name].predict} if verb == "predict" else {})}
        if name == "image" and verb == "generate":
            keywords["out"] = str(tmp_path / "typed.npz")
        if name == "forecast" and verb == "predict":
            keywords["from_start"] = True  # it has read this file already
        data = keywords.pop("data", Files())
        page = ["--out", str(tmp_path / "page.html"), *flags(FEW)] if verb == "inspect" else []
        json_ = ["--json"] if verb in ("evaluate", "generate") else []
        capsys.readouterr()
        assert main([verb, str(RUNS / name), *data, *flags(keywords), *page, *json_]) == 0
        said = capsys.readouterr().out
        if verb == "inspect":
            assert "<html" in (tmp_path / "page.html").read_text()
            continue
        keywords |= {"data": data} if data else {}
        if name == "image" and verb == "generate":
            keywords["out"] = str(tmp_path / "called.npz")
        answer = respond(model, verb, **keywords)
        if verb == "predict":
            assert said == "".join(answer) and said.strip()
        else:
            assert verb == "evaluate" or [*answer.pieces()]
            found, wanted = json.loads(said), json.loads(json.dumps(answer.to_json()))
            assert {**found, "out": ""} == {**wanted, "out": ""}


def said(model, name, verb, folder):
    """What a model answers to a verb, as JSON; of what the lens looks at, the names of inputs and the panels."""
    keywords = {**TABLE[name].requests[verb], **(FEW if verb == "inspect" else {})}
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
    return {verb: said(model, name, verb, folder) for verb in TABLE[name].requests}


def written(model, folder):
    model.save(folder)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.slow
def test_no_verb_and_no_server_changes_a_model(opened, tmp_path):
    name, task, model = opened
    before, fingerprint = written(model, tmp_path / "before"), model.fingerprint
    stored = {path.name: path.read_bytes() for path in (RUNS / name / "best").iterdir()}
    assert before["model.safetensors"] == stored["model.safetensors"]
    assert json.loads(before["model.json"]).keys() == json.loads(stored["model.json"]).keys()
    first = everything(model, name, tmp_path)
    if "inspect" in TABLE[name].requests:
        looked = respond(model, "inspect", **TABLE[name].requests["inspect"], **FEW)
        lens.inspect(looked.model, looked.sample, title=name)
    assert json.dumps(everything(model, name, tmp_path)) == json.dumps(first)
    if "predict" in TABLE[name].requests:
        predict, body = predictor(task, model), json.dumps({"model": name, **TABLE[name].requests["predict"]}).encode()
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


# What has some options read that are not read without it.
ASKING = {("translate", "predict"): {"temperature": 1.0, "num_beams": 1}, ("forecast", "predict"): {"from_start": True}}


def test_no_option_of_a_request_is_ignored(opened, tmp_path):
    """Whoever answers reads each of them, but for those that name files of the machine."""
    name, task, model = opened
    for verb, keywords in TABLE[name].requests.items():
        kind, answer = task.requests[verb]
        asked: set[str] = set()

        class Watched(kind):
            def __getattribute__(self, name, asked=asked):
                asked.add(name)
                return super().__getattribute__(name)

        options = {**keywords, **ASKING.get((name, verb), {})}
        if verb == "predict":
            options["data"] = TABLE[name].predict  # a file, which may have a format
        if (name, verb) == ("image", "generate"):
            options["out"] = str(tmp_path / f"{next(numbers)}.npz")
        request = Watched(**options)
        asked.clear()  # of what was read to check them
        said = answer(model, request)
        assert verb != "predict" or [*said]
        wanted = {one.name for one in kind.options() if not one.option.local and not one.option.inside}
        assert wanted - asked == set(), verb


def test_it_is_frozen(opened):
    _, _, model = opened
    for name in ("model", "config", "state", "anything_new"):
        with pytest.raises(FrozenError, match=f"{name} of this {type(model).__name__} cannot be set"):
            setattr(model, name, None)
    with pytest.raises(FrozenError):
        del model.anything
    assert issubclass(FrozenError, AttributeError) and issubclass(FrozenError, ElmanError)


def test_what_its_attributes_give_is_not_what_it_has(opened, tmp_path):
    _, _, model = opened
    before = written(model, tmp_path / "before")
    for kept in (getattr(model, "config", None), getattr(model, "state", None)):
        for value in vars(kept).values() if hasattr(kept, "__dict__") else elman.state.leaves(kept or ()):
            if isinstance(value, dict):
                value["changed"] = 1
            elif isinstance(value, list):
                value.append(1)
            elif isinstance(value, torch.Tensor):
                value.zero_()
    assert written(model, tmp_path / "after") == before and model.device.type == "cpu"


def could_be_written_to(value, name):
    """The names of lists, mappings and sets inside a value; what begins with _ is nobody's business."""
    if isinstance(value, list | dict | set | bytearray):
        yield name
    elif isinstance(value, tuple):
        for i, part in enumerate(value):
            yield from could_be_written_to(part, f"{name}.{getattr(value, '_fields', range(len(value)))[i]}")
    elif hasattr(value, "__dict__") and not isinstance(value, type):
        for field, part in vars(value).items():
            if not field.startswith("_"):
                yield from could_be_written_to(part, f"{name}.{field}")


def test_nothing_in_it_could_be_written_to(opened):
    name, _, model = opened
    if name == "hmm":
        pytest.skip("a hidden Markov model has the attributes that scikit-learn's and hmmlearn's have")
    copied = {"model", "config"}  # a torch module, and what is copied
    parts = {part: value for part, value in vars(model).items() if part not in copied and not part.startswith("_")}
    found = [name for part, value in parts.items() for name in could_be_written_to(value, part)]
    assert set(found) <= {"inputs.reader.covariates"}  # a Mapping, by its type


def test_its_network_is_in_evaluation_mode_and_stays_in_it(opened, monkeypatch, tmp_path):
    name, _, model = opened
    if name == "hmm":
        pytest.skip("a hidden Markov model makes a module of its arrays at each use: threads share none")
    network = model.model
    assert not network.training

    own, switch = {id(module) for module in network.modules()}, torch.nn.Module.train

    def train(self, mode=True):
        assert id(self) not in own or mode == self.training, "the mode of a network that threads share was changed"
        return switch(self, mode)

    monkeypatch.setattr(torch.nn.Module, "train", train)
    everything(model, name, tmp_path)


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
