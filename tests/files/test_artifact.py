import errno

import pytest
import torch

import elman
from elman import state as states
from elman.errors import FileError, InputError
from elman.files import artifact
from elman.tasks.classify import data as labelled
from elman.tasks.tag import data as tagged
from elman.tasks.translate import data as pairs
from elman.training.record import read_metrics


def put(text):
    return lambda folder: (folder / "file").write_text(text)


def test_a_folder_is_replaced_whole(tmp_path):
    path = tmp_path / "deep" / "folder"
    artifact.write(path, put("one"))
    artifact.write(path, put("two"))
    assert (path / "file").read_text() == "two"
    assert [p.name for p in path.parent.iterdir()] == ["folder"]


def test_a_full_disk_leaves_what_was_there(tmp_path):
    artifact.write(tmp_path / "folder", put("one"))

    def fill(folder):
        (folder / "file").write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(FileError, match=r"No space left.*still there"):
        artifact.write(tmp_path / "folder", fill)
    assert (tmp_path / "folder" / "file").read_text() == "one"
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]


def test_what_is_not_written_anew_is_not_lost(tmp_path):
    """`lm.save(".")` must not remove the folder that one stands in."""
    (tmp_path / "notes.txt").write_text("precious")
    with pytest.raises(FileError, match=r"holds notes\.txt, which would be lost"):
        artifact.write(tmp_path, put("one"))
    with pytest.raises(FileError, match="it is a file"):
        artifact.write(tmp_path / "notes.txt", put("one"))
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]
    assert (tmp_path / "notes.txt").read_text() == "precious"
    (tmp_path / "empty").mkdir()
    artifact.write(tmp_path / "empty", put("one"))
    assert (tmp_path / "empty" / "file").read_text() == "one"


class Died(BaseException):
    """What a killed process would be: nothing catches it."""


@pytest.mark.parametrize("renames", [0, 1, 2])
def test_dying_anywhere_leaves_a_whole_folder(tmp_path, monkeypatch, renames):
    path = tmp_path / "folder"
    artifact.write(path, put("one"))
    done = []
    rename = type(path).rename

    def dying(self, target):
        if len(done) == renames:
            raise Died
        done.append(target)
        return rename(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(type(path), "rename", dying)
        if renames == 2:
            patch.setattr(artifact, "_sync", lambda p: (_ for _ in ()).throw(Died) if len(done) == 2 else None)
        with pytest.raises(Died):
            artifact.write(path, put("two"))
    assert (artifact.find(path) / "file").read_text() == ("two" if renames == 2 else "one")
    artifact.write(path, put("three"))
    assert (path / "file").read_text() == "three"
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]


def fill(folder):
    artifact.write_json(folder / "model.json", "kind", 1, {"numbers": [1, 2, 3]})
    artifact.write_tensors(folder / "model.safetensors", {"x": torch.arange(4.0)})


def read(folder):
    return artifact.read_json(folder / "model.json", "kind", 1), artifact.read_tensors(folder / "model.safetensors")


@pytest.mark.parametrize("name", ["model.json", "model.safetensors"])
def test_a_flipped_bit_names_the_file_and_what_to_do(tmp_path, name):
    artifact.write(tmp_path / "m", fill)
    assert read(tmp_path / "m")[0]["numbers"] == [1, 2, 3]
    file = tmp_path / "m" / name
    written = file.read_bytes()
    for place in (0, len(written) // 2, len(written) - 3):
        file.write_bytes(written[:place] + bytes([written[place] ^ 1]) + written[place + 1 :])
        with pytest.raises(FileError, match=rf"{name} is damaged.*best/ and last/"):
            read(tmp_path / "m")


def test_checksums_that_cannot_be_read_verify_nothing(tmp_path):
    artifact.write(tmp_path / "m", fill)
    for content in (b"{", b"[]", b'{"files": 3}', b"\xff"):
        (tmp_path / "m" / artifact.CHECKSUMS).write_bytes(content)
        with pytest.raises(FileError, match=r"checksums\.json cannot be read"):
            read(tmp_path / "m")


def test_a_folder_without_checksums_is_read_as_it_is(tmp_path):
    artifact.write(tmp_path / "m", fill)
    (tmp_path / "m" / artifact.CHECKSUMS).unlink()
    assert read(tmp_path / "m")[1]["x"].tolist() == [0, 1, 2, 3]
    artifact.write(tmp_path / "m", fill)
    assert (tmp_path / "m" / artifact.CHECKSUMS).exists()


def test_a_missing_file_is_missing_not_damaged(tmp_path):
    artifact.write(tmp_path / "m", fill)
    for name, message in (("model.safetensors", "missing or truncated"), ("model.json", r"there is no model\.json")):
        (tmp_path / "m" / name).unlink()
        with pytest.raises(FileError, match=message):
            read(tmp_path / "m")


def test_nothing_there(tmp_path):
    assert artifact.find(tmp_path / "none") is None
    with pytest.raises(FileError, match=r"no kind: there is no x\.json"):
        artifact.read_json(tmp_path / "x.json", "kind", 1)


@pytest.mark.parametrize("version", ["", '"version": null', '"version": "x"', '"version": [1]'])
def test_a_version_that_is_none(tmp_path, version):
    (tmp_path / "x.json").write_text('{"format": "kind"' + (", " + version if version else "") + "}")
    with pytest.raises(FileError, match="nothing about its version"):
        artifact.read_json(tmp_path / "x.json", "kind", 1)


@pytest.mark.parametrize(
    ("version", "says"),
    [
        (1, r"written by an early version of Elman: it is version 1 of elman-model, this one reads version 2\. Train"),
        (3, r"written by a newer version of Elman: it is version 3 of elman-model, this one reads version 2\. Upgrade"),
    ],
)
def test_a_model_of_another_version_is_refused_by_name(tmp_path, version, says):
    artifact.write_json(tmp_path / "model.json", artifact.MODEL, version, {"task": "lm"})
    for load in (artifact.read_model_json, elman.load):
        with pytest.raises(FileError, match=says):
            load(tmp_path)


def test_who_may_read_json_may_read_tensors(tmp_path):
    artifact.write_json(tmp_path / "x.json", "kind", 1, {})
    artifact.write_tensors(tmp_path / "x.safetensors", {"x": torch.zeros(2)})
    states.save(tmp_path / "state.safetensors", torch.zeros(2, 1))
    assert len({path.stat().st_mode for path in tmp_path.iterdir()}) == 1


def test_files_of_brackets_are_refused_by_name(tmp_path):
    """Python's parser gives up on them with a RecursionError, which nobody expects of a file."""
    deep = "[" * 100_000
    (tmp_path / "model.json").write_text(deep)
    with pytest.raises(FileError, match=r"model\.json cannot be read \(it is nested too deeply\)"):
        artifact.read_model_json(tmp_path)
    (tmp_path / "checksums.json").write_text(deep)
    with pytest.raises(FileError, match=r"checksums\.json cannot be read \(it is nested too deeply\)"):
        artifact.verify(tmp_path / "model.json")
    (tmp_path / "metrics.jsonl").write_text(deep)
    with pytest.raises(FileError, match="nested too deeply"):
        read_metrics(tmp_path)
    (tmp_path / "data.jsonl").write_text(deep + "\n")
    name = str(tmp_path / "data.jsonl")
    for read in (labelled.Reader(), tagged.TagReader(), pairs.PairReader()):
        with pytest.raises(InputError, match="nested too deeply"):
            list(read([name]))
