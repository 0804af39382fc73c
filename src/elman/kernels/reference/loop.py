"""The loop that defines a scan, the gated loops that are such loops, and attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from elman import state as states
from elman.kernels.reference.elementwise import reverse
from elman.lengths import last_of_episodes, valid
from elman.state import AnyState, State

Step = Callable[[Tensor, AnyState], tuple[Tensor, AnyState]]


def loop(
    step: Step, x: Tensor, state: State, init: State, lengths: Tensor, reset: Tensor, size: int
) -> tuple[Tensor, State]:
    """Step through x (B, T, D): the definition of a scan. `init` is what a reset goes back to; y is (B, T, size)."""
    B, T = x.shape[:2]
    ys: list[Tensor] = []
    for t in range(T):
        inside = t < lengths
        y, new = step(x[:, t], states.where(reset[:, t] & inside, init, state))
        state = states.where(inside, new, state)
        ys.append(torch.where(inside[:, None], y, torch.zeros_like(y)))
    # Nothing, but of x: what is differentiated must hang on what it is differentiated by.
    return (torch.stack(ys, 1) if ys else x[..., :1].expand(B, 0, size)), state


class GatedOptions(NamedTuple):
    """What the options of a gated cell add to its loop; None where one is off."""

    peephole: Tensor | None = None  # (gates - 1, H): of the LSTM's i, f and o; of i and o where they are coupled
    P: Tensor | None = None  # (R, H): h = P times what it would have been
    gain: Tensor | None = None  # (gates * H,): W h' is normalised and multiplied by it
    gain_U: Tensor | None = None  # (gates * H,): so is U x, before b is added
    gain_c: Tensor | None = None  # (H,): the LSTM's c is normalised on its way to h
    bias_c: Tensor | None = None


class GatedLoop(NamedTuple):
    """A gated loop from its state on: what `kernels.gated` takes besides x, lengths and reset."""

    kind: str
    weights: tuple[Tensor, ...]
    state: AnyState
    recur: Step
    U: Tensor | None
    b: Tensor | None
    options: GatedOptions
    project: Callable[[Tensor], Tensor] | None
    backwards: bool
    narrow: bool


def gated(
    u: Tensor, state: State, lengths: Tensor, reset: Tensor, recur: Step, backwards: bool
) -> tuple[Tensor, State]:
    """The gated loop over projected inputs u (B, T, G * H): y (B, T, H) and the last state. Backwards, it reads each
    row from its last valid input to its first."""
    if backwards:
        ends = reverse(last_of_episodes(reset, lengths), lengths)
        y, state = gated(reverse(u, lengths), state, lengths, ends, recur, False)
        return reverse(y, lengths), state
    init = states.map(torch.zeros_like, state)
    return loop(recur, u, state, init, lengths, reset, states.leaves(state)[0].shape[-1])


class AttendedLoop(NamedTuple):
    """A gated loop with attention inside: `kind`, `weights` and `options` as the cell's loop has them.

    To what x says to the gates it adds what U makes of the context, found before the step by the query Q h'; or, with O
    and o, of the output before, y = tanh(O [h, context] + o), whose query is h.
    """

    kind: str
    U: Tensor  # (gates * H, M) or (gates * H, Z)
    weights: tuple[Tensor, ...]
    options: GatedOptions
    keys: Tensor  # (B, S, A)
    values: Tensor  # (B, S, M)
    sizes: Tensor  # (B,): the lengths of the memory
    v: Tensor | None = None  # (A,)
    Q: Tensor | None = None  # (A, H)
    O: Tensor | None = None  # (Z, H + M)  # noqa: E741
    o: Tensor | None = None  # (Z,)


def attend(query: Tensor, keys: Tensor, values: Tensor, lengths: Tensor, v: Tensor | None) -> tuple[Tensor, Tensor]:
    """a = softmax over j < lengths of query . keys[j], or of v . tanh(query + keys[j]); c = sum a[j] values[j]."""
    if v is None:
        e = query @ keys.transpose(1, 2)
    else:
        e = torch.tanh(query[:, :, None] + keys[:, None]) @ v
    inside = valid(lengths, keys.shape[1])[:, None]
    # A row that sees nothing is not masked until it is over: the softmax of -inf alone is NaN, and so is its gradient.
    a = torch.where(inside | (lengths == 0)[:, None, None], e, -torch.inf).softmax(-1)
    a = torch.where(inside, a, 0.0)
    return a @ values, a
