"""An initial state that is learned, with everything else or alone (state tuning).

Cells begin at zero, and their kernels go back to zero at a reset. So a scan in which episodes begin further inside is a
scan of episodes: each is a row of its own, which starts from the learned state, or from the one that is given. Rows do
not see each other, and a ragged row is that row alone: the numbers are those of the loop over steps, and their bits
those of a stream. Without such a reset nothing moves but a state.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from elman import state as states
from elman.compose.attention import Bound
from elman.compose.structure import Wrapper, name_of
from elman.core import Core
from elman.errors import InputError
from elman.kernels.builder import Builder, Slot, Slots
from elman.lengths import valid
from elman.state import State

PADDING = 1.5  # times the steps of some episodes is the most that they take as rows side by side


class LearnedStart(Wrapper):
    """The core, whose initial state is a parameter: `initial_state` (N,), leaves side by side, complex ones as pairs.

    At first that is the core's own. Leaves that count or sum, of whole numbers, or that begin at infinity, stay as they
    are: `state.learnable` names the rest. Whatever draws once for a scan, as WeightDrop does, draws once for each group
    of episodes that are about as long as each other.

    >>> from elman.cells import cell
    >>> core = LearnedStart(cell("lstm", 3, 4))
    >>> core.initial_state.shape, core.init_state(2).c.shape
    (torch.Size([8]), torch.Size([2, 4]))
    """

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        if not core.causal:
            raise InputError(
                f"LearnedStart was given {name_of(core)}, which reads the future: its two directions begin at the two "
                "ends of an episode. Put it inside: Bidirectional(LearnedStart(left), LearnedStart(right))"
            )
        if isinstance(core, Bound):
            raise InputError(
                f"LearnedStart was given a {core.title} decoder that is bound to a memory; the core in the decoder "
                "may have a learned start: Luong(LearnedStart(core), ...)"
            )
        self.output_is_state = core.output_is_state
        start = core.init_state(1)
        self.learned = tuple(states.learnable(start))
        if not any(self.learned):
            raise InputError(
                f"LearnedStart was given {name_of(core)}, whose state is {states.describe(start)}: there is nothing "
                "in it whose start could be learned"
            )
        first = self._learned_leaves(start)
        self.widths = tuple(leaf.numel() for leaf in first)
        like = next(core.parameters(), first[0])
        self.initial_state = nn.Parameter(torch.empty(sum(self.widths), dtype=like.dtype, device=like.device))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        first = self._learned_leaves(self.core.init_state(1))
        self.initial_state.copy_(torch.cat([leaf.flatten() for leaf in first]))

    def _learned_leaves(self, state: State) -> list[Tensor]:
        """The leaves of a state that are learned, as real numbers."""
        leaves = zip(states.leaves(state), self.learned, strict=True)
        return [torch.view_as_real(leaf) if leaf.is_complex() else leaf for leaf, learned in leaves if learned]

    def init_state(self, batch_size: int) -> State:
        learned, parts = iter(self.learned), iter(self.initial_state.split(self.widths))

        def start(leaf: Tensor) -> Tensor:
            if not next(learned):
                return leaf
            part, shape = next(parts).to(states.REAL.get(leaf.dtype, leaf.dtype)), leaf.shape[1:]
            rows = part.repeat(len(leaf), 1)  # memory of their own: an update of the parameter changes no state
            if leaf.is_complex():
                return torch.complex(*rows.view(len(leaf), *shape, 2).unbind(-1))
            return rows.view(len(leaf), *shape)

        return states.map(start, self.core.init_state(batch_size))

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        return self.core.step(x, state)

    def skips_padding(self, x: Tensor) -> bool:
        return not torch.compiler.is_compiling() and not self.core.has_hooks() and self.core.skips_padding(x)

    def _scan(self, x: Tensor, state: State, lengths: Tensor, reset: Tensor) -> tuple[Tensor, State]:
        if torch.compiler.is_compiling():  # a graph cannot branch on where resets are
            return super()._scan(x, state, lengths, reset)
        begins = reset & valid(lengths, x.shape[1])
        state = states.where(begins[:, :1].any(1), self.init_state(len(x)), state)
        if bool(begins[:, 1:].any()):
            return self._scan_episodes(x, state, lengths, begins)
        return self.core.scan_unchecked(x, state, lengths, torch.zeros_like(reset))

    def _scan_episodes(self, x: Tensor, state: State, lengths: Tensor, begins: Tensor) -> tuple[Tensor, State]:
        """The scan of episodes as rows; `state` is that before the first of each row."""
        (B, T), device = x.shape[:2], x.device
        begins = torch.cat([torch.ones_like(begins[:, :1]), begins[:, 1:]], 1)
        row, at = begins.nonzero(as_tuple=True)
        last = torch.cumsum(begins.sum(1), 0) - 1  # of each row
        end = at.roll(-1)
        end[last] = lengths
        sizes = end - at
        before = states.where(at == 0, states.take(state, row), self.init_state(len(row)))

        inputs = torch.cat([x.flatten(0, 1), x.new_zeros(1, x.shape[2])])  # what is padding reads the zeros at the end
        groups, place = self._groups(sizes.tolist()), torch.full((B * T,), -1, device=device)
        outputs, after, filled = [], [], 0
        for group in groups:
            episodes = torch.tensor(group, device=device)
            inside = valid(sizes[episodes], int(sizes[episodes].max()))
            steps = (row * T + at)[episodes, None] + torch.arange(inside.shape[1], device=device)
            none = torch.zeros_like(inside)
            own = nn.functional.embedding(torch.where(inside, steps, B * T), inputs)
            y, new = self.core.scan_unchecked(own, states.take(before, episodes), sizes[episodes], none)
            place[steps[inside]] = filled + inside.flatten().nonzero()[:, 0]
            outputs.append(y.flatten(0, 1))
            after.append(new)
            filled += inside.numel()
        outputs.append(outputs[0].new_zeros(1, self.output_size))
        y = nn.functional.embedding(torch.where(place < 0, filled, place), torch.cat(outputs)).unflatten(0, (B, T))
        order = torch.tensor([episode for group in groups for episode in group], device=device).argsort()
        return y, states.take(states.concat(after), order[last])

    def _groups(self, sizes: Sequence[int]) -> list[list[int]]:
        """Episodes by number, those together that are scanned together; all in their order where hooks see them."""
        if any(isinstance(part, Core) and part.has_hooks() for part in self.core.modules()):
            return [list(range(len(sizes)))]
        groups, total = list[list[int]](), 0
        for episode in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
            if not groups or sizes[groups[-1][0]] * (len(groups[-1]) + 1) > PADDING * (total + sizes[episode]):
                groups, total = [*groups, []], 0
            groups[-1].append(episode)
            total += sizes[episode]
        return groups

    def describe_step(self, builder: Builder, x: Slot, state: Slots) -> Slot:
        return self.core.describe_step(builder, x, state)  # rows of a stream begin where init_state says


def learn_start(core: Core) -> Core:
    """The core with a learned start; where it reads the future, each core in it that does not, if it has a state.

    >>> from elman.compose import stack
    >>> core = learn_start(stack("gru", 3, 4, layers=2, bidirectional=True))
    >>> [name for name, _ in core.named_parameters() if name.endswith("initial_state")][:2]
    ['cores.0.cores.0.initial_state', 'cores.0.cores.1.core.initial_state']
    """
    if core.causal:
        return LearnedStart(core)
    if not _learn_starts_inside(core):
        raise InputError(f"there is nothing in {name_of(core)} whose start could be learned")
    return core


def _learn_starts_inside(module: nn.Module) -> int:
    """How many cores inside a module that reads the future have a learned start now."""
    count = 0
    for name, part in module.named_children():
        if not isinstance(part, Core) or not part.causal:
            count += _learn_starts_inside(part)
        elif any(states.learnable(part.init_state(1))):
            setattr(module, name, LearnedStart(part))
            count += 1
    return count
