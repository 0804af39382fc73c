"""What a request asks of the engine, and what it is told where that cannot be done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from elman.errors import ElmanError
from elman.progress import say
from elman.serve.errors import HttpError, busy
from elman.tasks.serving import Work

if TYPE_CHECKING:
    from elman.serve.engine.engine import Engine

Result = Any  # of a job, or a `HttpError`: each kind of job has its own
Listener = Callable[[Result], None]


class Job:
    """What a request asks of the engine. `reply` is called once, with a result or a `HttpError`, on the event loop."""

    tenant: str = ""
    size = 1  # steps that it takes at once
    queue: str = ""  # the session that it is to write
    locked: Sequence[str] = ()  # the sessions that it writes now, and nobody else
    probe = False  # of nobody's, and taken however many wait
    cancelled = False  # the client has disconnected
    finished = False

    def __init__(self, reply: Listener) -> None:
        self.reply = reply

    def start(self, engine: Engine) -> None:
        """Do it, or pass works to `engine.run`; at the end call `engine.finish(self, result)`."""
        raise NotImplementedError


class Listening(Job):
    """A job that emits events while it runs."""

    def emit_events(self, engine: Engine, work: Work) -> None:
        """Called after each tick in which a work of the job has advanced."""


def drain_error() -> HttpError:
    """The server drains."""
    return busy("the server is about to stop; send the request to another server, or later", 1_000, 503)


def failure_error(why: str) -> HttpError:
    """The engine has come to its end."""
    return busy(f"the server stops, since it cannot continue: {why}", 1_000, 503, code="server_failed")


def refusal(error: Exception) -> HttpError:
    """The answer to a job that raised: a bug goes to the log."""
    if isinstance(error, HttpError):
        return error
    if isinstance(error, ElmanError):
        return HttpError(422, str(error))
    say(f"elman serve: {type(error).__name__}: {error}")
    return HttpError(500, "this is a bug of the server; nothing was changed")
