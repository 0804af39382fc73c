"""Draws: the published vectors of Philox, the same bits on both kernels, numbers that no other row has a say in."""

import numpy as np
import pytest
import torch
from scipy import stats

from elman import kernels, random
from elman import state as states
from elman.errors import InputError, KernelError

# Lines "philox4x32 10" of Random123's kat_vectors: the counter, the key, what comes out.
KNOWN = """
00000000 00000000 00000000 00000000 00000000 00000000   6627e8d5 e169c58d bc57ac4c 9b00dbd8
ffffffff ffffffff ffffffff ffffffff ffffffff ffffffff   408f276d 41c83b0e a20bc7c6 6d5451fd
243f6a88 85a308d3 13198a2e 03707344 a4093822 299f31d0   d16cfe09 94fdcceb 5001e420 24126ea1
"""


def signed(low: int, high: int) -> int:
    return int(np.uint64(high << 32 | low).astype(np.int64))


@pytest.fixture(params=kernels.available())
def on(request):
    with kernels.use(request.param):
        yield request.param


@pytest.mark.parametrize("line", KNOWN.split("\n")[1:-1])
def test_the_published_vectors(on, line):
    c0, c1, c2, c3, k0, k1, *out = (int(word, 16) for word in line.split())
    words = kernels.philox(torch.tensor([[signed(k0, k1), signed(c2, c3)]]), 2, signed(c0, c1))
    assert words.tolist() == [[signed(*out[:2]), signed(*out[2:])]]


def many(rows: int, seed: int = 0) -> torch.Tensor:
    """Draws of as many rows, with seeds and numbers from all of int64."""
    return torch.randint(-(2**63), 2**63 - 1, (rows, 2), generator=torch.Generator().manual_seed(seed))


@pytest.mark.skipif("native" not in kernels.available(), reason="the native module is not built")
@pytest.mark.parametrize(("rows", "n", "first"), [(1, 1, 0), (5, 7, 3), (0, 3, 0), (3, 0, 0), (9000, 5, 2**40 + 1)])
def test_native_words_are_the_references(rows, n, first):
    given = many(rows)
    with kernels.use("reference"):
        wanted = kernels.philox(given, n, first)
    before = kernels.calls().get("philox", 0)
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        assert torch.equal(kernels.philox(given, n, first), wanted)
    torch.set_num_threads(1)
    assert kernels.calls()["philox"] == before + 3
    assert torch.equal(kernels.philox(given.T.contiguous().T, n, first), wanted)


@pytest.mark.skipif("native" not in kernels.available(), reason="the native module is not built")
def test_the_native_op_checks_what_it_is_given():
    with pytest.raises(KernelError, match="int64"):
        kernels.philox(torch.zeros(2, 2), 1)


@pytest.mark.skipif(kernels.active() != "native", reason="the native operation")
def test_students_numbers_are_the_references_to_the_bit_and_follow_the_formula():
    given, df = many(301), torch.rand(301, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64) * 9 + 0.2
    df[5], df[6, 1], df[7, 2] = 1e-3, float("nan"), float("inf")
    before = kernels.calls().get("student_t", 0)
    found = kernels.student_t(given, df)
    assert kernels.calls()["student_t"] == before + 1
    with kernels.use("reference"):
        assert torch.equal(kernels.student_t(given, df).nan_to_num(7.5), found.nan_to_num(7.5))
    u, v = random.uniform(given, 6).chunk(2, 1)
    wanted = torch.sqrt(df * torch.expm1(-2 / df * u.log())) * torch.cos(2 * torch.pi * v)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12, equal_nan=True)
    for bad in (df.float(), df[:3], df[0]):
        with pytest.raises(KernelError, match=r"int64 \(B, 2\) and float64 \(B, D\)"):
            kernels.student_t(given, bad)


def test_uniform_numbers_are_the_upper_bits_and_never_0_or_1():
    given = many(200)
    words, u = kernels.philox(given, 9), random.uniform(given, 9)
    assert torch.equal((u * 2.0**52 - 0.5).long(), words >> 12 & 2**52 - 1)
    assert ((u > 0) & (u < 1)).all()
    lowest, highest = torch.tensor([0, 2**52 - 1]).double()
    assert (lowest + 0.5) * 2.0**-52 > 0 and (highest + 0.5) * 2.0**-52 < 1


def test_a_stream_can_be_entered_anywhere():
    whole = random.uniform(many(3), 12)
    for first in range(8):
        assert torch.equal(random.uniform(many(3), 4, first), whole[:, first : first + 4])


def test_each_draw_opens_a_stream_of_its_own():
    given = torch.tensor([[5, 0], [6, 0]])
    numbers = []
    for _ in range(5):
        numbers.append(random.uniform(given, 1))
        given = random.after(given)
    assert given.tolist() == [[5, 5], [6, 5]]
    assert torch.equal(random.ahead(torch.tensor([[5, 0], [6, 0]]), 5), torch.cat(numbers, 1))
    assert len(torch.cat(numbers).unique()) == 10


def test_uniform_numbers_are_uniform_and_independent():
    """Along a stream, from draw to draw, and from seed to seed."""
    n = 40_000
    seeds = torch.stack([torch.arange(n), torch.zeros(n, dtype=torch.int64)], 1)
    for u in (
        random.uniform(torch.tensor([[1, 2]]), n),
        random.ahead(torch.tensor([[1, 0]]), n),
        random.uniform(seeds, 1),
    ):
        x = u.flatten().numpy()
        assert stats.kstest(x, "uniform").pvalue > 1e-3
        assert abs(np.corrcoef(x[1:], x[:-1])[0, 1]) < 4 / n**0.5


@pytest.mark.parametrize("bad", [torch.zeros(2, 2), torch.zeros(2, dtype=torch.int64), torch.zeros(2, 3).long()])
def test_what_is_not_a_table_of_draws_is_refused(bad):
    with pytest.raises(InputError, match=r"int64\[B, 2\]"):
        random.uniform(bad, 1)


RATES = torch.tensor([0.0, 0.3, 4.0, 9.99, 10.0, 60.0, 1e4, float("nan")])
KINDS = {
    "symbols": lambda d, p: random.symbols(d, torch.outer(p, torch.linspace(-1, 1, 7).double())),
    "bits": lambda d, p: random.bits(d, torch.stack([p, -p, p / 2], 1)),
    "normal": lambda d, p: random.normal(d, 5),
    "student_t": lambda d, p: random.student_t(d, torch.stack([p.abs() + 0.5, p.abs() * 9 + 1], 1)),
    "gamma": lambda d, p: random.gamma(d, torch.stack([p.abs() / 3, p.abs() + 1, p.abs() * 50], 1)),
    "poisson": lambda d, p: random.poisson(d, torch.stack([p.abs(), p.abs() * 9, p.abs() * 100], 1)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_draws_the_same_alone_and_in_any_batch(on, kind):
    given = many(67)
    parameter = torch.randn(67, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    whole = KINDS[kind](given, parameter)
    for rows in ([0], [66], [3, 3], list(range(20, 53)), list(range(66, -1, -1))):
        some = KINDS[kind](given[rows], parameter[rows])
        assert torch.equal(some, whole[rows]), rows
    with kernels.use("reference"):
        assert torch.equal(KINDS[kind](given, parameter), whole)


def test_a_row_draws_the_same_after_a_save_and_load(tmp_path):
    given = many(3)
    states.save(tmp_path / "draws.safetensors", given)
    loaded = states.load(tmp_path / "draws.safetensors", torch.zeros(0, 2, dtype=torch.int64))
    assert torch.equal(random.gamma(loaded, torch.ones(3, 2)), random.gamma(given, torch.ones(3, 2)))


def test_a_parameter_that_is_no_number_ends():
    drawn = random.poisson(many(2), torch.stack([RATES, RATES.flip(0)]))
    assert torch.equal(drawn.isnan(), torch.stack([RATES, RATES.flip(0)]).isnan())
    assert drawn[0, 0] == 0
    assert random.gamma(many(1), torch.tensor([[0.0, float("nan"), float("inf"), 2.0]])).isnan().tolist() == [
        [False, True, True, False]
    ]


def test_the_place_is_never_one_without_weight():
    weights = np.array([[0.0, 1.0, 3.0, 0.0], [1e-300, 0.0, 0.0, 0.0], [0.1, 0.2, 0.7, 0.0]])
    for u in (2.0**-53, 0.2499, 0.2501, 1 - 2.0**-53):
        at = random.place(weights.cumsum(axis=1), np.full((3, 1), u))
        assert at.tolist() == [1 if u < 0.25 else 2, 0, 0 if u < 0.1 else 1 if u < 0.3 else 2]
