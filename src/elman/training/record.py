"""What a run writes as it goes: metrics without a clock, timings with one, samples; and lines for who waits."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import IO, Any

from elman.data import progress
from elman.errors import FileError, MissingExtraError

FILES = ("metrics.jsonl", "samples.txt")  # what a resumed run cuts back to its checkpoint


def begin(folder: Path, config: Any) -> None:
    """Make a run directory, with its config and nothing else."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in (*FILES, "timings.jsonl"):
            (folder / name).write_bytes(b"")
        # Half a config would be read as another one: it is there whole or not at all.
        temporary = folder / ".config.yaml"
        temporary.write_text(render(config), encoding="utf-8")
        temporary.replace(folder / "config.yaml")
    except OSError as error:
        _remove(folder)
        raise FileError(f"cannot make the run directory {folder}: {error}; choose another --out") from error


def _remove(folder: Path) -> None:
    """What could not be begun leaves nothing behind."""
    with suppress(OSError):
        for name in (*FILES, "timings.jsonl", ".config.yaml"):
            (folder / name).unlink(missing_ok=True)
        folder.rmdir()


def render(config: Any) -> str:
    """A config as YAML, every line with what it means."""
    return "\n".join(_lines(config, "")) + "\n"


def _lines(config: Any, indent: str) -> Iterator[str]:
    from docstring_parser import parse  # comes with jsonargparse[signatures]

    meanings = {param.arg_name: param.description for param in parse(type(config).__doc__).params}
    for name in (part.name for part in fields(config)):
        value = getattr(config, name)
        yield f"{indent}# {meanings[name]}"
        if is_dataclass(value):
            yield f"{indent}{name}:"
            yield from _lines(value, indent + "  ")
        else:
            yield f"{indent}{name}: {json.dumps(value, ensure_ascii=False, default=str)}"


class Recorder:
    """The open files of a run directory, after `step` steps. A process that is not the first has none."""

    def __init__(
        self, folder: Path | None, lengths: dict[str, int] | None = None, tensorboard: bool = False, step: int = 0
    ) -> None:
        self.files: dict[str, IO[bytes]] = {}
        self.start, self.board = time.monotonic(), None
        if folder is None:
            return
        for name in (*FILES, "timings.jsonl"):
            self.files[name] = _open(folder / name, None if lengths is None else lengths.get(name))
        self.board = _board(folder, step) if tensorboard else None

    def metrics(self, step: int, **values: float) -> None:
        """A line of metrics; and of timings, which hold everything that no two runs share."""
        self._line("metrics.jsonl", {"step": step, **values})
        self._line("timings.jsonl", {"step": step, "seconds": round(time.monotonic() - self.start, 3)})
        if self.board is not None:
            for name, value in values.items():
                self.board.add_scalar(name, value, step)

    def sample(self, step: int, text: str) -> None:
        self._write("samples.txt", f"== step {step}\n{text}\n\n")

    def flush(self) -> dict[str, int]:
        """Bring everything to the disk; the lengths of the files."""
        try:
            for file in self.files.values():
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise _cannot_write(error) from error
        return {name: file.tell() for name, file in self.files.items() if name in FILES}

    def close(self) -> None:
        for file in self.files.values():
            with suppress(OSError):  # what a full disk did not take, `_write` has said
                file.close()
        if self.board is not None:
            self.board.close()

    def _line(self, name: str, values: dict[str, Any]) -> None:
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
        if length is not None:
            if file.tell() < length:
                raise FileError(f"{path} has lost something: it had {length} bytes when the checkpoint was written")
            file.truncate(length)
    except OSError as error:
        raise _cannot_write(error) from error
    return file


def _cannot_write(error: OSError) -> FileError:
    return FileError(f"cannot write metrics: {error}. Free some space; the last checkpoint is as it was.")


def summary_writer() -> Any:
    """TensorBoard's writer, or an error that says what to install."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise MissingExtraError("tensorboard", "tensorboard") from error
    return SummaryWriter


def _board(folder: Path, step: int) -> Any:
    # What an earlier process wrote of the steps to come is not shown.
    return summary_writer()(str(folder / "tensorboard"), purge_step=step + 1 if step else None)


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The metrics of a run, line by line."""
    try:
        return [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise FileError(f"{folder / 'metrics.jsonl'} cannot be read: {error}") from error


class Progress:
    """Loss, tokens per second, time left, on standard error: one line that changes on a terminal, else plain lines."""

    def __init__(self, steps: int, done: int, shown: bool, characters_per_token: float = 1.0) -> None:
        self.steps, self.first, self.shown = steps, done, shown
        self.bits = 1 / (math.log(2) * characters_per_token)  # per character, for a nat per token
        self.start = self.last = time.monotonic()
        self.tokens = 0

    def step(self, step: int, loss: float, tokens: int) -> None:
        self.tokens += tokens
        now = time.monotonic()
        if not self.shown or (now - self.last < progress.interval() and step < self.steps):
            return
        self.last = now
        seconds = max(1e-9, now - self.start)
        left = seconds / max(1, step - self.first) * (self.steps - step)
        numbers = f"loss {loss:.4f}  {loss * self.bits:.3f} bits/character  {self.tokens / seconds:,.0f} tokens/s"
        progress.show(f"step {step}/{self.steps}  {numbers}  {clock(left)} left")

    def say(self, text: str) -> None:
        """A line that stays."""
        if self.shown:
            print(f"\r\x1b[K{text}" if sys.stderr.isatty() else text, file=sys.stderr, flush=True)


def clock(seconds: float) -> str:
    """A duration to read.

    >>> clock(75)
    '1:15'
    """
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes}:{seconds:02d}"
