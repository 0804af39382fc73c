"""Everything at once, with faults: steps one by one, in bulk and on sockets, forks, clients that go away, and a
server that is killed with -9 and comes back on the same file.

`python tests/serve/test_everything_at_once.py 600` does it for so many seconds and prints what it saw. Counted are
answers of 5xx that were not to be expected (503 of a server that stops is), acknowledged writes that were lost, and
outputs that are not those of an offline run.
"""

import asyncio
import json
import random
import sys
import time
from collections import Counter

import httpx
import numpy as np
import pytest
import torch
from forked import CORE, Forked
from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

BROKEN = (httpx.HTTPError, OSError, WebSocketException, asyncio.TimeoutError)


class Load:
    """Clients of a server that may be gone at any time."""

    def __init__(self, path, seconds, every):
        self.path, self.every, self.end = path, every, time.monotonic() + seconds
        self.counts, self.server = Counter(), Forked(path)

    @property
    def on(self):
        return time.monotonic() < self.end

    def url(self, scheme="http"):
        return str(self.server.client.base_url).replace("http", scheme, 1)

    async def faults(self):
        """Kill the server now and then; another comes up on its file."""
        chance = random.Random(1)
        while self.on:
            await asyncio.sleep(chance.uniform(0.5, 1.5) * self.every)
            self.server.kill()
            self.server = Forked(self.path)
            self.counts["kills"] += 1

    async def ask(self, client, method, path, body, key=""):
        """An answer: sent again, with the same key, until there is one."""
        headers = {"idempotency-key": key} if key else {}
        while True:
            try:
                answer = await client.request(method, self.url() + path, json=body, headers=headers)
            except BROKEN:
                self.counts["sent again"] += 1
                await asyncio.sleep(0.02)
                continue
            self.counts[answer.status_code] += 1
            if answer.status_code not in (409, 429):
                if answer.status_code >= 500:
                    self.counts["unexpected 5xx"] += 1
                return answer
            await asyncio.sleep(0.02)

    async def one(self, number):
        """One session after the other, each checked from its first step to its last."""
        chance, made = random.Random(number), 0
        async with httpx.AsyncClient(timeout=5) as client:
            while self.on:
                made += 1
                key = f"{number}.{made}"
                answer = await self.ask(client, "POST", "/v1/sessions", {"model": "gru"}, key)
                await self.session(client, chance, answer.json()["id"], [], [], key)

    async def session(self, client, chance, id, x, y, key):
        version, way = 0, chance.choice([self.step, self.step, self.bulk, self.socket])
        for _ in range(chance.randint(3, 25)):
            value = float(np.float32(chance.uniform(-2, 2)))
            if chance.random() < 0.05:
                await self.leave(client, id, version)
            version += 1
            output = await way(client, id, version - 1, value, f"{key}.{version}")
            x.append(value)
            y.append(output)
            self.counts["steps"] += 1
        if chance.random() < 0.2:
            made = await self.ask(client, "POST", f"/v1/sessions/{id}/fork", {}, key)
            await self.session(client, chance, made.json()["id"], [*x], [*y], key + "f")
        found = await self.ask(client, "GET", f"/v1/sessions/{id}", None)
        self.counts["lost"] += found.json().get("version") != version
        self.check(x, y)
        if chance.random() < 0.5:
            await self.ask(client, "DELETE", f"/v1/sessions/{id}", None)

    async def step(self, client, id, version, value, key):
        body = {"version": version, "input": [value]}
        return self.output((await self.ask(client, "POST", f"/v1/sessions/{id}/step", body, key)).json())

    async def bulk(self, client, id, version, value, key):
        item = {"session": id, "version": version, "input": [value], "key": key}
        other = {"session": "sess_none", "version": 0, "input": [1.0]}
        answer = (await self.ask(client, "POST", "/v1/steps", {"items": [other, item]})).json()
        return self.output(answer["data"][1]["body"])

    async def socket(self, client, id, version, value, key):
        step = {"session": id, "version": version, "input": [value], "key": key}
        while True:
            try:
                async with connect(self.url("ws") + "/v1/stream", open_timeout=2) as ws:
                    await ws.recv()
                    await ws.send(json.dumps({"id": 1, "step": step}))
                    return self.output(json.loads(await asyncio.wait_for(ws.recv(), 5))["body"])
            except BROKEN:
                self.counts["sent again"] += 1
                await asyncio.sleep(0.02)

    async def leave(self, client, id, version):
        """A request with a version that is to come, from a client that does not wait for the answer."""
        try:
            body = {"version": version + 100, "input": [9.0]}
            await client.post(self.url() + f"/v1/sessions/{id}/step", json=body, timeout=0.002)
        except BROKEN:
            self.counts["went away"] += 1

    @staticmethod
    def output(answer):
        return answer["output"]

    def check(self, x, y):
        with torch.no_grad():
            wanted = CORE.scan(torch.tensor(x)[None, :, None])[0][0].numpy()
        self.counts["mixed up"] += not np.array_equal(np.array(y, np.float32), wanted)
        self.counts["sessions"] += 1

    async def run(self, clients):
        killer = asyncio.create_task(self.faults())
        await asyncio.gather(*(self.one(number) for number in range(clients)))
        killer.cancel()
        self.server.kill()
        return self.counts


@pytest.mark.slow
def test_nothing_is_lost_or_mixed_up_while_the_server_dies_and_comes_back(tmp_path):
    counts = asyncio.run(Load(tmp_path / "s.db", 3.0, 0.8).run(6))
    assert counts["kills"] >= 1 and counts["sessions"] >= 5, counts
    assert counts["unexpected 5xx"] == counts["lost"] == counts["mixed up"] == 0, counts


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(Load(f"{folder}/s.db", float(sys.argv[1]), 5.0).run(16))
    print({str(name): found[name] for name in sorted(found, key=str)})
    print(f"unexpected 5xx / lost / mixed up: {found['unexpected 5xx']} / {found['lost']} / {found['mixed up']}")
