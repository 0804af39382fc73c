"""What a run writes as it goes: metrics without a clock, timings with one, previews."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

from elman import progress
from elman.errors import FileError
from elman.files import config as configs
from elman.options import parse_json
from elman.training.logs import Logs

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

FILES = ("metrics.jsonl", "samples.txt")  # what a resumed run cuts back to its checkpoint


class Preview(NamedTuple):
    """What a person would look at while a model trains: some text, or a picture as the bytes of a PNG file."""

    text: str = ""
    picture: bytes = b""


def begin(folder: Path, config: DataclassInstance) -> None:
    """Make a run directory, with its config and nothing else.

    The config comes first: a folder with it can be resumed, whenever the process died after that.
    """
    begun = (folder / configs.NAME).exists()  # and died before its first checkpoint: it is begun again
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write_config(folder, config)
        for name in (*FILES, "timings.jsonl"):
            (folder / name).write_bytes(b"")
    except (OSError, KeyboardInterrupt) as error:
        if not begun:
            _remove(folder)
        if isinstance(error, KeyboardInterrupt):
            raise
        raise FileError(f"cannot make the run directory {folder}: {error}; choose another --out") from error


def change_config(folder: Path, config: DataclassInstance) -> None:
    """Give a run directory another config: a run that continues for longer than it was to."""
    try:
        _write_config(folder, config)
    except OSError as error:
        raise FileError(f"cannot write {folder / configs.NAME}: {error}. Free some space; it is as it was.") from error


def _write_config(folder: Path, config: DataclassInstance) -> None:
    """Half a config would be read as another one: it is there whole or not at all."""
    temporary = folder / f".{configs.NAME}"
    temporary.write_text(configs.render(config), encoding="utf-8")
    temporary.replace(folder / configs.NAME)


def _remove(folder: Path) -> None:
    """What could not be begun leaves nothing behind."""
    with suppress(OSError):
        for name in (*FILES, "timings.jsonl", configs.NAME, f".{configs.NAME}"):
            (folder / name).unlink(missing_ok=True)
        folder.rmdir()


class Recorder:
    """The open files of a run directory, and its logs. A process that is not the first has none."""

    def __init__(self, folder: Path | None, lengths: dict[str, int] | None = None, logs: Logs | None = None) -> None:
        self.folder = folder
        self.files: dict[str, IO[bytes]] = {}
        self.start, self.logs = time.monotonic(), logs or Logs()
        if folder is None:
            return
        for name in (*FILES, "timings.jsonl"):
            self.files[name] = _open(folder / name, None if lengths is None else lengths.get(name))

    def metrics(self, step: int, **values: float) -> None:
        """A line of metrics; and of timings, which hold everything that no two runs share."""
        self._line("metrics.jsonl", {"step": step, **values})
        self._line("timings.jsonl", {"step": step, "seconds": round(time.monotonic() - self.start, 3)})
        self.logs.metrics(step, values)

    def preview(self, step: int, preview: Preview) -> None:
        """Keep a preview: text in samples.txt, a picture in previews/STEP.png."""
        if preview.text:
            self._write("samples.txt", f"== step {step}\n{preview.text}\n\n")
        if preview.picture and self.folder is not None:
            try:
                path = self.folder / "previews" / f"{step}.png"
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(preview.picture)
            except OSError as error:
                raise _cannot_write(error) from error
        self.logs.preview(step, preview)

    def flush(self) -> dict[str, int]:
        """Bring everything to the disk; the lengths of the files."""
        try:
            for file in self.files.values():
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise _cannot_write(error) from error
        return {name: file.tell() for name, file in self.files.items() if name in FILES}

    def close(self, finished: bool = True) -> None:
        """Close everything; not `finished` if the run is to be resumed."""
        for file in self.files.values():
            with suppress(OSError):  # what a full disk did not take, `_write` has said
                file.close()
        self.logs.close(finished)

    def _line(self, name: str, values: dict[str, float]) -> None:
        self._write(name, json.dumps(values) + "\n")

    def _write(self, name: str, text: str) -> None:
        if name in self.files:
            try:
                self.files[name].write(text.encode())
                self.files[name].flush()
            except OSError as error:
                raise _cannot_write(error) from error


def _open(path: Path, length: int | None) -> IO[bytes]:
    """The file, to be written at its end; cut back to `length` bytes where that is known."""
    try:
        file = path.open("ab")
        if length is not None and file.tell() < length:
            progress.say(f"{path} had {length} bytes when the checkpoint was written, and has fewer now. Continuing.")
        elif length is not None:
            file.truncate(length)
    except OSError as error:
        raise _cannot_write(error) from error
    return file


def _cannot_write(error: OSError) -> FileError:
    return FileError(f"cannot write metrics: {error}. Free some space; the last checkpoint is as it was.")


def read_metrics(folder: Path) -> list[dict[str, float]]:
    """The metrics of a run, line by line."""
    try:
        return [parse_json(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise FileError(f"{folder / 'metrics.jsonl'} cannot be read: {error}") from error
