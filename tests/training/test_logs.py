"""What a run reports to other tools: all that its folder has, once; and nothing that they do harms it."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from elman import LMConfig, train
from elman.cli import main
from elman.errors import InputError, MissingExtraError, UnknownNameError
from elman.files import config as configs
from elman.training import logs
from elman.training.logs import LOGS, Logs, Start
from elman.training.record import Preview, Recorder

TEXT = "to be or not to be, that is the question; " * 40
SMALL = {
    "model": {"size": 4, "layers": 1}, "data": {"batch_size": 2, "window": 8}, "preview": {"tokens": 5},
    "training": {"steps": 4, "evaluate_every": 2, "log_every": 1}, "threads": 1,
}  # fmt: skip


def picture() -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (3, 2), (255, 0, 0)).save(file, "PNG")
    return file.getvalue()


class FakeWandb(ModuleType):
    """The calls of wandb that are used, noted; each also draws a random number, as nothing should that a run calls."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.begun: list[dict[str, Any]] = []
        self.rows: list[dict[str, Any]] = []
        self.ended: list[int] = []
        self.Settings = SimpleNamespace
        self.Html = self.Image = lambda content: content

    def init(self, **known: Any) -> FakeWandb:
        self.begun.append(known)
        return self

    def define_metric(self, name: str, step_metric: str = "") -> None:
        torch.rand(1)

    def log(self, row: dict[str, Any]) -> None:
        torch.rand(1)
        self.rows.append(row)

    def finish(self, exit_code: int) -> None:
        self.ended.append(exit_code)


class FakeMLflow(ModuleType):
    """The calls of MLflow's client that are used, noted by run."""

    def __init__(self) -> None:
        super().__init__("mlflow")
        self.params: dict[str, str] = {}
        self.rows: list[tuple[str, float, int]] = []
        self.texts: dict[str, str] = {}
        self.experiments: list[str] = []
        self.places: list[str] = []
        self.statuses: list[str] = []
        self.MlflowClient = lambda: self
        self.entities = ModuleType("mlflow.entities")
        self.entities.Metric = lambda key, value, timestamp, step: (key, value, step)  # type: ignore[attr-defined]
        self.entities.Param = lambda key, value: (key, value)  # type: ignore[attr-defined]

    def get_experiment_by_name(self, name: str) -> Any:
        return SimpleNamespace(experiment_id=f"experiment {name}") if name in self.experiments else None

    def create_experiment(self, name: str) -> str:
        if name in self.experiments:
            raise ValueError("RESOURCE_ALREADY_EXISTS")
        self.experiments.append(name)
        return f"experiment {name}"

    def create_run(self, experiment: str, run_name: str) -> Any:
        self.places.append(experiment)
        return SimpleNamespace(info=SimpleNamespace(run_id=f"id of {run_name}"))

    def update_run(self, run: str, status: str) -> None:
        self.statuses.append(f"{run}: {status}")

    def log_batch(self, run: str, metrics: Any = (), params: Any = ()) -> None:
        assert len(params) <= 100
        self.rows.extend(metrics)
        self.params.update(params)

    def log_text(self, run: str, text: str, path: str) -> None:
        self.texts[path] = text

    def log_image(self, run: str, pixels: Any, path: str) -> None:
        self.texts[path] = str(pixels.shape)

    def set_terminated(self, run: str, status: str) -> None:
        self.statuses.append(f"{run}: {status}")


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> FakeWandb:
    monkeypatch.setitem(sys.modules, "wandb", fake := FakeWandb())
    return fake


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> FakeMLflow:
    monkeypatch.setitem(sys.modules, "mlflow", fake := FakeMLflow())
    monkeypatch.setitem(sys.modules, "mlflow.entities", fake.entities)
    return fake


def lm(out: Path, **settings: Any) -> LMConfig:
    return LMConfig(**{**SMALL, "out": str(out), **settings})


def test_a_run_is_reported_whole_and_its_bytes_do_not_change(
    tmp_path: Path, wandb: FakeWandb, mlflow: FakeMLflow
) -> None:
    """Dropout draws random numbers, and so do these logs: not the same ones."""
    model = {"size": 4, "layers": 2, "dropout": 0.5}
    train(lm(tmp_path / "plain", model=model), TEXT, progress=False)
    train(lm(tmp_path / "logged", model=model, log=["wandb", "mlflow"]), TEXT, progress=False)
    for name in ("metrics.jsonl", "samples.txt", "last/model.safetensors"):
        assert (tmp_path / "plain" / name).read_bytes() == (tmp_path / "logged" / name).read_bytes(), name
    lines = [json.loads(line) for line in (tmp_path / "logged" / "metrics.jsonl").read_text().splitlines()]
    assert [row for row in wandb.rows if not {"best", "preview"} & set(row)] == lines
    assert "test" in lines[-1]
    best = [row["best"] for row in wandb.rows if "best" in row]
    assert best[-1] == min(line["valid"] for line in lines if "valid" in line)
    assert wandb.begun[0]["config"]["model.dropout"] == 0.5 and wandb.begun[0]["name"] == "logged"
    assert [row["step"] for row in wandb.rows if "preview" in row] == [2, 4] and wandb.ended == [0]
    expected = [(name, value, line["step"]) for line in lines for name, value in line.items() if name != "step"]
    assert [row for row in mlflow.rows if row[0] != "best"] == expected
    assert mlflow.params["model.dropout"] == "0.5" and mlflow.params["model.cell"] == "gru"
    assert list(mlflow.texts) == ["previews/2.txt", "previews/4.txt"]
    assert mlflow.statuses == ["id of logged: FINISHED"]


def test_a_resumed_run_continues_its_log(tmp_path: Path, wandb: FakeWandb, mlflow: FakeMLflow) -> None:
    settings = lm(tmp_path / "run", log=["wandb", "mlflow"])

    def stop(step: int, scores: object) -> None:
        raise RuntimeError("the power is gone")

    with pytest.raises(RuntimeError):
        train(settings, TEXT, stop, progress=False)
    train(replace(settings, resume="auto"), TEXT, progress=False)
    first, second = wandb.begun
    assert first["id"] == second["id"] and second["resume"] == "allow" and wandb.ended == [1, 0]
    assert mlflow.statuses == ["id of run: KILLED", "id of run: RUNNING", "id of run: FINISHED"]
    assert json.loads((tmp_path / "run" / "logs.json").read_text()) == {"wandb": first["id"], "mlflow": "id of run"}


@pytest.mark.parametrize("part", ["init", "log", "finish"])
def test_a_log_that_fails_does_not_end_the_training(
    part: str, tmp_path: Path, wandb: FakeWandb, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ConnectionError("no route\nto host")

    monkeypatch.setattr(wandb, part, fail)
    with pytest.warns(UserWarning, match=r"logged to wandb: ConnectionError: no route to host\. The training") as said:
        _, history = train(lm(tmp_path / "run", log="wandb"), TEXT, progress=False)
    assert len(said) == 1 and "test" in history[-1]


def test_a_fitted_model_is_reported_too(tmp_path: Path, wandb: FakeWandb) -> None:
    from elman import MarkovConfig

    train(MarkovConfig(out=str(tmp_path / "run"), log="wandb"), TEXT, progress=False)
    assert wandb.ended == [0] and {"best", "test"} <= {name for row in wandb.rows for name in row}


def test_who_reports_is_not_what_the_run_is(tmp_path: Path, wandb: FakeWandb) -> None:
    """A run may be resumed with a log that it was started without."""
    train(lm(tmp_path / "run", training={**SMALL["training"], "steps": 2}), TEXT, progress=False)
    train(lm(tmp_path / "run", log="wandb", resume="auto"), TEXT, progress=False)
    assert {row["step"] for row in wandb.rows} == {3, 4}


@pytest.mark.parametrize("name", list(LOGS))
def test_a_missing_package_is_named_before_any_work(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, LOGS[name].package, None)
    with pytest.raises(MissingExtraError, match=rf"elman\[{name}\]"):
        train(lm(tmp_path / "run", log=name), TEXT, progress=False)
    assert not (tmp_path / "run").exists()


def test_bad_names_of_logs(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match=r"unknown log 'wandbb'; there are .* Did you mean 'wandb'"):
        logs.check(["wandbb"])
    with pytest.raises(InputError, match="log is a int; it must be a list of names of logs"):
        logs.check(3)
    assert logs.names_of("") == [] == logs.names_of([]) and logs.names_of("mlflow") == ["mlflow"]


def test_tensorboard_has_each_step_once(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    for step, values in ((0, (3.0, 2.0, 9.0)), (2, (1.0, 0.5))):  # the second process continues after step 2
        recorder = Recorder(tmp_path, logs=Logs().start(["tensorboard"], tmp_path, {"model.size": 4}, step))
        for i, value in enumerate(values, step + 1):
            recorder.metrics(i, loss=value, lr=0.1)
        recorder.preview(step + 2, Preview("some text", picture()))
        recorder.close()
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(e.step, e.value) for e in events.Scalars("loss")] == [(1, 3.0), (2, 2.0), (3, 1.0), (4, 0.5)]
    assert sorted(events.Tags()["scalars"]) == ["loss", "lr"]
    assert [(e.step, e.width, e.height) for e in events.Images("preview")] == [(2, 3, 2), (4, 3, 2)]
    texts = {tag: events.Tensors(tag)[0].tensor_proto.string_val[0] for tag in events.Tags()["tensors"]}
    assert b"some text" in texts["preview/text_summary"] and b'"model.size": 4' in texts["settings/text_summary"]


def test_a_picture_reaches_each_log(tmp_path: Path, wandb: FakeWandb, mlflow: FakeMLflow) -> None:
    opened = Logs().start(["wandb", "mlflow"], tmp_path, {})
    opened.preview(7, Preview(picture=picture()))
    assert wandb.rows[-1]["picture"].shape == (2, 3, 3) and mlflow.texts == {"previews/7.png": "(2, 3, 3)"}


def test_the_environment_names_the_project(
    tmp_path: Path, wandb: FakeWandb, mlflow: FakeMLflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is there already is used again."""
    for run, project in (("a", ""), ("b", ""), ("c", "mine")):
        if project:
            monkeypatch.setenv("WANDB_PROJECT", project)
            monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", project)
        (tmp_path / run).mkdir()
        assert [*Logs().start(["wandb", "mlflow"], tmp_path / run, {}).open] == ["wandb", "mlflow"]
    assert [begun["project"] for begun in wandb.begun] == ["elman", "elman", "mine"]
    assert mlflow.places == ["experiment elman", "experiment elman", "experiment mine"]


def test_mlflow_has_every_setting_cut_to_what_it_stores(tmp_path: Path, mlflow: FakeMLflow) -> None:
    settings = {f"s{i}": "x" * (400 + i) for i in range(250)}
    assert Logs().start(["mlflow"], tmp_path, settings).open
    assert mlflow.params == {name: value[:500] for name, value in settings.items()}


def test_text_cannot_become_markup_of_wandb(tmp_path: Path, wandb: FakeWandb) -> None:
    LOGS["wandb"](Start(tmp_path, {}, 0, "")).preview(1, Preview("<script>"))
    assert wandb.rows == [{"step": 1, "preview": "<pre>&lt;script&gt;</pre>"}]


def test_configs_of_earlier_versions_say_tensorboard(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("task: lm\ntraining:\n  steps: 8\n  tensorboard: true\n")
    assert configs.read(path) == {"task": "lm", "log": ["tensorboard"], "training": {"steps": 8}}
    path.write_text("task: lm\ntraining:\n  steps: 8\n  tensorboard: false\n")
    assert configs.read(path) == {"task": "lm", "training": {"steps": 8}}
    stored = configs.identity(LMConfig(), {})
    stored["settings"]["training.tensorboard"] = False
    assert configs.resumed(stored, LMConfig(), {}, tmp_path) == {}


def test_a_flag_of_earlier_versions_names_the_new_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--out", str(tmp_path / "run"), "--training.tensorboard", "true"]) == 2
    assert "--log tensorboard" in capsys.readouterr().err and not (tmp_path / "run").exists()
