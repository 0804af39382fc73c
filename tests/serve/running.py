"""A server of this process, on a free port of the loopback: what the tests of the server share."""

import asyncio
import gc
import threading
import time
from contextlib import contextmanager
from unittest.mock import Mock

import httpx
import torch

import elman
from elman.data import VOCABULARIES
from elman.serve import server
from elman.serve.api.app import Service
from elman.serve.limits import Limits
from elman.serve.store.sessions import Sessions
from elman.serve.store.signing import Signer
from elman.serve.store.store import MemoryStore
from elman.tasks.serving_numbers import ServedNumbers
from elman.tasks.text.lm import LanguageModel, LMModelConfig, build
from elman.tasks.text.serving import ServedText


def language_model(seed=0, **config):
    torch.manual_seed(seed)
    settings = LMModelConfig(**{"size": 24, "layers": 2, **config})
    return LanguageModel(build(settings, 257), VOCABULARIES["byte"](), settings)


def core(seed=0, size=16):
    torch.manual_seed(seed)
    return elman.stack("gru", 1, size, layers=2)


def served_models():
    return {"book": ServedText(language_model()), "gru": ServedNumbers.of_core(core())}


MODELS = served_models()


def service(models=None, store=None, limits=None, **options):
    store = MemoryStore() if store is None else store
    sessions = Sessions(store, models or served_models(), limits or Limits())
    options.setdefault("durability", "process" if store.durable else "none")
    return Service(sessions, Signer.of_store(store), **options)


# With all tests loaded, to tidy the memory of this process takes longer than most tests.
server.gc = Mock(gc)


class Quick(server.Server):
    """That looks a hundred times a second whether it is to stop, not ten times."""

    async def main_loop(self):
        while not self.should_exit:
            await asyncio.sleep(0.01)


class Running:
    """A server that runs, and a client of it."""

    def __init__(self, service):
        self.service = service
        self.server = Quick(service, "127.0.0.1", 0)
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.thread.start()
        deadline = time.monotonic() + 20
        while not self.server.started:
            assert time.monotonic() < deadline and self.thread.is_alive(), "the server did not start"
            time.sleep(0.005)
        self.port = self.server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.client = httpx.Client(base_url=self.url, timeout=20)

    def post(self, path, json=None, **more):
        return self.client.post(path, json={} if json is None else json, **more)

    def session(self, model="gru", **options):
        answer = self.post("/v1/sessions", {"model": model, **options})
        assert answer.status_code == 201, answer.text
        return answer.json()["id"]

    def step(self, id, inputs, version="any", **more):
        return self.post(f"/v1/sessions/{id}/step", {"version": version, "inputs": inputs}, **more)

    def stop(self):
        self.client.close()
        self.server.handle_exit(15, None)
        self.thread.join(20)
        assert not self.thread.is_alive()


@contextmanager
def running(*args, **options):
    found = Running(service(*args, **options))
    try:
        yield found
    finally:
        found.stop()


def error(answer):
    """The error object of an answer."""
    return answer.json()["error"]


LM = language_model()


def went_on(prompt, more, then, **first):
    """What follows `more` behind a text that was written; random bytes are no text, so the state is carried."""
    begun = LM.start(prompt, **first)
    list(begun)
    return LM.generate(more, state=begun.state, seed=then, max_new_tokens=first["max_new_tokens"])
