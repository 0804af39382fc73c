"""A frozen model as functions of weights, state and input: what the rules differentiate.

A *part* is a recurrence inside: a core with a state that is not made of other cores. What each of them reads in a step
is written down as the step is computed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from elman import state as states
from elman.compose import LearnedStart
from elman.core import Core
from elman.errors import InputError
from elman.model import SequenceModel
from elman.nn.distributions import Distribution
from elman.online.influence import Weights
from elman.state import State


class Part:
    """One recurrence of a network: its core, which leaves of the state are its own, and which weights."""

    def __init__(self, core: Core, first: int, like: State, weights: list[int]) -> None:
        self.core, self.like, self.weights = core, like, weights
        leaves = states.leaves(like)
        self.leaves = slice(first, first + len(leaves))
        self.size = sum(leaf.shape[1:].numel() * (2 if leaf.is_complex() else 1) for leaf in leaves)
        self.is_complex = all(leaf.is_complex() for leaf in leaves)
        self._step = _Call(core, core.step)
        self._names = [name for name, _ in self._step.named_parameters()]

    def transition(self, weights: Weights, s: Tensor, x: Tensor) -> Tensor:
        """Its weights, its state as numbers (N,) and its input (D,): the state after the step as numbers."""
        named = dict(zip(self._names, weights, strict=True))
        _, after = functional_call(self._step, named, (x[None], unflatten(s[None], self.like)))
        return flatten(after)[0].to(s.dtype)

    @property
    def title(self) -> str:
        return self.core.title


class Network:
    """A copy of a model in evaluation mode. Weights are tuples in the order of `names`, states lists of leaves."""

    def __init__(self, model: SequenceModel) -> None:
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        if not self.model.core.causal:
            raise InputError(
                f"the model reads the future ({type(model.core).__name__} is not causal), so it has no step to learn "
                "from: use a model without Reverse or Bidirectional"
            )
        if any(isinstance(module, LearnedStart) for module in self.model.modules()):
            raise InputError(
                "the model has a LearnedStart, and no rule carries the influence of an initial state: give the "
                "learner a model without it, and its start as the h of learner.state"
            )
        self.names = [name for name, _ in self.model.named_parameters()]
        self.weights = tuple(parameter.detach().clone() for parameter in self.model.parameters())
        self.dtype = next((weight.dtype for weight in self.weights), torch.float32)
        self.like = self.model.init_state(0)
        self.read: list[Tensor] = []  # what each part has read in the step that is being computed
        self._step = _Call(self.model, self.model.step)
        self.parts = list(self._parts(self.model.core, self.like, 0))
        self.plain = {id(part.core): part.core.step for part in self.parts}
        for part in self.parts:
            part.core.step = self._recording(part.core.step)

    def step(self, weights: Sequence[Tensor], state: Sequence[Tensor], x: Tensor) -> tuple[Distribution, list[Tensor]]:
        """One input of each row: the distribution of the target, and the leaves of the state after it."""
        self.read.clear()
        named = {f"module.{name}": weight for name, weight in zip(self.names, weights, strict=True)}
        predicted, after = functional_call(self._step, named, (x, restore(state, self.like)))
        return predicted, states.leaves(after)

    def transition(self, weights: Weights, s: Tensor, x: Tensor) -> Tensor:
        """The whole network as one recurrence: all weights, all numbers of the state."""
        _, after = self.step(weights, states.leaves(unflatten(s[None], self.like)), x[None])
        return flatten(tuple(after))[0].to(s.dtype)

    def init_state(self, batch_size: int) -> list[Tensor]:
        return states.leaves(self.model.init_state(batch_size))

    def module(self, weights: Sequence[Tensor]) -> SequenceModel:
        """The model with these weights."""
        for part in self.parts:
            del part.core.step  # a copy is of the class's own step again
        try:
            model = copy.deepcopy(self.model)
        finally:
            for part in self.parts:
                part.core.step = self._recording(self.plain[id(part.core)])
        with torch.no_grad():
            for parameter, weight in zip(model.parameters(), weights, strict=True):
                parameter.copy_(weight)
        return model

    def depends(self) -> list[bool]:
        """Of each part, whether what it reads depends on weights that are not its own."""
        core = self.model.core
        x = torch.zeros(1, core.input_size, dtype=self.dtype)
        self.read.clear()
        try:
            self.model.core.requires_grad_(True)
            with torch.enable_grad():
                _, after = core.step(x, core.init_state(1))
        finally:
            self.model.core.requires_grad_(False)
        if len(self.read) != len(self.parts):
            raise InputError(f"a step of {type(core).__name__} does not step each core inside it once, so no rule fits")
        below = next(self.model.embed.parameters(), None) is not None
        return [below or read.requires_grad for read in self.read]

    def _parts(self, core: Core, state: State, first: int) -> Any:
        inner, leaves = core.parts(state), states.leaves(state)
        if inner is None or sum(len(states.leaves(its_state)) for _, its_state in inner) < len(leaves):
            if any(leaf.shape[1:].numel() for leaf in leaves):  # a Pool has no parts, and remembers all the same
                own = {id(parameter) for parameter in core.parameters()}
                numbers = [i for i, p in enumerate(self.model.parameters()) if id(p) in own]
                yield Part(core, first, state, numbers)
            return
        for one, its_state in inner:
            yield from self._parts(one, its_state, first)
            first += len(states.leaves(its_state))

    def _recording(self, step: Callable[..., Any]) -> Callable[..., Any]:
        def recorded(x: Tensor, state: State) -> tuple[Tensor, State]:
            self.read.append(x)
            return cast(tuple[Tensor, State], step(x, state))

        return recorded


class _Call(nn.Module):
    """A module whose call is one of its methods: functional_call calls modules."""

    def __init__(self, module: nn.Module, method: Callable[..., Any]) -> None:
        super().__init__()
        self.module, self.method = module, method

    def forward(self, *args: object) -> Any:
        return self.method(*args)


def flatten(state: State) -> Tensor:
    """The numbers of a state, real ones (B, N)."""
    leaves = states.leaves(state)
    if len(leaves) == 1:
        return (torch.view_as_real(leaves[0]) if leaves[0].is_complex() else leaves[0]).flatten(1)
    # Not views: the gradient of one would have to lie at an even place among all numbers.
    parts = [torch.stack([leaf.real, leaf.imag], -1) if leaf.is_complex() else leaf for leaf in leaves]
    return torch.cat([part.flatten(1) for part in parts], 1)


def unflatten(s: Tensor, like: State) -> State:
    """The state of the structure of `like` that has these numbers (B, N), as wide as they are, or as `like` is."""
    at = 0

    def leaf(model: Tensor) -> Tensor:
        nonlocal at
        shape = model.shape[1:]
        width = shape.numel() * (2 if model.is_complex() else 1)
        part = s[:, at : at + width] if width != s.shape[1] else s
        at += width
        part = part.to(torch.promote_types(part.dtype, states.REAL.get(model.dtype, model.dtype)))
        if model.is_complex():
            # no view: that would have to begin at an even place
            return torch.complex(*part.reshape(len(s), *shape, 2).unbind(-1))
        return part.reshape(len(s), *shape)

    return states.map(leaf, like)


def restore(leaves: Sequence[Tensor], like: State) -> State:
    """The state of the structure of `like` that has these leaves."""
    given = iter(leaves)
    return states.map(lambda _: next(given), like)
