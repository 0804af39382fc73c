"""Images drawn pixel by pixel: from files of images to a model of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from elman.data import Batch, Batches, OrderedBatches, Position, Shuffled
from elman.data.names import Names, file_list
from elman.data.splits import SplitConfig, read_parts, split_summary
from elman.errors import FileError, InputError
from elman.files import artifact
from elman.files.config import Json, one_of
from elman.lens import Sample
from elman.lens.fresh import fresh
from elman.lens.layers import inspection_mode
from elman.model import SequenceModel
from elman.options import choice, number, whole
from elman.state import State
from elman.tasks import plots
from elman.tasks.image.data import BINARISATIONS, EMBEDDED, Images, fingerprint, is_binary, read_images
from elman.tasks.image.model import EACH, Drawn, ImageModelConfig, Painter, Reader, build, levels, to_levels
from elman.tasks.image.readout import PixelRow
from elman.tasks.request import Request, Rows, batch_size, data_option, opened, option
from elman.tasks.task import Data, Evaluation, Inspection, InspectRequest, Response, Task, TrainedSettings
from elman.training.loss import Loss
from elman.training.record import Preview
from elman.training.scores import Scores

GRID = 36  # images of a preview
ABOUT = (
    "A step is a row of pixels, and the state is what the next row needs to know of those above: so reach, context and "
    "exponents are counted in rows. Numbers of the state are ordered by column, then by unit. Gates are left out: they "
    "belong to pixels, inside a step."
)


@dataclass(frozen=True)
class ImageDataConfig(SplitConfig):
    """Images.

    Args:
        train: files of images, .npz, IDX or MATLAB 5, one name or a list; FILE:KEY where a file has several arrays; or
            embedded:digits, 8 x 8 pixels
        columns: the number of columns of images that are stored as one row of pixels each; 0 for square images
        white: the largest value; 0 for the default: 255 for bytes, 16 for the embedded digits, 1 for other numbers
        binarise: fixed (all values are 0 or 1), threshold (white above the middle), sampled (white with probability
            value / white, drawn again in each pass), none (grey), or auto (fixed if all values are 0 or 1, else none)
        batch_size: images in a step, over all processes
    """

    train: Names = EMBEDDED
    columns: int = 0
    white: float = 0.0
    binarise: str = one_of("auto", ("auto", "none", *BINARISATIONS))
    batch_size: int = 32


@dataclass(frozen=True)
class ImageConfig(TrainedSettings[Painter]):
    """A run from images to a model of them.

    >>> ImageConfig(model=ImageModelConfig(layer="row")).data.train
    'embedded:digits'

    Args:
        task: what is trained; image generates images pixel by pixel
        data: the images
        model: the network
        init_from: a run or a saved model whose weights this run begins with, on images of its size; empty for none
    """

    task: str = "image"
    data: ImageDataConfig = field(default_factory=ImageDataConfig)
    model: ImageModelConfig = field(default_factory=ImageModelConfig)
    init_from: str = ""


class ImageData(Data):
    """Images as levels, in shuffled batches."""

    unit = "images"

    def __init__(self, config: ImageConfig, saved: Painter | None) -> None:
        self.config, data = config, config.data
        whole("data.batch_size", data.batch_size)
        choice("data.binarise", data.binarise, ("auto", "none", *BINARISATIONS))
        white = saved.reader.white if saved else number("data.white", data.white, 0)

        def read(names: Sequence[str]) -> list[tuple[int, NDArray[np.generic]]]:
            nonlocal white
            images = read_images(names, data.columns, white)
            white = images.white
            return list(enumerate(images.values))

        parts = read_parts(data, read, lambda row: row[0], "images")
        sizes = sorted({image.shape for part in parts for _, image in part[:1]})
        if len(sizes) > 1:
            raise InputError(f"the images to train on, to validate and to test have the sizes {sizes}; they need one")
        images = [Images(np.stack([image for _, image in part]), white) if part else None for part in parts]
        assert images[0] is not None and images[1] is not None
        self.reader = saved.reader if saved else _reader(data, images[0])
        if sizes[0] != (self.reader.rows, self.reader.columns):
            raise InputError(
                f"the images of data.train have {sizes[0][0]} x {sizes[0][1]} pixels, and the model that this run "
                f"begins with {self.reader.rows} x {self.reader.columns}"
            )
        self.train, self.valid, self.test = (
            None if part is None else to_levels(part, self.reader.binarise, name)
            for part, name in zip(images, ("data.train", "data.valid", "data.test"), strict=True)
        )
        self.fingerprint = {
            f"data.{name}": "" if part is None else fingerprint(part)
            for name, part in zip(("train", "valid", "test"), images, strict=True)
        }

    def summary(self) -> list[str]:
        r, numbers = self.reader, [0 if part is None else len(part) for part in (self.train, self.valid, self.test)]
        return [
            f"data: {file_list(self.config.data.train)}: {split_summary('images', *numbers)}",
            f"pixels: {r.rows} x {r.columns}, {r.levels} levels, binarisation {r.binarise}",
        ]

    def first(self, part: Tensor, count: int) -> Tensor:
        return part if count >= len(part) else part[:count]

    def batches(self, rank: int, world: int) -> Batches:
        images, seed = self.train, self.config.seed
        assert images is not None

        def make(rows: list[int], at: Position) -> Batch:
            x = levels(images, rows, seed, at.epoch)
            reset = torch.zeros(x.shape[:2], dtype=torch.bool)
            return Batch(x, x, reset, torch.full((len(x),), x.shape[1]))

        return OrderedBatches(Shuffled(len(images), self.config.data.batch_size, seed, rank, world), make)

    def describe_loss(self, loss: float) -> str:
        return f"{loss * self.reader.rows * self.reader.columns:.2f} nats an image ({self.reader.binarise})"


def _reader(data: ImageDataConfig, images: Images) -> Reader:
    rows, columns = images.values.shape[1:]
    binarise = data.binarise
    if binarise == "auto":
        binarise = "fixed" if is_binary(images) else "none"
    if binarise == "none" and not (images.white.is_integer() and images.white >= 1):
        raise InputError(f"data.white is {images.white:g}; of images that are not binarised it is a whole number")
    return Reader(rows, columns, 1.0 if binarise == "fixed" else images.white, binarise)


class ImageTask(Task[ImageConfig, ImageData, Painter]):
    Config, Model = ImageConfig, Painter
    title = "a model of images"

    @property
    def requests(self) -> dict[str, tuple[type[Request], Response]]:
        inspect = self.inspector(_read)
        return {
            "generate": (Generate, generate),
            "evaluate": (Evaluate, evaluate),
            "inspect": (InspectRequest, inspect),
        }

    def open(self, config: ImageConfig, saved: Painter | None) -> ImageData:
        return ImageData(config, saved)

    def build(self, config: ImageConfig, data: ImageData) -> Painter:
        return Painter(build(config.model, data.reader), config.model, data.reader)

    def settings(self, predictor: Painter) -> dict[str, Json]:
        model = {f"model.{name}": value for name, value in asdict(predictor.config).items()}
        return {**model, "data.binarise": predictor.reader.binarise, "data.columns": predictor.reader.columns}

    def copy_weights(self, predictor: Painter, source: Painter) -> list[str]:
        return [*super().copy_weights(predictor, source), f"binarisation {source.reader.binarise}"]

    def loss(self, model: nn.Module, batch: Batch, state: State | None) -> Loss:
        """Nats a pixel, a term for each image: of nats an image, the gradient would grow with the image."""
        assert isinstance(model, SequenceModel) and isinstance(batch.y, Tensor)
        predicted, _ = model.scan(batch.x)
        return -predicted.log_prob(batch.y).sum() / batch.y[0].numel(), len(batch.y), None

    def evaluate(self, predictor: Painter, part: Tensor) -> Evaluation:
        return Evaluation(predictor.evaluate(part))

    def inspect_inputs(self, predictor: Painter, part: Tensor, rows: int, steps: int) -> Inspection:
        """Images from the start of the data, each as far as `steps` of its rows."""
        x = levels(part, range(min(rows, len(part))))[:, :steps]
        inspection = self._inspection(predictor.model, predictor.reader, x)
        return inspection._replace(begun=lambda: self._inspection(fresh(predictor.model), predictor.reader, x))

    def _inspection(self, model: nn.Module, reader: Reader, x: Tensor) -> Inspection:
        ink = x.float().mean(2) / (reader.levels - 1)
        names = [[f"{value:.3g} " for value in row] for row in ink.tolist()]
        panels = (_panel(model, reader, x[:1]),)
        return Inspection(model, Sample(x, x, names=names, labels={"ink": ink}, panels=panels, about=ABOUT))

    def preview(self, predictor: Painter, config: ImageConfig, step: int, evaluation: Evaluation | None) -> Preview:
        return Preview(
            picture=plots.grid(predictor.draw(GRID, seed=config.seed).images.numpy(), predictor.reader.levels - 1)
        )


@torch.no_grad()
def _panel(model: nn.Module, reader: Reader, x: Tensor) -> dict[str, object]:
    """The first image (1, R, C), and what each of its pixels costs."""
    assert isinstance(model, SequenceModel)
    with inspection_mode(model):
        predicted, _ = model.scan(x)
    assert isinstance(predicted, PixelRow)
    nats = -predicted.each(x)[0]
    return {
        "kind": "image", "title": "Image", "pixels": x[0].tolist(), "white": reader.levels - 1, "nats": nats.tolist(),
        "about": "The first image, and how many nats each of its pixels costs, given those before it: bright is a "
        "surprise. Click a row to choose that step.",
    }  # fmt: skip


# What it answers


@dataclass(frozen=True)
class Evaluate(Request):
    """How probable images are."""

    data: Rows = data_option(f"files of images, or {EMBEDDED}")
    batch_size: int = batch_size(EACH, "images")


@dataclass(frozen=True)
class Generate(Request):
    """Images in a new file."""

    count: int | None = option(None, "the number of images; by default 64, or 1 for each image to complete", least=1)
    out: str = option(
        "grid.png",
        "a new file: .png for a grid, .npz for the levels",
        metavar="FILE",
        local=True,
        endings=(".png", ".npz"),
    )
    complete: str | None = option(None, "a file of the upper rows of images, to complete", metavar="FILE", local=True)
    seed: int = option(0, "the seed of the random numbers", least=0)


def _read(predictor: Painter, request: Evaluate | InspectRequest) -> Tensor:
    """The images of files; or those that were given, as `to_levels` gives them."""
    names = opened(request.data)
    return predictor.reader(names) if names is not None else torch.as_tensor(request.data)


def evaluate(predictor: Painter, request: Evaluate) -> Scores:
    return predictor.evaluate(_read(predictor, request), request.batch_size)


@dataclass(frozen=True)
class GeneratedImages:
    """Images drawn from a model, and the file that they are in."""

    drawn: Drawn
    path: Path

    def pieces(self) -> Iterable[str]:
        nats = -float(self.drawn.log_prob.mean())
        return [f"{len(self.drawn.images)} images in {self.path}, {nats:.2f} nats each on average\n"]

    def to_json(self) -> dict[str, Json]:
        return {"images": len(self.drawn.images), "out": str(self.path), "nats": (-self.drawn.log_prob).tolist()}


def generate(predictor: Painter, request: Generate) -> GeneratedImages:
    path = Path(request.out)
    if path.exists():
        raise InputError(f"{path} exists; it is not overwritten. Choose another name.")
    ending = path.suffix.lower()
    if ending == ".png":
        plots.check_plot()
    above = None if request.complete is None else _upper(predictor, request.complete)
    drawn = predictor.draw(request.count or (64 if above is None else 1), seed=request.seed, above=above)
    images, white = drawn.images.numpy(), predictor.reader.levels - 1
    try:
        artifact.replace(path, lambda new: _write(new, ending, images, white))
    except OSError as error:
        raise FileError(f"cannot write {path}: {error}") from error
    return GeneratedImages(drawn, path)


def _upper(predictor: Painter, name: str) -> Tensor:
    """The upper rows of images, as levels."""
    reader = predictor.reader
    rows = read_images([name], reader.columns, reader.white).values.shape[1]
    if rows >= reader.rows:
        raise InputError(
            f"{name} holds images of {rows} rows, and this model draws {reader.rows}: leave out those to be drawn"
        )
    images = reader([name], rows)
    return levels(images, range(len(images)))


def _write(path: Path, ending: str, images: NDArray[np.int64], white: int) -> None:
    if ending == ".png":
        path.write_bytes(plots.grid(images, white))
    else:
        with path.open("wb") as file:
            np.savez_compressed(file, images=images.astype(np.uint8 if white < 256 else np.int32))
