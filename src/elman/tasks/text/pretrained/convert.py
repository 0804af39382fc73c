"""A model as others saved it -> a `LanguageModel`: its network, its weights, its tokenizer."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

from elman.data import Vocabulary
from elman.data.tokenizer import Tokenizer, World
from elman.errors import FileError, InputError, UnknownNameError
from elman.model import SequenceModel
from elman.nn.embed import Embedding
from elman.nn.readout import Softmax
from elman.tasks.text.lm import LanguageModel, LMModelConfig, build
from elman.tasks.text.pretrained.families import FAMILIES, HYBRIDS
from elman.tasks.text.pretrained.source import Config, Tensors, open_folder, open_pth
from elman.training.alone import Undisturbed

WORLD = "rwkv_vocab_v20230424.txt"  # the vocabulary of the RWKV models, as they call it


def from_pretrained(source: str | Path, *, tokenizer: str | Path | None = None) -> LanguageModel:
    """A pretrained model as others saved it, as a LanguageModel.

    `source` is a folder as Hugging Face has them (config.json, model.safetensors, tokenizer.json), or the .pth of an
    RWKV-7. `tokenizer` is its tokenizer.json, or rwkv_vocab_v20230424.txt, where it is not beside it. Nothing is
    downloaded and no code is run.

    >>> import tempfile
    >>> try:
    ...     elman.from_pretrained(tempfile.mkdtemp())
    ... except elman.errors.FileError as error:
    ...     print(str(error).partition("has ")[2])
    no config.json; a folder of Hugging Face has one
    """
    path = Path(source).expanduser()
    config, tensors = _open(path)
    kind = str(config.content.get("model_type"))
    if kind in HYBRIDS:
        raise FileError(
            f"{path} is a {kind}: some of its layers attend to all that came before, so its state grows with the text. "
            f"A model here has a state of a fixed size; these can be read: {', '.join(FAMILIES)}"
        )
    if kind not in FAMILIES:
        raise UnknownNameError("family of pretrained models", kind, FAMILIES)
    if config.content.get("quantization_config"):
        raise FileError(f"{config.path} has a quantization_config; take the model whose weights are not quantised")
    family = FAMILIES[kind]
    settings = family.settings(config, tensors)
    size, layers, symbols = (settings.pop(name) for name in ("size", "layers", "symbols"))
    if layers > len(tensors.shapes):
        raise FileError(
            f"{config.path} has {layers:,} layers, and {tensors.path} {len(tensors.shapes):,} tensors in all"
        )
    end = config.token("eos_token_id", config.token("bos_token_id", 0))
    begin = config.token("bos_token_id", end)
    for name, number in (("eos_token_id", end), ("bos_token_id", begin)):
        if not 0 <= number < symbols:
            raise FileError(f"{name} is {number} in {config.path}; the model has {symbols:,} symbols")
    vocabulary = _vocabulary(path, tokenizer, symbols, end)
    start = end if begin == 0 else 0 if begin == end else begin  # the row of `begin`, once 0 and `end` are exchanged
    pretrained = {"family": kind, **settings, **({"start": start} if start else {})}
    model = LMModelConfig(
        cell=family.cell, size=size, layers=layers, block="residual", tied=family.head not in tensors,
        pretrained=pretrained,
    )  # fmt: skip
    try:
        with Undisturbed():  # it is built with fresh weights before it gets its own
            network = build(model, symbols)
    except (RuntimeError, OverflowError) as error:  # more numbers than there can be
        raise FileError(
            f"a network as {config.path} describes cannot be built: {str(error).splitlines()[0]}"
        ) from error
    family.copy(network.core, tensors)
    if config.content.get("tie_word_embeddings") is False:
        tensors.shape(family.head)
    _copy_ends(network, tensors, family.embedding, family.head, end)
    tensors.finish()
    return LanguageModel(network, vocabulary, model)


def convert(source: str | Path, out: str | Path, *, tokenizer: str | Path | None = None) -> LanguageModel:
    """Read a pretrained model and save it as a folder that every verb opens; an existing one is not replaced."""
    folder = Path(out).expanduser()
    if folder.exists():
        raise InputError(f"{folder} exists; choose another --out")
    lm = from_pretrained(source, tokenizer=tokenizer)
    lm.save(folder)
    return lm


def _open(path: Path) -> tuple[Config, Tensors]:
    if path.is_dir():
        return open_folder(path)
    if not path.is_file():
        raise FileError(f"there is no {path}; give a folder with config.json and model.safetensors, or an RWKV-7 .pth")
    if path.suffix != ".pth":
        raise FileError(f"{path} is neither a folder with config.json and model.safetensors nor the .pth of an RWKV-7")
    return Config(path, {"model_type": "rwkv7_pth"}), open_pth(path)


def _vocabulary(source: Path, named: str | Path | None, symbols: int, end: int) -> Vocabulary:
    """The tokenizer that is named, that lies beside the weights, or that the package rwkv has for a .pth."""
    folder = source if source.is_dir() else source.parent
    places = [folder / "tokenizer.json", folder / WORLD] if source.is_dir() else [folder / WORLD]
    package = None if source.is_dir() else find_spec("rwkv")
    places += [Path(place) / WORLD for place in (package.submodule_search_locations or ())] if package else []
    path = next((place for place in places if place.is_file()), None) if named is None else Path(named).expanduser()
    if path is None:
        raise FileError(f"there is no tokenizer beside {source}: name its tokenizer.json, or {WORLD}, by --tokenizer")
    if path.suffix == ".txt":
        if end:
            raise FileError(f"{path} ends texts with the token 0, the config of {source} with {end}")
        return World.read(path, symbols)
    try:
        return Tokenizer(path.read_text(encoding="utf-8"), symbols, end)
    except (OSError, ValueError) as error:
        raise FileError(f"{path} cannot be read: {error}") from error


def _copy_ends(network: SequenceModel, tensors: Tensors, embedding: str, head: str, end: int) -> None:
    """The embedding and the read-out, whose rows 0 and `end` change places: what ends a text is symbol 0 here."""

    def exchanged(rows: Tensor) -> Tensor:
        order = torch.arange(len(rows))
        order[0], order[end] = end, 0
        return rows[order]

    embed, readout = network.embed, network.readout
    assert isinstance(embed, Embedding) and isinstance(readout, Softmax)
    linear = readout.linear
    tensors.copy(embed.weight, embedding, make=exchanged)
    if linear.weight is not embed.weight:
        tensors.copy(linear.weight, head, make=exchanged)
    tensors.zero(linear.bias)
