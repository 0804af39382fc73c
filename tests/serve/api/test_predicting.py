"""/v1/predict: how it refuses, and how it is left. What it answers, for every task, is in ../test_shared_models.py."""

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import SimpleNamespace

import httpx
import pytest
import torch
from running import MODELS, Running, error, running, service
from wire import until

from elman import cli
from elman.serve.api.predicting import predictor
from elman.tasks import open_model
from elman.tasks.predictor import Predictor
from elman.tasks.request import Request, Rows, data_option


def test_errors_of_predict_name_no_file_of_the_server(tmp_path):
    (tmp_path / "x.csv").write_text("value\n" + "\n".join(map(str, [0.1, 0.2, -0.1, 5.0, 5.2, 4.9] * 4)) + "\n")
    assert cli.main(["train", "--task", "hmm", "--data.train", str(tmp_path / "x.csv"), "--out", str(tmp_path / "hmm"),
                     "--model.n_components", "2"]) == 0  # fmt: skip
    task, model = open_model(tmp_path / "hmm")
    with running(MODELS, predictors={"hmm": predictor(task, model)}) as server:
        for data in ("value\nx\n", "value\n1\n2,3\n", "", "x"):
            answer = server.post("/v1/predict", {"model": "hmm", "data": data})
            assert answer.status_code == 400, answer.text
            assert (
                "data" in error(answer)["message"] and "/tmp" not in answer.text and os.sep + "data." not in answer.text
            )


class Slow:
    """A task whose prediction would take a quarter of an hour, in batches of some milliseconds."""

    def __init__(self):
        self.batches, self.ended = 0, threading.Event()
        self.requests = {"predict": (Sentences, self.predict)}

    def predict(self, model, request):
        try:
            return ["".join(self.rows.batched(range(100_000), self.batch, 1))]
        finally:
            self.ended.set()

    rows = Predictor(torch.nn.Linear(1, 1).eval())

    def batch(self, rows):
        self.batches += 1
        time.sleep(0.01)
        return [""] * len(rows)


@dataclass(frozen=True)
class Sentences(Request):
    data: Rows = data_option("rows", rows=list[str])


@pytest.fixture
def slow():
    task = Slow()
    return task, {"slow": predictor(task, SimpleNamespace(task="slow"))}


BODY = {"model": "slow", "data": ["x"]}


def test_a_prediction_that_nobody_waits_for_is_left(slow):
    task, predictors = slow
    with running(MODELS, predictors=predictors) as server:
        with pytest.raises(httpx.TimeoutException):
            httpx.post(f"{server.url}/v1/predict", json=BODY, timeout=0.3)
        workers = server.service.workers
        assert task.ended.wait(2) and until(lambda: not workers.running and not workers.counts["local"], 2)
        assert 0 < task.batches < 300
        begun = task.batches  # the worker is free for others, and nothing goes on behind them
        assert server.session() and task.batches == begun


def test_a_prediction_that_is_not_done_in_time_is_refused_and_left(slow, monkeypatch):
    monkeypatch.setattr("elman.serve.server.DRAIN", 0.3)
    task, predictors = slow
    server = Running(service(MODELS, predictors=predictors))
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(httpx.post, f"{server.url}/v1/predict", json=BODY, timeout=20)
        assert until(lambda: task.batches)
        began = time.monotonic()
        server.stop()
        assert asked.result().status_code == 503 and task.ended.wait(2) and time.monotonic() - began < 8
