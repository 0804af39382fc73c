"""What a run writes as it goes, onto a full disk too."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from elman.errors import FileError
from elman.training.optim import OptimConfig
from elman.training.record import Preview, Recorder, begin, read_metrics


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no disk that is always full")
@pytest.mark.parametrize("name", ["metrics.jsonl", "timings.jsonl", "samples.txt"])
def test_a_full_disk_is_one_clear_message(tmp_path: Path, name: str) -> None:
    (tmp_path / name).symlink_to("/dev/full")
    recorder = Recorder(tmp_path)
    with pytest.raises(FileError, match=r"No space left on device.* Free some space; the last checkpoint is as it was"):
        recorder.metrics(1, loss=1.0)
        recorder.preview(1, Preview("text"))
    recorder.close()  # and says nothing more


def test_what_a_resumed_run_cuts_back(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    recorder.metrics(1, loss=3.0)
    lengths = recorder.flush()
    recorder.metrics(2, loss=2.0)
    recorder.preview(2, Preview("text"))
    recorder.close()
    recorder = Recorder(tmp_path, lengths)
    recorder.metrics(2, loss=1.0)
    recorder.close()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines == [{"step": 1, "loss": 3.0}, {"step": 2, "loss": 1.0}]
    assert (tmp_path / "samples.txt").read_text() == ""


def test_a_preview_is_text_or_a_picture(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    recorder.preview(3, Preview("some text"))
    recorder.preview(4, Preview(picture=b"\x89PNG"))
    recorder.close()
    assert (tmp_path / "samples.txt").read_text() == "== step 3\nsome text\n\n"
    assert [p.name for p in (tmp_path / "previews").iterdir()] == ["4.png"]
    assert (tmp_path / "previews" / "4.png").read_bytes() == b"\x89PNG"


def test_a_file_that_is_shorter_than_it_was_does_not_stop_a_resume(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Cutting it back would fill it up with zeros: it is said, and the run goes on."""
    recorder = Recorder(tmp_path)
    recorder.metrics(1, loss=3.0)
    lengths = recorder.flush()
    recorder.close()
    (tmp_path / "metrics.jsonl").unlink()
    recorder = Recorder(tmp_path, lengths)
    recorder.metrics(2, loss=2.0)
    recorder.close()
    assert "metrics.jsonl had 25 bytes when the checkpoint was written, and has fewer now" in capsys.readouterr().err
    assert read_metrics(tmp_path) == [{"step": 2, "loss": 2.0}]


def test_metrics_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="cannot be read"):
        read_metrics(tmp_path)
    (tmp_path / "metrics.jsonl").write_bytes(b"\xff{")
    with pytest.raises(FileError, match="cannot be read"):
        read_metrics(tmp_path)


def test_what_could_not_be_begun_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, *_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(FileError, match="cannot make the run directory"):
        begin(tmp_path / "run", OptimConfig())
    assert not (tmp_path / "run").exists()
