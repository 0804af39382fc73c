from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import elman
from elman import lengths
from elman.errors import InputError


def test_what_is_valid_and_what_is_zero():
    ends, x = torch.tensor([0, 2, 3]), torch.full((3, 3, 2), float("nan"))
    assert lengths.valid(ends, 3).int().tolist() == [[0, 0, 0], [1, 1, 0], [1, 1, 1]]
    assert lengths.valid(ends, 0).shape == (3, 0)
    kept = lengths.masked(x, ends)
    assert kept.isnan().all(-1).int().tolist() == [[0, 0, 0], [1, 1, 0], [1, 1, 1]] and not kept[0].any()
    assert lengths.masked(x.bfloat16(), ends).dtype == torch.bfloat16
    assert lengths.masked(x[..., 0], ends)[1].isnan().tolist() == [True, True, False]


def test_no_gradient_comes_out_of_the_padding():
    x = torch.ones(1, 3, 2, requires_grad=True)
    lengths.masked(x, torch.tensor([1])).sum().backward()
    assert x.grad.tolist() == [[[1, 1], [0, 0], [0, 0]]]


@pytest.mark.parametrize("given", [[1, 3], torch.tensor([1, 3]), torch.tensor([1, 3], dtype=torch.int16)])
def test_lengths_become_int64(given):
    checked = lengths.checked(given, torch.zeros(2, 3, 1))
    assert checked.tolist() == [1, 3] and checked.dtype == torch.int64


@pytest.mark.parametrize(
    ("given", "message"),
    [([1], "2 whole numbers"), ([1.0, 2.0], "whole numbers"), ([-1, 2], r"each must be in \[0, 3\]"), ([1, 4], "0, 3")],
)
def test_other_lengths_are_refused(given, message):
    with pytest.raises(InputError, match=message):
        lengths.checked(given, torch.zeros(2, 3, 1))


def test_the_mask_is_written_once():
    mask = re.compile(r"arange\([^\n]*\)\s*(<|>=)\s*[\w.()]*\[:, None\]")
    files = Path(elman.__file__).parent.rglob("*.py")
    assert {path.name for path in files if mask.search(path.read_text())} == {"lengths.py"}
