from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from elman import state as states
from elman.errors import FileError, InputError
from elman.files import artifact


class Pair(NamedTuple):
    h: Tensor
    z: Tensor


def tree(rows: int = 3) -> tuple:
    h = torch.arange(rows * 2.0).reshape(rows, 2)
    return (Pair(h, torch.complex(h, -h)), (), (h.double()[:, None],))


def equal(a, b) -> bool:
    same = all(torch.equal(x, y) for x, y in zip(states.leaves(a), states.leaves(b), strict=True))
    return same and states.describe(a) == states.describe(b)


def test_map_keeps_the_named_tuples():
    doubled = states.map(lambda leaf: leaf * 2, tree())
    assert isinstance(doubled[0], Pair) and doubled[1] == ()
    assert torch.equal(doubled[0].h, tree()[0].h * 2)


def test_map_refuses_another_structure():
    with pytest.raises(InputError, match="different structures"):
        states.map(lambda a, b: a, (torch.zeros(1, 1),), (torch.zeros(1, 1), torch.zeros(1, 1)))


def test_put_undoes_take():
    rows = [2, 0]
    taken = states.take(tree(), rows)
    restored = states.put(states.map(lambda leaf: leaf + 1, tree()), rows, taken)
    assert equal(states.take(restored, rows), taken)
    assert equal(states.take(restored, [1]), states.map(lambda leaf: leaf + 1, states.take(tree(), [1])))


def test_put_leaves_the_slab_alone():
    slab = tree()
    states.put(slab, [0], states.map(torch.zeros_like, states.take(slab, [0])))
    assert equal(slab, tree())


def test_repeat_is_take_of_each_row():
    assert equal(states.repeat(tree(), 2), states.take(tree(), [0, 0, 1, 1, 2, 2]))


def test_where_chooses_rows():
    zeros = states.map(torch.zeros_like, tree())
    chosen = states.where(torch.tensor([True, False, True]), tree(), zeros)
    assert equal(states.take(chosen, [0, 2]), states.take(tree(), [0, 2]))
    assert equal(states.take(chosen, [1]), states.take(zeros, [1]))


def test_where_does_not_let_an_infinity_through():
    broken = torch.full((2, 1), float("inf"))
    assert torch.equal(states.where(torch.tensor([True, True]), torch.zeros(2, 1), broken), torch.zeros(2, 1))


def test_concat_joins_rows():
    assert equal(states.concat([states.take(tree(), [0]), states.take(tree(), [1, 2])]), tree())
    with pytest.raises(InputError, match="no state"):
        states.concat([])


def test_detach_cuts_the_graph():
    leaf = torch.ones(1, 1, requires_grad=True)
    assert not states.leaves(states.detach((leaf * 2,)))[0].requires_grad


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_save_and_load_are_inverse(tmp_path, rows):
    path = tmp_path / "state.safetensors"
    states.save(path, tree(rows))
    loaded = states.load(path, like=states.take(tree(), []))
    assert isinstance(loaded[0], Pair) and equal(loaded, tree(rows))
    assert os.listdir(tmp_path) == ["state.safetensors"]


def test_load_keeps_nan_and_infinity(tmp_path):
    odd = (torch.tensor([[float("nan"), float("inf"), -0.0]]),)
    states.save(tmp_path / "s", odd)
    assert torch.equal(states.load(tmp_path / "s", like=odd)[0].view(torch.int32), odd[0].view(torch.int32))


def test_an_empty_state_is_saved_too(tmp_path):
    states.save(tmp_path / "s", ())
    assert states.load(tmp_path / "s", like=()) == ()


def test_any_flipped_bit_is_noticed(tmp_path):
    """Wherever it is: in the length of the header, in the header, in the numbers."""
    path = tmp_path / "state.safetensors"
    states.save(path, tree(1), fingerprint="model")
    written = path.read_bytes()
    for place in range(len(written)):
        path.write_bytes(written[:place] + bytes([written[place] ^ 4]) + written[place + 1 :])
        with pytest.raises(FileError, match=r"state\.safetensors"):
            states.load(path, like=states.take(tree(), []), fingerprint="model")
    path.write_bytes(written)
    assert equal(states.load(path, like=states.take(tree(), []), fingerprint="model"), tree(1))


def test_a_flipped_bit_of_a_number_is_called_damage(tmp_path):
    path = tmp_path / "state.safetensors"
    states.save(path, tree())
    path.write_bytes(path.read_bytes()[:-1] + bytes([path.read_bytes()[-1] ^ 1]))
    with pytest.raises(FileError, match=r"is damaged.*Restore a copy"):
        states.load(path, like=states.take(tree(), []))


def test_a_state_of_another_model_of_the_same_shape_is_refused(tmp_path):
    one, other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    path, like = tmp_path / "s", states.take(tree(), [])
    states.save(path, tree(), fingerprint=states.fingerprint(one))
    assert equal(states.load(path, like=like, fingerprint=states.fingerprint(one)), tree())
    assert equal(states.load(path, like=like), tree())
    with pytest.raises(FileError, match="a state of another model of the same shape"):
        states.load(path, like=like, fingerprint=states.fingerprint(other))
    states.save(path, tree())
    with pytest.raises(FileError, match="does not say which model wrote it"):
        states.load(path, like=like, fingerprint=states.fingerprint(one))


def test_a_state_of_version_1_is_refused_by_name(tmp_path):
    from safetensors.torch import save_file

    path = tmp_path / "s"
    save_file({"state": torch.ones(1, 2)}, path, {"format": "elman-state-1"})
    with pytest.raises(FileError, match=r"has the format 'elman-state-1', not 'elman-state-2'.*Read the earlier"):
        states.load(path, like=torch.zeros(0, 2))


class Cell(torch.nn.Module):
    def __init__(self, **tensors):
        super().__init__()
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor) if name == "b" else self.register_parameter(name, tensor)


def test_a_fingerprint_sees_names_shapes_dtypes_and_every_number():
    def parameter(*values, **options):
        return torch.nn.Parameter(torch.tensor(values, **options))

    models = [
        Cell(a=parameter(0.0, 1.0), b=torch.zeros(1)),
        Cell(c=parameter(0.0, 1.0), b=torch.zeros(1)),
        Cell(a=parameter(1.0, 0.0), b=torch.zeros(1)),
        Cell(a=parameter(-0.0, 1.0), b=torch.zeros(1)),
        Cell(a=parameter([0.0, 1.0]), b=torch.zeros(1)),
        Cell(a=parameter(0.0, 1.0, dtype=torch.float64), b=torch.zeros(1)),
        Cell(a=parameter(0.0, 1.0), b=torch.ones(1)),
        Cell(a=parameter(0.0, 1.0)),
        Cell(),
    ]
    assert len({states.fingerprint(model) for model in models}) == len(models)
    assert states.fingerprint(models[0]) == states.fingerprint(Cell(b=torch.zeros(1), a=parameter(0.0, 1.0)))


def test_a_state_is_flushed_before_it_takes_its_name(tmp_path, monkeypatch):
    done = []
    sync, rename = artifact._sync, type(tmp_path).rename
    monkeypatch.setattr(artifact, "_sync", lambda path: (done.append(("sync", path.name)), sync(path)))
    monkeypatch.setattr(
        type(tmp_path), "rename", lambda path, to: (done.append(("rename", path.name)), rename(path, to))
    )
    states.save(tmp_path / "s", tree())
    (first, temporary), *rest = done
    assert first == "sync" and rest == [("rename", temporary), ("sync", tmp_path.name)]


@pytest.mark.parametrize("damage", ["missing", "truncated", "foreign", "format", "structure", "width"])
def test_load_refuses_what_it_cannot_use(tmp_path, damage):
    path = tmp_path / "state.safetensors"
    like = states.take(tree(), [])
    states.save(path, tree())
    if damage == "missing":
        path.unlink()
    elif damage == "truncated":
        path.write_bytes(path.read_bytes()[:-5])
    elif damage == "foreign":
        path.write_text("not a state")
    elif damage == "format":
        from safetensors.torch import save_file

        save_file({"a": torch.zeros(1)}, path)
    elif damage == "structure":
        like = like[:1]
    else:
        states.save(path, states.map(lambda leaf: torch.cat([leaf, leaf], -1), tree()))
    with pytest.raises(FileError, match=r"state\.safetensors"):
        states.load(path, like=like)


def test_save_to_nowhere_says_so(tmp_path):
    with pytest.raises(FileError, match="cannot write"):
        states.save(tmp_path / "no" / "such" / "folder", tree())


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ((torch.zeros(2, 3),), "structure"),
        (torch.zeros(2, 3, dtype=torch.float64), "convert"),
        (torch.zeros(1, 3), r"expected \[2, 3\]"),
        (torch.zeros(2, 4), r"expected \[2, 3\]"),
        (torch.zeros(()), r"expected \[2, 3\]"),
        ([torch.zeros(2, 3)], "a tensor or a tuple"),
        (torch.zeros(2, 3, device="meta"), "is on meta"),
    ],
)
def test_check_says_what_is_wrong(state, message):
    with pytest.raises(InputError, match=message):
        states.check(state, torch.zeros(0, 3), 2)


def test_the_same_state_is_the_same_bytes(tmp_path):
    """Two keys of metadata come in any order: runs could not be compared byte by byte."""
    for number in range(8):
        states.save(tmp_path / f"{number}", (torch.ones(1, 2), (torch.zeros(1, 3), ())))
    assert len({path.read_bytes() for path in tmp_path.iterdir()}) == 1


def test_what_is_sent_is_what_is_saved(tmp_path: Path) -> None:
    state = (torch.randn(2, 3), (torch.randn(2, 4, dtype=torch.complex64), torch.tensor([[1], [2]])))
    states.save(tmp_path / "state", state, fingerprint="abc")
    data = states.dump(state, fingerprint="abc")
    assert data == (tmp_path / "state").read_bytes()
    like = states.map(lambda leaf: leaf[:0], state)
    found = states.parse(data, like, fingerprint="abc")
    assert all(torch.equal(a, b) for a, b in zip(states.leaves(found), states.leaves(state), strict=True))
    for broken in (b"", data[:-1], data[:20], data[:-1] + bytes([data[-1] ^ 1]), b"\xff" * 100):
        with pytest.raises(FileError):
            states.parse(broken, like, fingerprint="abc")
    with pytest.raises(FileError, match="another model"):
        states.parse(data, like, fingerprint="abd")


def test_a_leaf_without_numbers_comes_back_from_bytes() -> None:
    state = (torch.ones(2, 3), torch.zeros(2, 0, dtype=torch.float64), torch.arange(2))
    found = states.from_rows(states.to_rows(state), state)
    assert [leaf.shape for leaf in found] == [(2, 3), (2, 0), (2,)] and found[1].dtype == torch.float64
    assert torch.equal(found[0], state[0]) and torch.equal(found[2], state[2])


def test_rows_as_bytes() -> None:
    state = (torch.randn(3, 2), (torch.randn(3, 2, dtype=torch.complex64), torch.tensor([[1], [2], [3]])))
    rows = states.to_rows(state)
    assert rows.shape == (3, states.row_bytes(state)) == (3, 8 + 16 + 8)
    found = states.from_rows(rows[[2, 0]], states.map(lambda leaf: leaf[:0], state))
    wanted = states.take(state, [2, 0])
    assert all(torch.equal(a, b) for a, b in zip(states.leaves(found), states.leaves(wanted), strict=True))
    with pytest.raises(InputError, match="remembers nothing"):
        states.to_rows(())


@pytest.mark.parametrize(
    "rows",
    [
        torch.tensor([True, False, True]),
        [True, False, True],
        torch.tensor([0.0, 2.0]),
        torch.tensor([1, 0, 1], dtype=torch.uint8),
        [0, True, 2],
    ],
)
def test_a_mask_is_not_row_numbers(rows) -> None:
    """Read as numbers, True and False are rows 1 and 0."""
    slab = torch.arange(3.0)[:, None]
    with pytest.raises(InputError, match="by their numbers"):
        states.take(slab, rows)
    with pytest.raises(InputError, match="by their numbers"):
        states.put(slab, rows, torch.ones(3, 1))


def test_rows_may_be_none_and_of_any_integers() -> None:
    slab = torch.arange(3.0)[:, None]
    assert states.take(slab, []).shape == (0, 1)
    assert states.take(slab, torch.tensor([2], dtype=torch.int32)).item() == 2
    assert states.put(slab, [], torch.ones(0, 1)).tolist() == slab.tolist()


def test_a_header_of_brackets_is_not_a_state(tmp_path: Path) -> None:
    from safetensors.torch import save, save_file

    tensors, header = {"state": torch.ones(1, 2)}, {"header": "[" * 100_000}
    with pytest.raises(FileError, match="nested too deeply"):
        states.parse(save(tensors, header), torch.zeros(0, 2))
    save_file(tensors, tmp_path / "state", header)
    with pytest.raises(FileError, match="nested too deeply"):
        states.load(tmp_path / "state", torch.zeros(0, 2))
