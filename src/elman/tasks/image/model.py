"""What draws images: a network that predicts each pixel from those before it.

An image is drawn pixel by pixel for the price of one scan: every layer carries what it knows of the row and of the rows
above (pixels.py). Image i of a seed draws with the seed and the number i, so it is the same in any batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from elman import random
from elman.errors import InputError
from elman.files.artifact import Content
from elman.files.config import Json, one_of
from elman.model import SequenceModel
from elman.options import whole
from elman.tasks.image import PixelNetwork
from elman.tasks.image.data import Images, check_fixed, levels_of, read_images
from elman.tasks.image.network import LAYERS
from elman.tasks.image.readout import READOUTS, Brightness, PixelReadout, PixelRow
from elman.tasks.predictor import Predictor, evaluating
from elman.training.scores import Scores

EACH = 100  # images at a time by default


@dataclass(frozen=True)
class ImageModelConfig:
    """The settings of the network.

    Args:
        layer: row (row LSTM), diagonal (Diagonal BiLSTM) or multi (multi-dimensional LSTM)
        size: units of each layer and direction, for each pixel; there are twice as many features between layers
        layers: the number of layers
        kernel: the width of the masked convolution before the layers
        readout: binary, categorical (a probability for each level) or logistic (a mixture of ten); auto is binary for
            binary images, logistic for grey ones
        hidden: units between the last layer and the read-out
    """

    layer: str = one_of("diagonal", LAYERS)
    size: int = 32
    layers: int = 1
    kernel: int = 7
    readout: str = one_of("auto", ("auto", *READOUTS))
    hidden: int = 64


@dataclass(frozen=True)
class Reader:
    """What images a model reads: their size, the value of white, and how they become levels."""

    rows: int
    columns: int
    white: float
    binarise: str  # none, fixed, threshold or sampled

    @property
    def levels(self) -> int:
        return round(self.white) + 1 if self.binarise == "none" else 2

    def __call__(self, names: Sequence[str], rows: int | None = None) -> Tensor:
        """The images of some files, as `to_levels` gives them; `rows` of each, if not all of them."""
        images = read_images(names, self.columns, self.white)
        height, width = images.values.shape[1:]
        if width != self.columns or height != (self.rows if rows is None else rows):
            raise InputError(
                f"{', '.join(names)} holds images of {height} x {width} pixels; this model was trained on "
                f"{self.rows} x {self.columns}"
            )
        return to_levels(images, self.binarise, ", ".join(names))


def to_levels(images: Images, binarise: str, where: str) -> Tensor:
    """Levels (N, R, C), whole numbers; where they are to be sampled, the probability of white."""
    if binarise == "none":
        return torch.from_numpy(levels_of(images, where).astype(np.uint8 if images.white < 256 else np.int32))
    if binarise == "fixed":
        check_fixed(images, where)
        return torch.from_numpy(images.values.astype(np.uint8))
    share = images.values.astype(np.float32) / images.white
    return torch.from_numpy((share > 0.5).astype(np.uint8) if binarise == "threshold" else share)


def levels(images: Tensor, rows: Sequence[int], seed: int = 0, epoch: int = 0) -> Tensor:
    """Some of the images, as levels (B, R, C) int64. What is to be sampled is so by the seed, the pass and the number
    of the image: the same in any batch, and in a run that is resumed."""
    chosen = images[torch.as_tensor(rows, dtype=torch.int64)]
    if not chosen.is_floating_point():
        return chosen.long()
    numbers = [epoch * len(images) + row for row in rows]
    draws = torch.tensor([[seed, number] for number in numbers], dtype=torch.int64).reshape(-1, 2)
    u = random.uniform(draws, chosen[0].numel() if len(chosen) else 0)
    return (u.reshape(chosen.shape) < chosen).long()


def build(config: ImageModelConfig, reader: Reader) -> SequenceModel:
    """The model of a config, with fresh parameters."""
    binary = reader.levels == 2
    kind = ("binary" if binary else "logistic") if config.readout == "auto" else config.readout
    if kind == "binary" and not binary:
        raise InputError(
            f"model.readout is binary, and the images have {reader.levels} levels: set data.binarise to threshold or "
            "sampled, or model.readout to categorical or logistic"
        )
    network = PixelNetwork(
        1, config.size, reader.columns, layer=config.layer, layers=config.layers, kernel=config.kernel
    )
    readout = PixelReadout(kind, network.size, reader.columns, hidden=config.hidden, levels=reader.levels)
    return SequenceModel(Brightness(reader.levels), network, readout)


class Drawn(NamedTuple):
    """Images that a model drew."""

    images: Tensor  # (B, R, C) int64: levels
    log_prob: Tensor  # (B,) float64: of what was drawn, given the rows above


class Painter(Predictor[SequenceModel]):
    """A network, and what images it reads and draws.

    >>> reader = Reader(4, 4, 1.0, "fixed")
    >>> painter = Painter(build(ImageModelConfig(size=2), reader), ImageModelConfig(size=2), reader)
    >>> drawn = painter.draw(3, seed=7)
    >>> drawn.images.shape
    torch.Size([3, 4, 4])
    >>> torch.allclose(drawn.log_prob, painter.log_prob(drawn.images))
    True
    """

    task = "image"
    config: ImageModelConfig
    reader: Reader

    def __init__(self, model: SequenceModel, config: ImageModelConfig, reader: Reader) -> None:
        super().__init__(model, config=config, reader=reader)

    def log_prob(self, images: Tensor, batch_size: int = EACH, seed: int = 0) -> Tensor:
        """The log-probability (N,) float64 of images (N, R, C), as `to_levels` gives them."""

        def run(places: list[int]) -> Tensor:
            x = levels(images, places, seed)
            return cast(PixelRow, self.model.scan(x)[0]).each(x).double().sum((1, 2))

        terms = self.batched(range(len(images)), run, batch_size)
        return torch.stack(terms) if terms else torch.zeros(0, dtype=torch.float64)

    def evaluate(self, images: Tensor, batch_size: int = EACH) -> Scores:
        """Nats for each image and bits for each pixel, and of what images they are."""
        nats = -float(self.log_prob(images, batch_size).sum()) / max(1, len(images))
        numbers = {
            "nats_per_image": nats,
            "bits_per_dimension": nats / (self.reader.rows * self.reader.columns * math.log(2)),
        }
        binarisation = self.reader.binarise
        details: dict[str, Json] = {"binarisation": binarisation, "images": len(images)}
        remark = f"binarisation {binarisation}"
        return Scores(numbers, "nats_per_image", secondary=("bits_per_dimension",), details=details, remark=remark)

    @torch.inference_mode()
    def draw(self, count: int = 1, *, seed: int = 0, above: Tensor | None = None) -> Drawn:
        """Draw images; or complete those with the upper rows `above` (N, r, C), levels, `count` times each."""
        whole("count", count)
        with evaluating(self.model):
            return self._draw(count, seed, above)

    def _draw(self, count: int, seed: int, above: Tensor | None) -> Drawn:
        core, readout, embed = self.model.core, self.model.readout, self.model.embed
        assert isinstance(core, PixelNetwork) and isinstance(readout, PixelReadout)
        upper = torch.zeros(1, 0, self.reader.columns, dtype=torch.int64) if above is None else above.long()
        upper = upper.repeat_interleave(count, 0)
        draws = torch.tensor([[seed, i << 32] for i in range(len(upper))], dtype=torch.int64).reshape(-1, 2)
        _, state = core.scan(embed(upper))
        rows, total = [upper], torch.zeros(len(upper), dtype=torch.float64)
        for _ in range(self.reader.rows - upper.shape[1]):
            row, pixels = core.open(state), []
            for _ in range(self.reader.columns):
                y, row = core.predict(row)
                level, log_prob = readout.draw(y, draws)
                row, draws, total = core.put(embed(level)[:, None], row), random.after(draws), total + log_prob.double()
                pixels.append(level)
            state = core.close(row)
            rows.append(torch.stack(pixels, 1)[:, None])
        return Drawn(torch.cat(rows, 1), total)

    @classmethod
    def parts(cls, content: Content) -> tuple[ImageModelConfig, Reader]:
        return ImageModelConfig(**content["config"]), Reader(**content["reader"])

    @classmethod
    def network(cls, config: ImageModelConfig, reader: Reader) -> SequenceModel:
        return build(config, reader)

    def __repr__(self) -> str:
        c, r = self.config, self.reader
        shape = f"{c.layers} x {c.layer} {c.size}, {r.rows} x {r.columns} pixels"
        return f"Painter({shape}, {self.parameter_count:,} parameters)"

    def about(self) -> list[list[str]]:
        read = {**asdict(self.reader), "levels": self.reader.levels}
        return [[name, str(value)] for name, value in read.items()]
