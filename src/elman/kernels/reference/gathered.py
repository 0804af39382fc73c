"""The gated loop whose state before is gathered from other rows, in plain Torch: the meaning of csrc/gathered.cpp.

recursive    h = tanh(u + W [h_1; ...; h_P])
lstm         i, o, f_1 ... f_F = s(...), g = tanh(...) of u + W [h_1; ...; h_P]
             c = i * g + f_1 * c_1 + ... + f_F * c_F,  h = o * tanh(c)
child_sum    i, o = s(...), g = tanh(...) of u + W (h_1 + ... + h_K);  f_k = s(u_f + W_f h_k);  c and h as above
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from elman.errors import InputError, UnknownNameError

KINDS = ("recursive", "lstm", "child_sum")


class Gather(NamedTuple):
    """Where the rows of a loop find the states before them; int64. Rows of one level come one after the other.

    Rows in front of levels[0] are given. Those of the first level gather nothing, every later row something, each from
    rows of earlier levels.
    """

    levels: Tensor  # (L + 1,): level l is the rows levels[l] to levels[l + 1]; the last number is N
    before: Tensor  # (N, P): the rows that a row gathers from, -1 for a state of zeros; (E,) with `first`
    first: Tensor | None = None  # (N + 1,), for child_sum: row n gathers from before[first[n] : first[n + 1]]
    source: Tensor | None = None  # (N,): the row of u that a row begins with, -1 for none; None: levels[0] + m has u[m]
    group: Tensor | None = None  # (N,): the tree or image of a row, ascending in a level; threads divide them


class Shape(NamedTuple):
    """The sizes of a gathered loop, checked."""

    H: int  # units
    P: int  # places that are gathered from, each with a matrix of its own
    F: int  # forget gates; none where there is no c
    G: int  # gates
    A: int  # gates that u speaks to: the first ones


def shape(kind: str, u: Tensor, w: Tensor, b: Tensor, gather: Gather) -> Shape:
    """What the arrays are together, or why they do not fit."""
    if kind not in KINDS:
        raise UnknownNameError("kind of gathered loop", kind, KINDS)
    P = 1 if kind == "child_sum" else gather.before.shape[1]
    H = w.shape[1] // max(P, 1)
    G = len(b) // max(H, 1)
    A = u.shape[1] // max(H, 1)
    gates = {"recursive": G == 1, "lstm": 4 <= G <= 3 + P, "child_sum": G == 4}[kind]
    fits = P and H and w.shape == (G * H, P * H) and len(b) == G * H and u.shape[1] == A * H and 0 < A <= G
    if not (gates and fits) or (gather.first is None) == (kind == "child_sum"):
        raise InputError(
            f"a {kind} loop that gathers {P} states: u {tuple(u.shape)}, w {tuple(w.shape)} and b {tuple(b.shape)} do "
            "not fit together; w is (gates * H, places * H), b (gates * H,), u (rows, some of the gates * H)"
        )
    return Shape(H, P, {"recursive": 0, "lstm": G - 3, "child_sum": 1}[kind], G, A)


def gathered(
    kind: str, u: Tensor, w: Tensor, b: Tensor, gather: Gather, state: tuple[Tensor, ...] | None
) -> tuple[Tensor, ...]:
    """h, or h and c, of all rows (N, H)."""
    H, _, F_, _, A = shape(kind, u, w, b, gather)
    cuts = gather.levels.tolist()
    start = _start(u, b, A * H, gather)
    begins = torch.cat([gather.levels.new_zeros(1), gather.levels])  # of what `known` has
    known = [tuple(state) if state is not None else (u.new_zeros(0, H),) * (2 if F_ else 1)]  # of each level
    for level, (first, end) in enumerate(pairwise(cuts)):
        sums = start[first - cuts[0] : end - cuts[0]]
        if kind == "child_sum":
            known.append(_child_sum(sums, w, gather, first, end, begins, known))
        else:
            known.append(_places(sums, w, gather.before[first:end], F_, level == 0, begins, known))
    return tuple(torch.cat(leaves) for leaves in zip(*known, strict=True))


def _start(u: Tensor, b: Tensor, width: int, gather: Gather) -> Tensor:
    """What the sums of each row begin with."""
    whole = torch.cat([u, b[width:].expand(len(u), -1)], 1)
    if gather.source is None:
        return whole
    source = gather.source[int(gather.levels[0]) :]
    if not len(u):
        return b.expand(len(source), -1)
    return torch.where((source >= 0)[:, None], whole[source.clamp(min=0)], b)


def _find(rows: Tensor, begins: Tensor, known: list[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """The states of `rows` (...), zeros for -1, from the levels that have them: without copying all the others."""
    needed, place = torch.unique(torch.bucketize(rows.clamp(min=0), begins[1:], right=True), return_inverse=True)
    sizes = begins[needed + 1] - begins[needed]
    shift = sizes.cumsum(0) - sizes - begins[needed]
    found = torch.where(rows < 0, int(sizes.sum()), rows + shift[place])
    leaves = zip(*(known[i] for i in needed.tolist()), strict=True)
    return tuple(torch.cat([*leaf, leaf[0].new_zeros(1, leaf[0].shape[1])])[found] for leaf in leaves)


def _places(
    sums: Tensor, w: Tensor, before: Tensor, forgets: int, leaves: bool, begins: Tensor,
    known: list[tuple[Tensor, ...]],
) -> tuple[Tensor, ...]:  # fmt: skip
    """A level: each place that is gathered from has a matrix of its own."""
    H = w.shape[1] // before.shape[1]
    states = () if leaves else _find(before, begins, known)
    if states:
        sums = sums + F.linear(states[0].flatten(1), w)
    if not forgets:
        return (torch.tanh(sums),)
    i, g, o, *f = sums.split(H, 1)
    c = torch.sigmoid(i) * torch.tanh(g)
    if states:
        c = c + sum(torch.sigmoid(gate) * states[1][:, p] for p, gate in enumerate(f))
    return torch.sigmoid(o) * torch.tanh(c), c


def _child_sum(
    sums: Tensor, w: Tensor, gather: Gather, first: int, end: int, begins: Tensor, known: list[tuple[Tensor, ...]]
) -> tuple[Tensor, ...]:
    """A level: what is gathered is added up, and each one has a forget gate of its own."""
    assert gather.first is not None
    H = w.shape[1]
    counts = (gather.first[first + 1 : end + 1] - gather.first[first:end]).to(sums.device)
    children = gather.before[int(gather.first[first]) : int(gather.first[end])]
    parent = torch.repeat_interleave(torch.arange(end - first, device=sums.device), counts)
    u, u_f = sums.split([3 * H, H], 1)
    if not len(children):
        i, g, o = u.chunk(3, 1)
        c = torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c
    h, c = _find(children, begins, known)
    together = torch.zeros_like(u_f).index_add(0, parent, h)
    i, g, o = (u + F.linear(together, w[: 3 * H])).chunk(3, 1)
    f = torch.sigmoid(u_f[parent] + F.linear(h, w[3 * H :]))
    c = (torch.sigmoid(i) * torch.tanh(g)).index_add(0, parent, f * c)
    return torch.sigmoid(o) * torch.tanh(c), c
