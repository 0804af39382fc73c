"""The family of cells with a matrix for a state: what is promised of each, and a cell of one's own from its terms."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from elman import kernels, laws
from elman.cells import CELLS, cell
from elman.cells.matrix import Matrix, Terms
from elman.compose import Norm, Residual, Stack, blocks
from elman.errors import InputError
from elman.stream import Stream

FAMILY = ["mamba2", "mamba3", "retnet", "gla", "hgrn2", "deltanet", "gated_deltanet", "kda", "rwkv7", "mlstm"]


def test_the_family() -> None:
    assert [name for name, kind in CELLS.items() if issubclass(kind, Matrix)] == FAMILY


@pytest.mark.parametrize("name", FAMILY)
def test_gates_lie_between_zero_and_one_one_for_each_head_or_key(name: str, randomised) -> None:
    """Those that the lens shows: the share of the state that stays, and the strength of the delta rule."""
    core = randomised(cell(name, 3, 8, heads=2))
    x = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    gates = core.named_gates(x, core.init_state(5))
    width = 2 * core.key_size if core.decays_keys else 2
    wanted = {"deltanet": {"b": 2}, "gated_deltanet": {"a": 2, "b": 2}, "kda": {"a": width, "b": 2}}.get(
        name, {"a": width}
    )
    assert {gate: values.shape for gate, values in gates.items()} == {gate: (5, n) for gate, n in wanted.items()}
    assert all((values > 0).all() and (values <= 1).all() for values in gates.values())
    assert core.keep_gate == ("" if name == "deltanet" else "a")


@pytest.mark.parametrize("name", ["mamba2", "mamba3", "retnet", "gla", "hgrn2", "mlstm"])
@torch.no_grad()
def test_the_decay_that_is_shown_is_the_one_that_the_state_has(name: str, randomised) -> None:
    """Of two states that differ in S alone, the next differ by a, in cells that do not correct."""
    core = randomised(cell(name, 3, 8, heads=2))
    x = torch.randn(1, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    before = core.init_state(1)
    other = type(before)(before[0] + 1, *before[1:])
    change = core.step(x, other)[1][0] - core.step(x, before)[1][0]  # (1, H, K, V)
    a = core.named_gates(x, before)["a"].view(1, 2, -1, 1)
    torch.testing.assert_close(change, a.expand_as(change))


class OwnState(NamedTuple):
    S: Tensor
    n: Tensor
    last: Tensor


class Own(Matrix[OwnState]):
    """All that the family has at once: groups, a decay of keys, a normaliser, a shifted input, and a rule."""

    decays_keys = normalises = True

    def __init__(self, input_size: int, size: int, rule: str) -> None:
        super().__init__(input_size, size, heads=4, groups=2, key_size=3, value_size=2)
        self.rule = rule
        self.U = nn.Parameter(torch.randn(12 + 8 + 12 + 4 + 12, 2 * input_size) * 0.3)
        self.O = nn.Parameter(torch.randn(size, 8) * 0.3)

    def init_state(self, batch_size: int) -> OwnState:
        S, n = self.zeros(batch_size, 4, 3, 2), self.zeros(batch_size, 4, 3)
        return OwnState(S, n, self.zeros(batch_size, self.input_size))

    def terms(self, x: Tensor, past) -> Terms:
        both = torch.cat([x, past.shift("last", x)], -1)
        u = kernels.linear(both, self.U)
        q, k, v, a, b, alpha, beta = u.split([6, 6, 8, 12, 4, 6, 6], -1)
        terms = Terms(q, k, v, kernels.sigmoid(a), rest=(both,))
        if self.rule == "delta":
            return terms._replace(b=kernels.sigmoid(b))
        return terms._replace(alpha=alpha * 0.3, beta=beta * 0.3) if self.rule == "any" else terms

    def normalise(self, s: Tensor, z: Tensor, terms: Terms) -> Tensor:
        return s / (z.abs() + 1).repeat_interleave(2, -1)

    def read(self, s: Tensor, terms: Terms) -> Tensor:
        return kernels.linear(s, self.O)


@pytest.mark.parametrize("kernel", kernels.available())
@pytest.mark.parametrize("rule", ["none", "delta", "any"])
def test_a_cell_of_ones_own_keeps_the_laws_and_streams(rule: str, kernel: str) -> None:
    torch.manual_seed(0)
    with kernels.use(kernel):
        core = Own(3, 3, rule)
        report = laws.check(core)
        assert report.ok, str(report)
        if kernel == "native":
            assert report.exact, str(report)
            assert Stream(core, 1).native


@pytest.mark.skipif("native" not in kernels.available(), reason="a promise of the native kernels")
@pytest.mark.parametrize("name", FAMILY)
def test_training_runs_on_the_native_kernel(name: str) -> None:
    torch.manual_seed(0)
    core, before = cell(name, 8, 8), kernels.calls()
    y, _ = core.scan(torch.randn(2, 40, 8))
    y.sum().backward()
    for op in ("matrix_scan", "matrix_scan_back"):
        assert kernels.calls()[op] == before.get(op, 0) + 1 + core.normalises


@pytest.mark.parametrize("name", FAMILY)
def test_blocks_of_them_are_residuals_with_a_norm_before(name: str) -> None:
    """x + cell(norm(x)): the cell mixes its channels itself."""
    block = blocks(name, 8, 8).cores[0]
    assert isinstance(block, Residual) and isinstance(block.core, Stack)
    norm, core = block.core.cores
    assert isinstance(norm, Norm) and norm.kind == ("layer" if name == "rwkv7" else "rms")
    assert isinstance(core, CELLS[name])


@pytest.mark.parametrize("name", [*FAMILY, "slstm", "rglru"])
def test_a_size_that_is_not_a_number_is_named(name: str) -> None:
    for size in (0, -3, 2.5, "4"):
        with pytest.raises(InputError, match="size is"):
            cell(name, 3, size)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", FAMILY)
def test_heads_that_are_not_a_number_are_named(name: str) -> None:
    for heads in (0, 1.5, "two", True):
        with pytest.raises(InputError, match="heads is"):
            cell(name, 3, 8, heads=heads)


class Grouped(Matrix[tuple[Tensor]]):
    """A decay for each key of a group, which all heads of the group have in common."""

    decays_keys = True

    def __init__(self, heads: int, groups: int, key_size: int) -> None:
        super().__init__(3, 2 * heads, heads=heads, key_size=key_size, value_size=2, groups=groups)
        self.widths = [groups * key_size] * 3 + [2 * heads]
        self.U = nn.Parameter(torch.randn(sum(self.widths), 3))

    def init_state(self, batch_size: int) -> tuple[Tensor]:
        return (self.zeros(batch_size, self.heads, self.key_size, self.value_size),)

    def terms(self, x: Tensor, past: object) -> Terms:
        q, k, a, v = kernels.linear(x, self.U).split(self.widths, -1)
        return Terms(q, k, v, kernels.sigmoid(a))

    def read(self, s: Tensor, terms: Terms) -> Tensor:
        return s


@pytest.mark.skipif("native" not in kernels.available(), reason="a promise of the native kernels")
@pytest.mark.parametrize(("heads", "groups", "key_size"), [(4, 2, 2), (4, 2, 3), (6, 3, 1)])
def test_heads_of_a_group_share_decays_of_keys_in_a_stream_too(heads: int, groups: int, key_size: int) -> None:
    """As wide as there are heads in the first case: the stream must not take them for one decay a head."""
    torch.manual_seed(0)
    core, x = Grouped(heads, groups, key_size), torch.randn(2, 6, 3)
    y, _ = core.scan(x)
    stream = Stream(core, 2)
    assert stream.native
    assert torch.equal(torch.stack([torch.as_tensor(stream.step(x[:, t])) for t in range(6)], 1), y.detach())
