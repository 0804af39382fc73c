"""Whose turn it is."""

import hypothesis.strategies as st
from hypothesis import given, settings

from elman.serve.engine.turns import Turns


def served(turns, times):
    """Who comes next, each for a second."""
    found = []
    for _ in range(times):
        one = turns.next()
        turns.charge(one, 1.0)
        turns.add(one, one)
        found.append(one)
    return "".join(found)


def test_nobody_saves_up_for_later():
    """b is away for a hundred turns of a; then it has every second one, and no more."""
    turns = Turns()
    turns.add("a", "a")
    turns.add("b", "b")
    turns.next(), turns.next(), turns.charge("b", 1.0), turns.charge("a", 1.0)
    turns.add("a", "a")
    assert served(turns, 100) == "a" * 100
    turns.add("b", "b")
    assert sorted(served(turns, 20)) == ["a"] * 10 + ["b"] * 10


def test_who_took_long_waits_long():
    turns = Turns()
    for one in "ab":
        turns.add(one, one)
    first = turns.next()
    turns.charge(first, 10.0)
    turns.add(first, first)
    other = "b" if first == "a" else "a"
    assert served(turns, 10) == other * 10


# Turns
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 50)), min_size=1, max_size=60))
@settings(max_examples=200, deadline=None)
def test_whoever_has_had_least_comes_next_and_in_a_line_the_first(things):
    """Against sums: while two tenants both have something, neither is ahead of the other by more than one thing."""
    turns, left, had, largest = Turns(), {}, {}, max(cost for _, cost in things)
    for number, (tenant, cost) in enumerate(things):
        turns.add(tenant, (tenant, cost, number))
        left.setdefault(tenant, []).append(number)
        had[tenant] = 0
    together = set(left)
    while turns:
        tenant, cost, number = turns.next()
        turns.charge(tenant, float(cost))
        assert left[tenant].pop(0) == number
        had[tenant] += cost
        together -= {name for name in together if not left[name]}
        waiting = [had[name] for name in together]
        assert not waiting or max(waiting) - min(waiting) <= largest
    assert not any(left.values())


def test_who_comes_after_a_pause_has_saved_nothing_up():
    turns = Turns()
    for number in range(100):
        turns.add("long", number)
        turns.next()
        turns.charge("long", 1.0)
    for _ in range(6):
        turns.add("new", "new")
        turns.add("long", "long")
    found = []
    while turns:
        found.append(turns.next())
        turns.charge(found[-1], 1.0)
    assert abs(found[:6].count("new") - 3) <= 1
