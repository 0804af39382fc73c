"""Many sessions at once, with cancels, disconnects, forks, rollbacks and deletions: all outputs are those offline.

What goes wrong in servers that keep states in slots goes wrong here, if anywhere; test_bugs_of_others.py has their bugs
one by one. `python tests/serve/test_cross_talk.py 10000` does it at full size; a second number says with which session
to begin.
"""

import asyncio
import random
import sys
import time

import httpx
import numpy as np
import pytest
import torch
from running import core, language_model, running

from elman.tasks.serving_numbers import ServedNumbers
from elman.tasks.text.serving import ServedText

CORE, LM = core(size=8), language_model(size=12, layers=1)


async def numbers(client, chance, counts):
    """One session: its outputs, and the inputs that led to them, on both sides of a fork and behind a rollback."""
    body = {"model": "gru", "checkpoints": {"every": 3, "keep": 8}, "log_inputs": True}
    id = (await client.post("/v1/sessions", json=body)).json()["id"]
    x, y, version, others = [], [], 0, []
    for _ in range(chance.randint(2, 6)):
        inputs = [[chance.uniform(-2, 2)] for _ in range(chance.choice([1, 1, 1, 2, 70]))]
        answer = await client.post(f"/v1/sessions/{id}/step", json={"version": version, "inputs": inputs})
        assert answer.status_code == 200, answer.text
        x, y, version = x + inputs, y + answer.json()["outputs"], version + 1
        what = chance.random()
        if what < 0.15:
            other = (await client.post(f"/v1/sessions/{id}/fork", json={})).json()["id"]
            last = await client.post(f"/v1/sessions/{other}/step", json={"version": 0, "inputs": [[1.5]]})
            others.append(([*x, [1.5]], [*y, *last.json()["outputs"]]))
        elif what < 0.3:
            position = chance.randint(max(0, len(x) - 3), len(x))
            answer = await client.post(f"/v1/sessions/{id}/rollback", json={"version": version, "position": position})
            if answer.status_code == 200:
                x, y, version = x[:position], y[:position], version + 1
        elif what < 0.4:
            await abandoned(client, id, version, counts)
    if chance.random() < 0.5:
        assert (await client.delete(f"/v1/sessions/{id}")).status_code == 200
    for inputs, outputs in [(x, y), *others]:
        if not inputs:  # rolled back to the start
            continue
        with torch.no_grad():
            wanted = CORE.scan(torch.tensor(inputs, dtype=torch.float32)[None])[0][0].numpy()
        assert np.array_equal(np.array(outputs, np.float32).reshape(wanted.shape), wanted)
        counts["outputs"] += len(inputs)


async def abandoned(client, id, version, counts):
    """A request whose version is wrong, and whose client does not wait."""
    try:
        await client.post(f"/v1/sessions/{id}/step", json={"version": version + 5, "inputs": [[9.0]]}, timeout=0.001)
    except httpx.TimeoutException:
        counts["abandoned"] += 1


async def text(client, chance, counts):
    seed, prompt = chance.randrange(2**40), "Once upon a time"[: chance.randint(0, 16)]
    id = (await client.post("/v1/sessions", json={"model": "book", "seed": seed})).json()["id"]
    body = {"version": 0, "prompt": prompt, "max_new_tokens": 3000, "stream": True}
    if chance.random() < 0.4:  # goes away in the middle
        async with client.stream("POST", f"/v1/sessions/{id}/generate", json=body) as answer:
            async for _ in answer.aiter_lines():
                break
        counts["gone"] += 1
    body = {"version": 0, "prompt": prompt, "max_new_tokens": 12}
    for _ in range(200):
        answer = await client.post(f"/v1/sessions/{id}/generate", json=body)
        if answer.status_code != 409:
            break
        await asyncio.sleep(0.02)
    assert answer.status_code == 200, answer.text
    assert answer.json()["text"] == LM.generate(prompt, seed=seed, max_new_tokens=12)
    counts["outputs"] += 12


async def crowd(url, sessions, clients=24, first=0):
    counts = {"outputs": 0, "abandoned": 0, "gone": 0}
    numbers_left = iter(range(first, first + sessions))
    limits = httpx.Limits(max_connections=clients + 8)
    async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as client:

        async def work():
            for number in numbers_left:
                chance = random.Random(number)
                await (text if chance.random() < 0.3 else numbers)(client, chance, counts)

        await asyncio.gather(*(work() for _ in range(clients)))
    return counts


@pytest.mark.slow
@pytest.mark.parametrize(("long", "sessions"), [(0.005, 60), (-1.0, 40)])
def test_nothing_is_mixed_up(monkeypatch, long, sessions):
    """With models that compute on the event loop, and in the engine's thread."""
    monkeypatch.setattr("elman.serve.engine.driver.LONG", long)
    with running({"gru": ServedNumbers.of_core(CORE), "book": ServedText(LM)}) as server:
        counts = asyncio.run(crowd(server.url, sessions))
        assert counts["outputs"] > 1000 and counts["gone"] > 0
        assert server.service.engine.waiting == 0 and not server.service.engine.queues


if __name__ == "__main__":
    with running({"gru": ServedNumbers.of_core(CORE), "book": ServedText(LM)}) as server:
        began = time.monotonic()
        found = asyncio.run(crowd(server.url, int(sys.argv[1]), first=int((sys.argv[2:] or ["0"])[0])))
        print(found, f"{time.monotonic() - began:.0f} s, all equal to offline runs")
