"""Networks over images, as Cores over their rows: the state of a row is a row of states. pixels.py is read first."""

from elman.tasks.image.convolution import MaskedConvolution
from elman.tasks.image.diagonal import DiagonalBiLSTM, MultiLSTM
from elman.tasks.image.network import LAYERS, PixelNetwork, ResidualPixels
from elman.tasks.image.pixels import Pixels
from elman.tasks.image.row_lstm import RowLSTM

__all__ = [
    "LAYERS",
    "DiagonalBiLSTM",
    "MaskedConvolution",
    "MultiLSTM",
    "PixelNetwork",
    "Pixels",
    "ResidualPixels",
    "RowLSTM",
]
