"""Rows of numbers as JSON: whoever reads them as float32 has the same bits."""

import json

import numpy as np
import pytest

from elman import kernels


def read(texts):
    return np.array([[np.nan if value is None else value for value in json.loads(text)] for text in texts], np.float32)


@pytest.mark.parametrize("kind", kernels.available())
def test_every_kind_of_number_comes_back(kind):
    random = np.random.default_rng(0)
    bits = random.integers(0, 2**32, 60_000, dtype=np.uint32).view(np.float32)
    edges = [0.0, -0.0, 1.0, 0.1, 1e-5, 9.9999e-6, 123.0, 1e8, 999999999.0, 1e9, 3.4028235e38, 1e-45, 1.17549435e-38]
    tens = np.float32(10.0) ** np.arange(-44, 39, dtype=np.float32)
    near = np.concatenate([np.nextafter(tens, np.float32(0)), tens, np.nextafter(tens, np.float32(np.inf))])
    given = np.concatenate([bits[np.isfinite(bits)], np.array(edges, np.float32), near, -near])
    given = given[: len(given) // 3 * 3].reshape(-1, 3)
    with kernels.use(kind):
        found = read(kernels.json_rows(given))
    assert np.array_equal(found.view(np.uint32), given.view(np.uint32))


@pytest.mark.parametrize("kind", kernels.available())
def test_rows_and_what_is_not_finite(kind):
    with kernels.use(kind):
        assert kernels.json_rows(np.zeros((0, 3), np.float32)) == []
        assert kernels.json_rows(np.zeros((2, 0), np.float32)) == [b"[]", b"[]"]
        wide = np.array([[0.5, np.nan, -np.inf], [-2.0, 1.5, 0.0]], np.float32)
        assert kernels.json_rows(wide) == [b"[0.5,null,null]", b"[-2.0,1.5,0.0]"]
        assert kernels.json_rows(wide[:, ::2]) == [b"[0.5,null]", b"[-2.0,0.0]"]


def test_digits():
    """Nine significant ones, without zeros at the end."""
    if "native" in kernels.available():
        given = np.array([[1 / 3, 1e-7, 2.5e12, 100, 0.00012]], np.float32)
        assert kernels.json_rows(given) == [b"[0.333333343,1.00000001e-07,2.49999996e+12,100.0,0.000119999997]"]
        assert [f"{value:.9g}" for value in given[0, :3].tolist()] == [
            "0.333333343",
            "1.00000001e-07",
            "2.49999996e+12",
        ]
