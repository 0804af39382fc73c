from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elman.data import Position
from elman.data.cache import Encoded
from elman.errors import InputError
from elman.tasks.text.windows import Streams, lane_batches, lanes


def encoded(ids):
    return Encoded(np.array(ids), len(ids) - 1, 0)


def passes(streams, epoch):
    at, rows = Position(epoch, 0), []
    while at.epoch == epoch:
        rows.append((at, streams.batch(at)))
        at = streams.after(at)
    return rows


@given(st.integers(1, 4), st.integers(1, 5), st.integers(0, 30), st.integers(0, 3))
def test_streams_go_on_from_window_to_window(B, T, more, epoch):
    ids = [0, *range(1, B * T + more + 1)]
    batches = [batch for _, batch in passes(Streams(encoded(ids), B, T, seed=3), epoch)]
    x, y = (torch.cat([getattr(b, name) for b in batches], 1) for name in ("x", "y"))
    assert (y == x + 1).all()  # symbols are numbered by position: what follows is one more
    assert (x.diff(dim=1) == 1).all()
    assert len(set(x.flatten().tolist())) == x.numel() > len(ids) - 1 - B - T
    assert batches[0].reset[:, 0].all() and not any(b.reset.any() for b in batches[1:])


def test_ranks_divide_the_streams():
    ids = encoded([0, *range(1, 101)])
    whole = Streams(ids, 4, 5).batch(Position(1, 2))
    parts = [Streams(ids, 4, 5, rank=r, world=2).batch(Position(1, 2)) for r in range(2)]
    assert torch.equal(torch.cat([p.x for p in parts]), whole.x)
    with pytest.raises(InputError, match="multiple of 3"):
        Streams(ids, 4, 5, world=3)


def test_a_boundary_begins_a_sequence():
    batch = Streams(encoded([0, 5, 6, 0, 7, 0]), 1, 5).batch(Position())
    assert batch.reset.tolist() == [[True, False, False, True, False]]
    assert batch.y.tolist() == [[5, 6, 0, 7, 0]]


def test_too_short_a_text():
    with pytest.raises(InputError, match="has 3 tokens; 2 streams with windows of 4 need at least 8"):
        Streams(encoded([0, 1, 2, 3]), 2, 4)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.integers(1, 6), st.integers(1, 7))
def test_lanes_score_every_token_once_and_begin_at_boundaries(rest, B, chunk):
    text = encoded([0, *rest])
    parts = lanes(text, B)
    assert all(text.ids[part.start] == 0 for part in parts)
    assert [p.start for p in parts[1:]] == [p.stop for p in parts[:-1]] and len(parts) <= B
    scored = [[] for _ in parts]
    for batch in lane_batches(text, B, chunk, 1000):
        for row, y, n in zip(scored, batch.y, batch.lengths, strict=True):
            row += y[:n].tolist()
    assert list(chain(*scored)) == rest


def test_where_a_pass_starts_depends_on_the_seed_and_the_pass():
    def starts(seed):
        streams = Streams(encoded([0, *range(1, 400)]), 2, 100, seed=seed)
        return [int(streams.batch(Position(epoch, 0)).x[0, 0]) for epoch in range(4)]

    found = [starts(seed) for seed in range(4)]
    assert found == [starts(seed) for seed in range(4)] and all(one[0] == 0 for one in found)
    assert len({tuple(one[1:]) for one in found}) == 4 and all(len({*one[1:]}) > 1 for one in found)
