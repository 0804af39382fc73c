from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elman.errors import InputError
from elman.tasks.text import kneser_ney
from elman.tasks.text.kneser_ney import Markov

V = 4


def brute_force(sequences, order):
    """Kneser-Ney by the book, in dictionaries of tuples: P(v | context)."""
    grams = Counter()
    for sequence in sequences:
        padded = (0,) * order + tuple(sequence)
        grams.update(padded[i : i + order + 1] for i in range(len(sequence)))
    tables = {order: grams}
    for k in range(order - 1, -1, -1):
        tables[k] = Counter(gram[1:] for gram in tables[k + 1])
    discounts = {}
    for k, table in tables.items():
        once, twice = (sum(1 for n in table.values() if n == m) for m in (1, 2))
        discounts[k] = once / (once + 2 * twice) if once else 0.5

    def probability(context, v):
        p = 1 / V
        for k in range(order + 1):
            followers = {g[-1]: n for g, n in tables[k].items() if g[:-1] == tuple(context)[order - k :]}
            total = sum(followers.values())
            if total:
                D = discounts[k]
                p = max(followers.get(v, 0) - D, 0) / total + D * len(followers) / total * p
        return p

    return probability


@pytest.mark.parametrize("order", [0, 1, 3])
@pytest.mark.parametrize("chunk", [1, 2, 7, 64])
def test_a_text_is_counted_in_chunks_as_it_would_be_whole(monkeypatch, order, chunk):
    ids = np.random.default_rng(order).integers(0, V, 300)
    ids[0] = 0
    whole, parts = Markov(V, order), Markov(V, order)
    whole.fit(ids)
    monkeypatch.setattr(kneser_ney, "CHUNK", chunk)
    parts.fit(ids.astype(np.uint16))
    torch.testing.assert_close(parts.state_dict(), whole.state_dict(), rtol=0, atol=0)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.integers(1, V - 1), max_size=8), min_size=1, max_size=4), st.integers(0, 3))
def test_it_is_kneser_ney(lines, order):
    ids = [0]
    for line in lines:
        ids += [*line, 0]
    model = Markov(V, order)
    model.fit(np.array(ids))
    truth = brute_force([[*line, 0] for line in lines], order)
    contexts = [
        (0,) * order,
        *((0,) * max(0, order - len(line)) + tuple(line[-order:] if order else ()) for line in lines),
    ]
    for context in contexts:
        table = np.array([context] * V, dtype=np.int64).reshape(V, order)
        p = np.exp(model.log_prob(table, np.arange(V)))
        np.testing.assert_allclose(p, [truth(context, v) for v in range(V)], atol=1e-12)
        np.testing.assert_allclose(p.sum(), 1)


def fitted(order=2):
    model = Markov(V, order)
    model.fit(np.array([0, *np.random.default_rng(0).integers(1, V, 200)]))
    return model


def test_scan_steps_and_chunks_agree():
    model = fitted()
    x = torch.tensor([[0, 1, 2, 3, 0, 2], [0, 3, 3, 1, 1, 1]])
    lengths = torch.tensor([6, 3])
    whole, last = model.scan(x, lengths=lengths)
    a, state = model.scan(x[:, :2])
    b, state = model.scan(x[:, 2:], state, lengths=lengths - 2)
    torch.testing.assert_close(torch.cat([a.log_probs(), b.log_probs()], 1), whole.log_probs())
    assert torch.equal(state, last)
    assert last.tolist() == [[0, 2], [3, 3]]
    y = torch.tensor([[1, 2, 3, 0, 2, 1], [3, 3, 1, 1, 1, 1]])
    torch.testing.assert_close(whole.log_prob(y), whole.log_probs().gather(2, y[..., None])[..., 0])


def test_counts_come_back():
    model, again = fitted(), Markov(V, 2)
    again.restore(model.state_dict())
    x = torch.tensor([[0, 1, 2, 3]])
    assert torch.equal(again.scan(x)[0].log_probs(), model.scan(x)[0].log_probs())


def test_too_high_an_order():
    with pytest.raises(InputError, match="64 bits"):
        Markov(10_000, 5)


@pytest.mark.parametrize("order", [0, 1, 2, 3])
def test_a_reset_is_a_sequence_of_its_own(order):
    """As law 4 has it: what stands before a reset, in the row or in the state, is forgotten."""
    rng = np.random.default_rng(order)
    model = Markov(V, order)
    model.fit(np.concatenate([[0], rng.integers(0, V, 200)]))
    x, state = torch.from_numpy(rng.integers(0, V, (2, 9))), torch.from_numpy(rng.integers(1, V, (2, order)))
    y = torch.from_numpy(rng.integers(0, V, (2, 9)))
    reset = torch.zeros(2, 9, dtype=torch.bool)
    reset[0, 4] = reset[1, 0] = reset[1, 8] = True
    found, last = model.scan(x, state, reset=reset)
    cuts = {0: [(0, 4, state[:1]), (4, 9, None)], 1: [(0, 8, None), (8, 9, None)]}
    for row, parts in cuts.items():
        pieces = [model.scan(x[row : row + 1, a:b], start) for a, b, start in parts]
        scored = [p.log_prob(y[row : row + 1, a:b]) for (p, _), (a, b, _) in zip(pieces, parts, strict=True)]
        apart = torch.cat(scored, 1)
        torch.testing.assert_close(found.log_prob(y)[row : row + 1], apart)
        assert torch.equal(last[row : row + 1], pieces[-1][1])
