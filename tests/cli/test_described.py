"""What tasks and settings there are is said without importing Torch, and is what the configs say."""

import json
import subprocess
import sys

import pytest

from elman.cli import described, export, main, search
from elman.cli.settings import help_text
from elman.files.config import render

WITHOUT_TORCH = """
import sys
from elman.cli import main
try:
    code = main(sys.argv[1:])
except SystemExit as end:
    code = end.code
sys.exit(code or ("it imported Torch" if "torch" in sys.modules else 0))
"""


def test_what_is_kept_is_what_the_configs_say():
    kept = json.loads(described.FILE.read_text(encoding="utf-8"))
    now = json.loads(json.dumps(described.live()))
    assert kept == now, "src/elman/cli/settings.json is not what the configs say: run `make docs`"


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "--help"], ["train", "--task", "tag", "--help"], ["train", "--config", "run.yaml", "-h"],
        ["init", "forecast"], ["init", "--help"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_help_does_not_wait_for_torch(arguments, tmp_path):
    """And says what it says with it: the tests have imported it long since."""
    (tmp_path / "run.yaml").write_text("task: hmm\n")
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, *arguments], capture_output=True, text=True, cwd=tmp_path, timeout=60
    )
    assert done.returncode == 0, done.stderr
    if arguments[1] == "--task":
        assert done.stdout == help_text("tag")
    elif arguments == ["init", "forecast"]:
        from elman.tasks import TASKS

        assert done.stdout == render(TASKS["forecast"].Config(out="runs/forecast"))
    else:
        assert "hidden Markov model" in done.stdout


@pytest.mark.parametrize("verb", [export, search], ids=["export", "search"])
def test_help_is_made_of_what_is_kept_and_is_that_of_the_parser(verb):
    assert verb.help_text() == verb.parser().format_help()


def test_a_task_that_is_not_there_is_named(capsys):
    assert main(["init", "tagg"]) == 2
    assert "unknown task 'tagg'" in (said := capsys.readouterr().err) and "Did you mean 'tag'?" in said


@pytest.mark.parametrize("verb", ["generate", "predict", "evaluate"])
def test_help_says_defaults(verb, capsys):
    with pytest.raises(SystemExit, match="0"):
        main([verb, "--help"])
    text = " ".join(capsys.readouterr().out.split())
    expected = {
        "generate": ("tokens after the prompt, at most (default: 200)", "all (default: 0)", "draw (default: 200)"),
        "predict": ("beams of the search (default: 1)", "of each forecast (default: 100)"),
        "evaluate": ("tokens at a time; does not change the numbers (default: 512)", "replace (default: strict)"),
    }[verb]
    for part in expected:
        assert part in text, part
    for noise in ("default: None", "default: False", "default: []", "default: )", "==SUPPRESS=="):
        assert noise not in text
