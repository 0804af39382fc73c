"""`elman serve`, as it is typed: what is refused, and a whole life from start to SIGTERM."""

import builtins
import json
import signal
import subprocess
import sys
import time

import httpx
import pytest
from running import language_model

from elman.cli import main
from elman.data import VOCABULARIES
from elman.tasks.text.lm import LanguageModel, LMModelConfig, build


@pytest.fixture
def run(tmp_path):
    config = LMModelConfig(size=8, layers=1)
    lm = LanguageModel(build(config, 257), VOCABULARIES["byte"](), config)
    lm.save(tmp_path / "book")
    return tmp_path / "book"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "no model to serve"),
        (["runs/none"], "there is no folder"),
        (["RUN", "--host", "0.0.0.0"], "--api_key_file"),
        (["RUN", "--durability", "process"], "needs --store"),
        (["RUN", "--durability", "none", "--store", "s.db"], "not none"),
        (["RUN", "--port", "70000"], "--port is 70000"),
        (["--model", "RUN"], "NAME=RUN"),
        (["RUN", "--model", "book=RUN"], "the same name"),
        (["RUN", "--api_key_file", "none.txt"], "cannot read the keys"),
        (["RUN", "--state_key_file", "none.txt"], "cannot read the keys"),
        (["runs/none", "--weights", "int4"], "--weights is 'int4'; it must be one of 'bfloat16', 'int8'"),
    ],
)
def test_what_cannot_be_served(run, arguments, said, capsys, monkeypatch):
    monkeypatch.chdir(run.parent)
    assert main(["serve", *(word.replace("RUN", str(run)) for word in arguments)]) == 2
    assert said in capsys.readouterr().err


def test_limits_are_printed(capsys):
    assert main(["serve", "--print_limits"]) == 0
    out = capsys.readouterr().out
    assert "socket_flight" in out and "bytes in a request" in out


def test_a_missing_extra_says_what_to_install(run, capsys, monkeypatch):
    find = builtins.__import__

    def missing(name, *rest):
        if name == "uvicorn":
            raise ImportError("no", name="uvicorn")
        return find(name, *rest)

    monkeypatch.setattr(builtins, "__import__", missing)
    assert main(["serve", str(run)]) == 2
    assert "pip install 'elman[serve]'" in capsys.readouterr().err


@pytest.mark.slow
def test_from_start_to_sigterm(run):
    command = [sys.executable, "-m", "elman", "serve", str(run), "--port", "0", "--store", str(run.parent / "s.db")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert "http://127.0.0.1:" in line and "(book)" in line, line
        with httpx.Client(base_url=line.split()[2], timeout=30) as client:
            id = client.post("/v1/sessions", json={"model": "book", "durability": "power"}).json()["id"]
            body = {"version": 0, "prompt": "Hi", "max_new_tokens": 3000, "stream": True}
            with client.stream("POST", f"/v1/sessions/{id}/generate", json=body) as answer:
                pieces = answer.iter_text()  # iter_lines() cuts a text at characters that end no line of a stream
                first = next(pieces)
                process.send_signal(signal.SIGTERM)
                began = time.monotonic()
                rest = first + "".join(pieces)  # what is under way is finished
            *_, event, last = (line for line in rest.split("\n") if line)
            assert event == "event: done" and json.loads(last.removeprefix("data: "))["version"] == 1
        assert process.wait(30) == 0 and time.monotonic() - began < 30
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("ttl", ["nan", "-1", "0", "1e9"])
def test_a_ttl_that_no_session_can_have_is_refused_at_the_start(tmp_path, monkeypatch, ttl):
    language_model().save(tmp_path / "book")
    monkeypatch.setattr("elman.serve.server.serve", lambda service, host, port: 0)
    assert main(["serve", str(tmp_path / "book"), "--ttl", ttl]) == 2
