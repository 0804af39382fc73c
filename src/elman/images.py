"""Networks over images, under their public name."""

from elman.tasks.image import (
    LAYERS,
    DiagonalBiLSTM,
    MaskedConvolution,
    MultiLSTM,
    PixelNetwork,
    Pixels,
    ResidualPixels,
    RowLSTM,
)

__all__ = [
    "LAYERS", "DiagonalBiLSTM", "MaskedConvolution", "MultiLSTM", "PixelNetwork", "Pixels", "ResidualPixels", "RowLSTM",
]  # fmt: skip
