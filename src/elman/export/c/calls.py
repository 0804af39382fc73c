"""What a step in C is made of: calls of functions of runtime.c, and what they are given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from elman.export.c.weights import Place
from elman.kernels.builder import Slot


class Gated(NamedTuple):
    """What the calls of a gated cell are made of: csrc/gated.h has the same of each."""

    function: str
    gates: int
    second: int = 0  # gates of a second product, over what `function`_between leaves
    matrix: bool = True
    bias_last: bool = False  # the sum of the last gate starts from a bias, and what the input adds comes in later
    flags: tuple[int, ...] = ()


KINDS = {
    "elman_tanh": Gated("elman_tanh", 1), "elman_relu": Gated("elman_relu", 1),
    "indrnn_tanh": Gated("indrnn_tanh", 1, matrix=False), "indrnn_relu": Gated("indrnn_relu", 1, matrix=False),
    "rate_tanh": Gated("rate_tanh", 1), "rate_relu": Gated("rate_relu", 1),
    "gru": Gated("gru", 3, bias_last=True), "gru_before": Gated("gru_before", 3, 1), "mgu": Gated("mgu", 2, 1),
    "lstm": Gated("lstm", 4, flags=(0, 0)), "lstm_logistic": Gated("lstm", 4, flags=(0, 1)),
    "lstm_coupled": Gated("lstm", 3, flags=(1, 0)), "lstm_coupled_logistic": Gated("lstm", 3, flags=(1, 1)),
}  # fmt: skip
WITH_EXTRA = ("indrnn_tanh", "indrnn_relu", "rate_tanh", "rate_relu")  # a weight for each unit is an argument


@dataclass(frozen=True)
class Stretch:
    """Where a slot lies: from `first` on in the state, the weights, the input, or the room numbered `room`."""

    home: str  # "state", "room", "x" or the name of an array
    width: int
    first: int
    room: int = -1


class Part(NamedTuple):
    """A slot from some column on, as an argument."""

    slot: Slot
    first: int


Argument = Slot | Part | Place | int | float | str | None


@dataclass(frozen=True)
class Call:
    """A call of a function of runtime.c."""

    function: str
    arguments: tuple[Argument, ...]

    def slots(self) -> list[Slot]:
        found = [argument.slot if isinstance(argument, Part) else argument for argument in self.arguments]
        return [slot for slot in found if isinstance(slot, Slot)]
