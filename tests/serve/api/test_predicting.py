"""/v1/predict: how it refuses. What it answers, for every task, is in ../test_shared_models.py."""

import os

from running import MODELS, error, running

from elman import cli
from elman.serve.api.predicting import predictor
from elman.tasks import open_model


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
