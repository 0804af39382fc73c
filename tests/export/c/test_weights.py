"""Weights in fewer bits, by hand: what is nearest, and that what is no number stays none."""

from __future__ import annotations

import numpy as np
import torch

from elman.export.c.weights import GROUP, _bytes, _halves


def test_halves_are_those_of_torch() -> None:
    """NaN too, whose last bits alone may say that it is one."""
    some = np.array([0.0, -0.0, 1.00390625, 1.01171875, -3.14159, 3.4e38, 1e-40, np.inf, -np.inf], np.float32)
    w = np.concatenate([some, np.random.default_rng(0).standard_normal(1000).astype(np.float32)])
    assert np.array_equal(_halves(w), torch.from_numpy(w).bfloat16().view(torch.int16).numpy().view(np.uint16))
    nan = np.array([0x7F800001, 0xFFC00000, 0x7FFFFFFF], np.uint32).view(np.float32)
    widened = (_halves(nan).astype(np.uint32) << 16).view(np.float32)
    assert np.isnan(widened).all()


def test_the_largest_of_a_group_is_127_and_a_group_with_what_is_no_number_has_no_scale() -> None:
    w = np.zeros((4, GROUP + 2), np.float32)
    w[0, :3], w[0, GROUP:] = [1.0, -0.5, 0.25], [-2.54, 0.01]
    w[1, 0], w[2, GROUP] = np.nan, np.inf
    narrow, scales = _bytes(w)
    assert narrow[0, :3].tolist() == [127, -64, 32] and narrow[0, GROUP:].tolist() == [-127, 0]
    np.testing.assert_allclose(scales[0], [1 / 127, 0.02], rtol=1e-6)
    assert np.isnan(scales).tolist() == [[False, False], [True, False], [False, True], [False, False]]
    assert not narrow[3].any() and not scales[3].any()
