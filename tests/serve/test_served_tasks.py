"""Every task that is served gives, step by step and in any company, what it gives offline."""

import io
import json
from contextlib import redirect_stdout

import numpy as np
import pytest
import torch
from running import error, language_model, running

import elman
from elman import cli, kernels
from elman.cli import main
from elman.data.cache import encode_string
from elman.errors import InputError
from elman.serve.api.predicting import predictor
from elman.tasks import open_model
from elman.tasks.forecast.serving import ServedSeries
from elman.tasks.forecast.state import to_stored
from elman.tasks.forecast.task import ForecastConfig
from elman.tasks.serving import Writing
from elman.tasks.text.serving import ServedText


def run_all(served, works, states):
    """The works side by side; their answers and last states."""
    for work, state in zip(works, states, strict=True):
        work.begin(state)
    while left := [work for work in works if not work.done]:
        served.advance(left)
    return [work.answer() for work in works], [work.end() for work in works]


@pytest.mark.parametrize(
    "config", [{}, {"cell": "lru"}, {"cell": "mingru"}, {"cell": "lstm", "dtype": "float64"}, {"cutoffs": [20, 100]}]
)
def test_texts_side_by_side_are_those_of_the_library(config):
    lm = language_model(**config)
    served = ServedText(lm, rows=3)
    prompts = ["", "Once", "x" * 150, "It was the best of times", "é", "Once"]
    settings = [
        {}, {"temperature": 0.5}, {"top_k": 5}, {"top_p": 0.9, "repetition_penalty": 1.3}, {"temperature": 0},
        {"stop": ["e"]},
    ]  # fmt: skip
    works = [
        served.writing(prompt, Writing(max_new_tokens=30, **{**s, "stop": tuple(s.get("stop", ()))}))
        for prompt, s in zip(prompts, settings, strict=True)
    ]
    answers, states = run_all(served, works, [served.start(seed) for seed in range(6)])
    for seed, (prompt, s, answer, state) in enumerate(zip(prompts, settings, answers, states, strict=True)):
        generation = lm.start(prompt, seed=seed, max_new_tokens=30, **s)
        text = "".join(pieces[0] for pieces in generation)
        assert answer["text"] == text and answer["finish_reason"] == generation.finish_reasons[0]
        assert served.dump(state) == elman.state.dump(generation.state, fingerprint=lm.fingerprint)
        assert served.parse(served.dump(state)) == state


@pytest.mark.skipif("native" not in kernels.available(), reason="other weights are those of a native stream")
@pytest.mark.parametrize("weights", ["bfloat16", "int8"])
def test_texts_with_weights_in_fewer_bits_are_those_of_the_library_with_the_same_weights(weights):
    lm = language_model()
    served = ServedText(lm, rows=3).with_weights(weights)
    prompts = ["", "Once", "x" * 150, "It was the best of times"]
    works = [served.writing(prompt, Writing(max_new_tokens=30)) for prompt in prompts]
    answers, states = run_all(served, works, [served.start(seed) for seed in range(4)])
    for seed, (prompt, answer, state) in enumerate(zip(prompts, answers, states, strict=True)):
        generation = lm.start(prompt, seed=seed, max_new_tokens=30, weights=weights)
        assert answer["text"] == "".join(pieces[0] for pieces in generation)
        assert served.dump(state) == elman.state.dump(generation.state, fingerprint=lm.fingerprint)
    (answer,), _ = run_all(served, [served.reading("It was the best")], [served.start(0)])
    score = lm.evaluate(encode_string("It was the best", lm.vocabulary), weights=weights)
    nats = -sum(one["logprob"] for one in answer["outputs"])
    assert nats == pytest.approx(score.nats, rel=1e-6)
    with pytest.raises(InputError, match="beam search computes with the weights as they are"):
        served.search(served.start(0), "", Writing(), 2)


@pytest.mark.skipif("native" not in kernels.available(), reason="other weights are those of a native stream")
@pytest.mark.parametrize("weights", [None, "int8"])
def test_scores_are_kept_of_texts_that_ask_for_them_alone(weights):
    whole = ServedText(language_model())
    served = whole if weights is None else whole.with_weights(weights)
    works = [served.writing("Once upon", Writing(max_new_tokens=1)), served.reading("It was")]
    given = []
    for work in works:
        work.begin(served.start(0))
        work.add_read = lambda core, count, scores: given.append(None if scores is None else scores.shape)
    served.advance(works)
    assert given == [None, (6, 257)]


def test_a_markov_model_and_texts_with_an_end(tmp_path):
    from elman.tasks.text.markov import MarkovConfig

    text = "to be or not to be\nthat is the question\n" * 30
    settings = {"data": {"unit": "lines"}, "out": str(tmp_path / "run")}
    lm, _ = elman.train(MarkovConfig(**settings), data=text)
    task, model = open_model(tmp_path / "run")
    served = task.serve(model)
    works = [served.writing("to", Writing(max_new_tokens=60)), served.writing("", Writing(max_new_tokens=60))]
    answers, states = run_all(served, works, [served.start(1), served.start(2)])
    assert [a["text"] for a in answers] == [lm.generate(p, seed=s, max_new_tokens=60) for p, s in (("to", 1), ("", 2))]
    assert answers[0]["finish_reason"] == "end"
    more, _ = run_all(served, [served.writing("to", Writing(max_new_tokens=9))], states[:1])
    first = lm.start("to", seed=1, max_new_tokens=60)
    list(first)
    assert more[0]["text"] == lm.generate("to", state=first.state, max_new_tokens=9)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A classifier of numbers that is causal, and an HMM, each trained for a moment."""
    folder = tmp_path_factory.mktemp("runs")
    random = np.random.default_rng(0)
    lines = [",".join([str(i % 2), *(f"{v:.3f}" for v in random.normal(i % 2, 1, 6))]) for i in range(40)]
    (folder / "rows.csv").write_text("\n".join(["label," + ",".join(f"x{i}" for i in range(6)), *lines]) + "\n")
    x = np.repeat([0.0, 5.0], 50)[:, None] + random.normal(size=(100, 1))
    (folder / "columns.csv").write_text("value\n" + "\n".join(f"{v:.4f}" for v in x[:, 0]) + "\n")
    out = io.StringIO()
    with redirect_stdout(out):
        assert cli.main(["train", "--task", "hmm", "--data.train", str(folder / "columns.csv"), "--out",
                         str(folder / "hmm"), "--model.n_components", "2"]) == 0  # fmt: skip
    return folder


def test_an_hmm_filters_what_it_is_sent(runs):
    task, model = open_model(runs / "hmm")
    served = task.serve(model)
    x = [[[0.1], [5.2], [4.9]], [[1.0]], [[0.0]] * 70]
    answers, _ = run_all(served, [served.reading(rows) for rows in x], [served.start(0)] * 3)
    for rows, answer in zip(x, answers, strict=True):
        with torch.no_grad():
            predicted, _ = model.module().scan(torch.tensor([rows], dtype=torch.float64))
        found = np.array([one["next_state"] for one in answer["outputs"]])
        assert np.array_equal(found, predicted.p[0].numpy())
    with running({"hmm": served}, predictors={"hmm": predictor(task, model)}) as server:
        id = server.session("hmm")
        assert server.step(id, [[0.1], [5.2], [4.9]]).json()["outputs"] == answers[0]["outputs"]
        body = {"model": "hmm", "data": (runs / "columns.csv").read_text()}
        lines = server.post("/v1/predict", body).json()["lines"]
        out = io.StringIO()
        with redirect_stdout(out):
            cli.main(["predict", str(runs / "hmm"), str(runs / "columns.csv")])
        assert "\n".join(lines) + "\n" == out.getvalue()
        more = server.post("/v1/predict", {**body, "posteriors": True}).json()["lines"]
        assert more[0].endswith("p0,p1")
        rows = [[float(line)] for line in (runs / "columns.csv").read_text().split()[1:]]
        assert server.post("/v1/predict", {**body, "data": rows}).json()["lines"] == lines
        for wrong in ({"errors": "strict"}, {"posteriors": "x"}, {"none": True}, {"data": ""}, {"data": []},
                      {"data": [[1.0], [1.0, 2.0]]}, {"data": [["x"]]}, {"data": 5}):  # fmt: skip
            assert server.post("/v1/predict", {**body, **wrong}).status_code == 400, wrong


def test_a_causal_classifier_answers_after_each_input():
    from elman.tasks.classify.data import Reader
    from elman.tasks.classify.inputs import Labels, SeriesInputs
    from elman.tasks.classify.model import Classifier, ClassifyModelConfig, build

    torch.manual_seed(0)
    inputs, labels = SeriesInputs((1.0, 0.0), (2.0, 1.0)), Labels("class", ("no", "yes"))
    config = ClassifyModelConfig(size=8, bidirectional=False, pool="mean", embedding_size=4)
    model = Classifier(build(config, inputs, labels).eval(), config, Reader(), inputs, labels)
    served = model.served()
    x = [[[0.5, 1.0], [2.0, -1.0], [3.0, 0.0]], [[1.0, 1.0]]]
    answers, states = run_all(served, [served.reading(rows) for rows in x], [served.start(0)] * 2)
    for rows, answer in zip(x, answers, strict=True):
        wanted = model.each(inputs(np.array(rows), "here"))
        found = [list(one["probabilities"].values()) for one in answer["outputs"]]
        assert np.array_equal(found, wanted.exp().tolist())
    step, _ = run_all(
        served, [served.reading(x[0][2:])], run_all(served, [served.reading(x[0][:2])], [served.start(0)])[1]
    )
    assert step[0]["outputs"] == answers[0]["outputs"][2:]
    assert json.dumps(answers)


def days(first, values):
    return [{"ds": str(np.datetime64("2024-01-01") + first + i), "y": value} for i, value in enumerate(values)]


@pytest.mark.slow
@pytest.mark.parametrize("gaps", ["error", "fill"])
def test_a_forecaster_says_what_follows_each_row(tmp_path, gaps):
    from elman.tasks.forecast.task import ForecastConfig

    random = np.random.default_rng(0)
    rows = days(0, (10 + random.normal(size=80)).round(3).tolist())
    config = ForecastConfig(
        out=str(tmp_path / "run"), data={"horizon": 3, "seasonality": 7, "gaps": gaps},
        model={"size": 8, "layers": 1}, training={"steps": 2}, seed=1,
    )  # fmt: skip
    model, _ = elman.train(config, {"train": {name: [row[name] for row in rows] for name in ("ds", "y")}})
    served = ServedSeries(model)

    def offline(given):
        state = model.read_from_start({name: [row[name] for row in given] for name in ("ds", "y")})
        said = model.forecast(state, 1, samples=0)
        quantiles = {str(q): said.quantiles[0, 0, :, k].tolist() for k, q in enumerate((0.1, 0.5, 0.9))}
        return {"next": said.times[0][0], "mean": said.mean[0, 0].tolist(), "quantiles": quantiles}

    several = [days(0, [1.0, 2.5, None, 4.0] * 6), days(100, [3.0, 9.0]), days(7, [8.0])]
    answers, ends = run_all(served, [served.reading(one) for one in several], [served.start(0)] * 3)
    for given, answer in zip(several, answers, strict=True):
        assert answer["outputs"] == [offline(given[: i + 1]) for i in range(len(given))]
    assert served.parse(served.dump(ends[1])) == ends[1]
    with running({"sales": served}) as server:
        id = server.session("sales", checkpoints={"every": 1, "keep": 9}, log_inputs=True)
        first = server.step(id, several[0][:5]).json()
        assert first["outputs"] == answers[0]["outputs"][:5] and first["position"] == 5
        server.step(id, days(5, [100.0]))
        server.post(f"/v1/sessions/{id}/rollback", {"version": "any", "position": 4})
        assert server.step(id, several[0][4:]).json()["outputs"] == answers[0]["outputs"][4:]
        late = days(25, [1.0])
        answer = server.step(id, late)
        assert answer.status_code == (200 if gaps == "fill" else 422), answer.text
        if gaps == "fill":
            assert answer.json()["outputs"] == [offline([*several[0], *days(24, [None]), *late])]
        for wrong, status in ((days(3, [1.0]), 422), ([{"ds": "2024-02-01"}], 422), ([1.0], 400), ("x", 400),
                              ([{"ds": "2024-02-01", "y": [1]}], 400), ([{"ds": "soon", "y": 1}], 422)):  # fmt: skip
            assert server.step(id, wrong).status_code == status, wrong
        assert server.client.get("/readyz").status_code == 200
    state = served.opened(np.frombuffer(ends[1], np.uint8)[None])
    assert served.parse(elman.state.dump(to_stored(state), fingerprint=served.fingerprint)) == ends[1]
    for wrong in ({"name": torch.full_like(state.name, 255)}, {"tick": torch.tensor([2**62])},
                  {"recent": state.recent + torch.inf}, {"error": state.error * torch.nan},
                  {"value": state.value * torch.nan}, {"seen": state.seen * torch.nan}):  # fmt: skip
        with pytest.raises(InputError, match="no series can lead to"):
            changed = to_stored(state._replace(**wrong))
            served.parse(elman.state.dump(changed, fingerprint=served.fingerprint))


def test_an_hmm_is_not_lost_for_ever_by_one_large_input(tmp_path):
    """Past 1e154 no state has a likelihood, and nothing would be left to go on from."""
    (tmp_path / "x.csv").write_text("value\n" + "\n".join(map(str, [0.1, 0.2, -0.1, 5.0, 5.2, 4.9] * 4)) + "\n")
    assert main(["train", "--task", "hmm", "--data.train", str(tmp_path / "x.csv"), "--out", str(tmp_path / "hmm"),
                 "--model.n_components", "2"]) == 0  # fmt: skip
    task, model = open_model(tmp_path / "hmm")
    with running({"hmm": task.serve(model)}) as server:
        id = server.session("hmm")
        assert server.step(id, [[0.1]]).status_code == 200
        refused = server.step(id, [[1e200]])
        assert refused.status_code == 422 and refused.json()["error"]["code"] == "state_not_finite"
        assert sum(server.step(id, [[5.0]]).json()["outputs"][0]["next_state"]) == pytest.approx(1)


@pytest.fixture(scope="module")
def counted(tmp_path_factory):
    """A forecaster whose times are whole numbers."""
    rows = {"ds": [str(t) for t in range(60)], "y": [str(t % 3) for t in range(60)]}
    settings = {"data": {"horizon": 3, "seasonality": 3}, "model": {"kind": "seasonal_naive"}}
    out = str(tmp_path_factory.mktemp("counted") / "run")
    return elman.train(ForecastConfig(**settings, out=out), {"train": rows})[0]


@pytest.mark.parametrize("when", [2**70, 10**18, str(2**70), "292277026596-01-01", "today", "now", "NaT", "1e5", 1.5])
def test_a_time_that_is_none_is_refused(counted, when):
    with running({"sales": ServedSeries(counted)}) as server:
        id = server.session("sales")
        answer = server.step(id, [{"ds": when, "y": 1.0}])
        assert answer.status_code in (400, 422) and str(when) in error(answer)["message"], answer.text
        assert server.step(id, [{"ds": "5", "y": 1.0}], version=0).status_code == 200


def test_a_state_at_the_last_time_can_be_sent_back(counted):
    with running({"sales": ServedSeries(counted)}) as server:
        id = server.session("sales")
        assert server.step(id, [{"ds": "9" * 18, "y": 1.0}]).status_code == 200
        state = server.client.get(f"/v1/sessions/{id}/state").content
        back = server.client.put(f"/v1/sessions/{id}/state", content=state, headers={"if-match": "1"})
        assert back.status_code == 200, back.text
