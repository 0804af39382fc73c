"""The graph of whole sequences (B, T, width): what knows of time, of lengths, and of states before and after."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from elman.export.graph.nodes import Graph, Store
from elman.export.graph.record import Leaf


class Sequences(Graph):
    """A graph of sequences. `before` and `after` have the leaves of the state (B, width), by their names."""

    def __init__(self, store: Store, x: str, lengths: str) -> None:
        super().__init__(store, 2)
        self.lengths = lengths
        self.reset: str | None = None
        self.before: dict[str, str] = {}
        self.after: dict[str, str] = {}
        self._cached: dict[str, str] = {}
        self.valid = self.add("Unsqueeze", self.inside(x, lengths), self.whole([2]))  # (B, T, 1)

    def inside(self, x: str, lengths: str) -> str:
        """Which places of x (B, T, ...) are before the lengths of its rows: (B, T)."""
        zero, one = (self.store.array(np.asarray(value, np.int64)) for value in (0, 1))
        time = self.add("Squeeze", self.add("Shape", x, start=1, end=2), self.whole([0]))
        steps = self.add("Unsqueeze", self.add("Range", zero, time, one), self.whole([0]))
        return self.add("Less", steps, self.add("Unsqueeze", lengths, self.whole([1])))

    def begin(self, leaves: Iterable[Leaf]) -> None:
        """Let every row begin with the first state."""
        for leaf in leaves:
            rows = self.add("Concat", self.add("Shape", self.lengths), self.whole([leaf.width]), axis=0)
            self.before[leaf.name] = self.add("Expand", self.store.array(leaf.first.reshape(1, -1)), rows)

    def read_reset(self) -> None:
        """Where episodes begin, (B, T, 1), of the input of that name."""
        flags = self.add("Unsqueeze", "reset", self.whole([2]))
        self.reset = self.add("And", flags, self.valid)

    @property
    def reset_backwards(self) -> str:
        """Where they begin for what reads rows from their ends: at their last inputs."""
        return self._once("reset backwards", self._make_reset_backwards)

    def _make_reset_backwards(self) -> str:
        assert self.reset is not None
        # The last input of an episode is the one before the first of the next. What stands at the end of a row does not
        # count: there the state is the first one anyway.
        after = self.add("Concat", self.cut(self.reset, 1, 2**62, axis=1), self.cut(self.reset, 0, 1, axis=1), axis=1)
        return self.reverse(after)

    @property
    def lengths32(self) -> str:
        """The lengths as RNN, GRU and LSTM take them."""
        return self._once("lengths32", lambda: self.cast(self.lengths, np.int32))

    def time_first(self, x: str) -> str:
        """x (B, T, width) as (T, B, width)."""
        return self._once(f"time first {x}", lambda: self.add("Transpose", x, perm=[1, 0, 2]))

    def batch_first(self, x: str) -> str:
        """x (T, B, width) as (B, T, width)."""
        y = self.add("Transpose", x, perm=[1, 0, 2])
        self._cached[f"time first {y}"] = x
        return y

    def reverse(self, x: str) -> str:
        """x from each row's last valid input to its first; what is past the lengths stays where it is."""
        return self.add("ReverseSequence", x, self._one_or_more(), batch_axis=0, time_axis=1)

    def at(self, x: str, steps: str) -> str:
        """x (B, T, width) at a step of each row, (B,): (B, width)."""
        return self.add("GatherND", x, self.add("Unsqueeze", steps, self.whole([1])), batch_dims=1)

    def windows(self, x: str, leaf: str, n: int, D: int) -> str:
        """The n inputs before each of x (B, T, D), and it, side by side; the leaf has those before the first."""
        all_ = self.add("Concat", self.add("Reshape", self.before[leaf], self.whole([0, n, D])), x, axis=1)
        ends = self.add("Add", self.add("Unsqueeze", self.lengths, self.whole([1])), self.whole(range(n)))
        last = self.add("GatherND", all_, self.add("Unsqueeze", ends, self.whole([2])), batch_dims=1)
        self.after[leaf] = self.add("Reshape", last, self.whole([0, n * D]))
        return str(self.add("Concat", *(self.cut(all_, i, i - n or 2**62, axis=1) for i in range(n + 1)), axis=-1))

    def masked(self, x: str) -> str:
        """x, zero past the lengths."""
        return self.add("Where", self.valid, x, self.array([0.0]))

    def where_any(self, x: str, other: str) -> str:
        """x (B, width) of rows that have a valid input, `other` of those that have none."""
        some = self._once("some", lambda: self.add(
            "Unsqueeze", self.add("Greater", self.lengths, self.whole([0])), self.whole([1])
        ))  # fmt: skip
        return self.add("Where", some, x, other)

    def _one_or_more(self) -> str:
        return self._once("one or more", lambda: self.add("Max", self.lengths, self.whole([1])))

    def _once(self, key: str, make: Callable[[], str]) -> str:
        if key not in self._cached:
            self._cached[key] = make()
        return self._cached[key]
