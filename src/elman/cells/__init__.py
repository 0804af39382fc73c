"""One cell, one file, the equation on top. Adding one: its file, a line in CELLS, a page in docs/reference/cells."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from elman.cells.deep_transition import DeepTransition
from elman.cells.deltanet import DeltaNet
from elman.cells.elman import Elman
from elman.cells.gated_deltanet import GatedDeltaNet
from elman.cells.gla import GLA
from elman.cells.gru import GRU
from elman.cells.hgrn2 import HGRN2
from elman.cells.hmm import HMM
from elman.cells.indrnn import IndRNN
from elman.cells.jordan import Jordan
from elman.cells.kda import KDA
from elman.cells.lru import LRU
from elman.cells.lstm import LSTM
from elman.cells.mamba import Mamba
from elman.cells.mamba2 import Mamba2
from elman.cells.mamba3 import Mamba3
from elman.cells.mgu import MGU
from elman.cells.mingru import MinGRU
from elman.cells.minlstm import MinLSTM
from elman.cells.mlstm import MLSTM
from elman.cells.rate import Rate
from elman.cells.retnet import RetNet
from elman.cells.rglru import RGLRU
from elman.cells.rwkv7 import RWKV7
from elman.cells.s4d import S4D
from elman.cells.s5 import S5
from elman.cells.slstm import SLSTM
from elman.cells.window import Window
from elman.core import Core
from elman.errors import InputError, UnknownNameError
from elman.options import refuse_unknown

__all__ = [
    "CELLS", "GLA", "GRU", "HGRN2", "HMM", "KDA", "LRU", "LSTM", "MGU", "MLSTM", "RGLRU", "RWKV7", "S4D", "S5",
    "SLSTM", "DeepTransition", "DeltaNet", "Elman", "GatedDeltaNet", "IndRNN", "Jordan", "Mamba", "Mamba2", "Mamba3",
    "MinGRU", "MinLSTM", "Rate", "RetNet", "Window", "cell",
]  # fmt: skip

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
    "mamba2": Mamba2,
    "mamba3": Mamba3,
    "retnet": RetNet,
    "gla": GLA,
    "hgrn2": HGRN2,
    "deltanet": DeltaNet,
    "gated_deltanet": GatedDeltaNet,
    "kda": KDA,
    "rwkv7": RWKV7,
    "mlstm": MLSTM,
    "slstm": SLSTM,
    "rglru": RGLRU,
    "hmm": HMM,
}


def cell(name: str | type[Core], input_size: int, size: int, **options: object) -> Core:
    """The cell called `name`, or a class of your own, from `input_size` features to `size`.

    >>> cell("elman", 3, 4, phi="relu")
    Elman(3, 4)
    """
    check_options(name, options)
    return kind(name)(input_size, size, **options)


def kind(name: str | type[Core]) -> type[Core]:
    """The class of a cell; one that is given is taken as it is."""
    if isinstance(name, type) and issubclass(name, Core):
        return name
    if not isinstance(name, str):
        raise InputError(f"the cell is {name!r}; it must be a name in CELLS, or a class that derives from Core")
    if name not in CELLS:
        raise UnknownNameError("cell", name, CELLS)
    return CELLS[name]


def check_options(name: str | type[Core], options: Iterable[str], others: Sequence[str] = ()) -> None:
    """Raise an InputError for the first option that a cell does not have. `others` may have been meant too."""
    refuse_unknown(name if isinstance(name, str) else name.__name__, kind(name), options, others)
