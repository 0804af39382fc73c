"""Whose turn it is."""

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
