"""What others saved is read, or refused in one line; nothing of it is run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from elman.errors import FileError
from elman.tasks.text.pretrained.source import Config, open_folder, open_pth, open_safetensors


def refusal(folder: Path) -> str:
    with pytest.raises(FileError) as raised:
        open_folder(folder)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_a_folder_without_what_it_needs(tmp_path: Path) -> None:
    assert "no config.json" in refusal(tmp_path)
    (tmp_path / "config.json").write_text("{")
    assert "truncated" in refusal(tmp_path)
    (tmp_path / "config.json").write_text("[1]")
    assert "not a JSON object" in refusal(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    assert "no model.safetensors" in refusal(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"anything")
    assert "pytorch_model.bin, which can hold code and is not opened" in refusal(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"anything")
    assert "not safetensors" in refusal(tmp_path)
    (tmp_path / "model.json").write_text("{}")
    assert "model of Elman already" in refusal(tmp_path)


def test_a_truncated_file_of_tensors(tmp_path: Path) -> None:
    save_file({"a": torch.ones(100)}, tmp_path / "whole")
    (tmp_path / "part").write_bytes((tmp_path / "whole").read_bytes()[:-8])
    with pytest.raises(FileError, match="part cannot be read"):
        open_safetensors(tmp_path, [tmp_path / "part"])


def test_tensors_in_several_files(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "1.safetensors")
    save_file({"b": torch.zeros(3)}, tmp_path / "2.safetensors")
    index = {"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "config.json").write_text("{}")
    tensors = open_folder(tmp_path)[1]
    both = torch.empty(5)
    tensors.copy(both, "a", "b")
    tensors.finish()
    assert both.tolist() == [1.0, 1.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("index", [{}, {"weight_map": {}}, {"weight_map": ["a"]}, {"weight_map": "a"}])
def test_an_index_that_names_no_files_is_refused(index: dict, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "config.json").write_text("{}")
    assert "has no weight_map" in refusal(tmp_path)


def test_an_index_names_files_beside_it_alone(tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir()
    for path in (tmp_path / "1.safetensors", folder / "1.safetensors"):
        save_file({"a" if path.parent == folder else "secret": torch.ones(2)}, path)
    (folder / "config.json").write_text("{}")
    for name in ("../1.safetensors", str(tmp_path / "1.safetensors")):
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
        assert [*open_folder(folder)[1].shapes] == ["a"]


def test_a_pth_of_something_else(tmp_path: Path) -> None:
    torch.save([torch.ones(2)], tmp_path / "list.pth")
    with pytest.raises(FileError, match="something else than tensors by name"):
        open_pth(tmp_path / "list.pth")
    (tmp_path / "text.pth").write_text("hello")
    with pytest.raises(FileError, match="not a file of tensors alone") as raised:
        open_pth(tmp_path / "text.pth")
    assert "\n" not in str(raised.value)


def test_settings_are_of_the_type_that_is_wanted(tmp_path: Path) -> None:
    config = Config(tmp_path / "config.json", {"size": "8", "layers": True, "bias": True, "eos_token_id": [2, 5]})
    for name in ("size", "layers"):
        with pytest.raises(FileError, match=rf"{name} is .* it must be of the type int"):
            config(name)
    with pytest.raises(FileError, match="has no width"):
        config("width")
    with pytest.raises(FileError, match=r"bias is True .* networks with False can be read"):
        config.require("bias", False)
    assert config("depth", 3) == 3 and config.token("eos_token_id", 0) == 2 and config.token("bos_token_id", 4) == 4
