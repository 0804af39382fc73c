"""One cell, one file, the equation on top. Adding one: its file, a line in CELLS, a page in docs/cells."""

from __future__ import annotations

import inspect

from elman.cells.deep_transition import DeepTransition
from elman.cells.elman import Elman
from elman.cells.gru import GRU
from elman.cells.hmm import HMM
from elman.cells.indrnn import IndRNN
from elman.cells.jordan import Jordan
from elman.cells.lru import LRU
from elman.cells.lstm import LSTM
from elman.cells.mamba import Mamba
from elman.cells.mgu import MGU
from elman.cells.mingru import MinGRU
from elman.cells.minlstm import MinLSTM
from elman.cells.rate import Rate
from elman.cells.s4d import S4D
from elman.cells.s5 import S5
from elman.cells.window import Window
from elman.core import Core
from elman.errors import InputError, UnknownNameError

__all__ = ["CELLS", "cell"]

CELLS: dict[str, type[Core]] = {
    "elman": Elman,
    "indrnn": IndRNN,
    "jordan": Jordan,
    "deep_transition": DeepTransition,
    "window": Window,
    "rate": Rate,
    "lstm": LSTM,
    "gru": GRU,
    "mgu": MGU,
    "mingru": MinGRU,
    "minlstm": MinLSTM,
    "lru": LRU,
    "s4d": S4D,
    "s5": S5,
    "mamba": Mamba,
    "hmm": HMM,
}


def cell(name: str, input_size: int, size: int, **options: object) -> Core:
    """The cell called `name`, from `input_size` features to `size`.

    >>> cell("elman", 3, 4, phi="relu")
    Elman(3, 4)
    """
    if name not in CELLS:
        raise UnknownNameError("cell", name, CELLS)
    known = [option for option in inspect.signature(CELLS[name]).parameters if option not in ("input_size", "size")]
    for option in options:
        if option not in known:
            raise InputError(f"{name} has no option {option!r}; it has {', '.join(known) or 'none'}")
    return CELLS[name](input_size, size, **options)
