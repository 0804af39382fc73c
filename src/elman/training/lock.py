"""One process writes a run directory at a time. The lock goes with its process, however that ends."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from elman.errors import FileError, InputError


@contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, which is made if it is not there; raise an InputError if another process holds it.

    A folder that was made here and is still empty at the end is taken away again.
    """
    import fcntl

    try:
        made = not folder.exists()
        if not made and not folder.is_dir():
            raise InputError(f"{folder} exists; a run is never overwritten. Choose another --out.")
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise FileError(f"cannot make the run directory {folder}: {error}; choose another --out") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(
                f"{folder} is being written by {_holder(descriptor)}; wait until it is done, or choose another --out"
            ) from error
        yield
    finally:
        os.close(descriptor)
        if made and folder.is_dir() and not any(folder.iterdir()):  # what could not begin has taken it away
            folder.rmdir()


def _holder(descriptor: int) -> str:
    """Which process holds the lock, where the system tells."""
    inode = os.fstat(descriptor).st_ino
    try:
        locks = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return "another process"
    # "1: FLOCK  ADVISORY  WRITE 4242 fe:01:1234 0 EOF": number, kind, way, access, process, device:device:inode
    holders = [line.split()[4] for line in locks if line.split()[5].rpartition(":")[2] == str(inode)]
    return f"process {holders[0]}" if holders else "another process"
