from __future__ import annotations

import numpy as np
import pytest
import torch

from elman import options
from elman.errors import InputError


@pytest.mark.parametrize("given", [1, 7, np.int64(7), np.uint8(7), 2**70])
def test_whole_numbers_are_taken_and_become_int(given):
    assert options.whole("n", given) == given and type(options.whole("n", given)) is int


@pytest.mark.parametrize("given", [0, -1, True, np.True_, 2.0, np.float64(2), "2", None, torch.tensor(2), [2]])
def test_what_is_not_a_whole_number_in_range_is_refused(given):
    with pytest.raises(InputError, match=r"layers is .*; it must be a whole number of at least 1$"):
        options.whole("layers", given)


def test_a_whole_number_may_have_an_upper_bound():
    assert options.whole("seed", 5, 0, 5) == 5 and options.whole("seed", 0, 0, 0) == 0
    with pytest.raises(InputError, match="seed is 6; it must be a whole number of at least 0 and at most 5"):
        options.whole("seed", 6, 0, 5)


def test_auto_beside_whole_numbers():
    assert options.whole_or_auto("every", "auto") is None and options.whole_or_auto("every", np.int32(3)) == 3
    with pytest.raises(InputError, match="every is 'atuo'; it must be a whole number of at least 1, or 'auto'"):
        options.whole_or_auto("every", "atuo")


NOT_NUMBERS = [True, np.True_, "1", None, float("nan"), 1j, torch.tensor(0.5)]


@pytest.mark.parametrize("given", [*NOT_NUMBERS, -0.1, 1.1, float("inf")])
def test_numbers_in_a_closed_range(given):
    assert options.number("dale", np.float32(0.5), 0, 1) == 0.5 == options.number("dale", 0.5, 0.5, 0.5)
    with pytest.raises(InputError, match=r"dale is .*; it must be a number from 0 to 1"):
        options.number("dale", given, 0, 1)


@pytest.mark.parametrize("given", [*NOT_NUMBERS, -0.1, float("inf")])
def test_numbers_without_an_upper_bound_are_finite(given):
    assert options.number("decay", 1e308, 0) == 1e308
    with pytest.raises(InputError, match=r"decay is .*; it must be a number of at least 0"):
        options.number("decay", given, 0)


def test_infinity_is_taken_where_it_is_asked_for():
    assert options.number("t_max", float("inf"), 1, float("inf")) == float("inf")


@pytest.mark.parametrize("given", [*NOT_NUMBERS, 0, -1, float("inf")])
def test_positive_numbers(given):
    assert options.positive("lr", 5e-324) == 5e-324
    with pytest.raises(InputError, match=r"lr is .*; it must be a number above 0"):
        options.positive("lr", given)


@pytest.mark.parametrize("given", [*NOT_NUMBERS, 1, -1e-9])
def test_fractions(given):
    assert options.fraction("dropout", 0) == 0 and options.fraction("dropout", np.float64(0.75)) == 0.75
    with pytest.raises(InputError, match=r"dropout is .*; it must be a number of at least 0 and below 1"):
        options.fraction("dropout", given)


@pytest.mark.parametrize("given", ["tan", None, 1, ["tanh"]])
def test_words_of_a_list(given):
    assert options.choice("phi", "tanh", ("tanh", "relu")) == "tanh"
    with pytest.raises(InputError, match=r"phi is .*; it must be one of 'tanh', 'relu'"):
        options.choice("phi", given, ("tanh", "relu"))


@pytest.mark.parametrize("given", ["no", 0, 1, None, np.True_])
def test_flags(given):
    assert options.flag("peephole", True) is True
    with pytest.raises(InputError, match=r"peephole is .*; it must be True or False"):
        options.flag("peephole", given)
