import numpy as np
import pytest

from elman.data.synthetic import BLANK, CUE, parse
from elman.errors import ElmanError


def test_adding_is_the_sum_of_the_marked():
    rows = parse("synthetic:adding,T=20").rows(0, 3, 500)
    sums = []
    for x, y in rows:
        marked = np.flatnonzero(x[:, 1])
        assert len(marked) == 2 and marked[0] < 10 <= marked[1] and x.shape == (20, 2)
        assert float(y) == pytest.approx(x[marked, 0].sum(), abs=1e-6)
        sums.append(float(y))
    assert np.var(sums) == pytest.approx(1 / 6, rel=0.2)


def test_parity_and_copies():
    for bits, odd in parse("synthetic:parity,T=7").rows(0, 0, 50):
        assert len(bits) == 7 and (odd == "odd") == (bits.count("1") % 2 == 1)
    words, tags = parse("synthetic:copy,T=12,tokens=3,vocabulary=4").rows(0, 0, 1)[0]
    assert len(words) == len(tags) == 12 + 6 and words[:3] == tags[-3:]
    assert words[3:14] == [BLANK] * 11 and words[14] == CUE and words[15:] == [BLANK] * 3 and set(tags[:-3]) == {BLANK}
    words, tags = parse("synthetic:selective-copy,T=12,tokens=3,vocabulary=4").rows(0, 0, 1)[0]
    assert (
        [w for w in words if w not in (BLANK, CUE)] == tags[12:] and words[12:] == [CUE] * 3 and tags[:12] == [""] * 12
    )


def test_selective_copies_of_mixed_lengths():
    made = parse("synthetic:selective-copy,T=256,least=4,tokens=4,vocabulary=4")
    batches = [made.rows(0, number, 3) for number in range(200)]
    lengths = np.array([len(rows[0].input) - 4 for rows in batches])
    assert all({len(row.input) for row in rows} == {T + 4} for rows, T in zip(batches, lengths, strict=True))
    assert lengths.min() < 6 and lengths.max() > 200
    assert np.mean(lengths < 32) == pytest.approx(0.5, abs=0.12)  # 32 is the middle of 4 and 256 by factors
    assert all([w for w in words if w not in (BLANK, CUE)] == tags[-4:] for rows in batches for words, tags in rows)


def test_a_batch_depends_on_the_seed_and_its_number_alone():
    made = parse("synthetic:parity,T=30")
    assert made.rows(1, 2, 4) == made.rows(1, 2, 4)
    assert len({tuple(row.input for row in made.rows(*at, 4)) for at in ((1, 2), (1, 3), (2, 2))}) == 3
    assert made.part() == parse("synthetic:parity,T=30,n=1000,seed=1").part() != made.part(1)


@pytest.mark.parametrize(
    "name, message",
    [
        ("synthetic:add", "unknown synthetic data"), ("synthetic:copy,t=3", "unknown setting"),
        ("synthetic:copy,T=-3", "whole number"), ("synthetic:copy,T=1", "at least 2"),
        ("synthetic:selective-copy,T=3,tokens=4", "room"), ("synthetic:selective-copy,T=9,least=3,tokens=4", "room"),
        ("synthetic:selective-copy,T=9,least=12,tokens=4", "at most 9"), ("synthetic:reverse,least=0", "at least 1"),
    ],
)  # fmt: skip
def test_what_cannot_be_made_is_said(name, message):
    with pytest.raises(ElmanError, match=message):
        parse(name)
