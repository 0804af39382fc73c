"""What is measured, and what it must reach, one row a line. Must and aim are those of the goals; a row that they do not
name has those of the goals before (ONE, products, growth, memory, Mamba, layer norm, complex scans, GRU and tanh over
Torch) or none: streams of LSTMs, packed sequences."""

from dataclasses import dataclass, replace
from typing import Any

Case = dict[str, Any]  # what a worker is asked to prepare: family, mode, sizes


@dataclass(frozen=True)
class Row:
    name: str
    ours: Case
    peers: tuple[tuple[str, Case], ...]  # (library, case); of several, the fastest counts
    must: float | None  # None: for information
    aim: float | None
    upper: bool = False  # the ratio is ours over ours, and `must` an upper bound
    counted: bool = False  # megabytes, not seconds
    threads: int = 2


def shape(B: int, T: int, D: int, K: int) -> str:
    return f"{B},{T},{D},{K}"


def gated(cell: str, mode: str, B: int, T: int, D: int, K: int) -> Case:
    return {"family": "gated", "cell": cell, "mode": mode, "B": B, "T": T, "D": D, "K": K}


def _gated_row(
    cell: str, mode: str, sizes: tuple[int, int, int, int], peers: tuple[str, ...], must: float, aim: float
) -> Row:
    case = gated(cell, mode, *sizes)
    return Row(f"{mode} {cell} ({shape(*sizes)})", case, tuple((peer, case) for peer in peers), must, aim)


def _products() -> list[Row]:
    """F.linear is MKL, which is held to AVX2 on an AMD processor; oneDNN and JAX are not. oneDNN's weight is packed
    before it is timed; what ours packs, it packs inside."""
    rows = []
    for M, K, N in ((8192, 256, 768), (64, 512, 2048)):
        case = {"family": "product", "mode": "forward", "M": M, "K": K, "N": N}
        peers = (("torch", {**case, "how": "MKL"}), ("torch", {**case, "how": "oneDNN"}), ("jax", case))
        name = f"product ({M}x{K}) by ({K}x{N})"
        rows += [Row(name, case, peers, 0.85, 1.0), Row(f"{name}, torch", case, peers[:2], None, None)]
    return rows


SMALL, MIDDLE = ((16, 200, 128, 128), (32, 1024, 64, 64)), ((32, 256, 256, 256), (64, 128, 512, 512))
ONE = (1, 1000, 128, 128)
FORECAST = (64, 216, 40, 40)  # the LSTM of a forecaster: no whole number of vectors


EITHER = ("torch", "jax")


def _training() -> list[Row]:
    """JAX's scan is written for GRU and tanh; torch's LSTM is oneDNN's fused one."""
    rows = [_gated_row(c, "train", s, EITHER, 2, 3) for s in SMALL for c in ("tanh", "gru")]
    rows += [_gated_row(c, "train", ONE, EITHER, 1.5, 2) for c in ("tanh", "gru")]
    rows += [_gated_row("gru", "train", MIDDLE[0], EITHER, 1.8, 2.4)]
    rows += [_gated_row("gru", "train", MIDDLE[1], EITHER, 1.15, 1.5)]
    lstms = {
        SMALL[0]: (1.4, 1.8),
        SMALL[1]: (2.2, 2.8),
        FORECAST: (2.5, 4),
        ONE: (1.6, 2.2),
        MIDDLE[0]: (1.5, 1.7),
        MIDDLE[1]: (1.1, 1.25),
    }
    return rows + [_gated_row("lstm", "train", sizes, ("torch",), *bars) for sizes, bars in lstms.items()]


def _inference() -> list[Row]:
    goals = {
        ONE: {"gru": (1.3, 1.7), "lstm": (0.95, 1.2)},
        SMALL[0]: {"gru": (1.7, 2), "lstm": (1.05, 1.2)},
        SMALL[1]: {"gru": (1.9, 2.5), "lstm": (1.1, 1.3)},
        MIDDLE[0]: {"gru": (1.3, 1.5), "lstm": (1.05, 1.2)},
        MIDDLE[1]: {"gru": (1.2, 1.3), "lstm": (1.0, 1.1)},
    }
    rows = [_gated_row(c, "forward", s, ("onnxruntime",), *goals[s][c]) for s in goals for c in goals[s]]
    # Torch's layers too, which can be held to an instruction set.
    return rows + [replace(r, name=f"{r.name}, torch", peers=(("torch", r.ours),), must=None, aim=None) for r in rows]


def _ragged() -> list[Row]:
    """Against two padded layers with a gather, and, for information, against a packed sequence."""
    rows = []
    for T, must, aim in ((50, 2.5, 4), (400, 2.5, 4), (800, 2.5, 4)):
        case = {"family": "ragged", "mode": "train", "B": 32, "T": T, "D": 128, "K": 128}
        name = f"train ragged bidirectional lstm (32,{T},128,128)"
        rows.append(Row(name, case, (("torch", {**case, "how": "gather"}),), must, aim))
        rows.append(Row(f"{name}, packed", case, (("torch", {**case, "how": "packed"}),), None, None))
    return rows


REAL_PEERS = (
    ("torch", "loop"), ("torch", "doubling"), ("torch", "log-space"),
    ("jax", "scan"), ("jax", "scan of 4"), ("jax", "associative"),
)  # fmt: skip
COMPLEX_PEERS = tuple(peer for peer in REAL_PEERS if peer[1] != "log-space")


def _scan_rows(number: str, sizes: tuple[int, int, int], goals: tuple[tuple[float, float | None], ...]) -> list[Row]:
    rows = []
    B, T, C = sizes
    for i, mode in enumerate(("forward", "train")):
        case = {"family": "scan", "number": number, "mode": mode, "B": B, "T": T, "C": C}
        peers = tuple((lib, {**case, "how": how}) for lib, how in (REAL_PEERS if number == "real" else COMPLEX_PEERS))
        rows.append(Row(f"{mode} {number} scan ({B},{T},{C})", case, peers, *goals[i]))
    return rows


def _scans() -> list[Row]:
    """Of real scans the aim is the machine's bandwidth, which is no ratio."""
    rows = _scan_rows("real", (8, 1024, 256), ((6, None), (5, None)))
    rows += _scan_rows("real", (1, 16384, 256), ((2.5, None), (4, None)))
    rows += _scan_rows("real", (32, 512, 512), ((3, 5), (2.5, 4)))
    for sizes in ((8, 1024, 256), (1, 16384, 256)):
        rows += _scan_rows("complex", sizes, ((2.5, 5), (6, 9)))
    return rows


def _streams() -> list[Row]:
    goals = {64: (5, 8), 128: (3.5, 5), 256: (2, 3)}
    rows = []
    for cell in ("gru", "lstm"):
        for K, bars in goals.items():
            case = {"family": "stream", "cell": cell, "mode": "step", "B": 1, "T": 1, "D": K, "K": K}
            must, aim = bars if cell == "gru" else (None, None)
            rows.append(Row(f"stream step {cell} (1,1,{K},{K})", case, (("onnxruntime", case),), must, aim, threads=1))
    return rows


def _narrow() -> list[Row]:
    """Ours over ours: a step with narrow weights against one with weights of float32."""
    rows = []
    for threads in (1, 2):
        for weights, must in (("bfloat16", 1.6), ("int8", 2.2)):
            case = {"family": "narrow", "mode": "step", "cell": "gru", "B": 1, "T": 1, "K": 512, "layers": 2}
            name = f"stream step gru 2 x 512, weights in {weights} over float32{', 1 thread' * (threads == 1)}"
            rows.append(Row(name, {**case, "weights": weights}, (("elman", case),), must, None, threads=threads))
    return rows


def _growth() -> list[Row]:
    """Ours over ours: the "peer" is the long sequence, the time is per token."""
    rows = []
    for mode in ("forward", "train"):
        for cell in ("tanh", "gru", "lstm"):
            long, short = gated(cell, mode, 8, 16384, 128, 128), gated(cell, mode, 8, 256, 128, 128)
            name = f"growth {mode} {cell}: per token, T = 16384 over T = 256 (8,T,128,128)"
            rows.append(Row(name, short, (("elman", long),), 1.15, 1.05, upper=True))
    return rows


def _recompute() -> list[Row]:
    """Ours over ours: what Recompute saves in memory, and what it costs in time."""
    sizes = (8, 16384, 128, 128)
    plain, saved = gated("gru", "train", *sizes), gated("gru", "saved", *sizes)
    memory = Row(
        f"memory gru: saved for the backward pass beyond x and y, over Recompute's ({shape(*sizes)})",
        {**saved, "every": "auto"},
        (("elman", saved),),
        8,
        20,
        counted=True,
    )
    name = f"train gru: Recompute over the plain core ({shape(*sizes)})"
    return [memory, Row(name, plain, (("elman", {**plain, "every": "auto"}),), 1.5, 1.4, upper=True)]


def _mamba() -> list[Row]:
    time = {"family": "mamba", "mode": "train", "B": 8, "T": 1024, "D": 256}
    peak = {"family": "mamba", "mode": "peak", "B": 4, "T": 4096, "D": 256}
    name = "memory mamba: peak of a training step (4,4096,256)"
    return [
        Row("train mamba (8,1024,256)", time, (("mambapy", time),), 5, 15),
        Row(name, peak, (("mambapy", peak),), 4, 10, counted=True),
    ]


def _normed() -> list[Row]:
    """The layer-norm LSTM against a loop in Torch; and our plain LSTM's time over it."""
    sizes = SMALL[0]
    case = gated("lstm_norm", "train", *sizes)
    peers = tuple(("torch", {**case, "how": how}) for how in ("loop", "TorchScript"))
    loop = Row(f"train layer-norm lstm ({shape(*sizes)})", case, peers, 5, 7)
    plain = (("elman", gated("lstm", "train", *sizes)),)
    return [
        loop,
        Row(f"train layer-norm lstm: the plain lstm's time over its ({shape(*sizes)})", case, plain, 0.7, 0.85),
    ]


def matrix(rule: str, mode: str, B: int, T: int, H: int, K: int) -> Case:
    return {"family": "matrix", "rule": rule, "mode": mode, "B": B, "T": T, "H": H, "K": K}


def _matrix() -> list[Row]:
    """The operation alone, on what a layer has projected. ONNX Runtime's takes values that are multiplied by their step
    already, so there `prepared` are they and the queries for both. transformers' functions are given several sizes
    of a chunk, and their loops over steps, where they have them, are timed too."""
    goals = {"gated_delta": ((4, 8), (4, 8)), "kda": ((60, 130), (40, 80)), "ssd": ((3, 5), (3, 6))}
    rows = []
    for K in (128, 64):
        for rule, (forward, train) in goals.items():
            case = matrix(rule, "forward", 1, 1024, 16, K)
            name = f"{rule} (1,1024,16 heads of {K})"
            prepared = {**case, "prepared": True}
            rows.append(Row(f"forward {name}", prepared, (("onnxruntime", prepared),), 2, 3))
            rows.append(Row(f"forward {name}, transformers", case, _transformers(case), *forward))
            case = matrix(rule, "train", 1, 1024, 16, K)
            rows.append(Row(f"train {name}", case, _transformers(case), *train))
    peak = {**matrix("gated_delta", "peak", 4, 4096, 16, 64), "chunk": 64}
    name = "memory gated_delta: peak of a training step (4,4096,16 heads of 64)"
    return [*rows, Row(name, peak, (("transformers", peak),), 4, 8, counted=True)]


def _transformers(case: Case) -> tuple[tuple[str, Case], ...]:
    ssd = case["rule"] == "ssd"
    chunks = tuple({**case, "how": f"chunks of {size}", "chunk": size} for size in ((64, 256) if ssd else (64, 32, 16)))
    steps = ({**case, "how": "step by step"},) if case["mode"] == "forward" and not ssd else ()
    return tuple(("transformers", peer) for peer in (*chunks, *steps))


FAMILIES = {
    "products": _products(),
    "training": _training(),
    "inference": _inference(),
    "ragged": _ragged(),
    "scans": _scans(),
    "streams": _streams(),
    "narrow": _narrow(),
    "growth": _growth(),
    "recompute": _recompute(),
    "mamba": _mamba(),
    "matrix": _matrix(),
    "normed": _normed(),
}
