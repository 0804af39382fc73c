"""Networks over images, as Cores over their rows: the state of a row is a row of states. pixels.py is read first."""

from elman.images.convolution import MaskedConvolution
from elman.images.diagonal import DiagonalBiLSTM, MultiLSTM
from elman.images.network import LAYERS, PixelNetwork, ResidualPixels
from elman.images.pixels import Pixels
from elman.images.row_lstm import RowLSTM

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
