"""What a model does in a tick: one input for each of some states, and a piece of some works, side by side."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from elman.serve.engine.job import Job
from elman.tasks.serving import Outputs, Served, ServedRows, Work

Inputs = NDArray[np.generic]  # one for each of some states, as `ServedRows.encoded` gives them
RowsResult = tuple[list[bytes], Outputs, list[bool]]  # what `ServedRows.together` gives
TakesRows = Callable[[list[bytes], Outputs, list[bool]], None]


class Running:
    """A work of a job."""

    __slots__ = ("job", "served", "then", "work")
    size = 1

    @property
    def tenant(self) -> str:
        return self.job.tenant

    def __init__(self, job: Job, served: Served, work: Work, then: Callable[[Work], None]) -> None:
        self.job, self.served, self.work, self.then = job, served, work, then


class Rows:
    """One input for each of some states."""

    __slots__ = ("error", "job", "result", "served", "size", "states", "then", "x")

    def __init__(self, job: Job, served: ServedRows, x: Inputs, states: list[bytes], then: TakesRows) -> None:
        self.job, self.served, self.x, self.states, self.then = job, served, x, states, then
        self.size = len(states)
        self.result: RowsResult | None = None
        self.error: Exception | None = None

    def alone(self) -> None:
        """Compute it alone."""
        try:
            self.result = self.served.together(self.x, self.states)
        except Exception as error:
            self.error = error


class Group:
    """What one model does in a tick."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.rows: list[Rows] = []
        self.works: list[Running] = []
        self.steps = 0

    @property
    def size(self) -> int:
        return sum(rows.size for rows in self.rows) + len(self.works)

    def compute(self) -> None:
        """A bug must not end the ticks of all, nor the other works of the model: its work is refused."""
        if self.rows:
            self._read()
        if self.works:
            works = [running.work for running in self.works]
            before = sum(work.taken for work in works)
            try:
                self.served.advance(works)
            except Exception:
                for work in works:
                    self._advance_alone(work)
            self.steps += sum(work.taken for work in works) - before

    def _advance_alone(self, work: Work) -> None:
        """Some work of the tick has a bug: it ends, the others continue."""
        try:
            if not work.done:
                self.served.advance([work])
        except Exception as error:
            work.error = error

    def _read(self) -> None:
        """All rows in one call; if that fails, each job alone, so that only one fails."""
        if len(self.rows) == 1:
            self.rows[0].alone()
        else:
            try:
                x = np.concatenate([rows.x for rows in self.rows])
                served = self.rows[0].served
                after, outputs, good = served.together(x, [one for rows in self.rows for one in rows.states])
                at = 0
                for rows in self.rows:
                    mine = slice(at, at + rows.size)
                    rows.result = after[mine], outputs[mine], good[mine]
                    at += rows.size
            except Exception:
                for rows in self.rows:
                    rows.alone()
        self.steps += sum(rows.size for rows in self.rows if rows.result is not None)
