"""What the server says of itself: its models, its health, its numbers, its interface, its page."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from elman.errors import ElmanError
from elman.progress import say
from elman.serve.api import bodies
from elman.serve.api import openapi as document
from elman.serve.api.context import RequestContext
from elman.serve.engine import jobs
from elman.serve.errors import HttpError, busy
from elman.serve.json import to_json

PAGE = Path(__file__).parent / "page"
FILES = {
    "/": ("page.html", b"text/html; charset=utf-8"),
    "/page.js": ("page.js", b"text/javascript; charset=utf-8"),
    "/page.css": ("page.css", b"text/css; charset=utf-8"),
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'"
)
LOG = "the server's log says why"
PROBED = 1.0  # seconds for which what a probe found counts
STARTED = int(time.time())


async def models(x: RequestContext) -> None:
    names = [*x.service.models, *(name for name in x.service.predictors if name not in x.service.models)]
    await x.send(200, to_json({"object": "list", "data": [_model(x, name) for name in names]}))


async def model(x: RequestContext) -> None:
    if x.path_param("id") not in x.service.predictors:
        x.service.model(x.path_param("id"))
    await x.send(200, to_json(_model(x, x.path_param("id"))))


def _model(x: RequestContext, name: str) -> dict[str, object]:
    served = x.service.models.get(name)
    about = {
        "id": name, "object": "model", "created": STARTED, "owned_by": "elman",
        "predicts": name in x.service.predictors, "sessions": served is not None,
    }  # fmt: skip
    if served is None:
        return about
    return {**about, "fingerprint": served.fingerprint, "state_bytes": served.row_bytes, **served.about}


async def predict(x: RequestContext) -> None:
    """What `elman predict` answers, of data that are sent instead of files."""
    body, sent = await x.parse(bodies.PredictBody)
    predictor = x.service.predictors.get(body.model)
    if predictor is None:
        x.service.model(body.model)
        raise HttpError(400, f"the model {body.model!r} does not support `elman predict`", param="model")

    def work() -> bytes:
        lines = predictor(sent)
        return to_json({"object": "prediction", "model": body.model, "lines": lines})

    try:
        answer = await x.service.workers.run(x.tenant, work, x.gone)
    except ElmanError as error:
        raise HttpError(400, str(error), param="data") from error
    await x.send(200, answer)


async def health(x: RequestContext) -> None:
    """Whether the process lives, and its engine."""
    if x.service.engine.failed:
        raise HttpError(503, f"the engine cannot continue; {LOG}")
    await x.send(200, b'{"status":"ok"}')


class Readiness:
    """A step through engine and store, at most once a second, whoever asks. Why it failed is for the log: it may name
    files, and whoever asks need not have a key."""

    def __init__(self) -> None:
        self.at, self.lock, self.said = 0.0, asyncio.Lock(), ""

    async def __call__(self, x: RequestContext) -> None:
        async with self.lock:
            if time.monotonic() - self.at < PROBED:
                return
            try:
                await asyncio.wait_for(x.run(jobs.HealthProbe), 5)
            except (HttpError, TimeoutError) as error:
                why = str(error) or "it took longer than 5 s"
                if why != self.said:
                    say(f"elman serve: warning: a step through engine and store failed: {why}")
                self.said = why
                raise HttpError(503, f"a step through engine and store failed; {LOG}") from error
            self.at, self.said = time.monotonic(), ""


async def ready(x: RequestContext) -> None:
    """Whether it can serve: not while it drains, and not if a step or a commit fails."""
    if x.service.stopping or x.service.engine.draining:
        raise busy("the server is about to stop", 1_000, 503)
    await x.service.readiness(x)
    await x.send(200, b'{"status":"ready"}')


async def metrics(x: RequestContext) -> None:
    await x.send(200, x.service.metrics.text(), kind=b"text/plain; version=0.0.4; charset=utf-8")


async def openapi(x: RequestContext) -> None:
    await x.send(200, to_json(document.openapi(x.service.routes, x.service.keys is not None)))


async def page(x: RequestContext) -> None:
    name, kind = FILES[x.scope["path"]]
    headers = {"content-security-policy": POLICY, "x-content-type-options": "nosniff", "referrer-policy": "no-referrer"}
    await x.send(200, (PAGE / name).read_bytes(), headers, kind)
