"""What TAB proposes, in each of the shells; without Torch, which would take seconds."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from elman.cells import CELLS
from elman.cli import VERBS, main
from elman.cli.completion import SCRIPTS, complete, split
from elman.files.config import settings_of
from elman.tasks import TASKS

ELMAN = Path(sys.executable).with_name("elman")
LISTENING = """
import sys
from elman.cli import main
code = main(sys.argv[1:])
sys.exit(code or " ".join({"torch", "numpy", "rich", "jsonargparse", "ruamel"} & set(sys.modules)) or 0)
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a config, a run of the tagger and two files, one of which has a name to be escaped."""
    (tmp_path / "runs" / "my tags").mkdir(parents=True)
    (tmp_path / "runs" / "my tags" / "config.yaml").write_text("# what is trained\ntask: tag\n")
    (tmp_path / "run.yaml").write_text('task: "tree"\n')
    (tmp_path / "book.txt").write_text("")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def proposed(line: str) -> list[str] | None:
    words = split(line)
    found = complete(words[1:-1], words[-1])
    return None if found is None else [word for word, _ in found]


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", [*VERBS, "--help", "--version"]),
        ("elman in", ["init", "inspect"]),
        ("elman init t", ["tag", "translate", "tree"]),
        ("elman train --model.ce", ["--model.cell"]),
        ("elman train --model.cell gr", ["gru"]),
        ("elman train --model.cell=gr", ["--model.cell=gru"]),
        ("elman train --config run.yaml --model.cell r", ["recursive"]),
        ("elman train --config 'runs/my tags/config.yaml' --config run.yaml --model.cell r", ["recursive"]),
        ("elman train --out 'runs/my tags' --resume auto --data.sch", ["--data.scheme"]),
        ("elman train --data.sch", None),  # a language model has no scheme
        ("elman train --task tag --model.residual ", ["true", "false"]),
        ("elman train --task hmm --model.emission p", ["poisson"]),
        ("elman train --log tensorboard w", ["wandb"]),  # it takes several
        ("elman train --task ", list(TASKS)),
        ("elman train --model.size ", None),
        ("elman train --model.options ", None),
        ("elman train --data.train ", []),
        ("elman train --config ", []),
        ("elman train --init_from runs/", ["runs/my tags"]),
        ("elman train --task nothing --model.blo", ["--model.block"]),
        ("elman search --tri", ["--trials"]),
        ("elman search --task tree --model.cell r", ["recursive"]),
        ("elman search --resume ", ["never", "auto"]),
        ("elman evaluate ", ["runs/my tags"]),
        ("elman evaluate elsewhere/", []),
        ("elman evaluate 'runs/my tags' ", []),
        ("elman evaluate 'runs/my tags' --str", ["--strict"]),
        ("elman evaluate 'runs/my tags' --format c", ["columns", "conllu"]),
        ("elman evaluate --num_b", ["--num_beams"]),  # of any task while there is no run
        ("elman evaluate 'runs/my tags' a.txt --batch_size ", None),
        ("elman inspect 'runs/my tags' --against ru", ["runs/my tags"]),
        ("elman compare 'runs/my tags' ", ["runs/my tags"]),
        ("elman export ", ["runs/my tags"]),
        ("elman export 'runs/my tags' --to ", ["onnx", "c", "wasm", "html"]),
        ("elman export 'runs/my tags' --pac", ["--pack_state"]),
        ("elman laws lstm l", ["lstm", "lru"]),
        ("elman laws --kernels r", ["reference"]),
        ("elman serve --dur", ["--durability"]),
        ("elman completion ", ["bash", "zsh", "fish"]),
        ("elman completion --", ["--help", "--import", "--threads"]),
        ("elman nothing ", None),
        ("elman train --config \"my ru", []),
        ("elman train --config my\\", []),
    ],
)  # fmt: skip
def test_what_may_come_next(line: str, expected: list[str] | None) -> None:
    assert proposed(line) == expected


def test_every_verb_setting_and_cell_is_proposed() -> None:
    assert proposed("elman ") == [*VERBS, "--help", "--version"]
    assert proposed("elman train --model.cell ") == list(CELLS)
    for name, task in TASKS.items():
        flags = proposed(f"elman train --task {name} --")
        assert flags is not None and {f"--{setting}" for setting in settings_of(task.Config())} <= set(flags)


def test_a_saved_model_says_its_task(tmp_path: Path) -> None:
    (tmp_path / "model.json").write_text('{"task": "tag"}')
    assert proposed(f"elman evaluate {tmp_path} --str") == ["--strict"]


def test_a_colon_is_not_where_zsh_finds_the_meaning(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "runs" / "a:b").mkdir()
    (here / "runs" / "a:b" / "config.yaml").write_text("task: lm\n")
    assert main(["completion", "zsh", "--line", "elman predict runs/a"]) == 0
    assert capsys.readouterr().out == "runs/a\\:b\n"


def test_names_that_are_proposed_are_accepted_and_others_are_not(tmp_path: Path) -> None:
    """The names of a setting are those that its check knows: one that is not among them is refused."""
    (tmp_path / "a.txt").write_text("a b\n" * 50)
    command = [
        "train",
        "--data.train",
        str(tmp_path / "a.txt"),
        "--out",
        str(tmp_path / "run"),
        "--training.steps",
        "1",
    ]
    for setting in ("optim.name", "optim.schedule", "model.cell", "model.block", "data.vocabulary", "data.unit"):
        assert main([*command, f"--{setting}", "nothing"]) == 2
        assert proposed(f"elman train --{setting} ")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "line", ["elman train --model.cell ", "elman predict runs/a --", "elman laws ", "elman serve --"]
)
def test_completing_imports_nothing_that_takes_long(line: str, here: Path) -> None:
    command = [sys.executable, "-c", LISTENING, "completion", "bash", "--line", line]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout, done.stderr


def shell(*command: str, script: str, before: str = "") -> list[str]:
    """What a shell prints that runs a script after that of the completion; the folder of `elman` is on its path."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"there is no {command[0]} on this machine")
    path = f"{ELMAN.parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [*command, before + SCRIPTS[command[0]] + script], capture_output=True, text=True, timeout=60,
        env={**os.environ, "PATH": path, "HOME": os.getcwd()},
    )  # fmt: skip
    assert not done.stderr, done.stderr
    return done.stdout.splitlines()


LINES = {
    "elman train --model.cell=gr": "--model.cell=gru",
    "elman train --config run.yaml --model.ce": "--model.cell",
    "elman predict ": "runs/my tags",
}


@pytest.mark.parametrize(("line", "expected"), [*LINES.items(), ("elman predict x bo", "")])
@pytest.mark.usefixtures("here")
def test_bash(line: str, expected: str) -> None:
    """It replaces what follows the last = or :, and takes words as they are typed."""
    words = line.replace("=", " = ")
    script = (
        f'COMP_WORDS=({words}) COMP_LINE="{line}" COMP_POINT={len(line)}; _elman; printf "%s\\n" "${{COMPREPLY[@]}}"'
    )
    found = shell("bash", "-c", script=script)
    assert found == [expected.removeprefix("--model.cell=").replace(" ", "\\ ")]


@pytest.mark.parametrize(
    ("line", "expected"), [*LINES.items(), ("elman predict x bo", "FILES"), ("elman nothing ", "")]
)
@pytest.mark.usefixtures("here")
def test_zsh(line: str, expected: str) -> None:
    """Its own functions, which need a terminal, only print here what they are given."""
    *before, current = line.split(" ")
    stubs = 'compdef() {}; compset() {}; _files() { print FILES }; _describe() { print -l -- "${(P@)2}" }\n'
    script = f"words=({' '.join(before)} '{current}') CURRENT={len(before) + 1} PREFIX='{current}'; _elman"
    found = shell("zsh", "-f", "-c", script=script, before=stubs)
    assert [word.partition(":")[0] for word in found] == ([expected] if expected else [])


@pytest.mark.parametrize(
    ("line", "expected"), [*LINES.items(), ("elman predict x bo", "book.txt"), ("elman nothing ", "")]
)
@pytest.mark.usefixtures("here")
def test_fish(line: str, expected: str) -> None:
    found = shell("fish", "--no-config", "-c", script=f'complete -C "{line}"')
    assert [word.partition("\t")[0] for word in found] == ([expected] if expected else [])
