"""A second builder, which computes with Torch at once: what modules describe is all that a step of them takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from elman import kernels
from elman import state as states
from elman.cells import CELLS, cell
from elman.compose import Dense, Lags, Norm, Parallel, Pool, Reverse, Scale, Stack, stack
from elman.compose.attention import Additive, Decoder, Fixed, Layers, Luong
from elman.compose.attention.local import LocalAttention
from elman.core import Core
from elman.kernels import reference
from elman.kernels.builder import Builder, Slot, Unstreamable
from elman.nn.embed import Embed, Embedding
from elman.nn.readout import AdaptiveSoftmax, GaussianReadout, Pooled, Readout, Softmax

pytest.importorskip("elman.kernels.native")


class Eager(Builder):
    """Every slot is a tensor (B, width) that is there already; no weight is packed, and nothing is native but gates."""

    def __init__(self, given: Tensor, leaves: Sequence[Tensor]) -> None:
        self.dtype = torch.float32
        self.given, self.leaves, self.values = given, iter(leaves), []  # type: ignore[var-annotated]

    def new(self, value: Tensor) -> Slot:
        self.values.append(value.expand(len(self.given), -1))
        return Slot(len(self.values) - 1, value.shape[-1])

    def __getitem__(self, slot: Slot) -> Tensor:
        value: Tensor = self.values[slot.number]
        assert value.shape == (len(self.given), slot.width)
        return value

    def input(self, width: int) -> Slot:
        return self.new(self.given)

    def lookup(self, table: Tensor) -> Slot:
        return self.new(table[self.given])

    def state(self, width: int) -> Slot:
        leaf = next(self.leaves)
        return self.new((torch.view_as_real(leaf) if leaf.is_complex() else leaf).flatten(1))

    def constant(self, values: Tensor) -> Slot:
        return self.new(values.flatten())

    def linear(self, x: Slot, weight: Tensor, bias: Tensor | None = None) -> Slot:
        return self.new(F.linear(self[x], weight, bias))

    def gated(
        self, kind: str, x: Slot, U: Any, b: Any, weights: Any, state: Any, options: Any = None, fed: Slot | None = None
    ) -> Slot:
        x = x if fed is None else self.concat([x, fed])
        before, one = tuple(self[leaf] for leaf in state), torch.ones(len(self.given), dtype=torch.int64)
        reset = torch.zeros(len(self.given), 1, dtype=torch.bool)
        _, after = kernels.gated(kind, self[x][:, None], weights, before, one, reset, None, U, b, options)  # type: ignore[arg-type]
        for leaf, value in zip(state, after, strict=True):
            self.values[leaf.number] = value
        return state[0]  # type: ignore[no-any-return]

    def attend(
        self, query: Slot, keys: Tensor, values: Tensor, lengths: Tensor, v: Tensor | None, each: int
    ) -> tuple[Slot, Slot]:
        memory = (part.repeat_interleave(each, 0) for part in (keys, values, lengths))
        context, weights = reference.attend(self[query][:, None], *memory, v)
        return self.new(context[:, 0]), self.new(weights[:, 0])

    def scan(self, a: Slot, b: Slot, h: Slot, *, is_complex: bool = False) -> Slot:
        if is_complex:
            parts = (torch.view_as_complex(self[slot].unflatten(-1, (-1, 2)).contiguous()) for slot in (a, b, h))
            A, B, H = parts
            self.values[h.number] = torch.view_as_real(A * H + B).flatten(1)
        else:
            self.values[h.number] = self[a] * self[h] + self[b]
        return h

    def selective(self, x: Slot, delta: Slot, A: Tensor, B: Slot, C: Slot, h: Slot) -> Slot:
        dt, driven = self[delta][..., None], (self[delta] * self[x])[..., None]
        after = torch.exp(dt * A) * self[h].unflatten(1, A.shape) + driven * self[B][:, None]
        self.values[h.number] = after.flatten(1)
        return self.new((after * self[C][:, None]).sum(-1))

    def bank(self, x: Slot, a: Tensor, b: Tensor, c: Tensor, h: Slot) -> Slot:
        A, B, C, H = map(torch.view_as_complex, (a, b, c, self[h].unflatten(1, a.shape).contiguous()))
        after = A * H + B * self[x][..., None]
        self.values[h.number] = torch.view_as_real(after).flatten(1)
        return self.new((C * after).real.sum(-1))

    def matrix(
        self, shape: tuple[int, int, int], q: Slot, k: Slot, v: Slot, a: Slot | None, S: Slot,
        b: Slot | None = None, alpha: Slot | None = None, beta: Slot | None = None,
    ) -> Slot:  # fmt: skip
        H, K, V = shape
        one, reset = torch.ones(len(self.given), dtype=torch.int64), torch.zeros(len(self.given), 1, dtype=torch.bool)

        def heads(slot: Slot | None, width: int) -> Tensor | None:
            return None if slot is None else self[slot].reshape(len(self.given), 1, -1, width)

        decay = heads(a, K if a is not None and a.width > H else 1)
        strength = None if b is None else self[b][:, None]
        y, after = reference.matrix_scan(
            heads(q, K), heads(k, K), heads(v, V), decay, self[S].unflatten(1, shape), one, reset,  # type: ignore[arg-type]
            strength, heads(alpha, K), heads(beta, K),
        )  # fmt: skip
        self.values[S.number] = after.flatten(1)
        return self.new(y.flatten(1))

    def filter(self, x: Slot, transition: Tensor, p: Slot) -> Slot:
        weighed = self[p] * torch.exp(self[x])
        self.values[p.number] = weighed @ transition / weighed.sum(-1, keepdim=True)
        return p

    def convolution(self, x: Slot, weight: Tensor, bias: Tensor, window: Slot) -> Slot:
        seen = torch.cat([self[window], self[x]], 1)
        self.values[window.number] = seen[:, x.width :]
        return self.new(bias + (weight * seen.unflatten(1, weight.shape)).sum(1))

    def mean(self, decay: float, x: Slot, weight: Slot, sum: Slot, total: Slot) -> Slot:
        self.values[sum.number] = decay * self[sum] + self[x]
        self.values[total.number] = decay * self[total] + self[weight]
        return self.new(torch.where(self[total] > 0, self[sum] / self[total], 0.0).to(self.dtype))

    def map(self, function: str, x: Slot) -> Slot:
        return self.new({**vars(torch), "softplus": F.softplus, "silu": F.silu}[function](self[x]))

    def add(self, x: Slot, y: Slot) -> Slot:
        return self.new(self[x] + self[y])

    def mul(self, x: Slot, y: Slot) -> Slot:
        return self.new(self[x] * self[y])

    def div(self, x: Slot, y: Slot) -> Slot:
        return self.new(self[x] / self[y])

    def maximum(self, x: Slot, y: Slot) -> Slot:
        return self.new(torch.maximum(self[x], self[y]))

    def minimum(self, x: Slot, y: Slot) -> Slot:
        return self.new(torch.minimum(self[x], self[y]))

    def choose(self, condition: Slot, x: Slot, y: Slot) -> Slot:
        return self.new(torch.where(self[condition] > 0, self[x], self[y]))

    def gather(self, x: Slot, columns: Sequence[int]) -> Slot:
        return self.new(self[x][:, list(columns)])

    def lags(self, x: Slot, delays: Sequence[int], past: Slot) -> Slot:
        window = torch.cat([self[past], self[x]], 1)
        self.values[past.number] = window[:, x.width :]
        return self.new(torch.cat([window[:, past.width - d * x.width :][:, : x.width] for d in delays], 1))

    def layer_norm(self, x: Slot, gain: Tensor, bias: Tensor | None, eps: float, heads: int = 1) -> Slot:
        return self.new(reference.layer_norm(self[x], gain, bias, eps, heads))

    def rms_norm(self, x: Slot, gain: Tensor, eps: float, heads: int = 1) -> Slot:
        return self.new(reference.rms_norm(self[x], gain, eps, heads))

    def concat(self, parts: Sequence[Slot]) -> Slot:
        return self.new(torch.cat([self[part] for part in parts], 1))

    def cut(self, x: Slot, first: int, width: int) -> Slot:
        return self.new(self[x][:, first : first + width])

    def student_t(self, df: Slot, mean: Slot, scale: Slot) -> Slot:
        raise NotImplementedError("this builder has no draws: test_forecast_network.py holds paths against steps")

    def assign(self, state: Slot, x: Slot) -> Slot:
        self.values[state.number] = self[x]
        return state


def bound(decoder: Decoder) -> Core:
    return decoder.given(torch.randn(3, 7, 4), torch.tensor([7, 0, 2]))


CORES: dict[str, Any] = {
    "stack": lambda: stack("gru", 5, 9, layers=2, residual=True, norm="layer"),
    "inputs": lambda: Stack(cell("elman", 5, 3), cell("lru", 8, 4), inputs="all"),
    "parallel": lambda: Parallel(cell("lstm", 5, 3), Stack(Norm(5, kind="rms"), Dense(5, 5, activation="silu"))),
    "last": lambda: Pool("last", 5),
    "additive": lambda: bound(Additive(cell("lstm", 5 + 4, 5), 4)),
    "general": lambda: bound(Luong(cell("lru", 5, 3), 4)),
    "fed": lambda: bound(Luong(cell("gru", 5 + 6, 3), 4, feeding=True, size=6)),
    "fixed": lambda: bound(Fixed(cell("gru", 5 + 4, 3), 4)),
    "layers": lambda: bound(Layers(Additive(cell("gru", 5 + 4, 5), 4), cell("lru", 5, 3))),
    "lags": lambda: Lags(5, [3, 0, 1]),
    "no past": lambda: Lags(5, [0]),
    "scale": lambda: Stack(Dense(5, 6), Scale(3, decay=0.9)),
}
CELL_CORES = {
    f"{name} {options}": (lambda name=name, options=options: cell(name, 5, 5, **options))
    for name, kind in CELLS.items()
    for options in kind.variants
}


@pytest.mark.parametrize("name", [*CORES, *CELL_CORES])
@torch.no_grad()
def test_a_described_step_is_the_step(name: str) -> None:
    torch.manual_seed(0)
    core: Core = {**CORES, **CELL_CORES}[name]().eval()
    x, like = torch.randn(3, 5), core.init_state(3)
    before = states.map(torch.rand_like, like)  # probabilities among them
    wanted, after = core.step(x, before)
    builder = Eager(x, states.leaves(before))
    slots: list[Slot] = []

    def slot_for(leaf: Tensor) -> Any:
        slots.append(builder.state(leaf[0].numel()))
        return slots[-1]

    state = states.map(slot_for, before)
    y = core.describe_step(builder, builder.input(5), state)
    torch.testing.assert_close(builder[y], wanted, atol=1e-5, rtol=1e-5)
    for slot, leaf in zip(slots, states.leaves(after), strict=True):
        flat = (torch.view_as_real(leaf) if leaf.is_complex() else leaf).flatten(1)
        torch.testing.assert_close(builder[slot], flat, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_embeddings_and_read_outs_describe_themselves() -> None:
    torch.manual_seed(0)
    symbols, h = torch.tensor([3, 1]), torch.randn(2, 4)
    embed = Embedding(5, 3)
    builder = Eager(symbols, [])
    torch.testing.assert_close(builder[embed.describe_step(builder)], embed(symbols))
    for readout in (Softmax(4, 6), GaussianReadout(4, 3), Pooled(Softmax(4, 6))):
        builder = Eager(h, [])
        given = readout.distribution(builder[readout.describe_step(builder, builder.input(4))])
        torch.testing.assert_close(given.mode, readout(h).mode)


@pytest.mark.parametrize(
    "describe",
    [
        lambda builder, x: Core(4, 4).describe_step(builder, x, ()),
        lambda builder, x: bound(Additive(cell("lru", 4 + 4, 4), 4)).describe_step(builder, x, (x, x)),
        lambda builder, x: Decoder(4, 4, 4).describe_step(builder, x, x, None, 1),
        lambda builder, x: Reverse(cell("gru", 4, 4)).describe_step(builder, x, ()),
        lambda builder, x: LocalAttention(4, 4, heads=1, window=3).describe_step(builder, x, ()),
        lambda builder, x: Embed().describe_step(builder),
        lambda builder, x: Embedding(5, 3, dtype=torch.bfloat16).describe_step(builder),
        lambda builder, x: Readout().describe_step(builder, x),
        lambda builder, x: AdaptiveSoftmax(4, 6, [2]).describe_step(builder, x),
        lambda builder, x: Pooled(AdaptiveSoftmax(4, 6, [2])).describe_step(builder, x),
    ],
)
def test_what_cannot_be_described_says_so(describe: Any) -> None:
    builder = Eager(torch.zeros(3, 4), [])
    with pytest.raises(Unstreamable):
        describe(builder, builder.input(4))
