"""What `elman export --to c` writes: a folder whose own check passes, and what it refuses in one line."""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from in_c import FLAGS, arch, needs_gcc
from torch import nn

import elman
from elman import export
from elman import state as states
from elman.cli import main
from elman.data import VOCABULARIES
from elman.errors import FileError, InputError, UnknownNameError
from elman.export.c.module import module_of
from elman.export.c.write import write_folder
from elman.tasks.text.lm import LanguageModel, LMModelConfig, build

pytestmark = needs_gcc


def language_model(vocabulary: str = "byte", **settings: object) -> LanguageModel:
    torch.manual_seed(0)
    config = LMModelConfig(**{"cell": "gru", "size": 24, "layers": 2, **settings})
    symbols = VOCABULARIES[vocabulary]() if vocabulary == "byte" else VOCABULARIES[vocabulary].fit(["to be"], 1, 0)
    return LanguageModel(build(config, symbols.size), symbols, config)


@pytest.mark.parametrize("weights", [None, "int8"])
def test_its_own_check_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str], weights: str | None) -> None:
    lm, folder = language_model(), tmp_path / "book"
    lm.save(tmp_path / "saved")
    more = [] if weights is None else ["--weights", weights]
    assert main(["export", str(tmp_path / "saved"), "--to", "c", "--out", str(folder), "--name", "book", *more]) == 0
    assert [Path(line).name for line in capsys.readouterr().out.split()] == ["Makefile", "book.c", "book.h", "check.c"]
    ran = subprocess.run(["make", "check", "CC=gcc"], cwd=folder, capture_output=True, text=True)
    assert ran.returncode == 0 and ran.stdout.count("all of them the bits of Python") == 2, ran.stdout + ran.stderr
    assert lm.fingerprint in (folder / "book.h").read_text()
    # And it can fail: of a state that has one other bit; with a logarithm of 2 that is another.
    check = (folder / "check.c").read_text()
    left, middle, right = check.partition("after[48] = {\n  0x")
    assert middle
    (folder / "check.c").write_text(left + middle + ("1" if right[0] != "1" else "2") + right[1:])
    ran = subprocess.run(["make", "check", "CC=gcc"], cwd=folder, capture_output=True, text=True)
    assert ran.returncode != 0 and "the state after them: 1 of 48 numbers differ" in ran.stdout, ran.stdout
    (folder / "check.c").write_text(check)
    source = (folder / "book.c").read_text()
    changed = source.replace("0.693359375f", "0.6934f")
    assert changed != source
    (folder / "book.c").write_text(changed)
    ran = subprocess.run(["make", "check", "CC=gcc"], cwd=folder, capture_output=True, text=True)
    assert ran.returncode != 0 and "differ, by at most" in ran.stdout


def test_a_core_carries_its_fingerprint(tmp_path: Path) -> None:
    core = elman.cell("gru", 3, 4)
    export.write(core, "c", tmp_path / "gru")
    header = (tmp_path / "gru" / "model.h").read_text()
    assert states.fingerprint(core) in header and "#define MODEL_STATE_BYTES 16" in header


class Own(elman.Core):
    """A core that says no more than its step."""

    def init_state(self, batch_size: int) -> torch.Tensor:
        return self.zeros(batch_size, self.output_size)

    def step(self, x: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x + state, x + state


REFUSED = {
    "a core that reads the future": (lambda: elman.Bidirectional(elman.cell("gru", 3, 4), elman.cell("gru", 3, 4)), {}),
    "no native form": (lambda: Own(3, 3), {}),
    "float64": (lambda: elman.cell("gru", 3, 4).double(), {}),
    "no core": (lambda: nn.Linear(3, 4), {}),
    "an embedding": (lambda: elman.SequenceModel(nn.Tanh(), elman.cell("gru", 3, 4), elman.Softmax(4, 5)), {}),
    "weights": (lambda: elman.cell("gru", 3, 4), {"weights": "int4"}),
    "a name": (lambda: elman.cell("gru", 3, 4), {"name": "my model"}),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_is_said_in_one_line_and_nothing_is_written(tmp_path: Path, what: str) -> None:
    make, options = REFUSED[what]
    with pytest.raises((InputError, UnknownNameError)) as error:
        export.write(make(), "c", tmp_path / "out", **options)
    assert "\n" not in str(error.value) and list(tmp_path.iterdir()) == []


def test_what_is_there_stays(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "page.html").write_text("mine")
    with pytest.raises(InputError, match="out exists"):
        export.write(elman.cell("gru", 3, 4), "c", tmp_path / "out")
    with pytest.raises(InputError, match=r"page\.html exists"):
        export.write(language_model(), "html", tmp_path / "page.html")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "page.html"] and not [*(tmp_path / "out").iterdir()]


def test_what_is_being_trained_is_exported_as_it_predicts() -> None:
    core = elman.Stack(elman.Zoneout(elman.Dropout(elman.cell("gru", 3, 4), 0.5), 0.5), elman.Norm(4))
    sources = [module_of(core.train(mode), "m").source() for mode in (True, False)]
    assert sources[0] == sources[1] and not core.training


def test_what_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    def fill(folder: Path) -> None:
        (folder / "part").write_text("half")
        raise OSError("no space left")

    with pytest.raises(FileError, match=r"cannot write .*no space left"):
        write_folder(tmp_path / "out", fill)
    assert list(tmp_path.iterdir()) == []


def test_a_page_is_not_for_words(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="reads characters or bytes; this model's vocabulary is word"):
        export.write(language_model("word"), "html", tmp_path / "page.html")
    assert list(tmp_path.iterdir()) == []


GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "export-c.md"


def example(which: str) -> str:
    """The program of the guide that has this in it."""
    (found,) = [block for block in re.findall(r"```c\n(.*?)```", GUIDE.read_text(), re.S) if which in block]
    return found


def library(folder: Path, name: str, main: str, *flags: str) -> Path:
    """The example of the guide, compiled with a model that was exported to this folder."""
    (folder / "example.c").write_text(main)
    made = folder / "example"
    sources = [folder / f"{name}.c", folder / "example.c"]
    subprocess.run(["gcc", *FLAGS, *arch(), *flags, *sources, "-o", made, "-lm"], check=True)
    return made


def test_the_program_of_the_guide(tmp_path: Path) -> None:
    torch.manual_seed(0)
    core = elman.cell("gru", 3, 5).eval()
    export.write(core, "c", tmp_path / "vad", name="vad")
    program = library(tmp_path / "vad", "vad", example("fread"))
    x = np.random.default_rng(0).standard_normal((7, 1, 3)).astype(np.float32)
    stream = elman.Stream(core, 1)
    ran = subprocess.run([program], input=x.tobytes(), capture_output=True, check=True)
    assert ran.stdout == b"".join(stream.step(given).tobytes() for given in x)


def test_the_audio_callback_of_the_guide(tmp_path: Path) -> None:
    torch.manual_seed(0)
    core = elman.Stack(elman.cell("gru", 1, 8), elman.Dense(8, 1)).eval()
    export.write(core, "c", tmp_path / "vad", name="vad")
    channel = ctypes.CDLL(str(library(tmp_path / "vad", "vad", example("channel_process"), "-fPIC", "-shared")))
    x = np.random.default_rng(0).standard_normal(64).astype(np.float32)
    state, out = np.zeros(8, np.float32), np.zeros_like(x)
    channel.channel_begin(pointer(state))
    for first in range(0, 64, 16):
        channel.channel_process(pointer(state), pointer(x[first:]), pointer(out[first:]), 16)
    stream = elman.Stream(core, 1)
    assert out.tobytes() == b"".join(stream.step(sample.reshape(1, 1)).tobytes() for sample in x)


def test_the_writer_of_the_guide(tmp_path: Path) -> None:
    lm = language_model("char")
    export.write(lm, "c", tmp_path / "book")
    writer = ctypes.CDLL(str(library(tmp_path / "book", "model", example("void write"), "-fPIC", "-shared")))
    state, written = np.zeros(2 * 24, np.float32), np.zeros(60, np.int32)
    writer.write(pointer(state), 0, ctypes.c_int64(7), 60, pointer(written))
    assert lm.vocabulary.decode(written.tolist()) == lm.generate(
        seed=7, temperature=0.8, max_new_tokens=60, allow=["unknown"]
    )


def pointer(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


@pytest.mark.parametrize("name", ["check", "math"])
def test_a_name_that_would_replace_another_file_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="choose another name"):
        export.write(elman.cell("gru", 3, 4), "c", tmp_path / "gru", name=name)
    assert not (tmp_path / "gru").exists()


def test_what_is_no_network_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a GaussianHMM is not exported to C"):
        export.write(elman.GaussianHMM(2), "c", tmp_path / "hmm")
