"""Memory that outputs are written to, kept for the next ones when the tensors that had it are gone.

A large output of fresh memory costs a page fault for every 4 KiB, which can take longer than the kernel that writes it,
and malloc gives large blocks back to the system as soon as they are free. So the storages of large outputs are
remembered, up to BOUND bytes, and one that nobody else holds any more is used again for an output of its size. What the
kernels themselves need is kept by csrc/memory.cpp. What was moved to memory that processes share is forgotten: nobody
here knows whether another process still reads it.
"""

import os
import sys
import threading

import torch
from torch import UntypedStorage

from elman import _native

SMALLEST = 1 << 17  # bytes: from here on malloc asks the system
HUGE = 1 << 22  # bytes from which pages of 2 MiB are worth the advice
BOUND = 1 << 28  # bytes that are remembered, in use or not

_lock = threading.Lock()
_kept: dict[int, list[UntypedStorage]] = {}  # by size, the one that was used last at the end
_total = 0  # bytes in it


def storage(nbytes: int) -> UntypedStorage:
    """Uninitialised memory of so many bytes, which nobody else has."""
    global _total
    # Nobody waits for the lock: a finaliser or the handler of a signal may find it taken by its own thread.
    if not _native.KEEPS_MEMORY or nbytes > BOUND or not _lock.acquire(blocking=False):
        return _fresh(nbytes)
    try:
        same = _kept.pop(nbytes, [])
        _kept[nbytes] = same
        for i in range(len(same)):
            if _holders(same, i) == _NONE and not same[i].is_shared():
                return same[i]
        _forget_shared()
        found = _fresh(nbytes)
        same.append(found)
        _total += nbytes
        while _total > BOUND:
            _forget_oldest()
        return found
    finally:
        _lock.release()


def release() -> None:
    """Give everything that is kept, and that no tensor holds, back to the system."""
    global _total
    with _lock:
        _kept.clear()
        _total = 0
    _native.release_scratch()


def _fresh(nbytes: int) -> UntypedStorage:
    found = UntypedStorage(nbytes)
    if nbytes >= HUGE:
        _native.prefer_huge_pages(found.data_ptr(), nbytes)
    return found


def _forget_shared() -> None:
    """Not only of one size: each has an open file."""
    global _total
    for nbytes, same in _kept.items():
        before = len(same)
        same[:] = [storage for storage in same if not storage.is_shared()]
        _total -= nbytes * (before - len(same))


def _forget_oldest() -> None:
    global _total
    nbytes = next(iter(_kept))
    if _kept[nbytes]:  # nothing if the system refused the memory, or if all of it became shared
        _kept[nbytes].pop(0)
        _total -= nbytes
    if not _kept[nbytes]:
        del _kept[nbytes]


def _holders(storages: list[UntypedStorage], i: int) -> tuple[int, int]:
    """How many hold a storage: in C++ (tensors, arrays that share their memory), and in Python."""
    return torch._C._storage_Use_Count(storages[i]._cdata), sys.getrefcount(storages[i])


_NONE = _holders([UntypedStorage(1)], 0)  # of one that is in a list, and nowhere else


def _begin_anew() -> None:
    """In a child of fork, whose parent may have had a thread that held the lock."""
    global _lock, _total
    _lock = threading.Lock()
    _kept.clear()
    _total = 0


os.register_at_fork(after_in_child=_begin_anew)
