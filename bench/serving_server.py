"""One of the servers that `bench.serving` compares: `python -m bench.serving_server KIND [STORE]`. Prints its port.

All of them serve the same GRU 2 x 128 with an input of one number, on one thread, by uvicorn with httptools and uvloop.
The peers are FastAPI as one writes it for speed: bodies are parsed by msgspec, answers written by orjson, which spells
float32 with the digits that ours has, and not by FastAPI's own encoder; states stand in one array, a session is a row
of it. They check no versions, count no limits and store nothing.
`shared` has two tenants, `light` and `heavy`.
"""

import hashlib
import sys
import tempfile
from itertools import count
from typing import Any

import numpy as np
import torch
import uvicorn

SIZE, LAYERS = 128, 2
MOST = 100_000  # sessions that a peer has room for
ServedNumbers = list[list[float]]


def network() -> torch.nn.GRU:
    torch.manual_seed(0)
    return torch.nn.GRU(1, SIZE, LAYERS, batch_first=True).eval()


def elman(path: str, tenants: tuple[str, ...] = ()) -> uvicorn.Server:
    import elman as library
    from elman.serve.api.app import Service
    from elman.serve.limits import Limits
    from elman.serve.net.keys import Keys
    from elman.serve.server import Server
    from elman.serve.store.sessions import Sessions
    from elman.serve.store.signing import Signer
    from elman.serve.store.sqlite import SqliteStore
    from elman.serve.store.store import MemoryStore
    from elman.tasks.serving_numbers import ServedNumbers

    store = SqliteStore(path) if path else MemoryStore()
    models = {"gru": ServedNumbers.of_core(library.from_torch(network()))}
    sessions = Sessions(store, models, Limits())
    keys = None
    if tenants:  # the key of each is its name
        with tempfile.NamedTemporaryFile("w") as file:
            file.writelines(f"{name} {hashlib.sha256(name.encode()).hexdigest()}\n" for name in tenants)
            file.flush()
            keys = Keys(file.name)
    service = Service(sessions, Signer.of_store(store), keys=keys, durability="process" if path else "none")
    return Server(service, "127.0.0.1", 0)


class TorchModel:
    """States (sessions, layers, size) as rows of one tensor: those of a request are selected at once."""

    def __init__(self) -> None:
        self.gru = network()
        self.states = torch.zeros(MOST, LAYERS, SIZE)

    @torch.inference_mode()
    def step(self, x: ServedNumbers, rows: list[int]) -> np.ndarray:
        at = torch.tensor(rows)
        y, h = self.gru(torch.tensor(x)[:, None], self.states[at].transpose(0, 1).contiguous())
        self.states[at] = h.transpose(0, 1)
        return y[:, 0].numpy()


class OnnxModel:
    """Two GRU nodes; gates are z, r, h there and r, z, n in PyTorch. Of one step a node's output is its state."""

    def __init__(self) -> None:
        import onnx
        import onnxruntime as ort
        from onnx import TensorProto, helper, numpy_helper

        from bench.with_onnxruntime import binding

        self.binding = binding
        gru, nodes, weights = network(), [], {}
        for layer in range(LAYERS):
            part = {name: getattr(gru, f"{name}_l{layer}").detach().numpy() for name in ("weight_ih", "weight_hh")}
            bias = [getattr(gru, f"bias_{name}_l{layer}").detach().numpy() for name in ("ih", "hh")]
            weights[f"W{layer}"], weights[f"R{layer}"] = map(_reordered, part.values())
            weights[f"B{layer}"] = np.concatenate([_reordered(b) for b in bias], 1)
            given = ["x" if layer == 0 else f"n{layer - 1}", f"W{layer}", f"R{layer}", f"B{layer}", "", f"h{layer}"]
            nodes.append(helper.make_node("GRU", given, ["", f"n{layer}"], hidden_size=SIZE, linear_before_reset=1))
        floats = lambda name, *shape: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)  # noqa: E731
        inputs = [floats("x", 1, None, 1), *(floats(f"h{i}", 1, None, SIZE) for i in range(LAYERS))]
        outputs = [floats(f"n{i}", 1, None, SIZE) for i in range(LAYERS)]
        kept = [numpy_helper.from_array(np.ascontiguousarray(v), name) for name, v in weights.items()]
        model = helper.make_model(
            helper.make_graph(nodes, "gru", inputs, outputs, kept), opset_imports=[helper.make_opsetid("", 17)]
        )
        model.ir_version = 9
        onnx.checker.check_model(model)
        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self.states = [np.zeros((MOST, SIZE), np.float32) for _ in range(LAYERS)]
        self.session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        self.bound: dict[int, tuple[Any, dict[str, np.ndarray]]] = {}

    def _bound(self, n: int) -> tuple[Any, dict[str, np.ndarray]]:
        """The arrays of a request of n rows, bound to the session once."""
        if n not in self.bound:
            widths = {"x": 1, **{f"{kind}{i}": SIZE for kind in "hn" for i in range(LAYERS)}}
            arrays = {name: np.empty((1, n, width), np.float32) for name, width in widths.items()}
            given = {name: array for name, array in arrays.items() if name[0] in "xh"}
            self.bound[n] = (
                self.binding(self.session, given, {k: v for k, v in arrays.items() if k not in given}),
                arrays,
            )
        return self.bound[n]

    def step(self, x: ServedNumbers, rows: list[int]) -> np.ndarray:
        bound, arrays = self._bound(len(rows))
        arrays["x"][0] = x
        for i, states in enumerate(self.states):
            np.take(states, rows, 0, out=arrays[f"h{i}"][0])
        self.session.run_with_iobinding(bound)
        for i, states in enumerate(self.states):
            states[rows] = arrays[f"n{i}"][0]
        return arrays[f"n{LAYERS - 1}"][0]


def _reordered(w: np.ndarray) -> np.ndarray:
    r, z, n = np.split(w, 3)
    return np.concatenate([z, r, n])[None]


def fastapi(model: TorchModel | OnnxModel) -> uvicorn.Server:
    import msgspec
    import orjson
    from fastapi import FastAPI, Request, Response

    class Step(msgspec.Struct):
        input: list[float]

    class Item(msgspec.Struct):
        session: str
        input: list[float]

    class Items(msgspec.Struct):
        items: list[Item]

    app, ids = FastAPI(), count()
    one, many = msgspec.json.Decoder(Step), msgspec.json.Decoder(Items)

    def answer(body: dict[str, Any]) -> Response:
        return Response(orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY), media_type="application/json")

    @app.post("/v1/sessions")
    async def create() -> Response:
        return answer({"id": str(next(ids))})

    @app.post("/v1/sessions/{id}/step")
    async def step(id: int, request: Request) -> Response:
        body = one.decode(await request.body())
        return answer({"output": model.step([body.input], [id])[0]})

    @app.post("/v1/steps")
    async def steps(request: Request) -> Response:
        items = many.decode(await request.body()).items
        y = model.step([item.input for item in items], [int(item.session) for item in items])
        return answer({"data": [{"output": row} for row in y]})

    return uvicorn.Server(
        uvicorn.Config(app, port=0, http="httptools", loop="uvloop", log_level="warning", access_log=False)
    )


def main() -> None:
    torch.set_num_threads(1)
    kind, path = sys.argv[1], (sys.argv[2:] or [""])[0]
    if kind in ("elman", "shared"):
        server = elman(path, ("light", "heavy") if kind == "shared" else ())
    else:
        server = fastapi({"torch": TorchModel, "onnx": OnnxModel}[kind]())
    startup = server.startup

    async def started(sockets: Any = None) -> None:
        await startup(sockets)
        print(server.servers[0].sockets[0].getsockname()[1], flush=True)

    server.startup = started  # type: ignore[method-assign]
    server.config.load()
    server.run()


if __name__ == "__main__":
    main()
