"""The language-model verbs as a person types them."""

import json
from pathlib import Path

import pytest
from processes import elman

from elman.cli import main

TEXT = "the cat sat on the mat; the dog sat on the log. " * 60


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "text.txt").write_text(TEXT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ELMAN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return tmp_path


COUNT = ("train", "--task", "markov", "--data.train", "text.txt")


@pytest.mark.slow
def test_a_terminal_that_knows_only_ascii_shows_question_marks(here, monkeypatch):
    (here / "text.txt").write_text("né à côté " * 300)
    assert main([*COUNT, "--model.order", "2", "--out", "run"]) == 0
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    code, out, err = elman("generate", "run", "--prompt", "né", "--max_new_tokens", "3")
    assert (code, err) == (0, "") and out.startswith("n? ")


def test_what_evaluate_says_about_invalid_text_can_be_done(here, capfd):
    assert main([*COUNT, "--model.order", "2", "--out", "run"]) == 0
    (here / "bad.txt").write_bytes(b"the \xff cat")
    assert main(["evaluate", "run", "bad.txt"]) == 2
    assert "Pass --data.errors replace" in capfd.readouterr().err
    assert main(["evaluate", "run", "bad.txt", "--data.errors", "replace"]) == 0


@pytest.mark.slow
def test_the_verbs_together(here, capfd):
    assert main(["init", "lm"]) == 0
    Path("full.yaml").write_text(capfd.readouterr().out)
    small = ("--model.size", "8", "--training.steps", "80", "--data.batch_size", "2", "--data.window", "8")
    assert main(["train", "--config", "full.yaml", "--data.train", "text.txt", "--out", "run", *small]) == 0
    capfd.readouterr()
    assert main(["evaluate", "run", "text.txt", "--json"]) == 0
    score = json.loads(capfd.readouterr().out)
    assert score["tokens"] == len(TEXT) and score["nats_per_token"] == pytest.approx(score["nats"] / len(TEXT))
    assert main(["evaluate", "run", "text.txt", "text.txt", "--chunk", "5"]) == 0
    assert "perplexity" in capfd.readouterr().out
    common = ["generate", "run", "--prompt", "the ", "--seed", "7", "--temperature", "0.3"]
    assert main([*common, "--max_new_tokens", "20"]) == 0
    whole = capfd.readouterr().out
    assert main([*common, "--max_new_tokens", "8", "--save_state", "here.safetensors"]) == 0
    first = capfd.readouterr().out
    assert main([*common, "--max_new_tokens", "9", "--save_state", "here.safetensors"]) == 2
    assert "here.safetensors exists" in capfd.readouterr().err
    assert main([*common, "--max_new_tokens", "8", "--save_state", "here.safetensors", "--force"]) == 0
    assert capfd.readouterr().out == first
    go_on = ["generate", "run", "--temperature", "0.3", "--state", "here.safetensors", "--max_new_tokens", "12"]
    assert main(go_on) == 0
    assert first.removesuffix("\n") + capfd.readouterr().out == whole
    assert main(["generate", "run", "--num_beams", "3", "--prompt", "the", "--json", "--max_new_tokens", "3"]) == 0
    made = json.loads(capfd.readouterr().out)
    assert (made["prompt"], len(made["text"]), made["finish_reason"]) == ("the", 3, "length")
    assert main(["train", "--out", "run", "--resume", "auto"]) == 0  # it has its own config


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--model.siz", "3", "--training.steps", "1"], "model.size"),
        (["train", "--config", "bad.yaml"], "model.size"),
        (["train", "--config", "top.yaml"], "model.size"),
        (["train", "--config", "list.yaml"], "in list.yaml, data is [1], which is not a mapping"),
        (["train", "--data.train", "text.txt", "--out", "x" * 300], "File name too long"),
        (
            ["train", "--data.train", "text.txt", "--out", "a", "--model.size", "1000000000"],
            "--model.size is 1000000000",
        ),
        (["train", "--config", "none.yaml"], "none.yaml"),
        (["train", "--config", "latin.txt"], "cannot read the config latin.txt"),
        (["train", "--model.size", "large"], "large"),
        (["train", "--lr", "0.1"], "Did you mean 'optim.lr'?"),
        (["train", "--model.lr", "0.1"], "Did you mean 'optim.lr'?"),
        (["train", "--data.train", "none.txt"], "no file or folder none.txt"),
        (["train", "--data.train", "latin.txt"], "byte 3 (line 1) is 0xe9"),
        (["train", "--data.train", "empty.txt"], "empty"),
        (["train", "--data.train", "text.txt", "--out", "."], "exists"),
        (["evaluate", "nothing", "text.txt"], "no folder nothing"),
        (["evaluate", ".", "text.txt"], "no elman-model"),
        (["generate", "nothing"], "no folder nothing"),
        (["init", "lmm"], "Did you mean 'lm'"),
    ],
)
def test_bad_input_is_one_clear_line(here, capfd, arguments, message):
    (here / "latin.txt").write_bytes("café au lait".encode("latin-1"))
    (here / "empty.txt").write_bytes(b"")
    (here / "bad.yaml").write_text("model: {siz: 3}\n")
    (here / "top.yaml").write_text("modle: {size: 3}\n")
    (here / "list.yaml").write_text("data: [1]\n")
    assert main(arguments) == 2
    captured = capfd.readouterr()
    assert message in captured.err and "Traceback" not in captured.err and captured.out == ""


def test_generate_says_what_a_user_would_wonder_about(here, capfd):
    (here / "text.txt").write_text("to be\nor not to be\n" * 40)
    words = ("--data.vocabulary", "word", "--data.unit", "lines", "--model.order", "2")
    assert main([*COUNT, *words, "--out", "run"]) == 0
    capfd.readouterr()
    assert main(["generate", "run", "--prompt", "zebra to", "--temperature", "0"]) == 0
    out, err = capfd.readouterr()
    assert out == "zebra to be\n"
    assert err.splitlines() == [
        "elman: warning: the prompt has 'zebra', which the vocabulary lacks: the model reads <unk> in its place",
        "the model ended the text here",
    ]
