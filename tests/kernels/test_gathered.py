"""The gathered loop: its reference and csrc against a row by row transcription, groups bit by bit."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from elman import kernels
from elman.errors import InputError, UnknownNameError
from elman.kernels import Gather

# kind, places, forget gates
KINDS = [("recursive", 1, 0), ("recursive", 2, 0), ("lstm", 2, 2), ("lstm", 2, 1), ("lstm", 3, 1), ("child_sum", 1, 1)]
IDS = [f"{kind}-{P}-{F}" for kind, P, F in KINDS]


def random_gather(kind: str, P: int, groups: int = 3, given: int = 0, seed: int = 0) -> Gather:
    """Rows that gather from any rows of earlier levels of their group, some from the same one; `given` rows a group."""
    draw = torch.Generator().manual_seed(seed)

    def below(n: int) -> int:
        return int(torch.randint(n, (1,), generator=draw))

    group = [g for g in range(groups) for _ in range(given)]
    levels, before, first = [len(group)], [[-1] * P for _ in group], [0] * (len(group) + 1)
    own: list[list[int]] = [[n for n, of in enumerate(group) if of == g] for g in range(groups)]
    for level in range(4):
        earlier = [list(rows) for rows in own]
        for g in range(groups):
            for _ in range(1 + below(5 if level < 2 else 2)):
                candidates = earlier[g] if level else []
                count = 1 + below(4) if kind == "child_sum" else P
                found = [candidates[below(len(candidates))] for _ in range(count)] if candidates else [-1] * P
                if kind != "child_sum" and P > 1 and below(4) == 0:
                    found[below(P)] = -1
                    found[0] = found[0] if max(found) >= 0 else (candidates or [-1])[0]
                own[g].append(len(group))
                group.append(g)
                before.append(found)
                first.append(first[-1] + (len(found) if candidates else 0))
        levels.append(len(group))
    source = torch.full((len(group),), -1)
    with_u = torch.randperm(len(group) - levels[0], generator=draw)[: (len(group) - levels[0]) * 2 // 3] + levels[0]
    source[with_u] = torch.arange(len(with_u))
    if kind == "child_sum":
        edges = [row for rows in before if max(rows) >= 0 for row in rows]
        found = [torch.tensor(part) for part in (levels, edges, first)]
        return Gather(found[0], found[1], found[2], source, torch.tensor(group))
    return Gather(torch.tensor(levels), torch.tensor(before), None, source, torch.tensor(group))


def arguments(
    kind: str, P: int, F: int, H: int, gather: Gather, gates: int | None = None, dtype: torch.dtype = torch.float64
) -> list[Tensor]:
    """u, w, b and the given states, which want gradients."""
    draw = torch.Generator().manual_seed(1)
    G = 3 + F if F else 1
    assert gather.source is not None
    given = int(gather.levels[0])
    states = [(given, H)] * (2 if F else 1) if given else []
    shapes = [(int(gather.source.max()) + 1, (gates or G) * H), (G * H, P * H), (G * H,), *states]
    return [torch.randn(*n, generator=draw, dtype=torch.float64).to(dtype).requires_grad_() for n in shapes]


def run(kind: str, gather: Gather, u: Tensor, w: Tensor, b: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
    return kernels.gathered(kind, u, w, b, gather, state or None)


def by_rows(kind: str, gather: Gather, u: Tensor, w: Tensor, b: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
    """The equations, one row after the other."""
    H = w.shape[1] // (1 if gather.first is not None else gather.before.shape[1])
    found: list[tuple[Tensor, ...]] = list(zip(*state, strict=True))
    zero = (u.new_zeros(H),) * (1 if kind == "recursive" else 2)
    for n in range(int(gather.levels[0]), int(gather.levels[-1])):
        assert gather.source is not None
        m = int(gather.source[n])
        start = b if m < 0 else torch.cat([u[m], b[u.shape[1] :]])
        if gather.first is not None:
            children = [found[k] for k in gather.before[int(gather.first[n]) : int(gather.first[n + 1])].tolist()]
            h = sum((child[0] for child in children), zero[0])
            i, g, o = (start[: 3 * H] + w[: 3 * H] @ h).split(H)
            forget = [torch.sigmoid(start[3 * H :] + w[3 * H :] @ child[0]) for child in children]
        else:
            children = [found[k] if k >= 0 else zero for k in gather.before[n].tolist()]
            sums = start + w @ torch.cat([child[0] for child in children])
            if kind == "recursive":
                found.append((torch.tanh(sums),))
                continue
            i, g, o, *gates = sums.split(H)
            forget = [torch.sigmoid(gate) for gate in gates]
        c = torch.sigmoid(i) * torch.tanh(g) + sum(f * child[1] for f, child in zip(forget, children, strict=False))
        found.append((torch.sigmoid(o) * torch.tanh(c), c))
    return tuple(torch.stack(leaf) for leaf in zip(*found, strict=True))


def with_gradients(function: Callable[..., tuple[Tensor, ...]], given: list[Tensor]) -> list[Tensor]:
    found = function(*given)
    total = torch.stack([(y * torch.linspace(-1, 2, y.numel(), dtype=y.dtype).view_as(y)).sum() for y in found]).sum()
    gradients = torch.autograd.grad(total, given, allow_unused=True)
    return [*found, *(torch.zeros_like(x) if g is None else g for x, g in zip(given, gradients, strict=True))]


@pytest.mark.parametrize(("kind", "P", "F"), KINDS, ids=IDS)
@pytest.mark.parametrize(("H", "given", "some"), [(1, 0, False), (5, 2, True), (9, 1, False), (16, 0, True)])
def test_it_is_the_equations(kind: str, P: int, F: int, H: int, given: int, some: bool) -> None:
    gather = random_gather(kind, P, given=given, seed=H)
    tensors = arguments(kind, P, F, H, gather, 3 if some and F else None)
    wanted = with_gradients(lambda *a: by_rows(kind, gather, *a), tensors)
    with kernels.use("reference"):
        reference = with_gradients(lambda *a: run(kind, gather, *a), tensors)
    before = kernels.calls()
    found = with_gradients(lambda *a: run(kind, gather, *a), tensors)
    if kernels.active() == "native":
        assert all(kernels.calls()[name] > before.get(name, 0) for name in ("gathered", "gathered_back"))
    for a, b, c in zip(wanted, reference, found, strict=True):
        torch.testing.assert_close(b, a, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(c, a, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("kind", "P", "F"), KINDS, ids=IDS)
def test_single_precision_and_more_rows_than_are_taken_at_a_time(kind: str, P: int, F: int) -> None:
    gather = random_gather(kind, P, groups=70)
    found, wanted = (
        with_gradients(lambda *a: run(kind, gather, *a), [(t * 0.3).detach().to(d).requires_grad_() for t in tensors])
        for d in (torch.float32, torch.float64)
        for tensors in [arguments(kind, P, F, 19, gather)]
    )
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("kind", "P", "F"), KINDS, ids=IDS)
def test_gradcheck(kind: str, P: int, F: int) -> None:
    gather = random_gather(kind, P, groups=1, given=1)
    assert torch.autograd.gradcheck(lambda *a: run(kind, gather, *a), arguments(kind, P, F, 2, gather))


def alone(gather: Gather, g: int) -> tuple[Gather, Tensor, Tensor]:
    """Group g by itself; its rows, and its rows of u."""
    assert gather.group is not None and gather.source is not None
    rows = (gather.group == g).nonzero()[:, 0]
    place = torch.full((len(gather.group) + 1,), -1)  # the last one is what -1 becomes
    place[rows] = torch.arange(len(rows))
    levels = torch.searchsorted(rows, gather.levels)
    source, of_u = gather.source[rows], gather.source[rows]
    of_u = of_u[of_u >= 0].sort().values
    source = torch.where(source >= 0, torch.searchsorted(of_u, source), -1)
    if gather.first is None:
        return Gather(levels, place[gather.before[rows]], None, source), rows, of_u
    spans = [gather.before[int(gather.first[n]) : int(gather.first[n + 1])] for n in rows]
    first = torch.tensor([0, *(len(span) for span in spans)]).cumsum(0)
    return Gather(levels, place[torch.cat(spans)], first, source), rows, of_u


@pytest.mark.parametrize(("kind", "P", "F"), KINDS, ids=IDS)
def test_a_group_is_the_same_bit_for_bit_in_any_batch_and_on_any_threads(kind: str, P: int, F: int) -> None:
    if kernels.active() != "native":
        pytest.skip("a promise of the native kernels")
    H, gather = 21, random_gather(kind, P, groups=40)
    u, w, b = arguments(kind, P, F, H, gather, dtype=torch.float32)

    def all_of(gather: Gather, u: Tensor) -> list[Tensor]:
        found = run(kind, gather, u, w, b)
        return [*found, torch.autograd.grad(torch.stack([y.sum() for y in found]).sum(), u)[0]]

    threads = torch.get_num_threads()
    whole = all_of(gather, u)
    try:
        torch.set_num_threads(3)
        assert all(map(torch.equal, all_of(gather, u), whole))
    finally:
        torch.set_num_threads(threads)
    for g in (0, 17, 39):
        one, rows, of_u = alone(gather, g)
        *states, gu = all_of(one, u[of_u].detach().requires_grad_())
        assert all(torch.equal(a, b[rows]) for a, b in zip(states, whole, strict=False))
        assert torch.equal(gu, whole[-1][of_u])


@pytest.mark.parametrize(("kind", "P", "F"), KINDS, ids=IDS)
def test_rows_that_gather_nothing(kind: str, P: int, F: int) -> None:
    gather = random_gather(kind, P)
    N = int(gather.levels[1])
    assert gather.source is not None
    only = Gather(
        gather.levels[:2], gather.before[:0] if gather.first is not None else gather.before[:N],
        None if gather.first is None else gather.first[: N + 1], torch.arange(N),
    )  # fmt: skip
    given = arguments(kind, P, F, 3, only)
    found = with_gradients(lambda *a: run(kind, only, *a), given)
    wanted = with_gradients(lambda *a: by_rows(kind, only, *a), given)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", ["lstm", "child_sum"])
def test_a_long_chain_and_no_rows_at_all(kind: str) -> None:
    N, H = 5000, 3
    levels, chain = torch.arange(N + 1), torch.arange(-1, N - 1)
    first = torch.cat([torch.zeros(1, dtype=torch.int64), torch.arange(N)])
    gather = Gather(levels, chain[1:], first) if kind == "child_sum" else Gather(levels, chain[:, None])
    u, w = torch.randn(N, 4 * H).requires_grad_(), torch.randn(4 * H, H)
    h, _ = kernels.gathered(kind, u, w, torch.zeros(4 * H), gather)
    h[-1].sum().backward()
    assert h.shape == (N, H) and h.isfinite().all() and u.grad is not None and u.grad.isfinite().all()
    empty = torch.zeros(0, dtype=torch.int64)
    nothing = Gather(
        torch.zeros(1, dtype=torch.int64), *((empty, empty.new_zeros(1)) if kind == "child_sum" else (empty[:, None],))
    )
    assert kernels.gathered(kind, u[:0], w, torch.zeros(4 * H), nothing)[0].shape == (0, H)


def test_what_does_not_fit_is_refused() -> None:
    gather = random_gather("lstm", 2)
    u, w, b = arguments("lstm", 2, 2, 4, gather)
    with pytest.raises(UnknownNameError, match="child_sum"):
        kernels.gathered("gru", u, w, b, gather)
    with pytest.raises(InputError, match="do not fit together"):
        kernels.gathered("lstm", u, w[:, :-1], b, gather)
    with pytest.raises(InputError, match="do not fit together"):
        kernels.gathered("child_sum", u, w, b, gather)


@pytest.mark.parametrize("field, change, message", [
    ("before", lambda g: g.before.fill_(10_000), "earlier level"),
    ("before", lambda g: g.before.fill_(-1), "nothing in a later one"),
    ("levels", lambda g: g.levels[[0, 2, 1, 3, 4]], "in two levels"),
    ("source", lambda g: g.source.fill_(0), "another one reads"),
    ("group", lambda g: torch.arange(len(g.group)), "another group"),
])  # fmt: skip
def test_indices_that_would_read_elsewhere_are_refused(
    field: str, change: Callable[[Gather], Tensor], message: str
) -> None:
    if kernels.active() != "native":
        pytest.skip("the reference reads through Torch, which checks")
    gather = random_gather("lstm", 2)
    given = arguments("lstm", 2, 2, 4, gather)
    broken = gather._replace(**{field: change(random_gather("lstm", 2))})
    with pytest.raises(ValueError, match=message):
        run("lstm", broken, *given)
