"""The past of sessions: checkpoints, and what was read after them, so that a session can be rolled back.

What a write read is stored by the version that it led to, so a session's log is in the order of its versions. It may
be long, so it is read and deleted in slices: what is no longer part of the past is noted as dead in the same commit, is
never read again, and is deleted some rows at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from elman import kernels
from elman.serve.errors import HttpError
from elman.serve.store.records import Checkpoint, Damaged, Inputs, Records, Session, encode
from elman.serve.store.store import Store

SLICE = 64  # logged writes that are read, or deleted, at once
BYTES = 1 << 18  # of them that are read at once, or one write that is longer
DEAD = "dead"  # the parent of the rows that say which part of which log is dead
END = 10**18  # behind every version


class Past:
    """Checkpoints and logs of all sessions."""

    def __init__(self, store: Store, records: Records) -> None:
        self.store, self.records = store, records
        self.computed = kernels.isa() if kernels.active() == "native" else "reference"  # by what, in this process
        self._dead: dict[str, dict[int, tuple[int, int]]] | None = None  # None where it has to be read

    # Writing

    def log(self, id: str, session: Session, taken: int, record: bytes) -> None:
        """A write has led to this version, and has read the last `taken` inputs."""
        inputs = Inputs(session.version, session.position - taken, taken, record, self.computed)
        self.store.put("inputs", child(id, session.version), encode(inputs), parent=id)
        if self._ranges():  # two go for each that comes, so that what is dead cannot pile up
            self.sweep(2)

    def add_checkpoint(self, id: str, session: Session) -> None:
        """Keep the state as a checkpoint, and let go of what is too old."""
        at = session.position
        record = Checkpoint(session.version, at, session.state, self.computed)
        self.store.put("checkpoints", child(id, at), encode(record), parent=id)
        session.checkpoints = [*(mark for mark in session.checkpoints if mark != at), at]
        if len(session.checkpoints) > session.keep:
            for old in session.checkpoints[: -session.keep]:
                self.store.delete("checkpoints", child(id, old))
            session.checkpoints = session.checkpoints[-session.keep :]
            if session.log:
                with suppress(Damaged):  # then what is before it stays
                    self._drop(id, 0, self._checkpoint(id, session.checkpoints[0]).version)

    def cut(self, id: str, session: Session, position: int, version: int) -> None:
        """What came after a position, in writes after a version, is no longer part of the past."""
        for mark in session.checkpoints:
            if mark > position:
                self.store.delete("checkpoints", child(id, mark))
        session.checkpoints = [mark for mark in session.checkpoints if mark <= position]
        if session.log:
            self._drop(id, version, session.version)

    def clear(self, id: str, session: Session) -> None:
        """Nothing is part of it any more."""
        for mark in session.checkpoints:
            self.store.delete("checkpoints", child(id, mark))
        session.checkpoints = []
        if session.log:
            self._drop(id, 0, session.version)

    def clear_damaged(self, id: str) -> None:
        """The same of a session of which nothing is known."""
        for place, _ in self.store.children("checkpoints", id):
            self.store.delete("checkpoints", place)
        self._drop(id, 0, END)

    # Reading

    def checkpoint(self, id: str, session: Session, position: int) -> Checkpoint:
        """The last checkpoint at or before a position; refused where the position cannot be reached from it."""
        if not session.every:
            raise HttpError(
                422,
                "this session keeps no checkpoints; create one with checkpoints: {every, keep}",
                code="no_checkpoint",
            )
        marks = [mark for mark in session.checkpoints if mark <= position]
        if position > session.position or not marks:
            raise HttpError(
                422, f"the session cannot be rolled back to position {position}; it is at {session.position} and "
                f"keeps {session.checkpoints[0]} and later ones", code="no_checkpoint",
            )  # fmt: skip
        if marks[-1] != position and not session.log:
            raise HttpError(
                422, f"position {position} is between two checkpoints, and inputs are not logged (log_inputs); the "
                f"checkpoints are {', '.join(map(str, session.checkpoints))}", code="no_checkpoint",
            )  # fmt: skip
        return self._checkpoint(id, marks[-1])

    def _checkpoint(self, id: str, at: int) -> Checkpoint:
        found = self.records.read("checkpoints", Checkpoint, child(id, at))
        assert found is not None, "marks name checkpoints that are kept"
        return found

    def logged(self, id: str, after: int, position: int) -> tuple[list[Inputs], int | None]:
        """A slice of the writes after a version that began before a position; and the version after which the next
        slice begins, or None if this was the last."""
        dead = sorted(self._ranges().get(id, {}).values())
        for first, last in dead:
            if first <= after < last:
                after = last
        found: list[Inputs] = []
        size, more = 0, False
        for place in self.store.ids("inputs", id, child(id, after), child(id, END), SLICE):
            data = self.store.get("inputs", place)
            assert data is not None
            found.append(self.records.decoded("inputs", Inputs, place, data))
            size, more = size + len(data), len(found) == SLICE or size + len(data) > BYTES
            if more:
                break
        live = [one for one in found if not any(first < one.version <= last for first, last in dead)]
        wanted = [one for one in live if one.position < position]
        over = not more or len(wanted) < len(live)
        return wanted, None if over else found[-1].version

    # What is dead

    def _drop(self, id: str, after: int, last: int) -> None:
        """Delete the writes after one version up to another: some now, the others by `sweep`."""
        if self._delete(id, after, last):
            self.store.put("meta", f"{DEAD}/{child(id, last)}", b"%d" % after, parent=DEAD)
            self._ranges().setdefault(id, {})[last] = after, last

    def _delete(self, id: str, after: int, last: int, most: int = SLICE) -> bool:
        """Delete some of them; whether there may be more."""
        places = self.store.ids("inputs", id, child(id, after), child(id, last), most)
        for place in places:
            self.store.delete("inputs", place)
        return len(places) == most

    def sweep(self, most: int = SLICE) -> bool:
        """Delete some of what is dead; whether there is more."""
        dead = self._ranges()
        for id, ranges in dead.items():
            after, last = next(iter(ranges.values()))
            if not self._delete(id, after, last, most):
                self.store.delete("meta", f"{DEAD}/{child(id, last)}")
                del ranges[last]
                if not ranges:
                    del dead[id]
            break
        return bool(dead)

    def forget(self, undone: Iterable[tuple[str, str]] | None = None) -> None:
        """These rows, or all of a tick, were not written after all. Nothing is read here, for that may fail too."""
        if undone is None or any(table == "meta" and id.startswith(f"{DEAD}/") for table, id in undone):
            self._dead = None

    def _ranges(self) -> dict[str, dict[int, tuple[int, int]]]:
        """Of each session the versions between which its log is dead, by the last."""
        if self._dead is None:
            found: dict[str, dict[int, tuple[int, int]]] = {}
            for place, after in self.store.children("meta", DEAD):
                id, last = place.removeprefix(f"{DEAD}/").rsplit("/", 1)
                found.setdefault(id, {})[int(last)] = int(after), int(last)
            self._dead = found
        return self._dead


def child(id: str, number: int) -> str:
    """What a checkpoint or inputs of a session are stored as: in order."""
    return f"{id}/{number:019d}"
