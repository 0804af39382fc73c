"""A model is embed -> core -> read-out -> distribution. Tasks differ in which, and in their targets; in nothing else.

For every row and every t < lengths: if reset[t], the state becomes init_state; then P[t], state = step(x[t], state).
That is a Core with a distribution in place of y. A read-out may give one distribution per row instead of one per step.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from elman.core import Core
from elman.errors import InputError
from elman.nn.distributions import Distribution
from elman.state import State


class SequenceModel(nn.Module):
    """Inputs in, a distribution for each time step out, and the state in between is the caller's.

    >>> import torch
    >>> from elman.cells import cell
    >>> from elman.nn.embed import Embedding
    >>> from elman.nn.readout import Softmax
    >>> model = SequenceModel(Embedding(5, 3), cell("elman", 3, 4), Softmax(4, 5))
    >>> predicted, state = model.scan(torch.tensor([[1, 2, 3]]))
    >>> predicted.log_prob(torch.tensor([[2, 3, 4]])).shape
    torch.Size([1, 3])
    """

    def __init__(self, embed: nn.Module, core: Core, readout: nn.Module) -> None:
        super().__init__()
        self.embed, self.core, self.readout = embed, core, readout

    def init_state(self, batch_size: int) -> State:
        """The state before the first input, `batch_size` rows of it."""
        self._check_causal("initial state")
        return self.core.init_state(batch_size)

    def step(self, x: State, state: State) -> tuple[Distribution, State]:
        """One input for each row, x (B, ...): the distribution of the next target, and the state after it."""
        self._check_causal("step")
        y, state = self.core.step(self.embed(x), state)
        return self.readout(y), state

    def scan(
        self, x: State, state: State | None = None, *, lengths: Tensor | None = None, reset: Tensor | None = None
    ) -> tuple[Distribution, State]:
        """Inputs x (B, T, ...): the distribution of each next target; the state after each row's last valid input."""
        y, state = self.core(self.embed(x), state, lengths=lengths, reset=reset)
        whole = y.new_full((y.shape[0],), y.shape[1], dtype=torch.int64)
        return self.readout(y, whole if lengths is None else torch.as_tensor(lengths, device=y.device)), state

    forward = scan

    def repeat(self, times: int) -> SequenceModel:
        """The model for a batch whose rows are repeated: if its core is bound to a memory, that is repeated too."""
        core = self.core.repeat(times)
        return self if core is self.core else SequenceModel(self.embed, core, self.readout).train(self.training)

    def _check_causal(self, what: str) -> None:
        if not self.core.causal:
            raise InputError(
                f"this model reads the future ({type(self.core).__name__} is not causal), so it has no {what}: "
                "scan whole sequences, without a state"
            )
