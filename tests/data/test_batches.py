import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elman.data import Batch, Examples, OrderedBatches, Position, Shuffled, padded
from elman.data.batches import Bucketed
from elman.errors import InputError


def positions(order, epoch):
    at, found = Position(epoch, 0), []
    while at.epoch == epoch:
        found.append(at)
        at = order.after(at)
    return found


@given(st.integers(1, 40), st.integers(1, 7), st.integers(0, 3))
def test_a_pass_has_every_example_once_in_an_order_of_its_own(n, batch_size, epoch):
    order = Shuffled(n, batch_size, seed=4)
    batches = [order.rows(at) for at in positions(order, epoch)]
    assert sorted(row for rows in batches for row in rows) == list(range(n))
    assert all(len(rows) == batch_size for rows in batches[:-1])
    assert batches == [Shuffled(n, batch_size, seed=4).rows(at) for at in positions(order, epoch)]


def test_passes_and_seeds_differ():
    order = Shuffled(30, 30, seed=0)
    one, two = (order.rows(Position(epoch, 0)) for epoch in (0, 1))
    assert one != two and one != Shuffled(30, 30, seed=7).rows(Position(0, 0))


@given(st.integers(2, 40), st.integers(1, 4))
def test_processes_divide_a_batch(n, half):
    parts = [Shuffled(n, 2 * half, 0, rank, 2) for rank in range(2)]
    whole = Shuffled(n, 2 * half, 0)
    for at in positions(parts[0], 1):
        a, b = (part.rows(at) for part in parts)
        assert a and b and sorted(a + b) == sorted(whole.rows(at))


def test_what_cannot_be_divided_is_refused():
    with pytest.raises(InputError, match="batch_size is 0"):
        Shuffled(3, 0, 0)
    with pytest.raises(InputError, match="multiple of 2"):
        Shuffled(3, 3, 0, 0, 2)
    with pytest.raises(InputError, match="2 processes need at least one each"):
        Shuffled(1, 2, 0, 0, 2)
    with pytest.raises(InputError, match="2 sequences and 1 targets"):
        Examples([torch.ones(2), torch.ones(3)], torch.ones(1))


def test_examples_are_padded_and_each_begins_an_episode():
    examples = Examples([torch.tensor([1, 2]), torch.tensor([3]), torch.tensor([4, 5, 6])], torch.tensor([7, 8, 9]))
    batch = examples.batch([2, 1])
    assert (
        batch.x.tolist() == [[4, 5, 6], [3, 0, 0]] and batch.lengths.tolist() == [3, 1] and batch.y.tolist() == [9, 8]
    )
    assert batch.reset.tolist() == [[True, False, False], [True, False, False]]
    batches = OrderedBatches(Shuffled(3, 2, 0), lambda rows, at: examples.batch(rows))
    assert sorted(batches.batch(Position(0, 0)).y.tolist() + batches.batch(Position(0, 1)).y.tolist()) == [7, 8, 9]
    assert batches.after(Position(0, 1)) == Position(1, 0)


def test_an_empty_sequence_is_a_row_of_length_zero():
    x, lengths = padded([torch.zeros(0, 2), torch.ones(2, 2)])
    assert x.shape == (2, 2, 2) and lengths.tolist() == [0, 2] and not x[0].any()


def test_a_tree_moves_whole():
    batch = Batch(
        (torch.ones(1, 2), (torch.ones(1, 2),)), torch.ones(1), torch.zeros(1, 2, dtype=torch.bool), torch.ones(1)
    )
    moved = batch.to(torch.device("meta"))
    assert moved.x[1][0].device.type == moved.lengths.device.type == "meta"


def test_buckets_hold_every_example_once_in_an_order_of_each_pass():
    lengths = torch.randint(1, 30, (97,), generator=torch.Generator().manual_seed(0)).tolist()
    order = Bucketed(lengths, tokens=100, seed=3)
    for epoch in (0, 1):
        batches = order.of_epoch(epoch)
        assert sorted(i for batch in batches for i in batch) == list(range(97))
        assert all(len(batch) == 1 or max(lengths[i] for i in batch) * len(batch) <= 100 for batch in batches)
    assert order.of_epoch(0) != order.of_epoch(1)
    again = Bucketed(lengths, tokens=100, seed=3)
    assert again.of_epoch(1) == order.of_epoch(1)  # whatever was asked for before
    assert Bucketed(lengths, tokens=100, seed=4).of_epoch(0) != order.of_epoch(0)
    last = Position(0, len(order.of_epoch(0)) - 1)
    assert order.after(last) == Position(1, 0) and order.after(Position(0, 0)) == Position(0, 1)


def test_buckets_over_processes_are_those_of_one():
    lengths = [5] * 20
    whole = Bucketed(lengths, tokens=30, seed=0)
    parts = [Bucketed(lengths, tokens=30, seed=0, rank=rank, world=2) for rank in range(2)]
    at = Position(0, 0)
    assert sorted(whole.rows(at)) == sorted(parts[0].rows(at) + parts[1].rows(at))
