"""Small models as others save them, with random weights, and how far ours are from what theirs compute."""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor, nn

import elman
from elman import laws
from elman.errors import ElmanError
from elman.tasks.text.lm import LanguageModel

SYMBOLS = 300
SPECIAL = ("<a>", "<b>", "<c>")


def write_tokenizer(folder: Path) -> None:
    """Bytes, as those of GPT-2, and a few words; the first numbers are special."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = ["th", "Ġt", "Ġth"]
    tokens = [*SPECIAL, *letters, *words]
    tokenizer = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, [("t", "h"), ("Ġ", "t"), ("Ġ", "th")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.save(str(folder / "tokenizer.json"))


def write_folder(folder: Path, config: dict, tensors: dict[str, Tensor]) -> Path:
    """A folder as Hugging Face has them."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    write_tokenizer(folder)
    return folder


def randomise(model: nn.Module) -> nn.Module:
    """No parameter is where it starts: a zero or a one would hide that it is not read."""
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=random)
    return model.eval()


def save(model: nn.Module, folder: Path) -> Path:
    """What transformers' `save_pretrained` writes, and a tokenizer."""
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return folder


def tokens(rows: int = 2, steps: int = 21, symbols: int = SYMBOLS) -> Tensor:
    """Numbers of theirs, none of them special."""
    return torch.randint(len(SPECIAL), symbols, (rows, steps), generator=torch.Generator().manual_seed(2))


def worst_error(lm: LanguageModel, x: Tensor, want: Tensor, begin: int | None = None) -> float:
    """The largest difference of logits (B, T, V) for their tokens x (B, T): of the whole, of chunks, of single steps.

    Where a text begins with `begin`, it begins with the boundary here."""
    exchange = getattr(lm.vocabulary, "_exchange", lambda ids: ids)
    symbols = torch.from_numpy(exchange(x.numpy()))
    if begin is not None:
        assert (x[:, 0] == begin).all()
        symbols[:, 0] = 0
    order = torch.from_numpy(exchange(torch.arange(lm.vocabulary.size).numpy()))
    with torch.no_grad():
        found = [lm.model.scan(symbols)[0].logits]
        state, parts = None, []
        for piece in symbols.split([1, 7, 0, 5, symbols.shape[1] - 13], 1):
            predicted, state = lm.model.scan(piece, state)
            parts.append(predicted.logits)
        found.append(torch.cat(parts, 1))
        stream = elman.Stream(lm.model, len(x))
        found.append(torch.stack([torch.from_numpy(stream.logits(s.numpy()).copy()) for s in symbols.T], 1))
    return max(float((logits[..., order] - want).abs().max()) for logits in found)


ODD = (0, -1, 0.5, 10**12, math.nan, math.inf, "x", "", True, [], [[1]], {}, None)


def check_odd_files(folder: Path, config: dict, tensors: dict[str, Tensor]) -> None:
    """Whatever a setting is, and whatever shape a tensor has: a model, or one line that says what is wrong."""
    write_folder(folder, config, tensors)
    for name in config:
        for value in ODD:
            (folder / "config.json").write_text(json.dumps({**config, name: value}))
            _read_or_refuse(folder, f"{name} = {value!r}")
    (folder / "config.json").write_text(json.dumps(config))
    for name, tensor in tensors.items():
        for other in (tensor.sum(), tensor.flatten(), tensor[None, None], tensor[:0], tensor.int(), tensor[..., :-1]):
            if other.shape != tensor.shape or other.dtype != tensor.dtype:
                write_folder(folder, config, {**tensors, name: other})
                same = other.is_floating_point() and other.numel() == tensor.numel()  # a vector in whatever shape
                assert not _read_or_refuse(folder, f"{name} {other.dtype}{list(other.shape)}") or same


def _read_or_refuse(folder: Path, what: str) -> bool:
    """Whether it was read."""
    try:
        elman.from_pretrained(folder)
    except ElmanError as error:
        assert "\n" not in str(error), what
        return False
    except Exception as error:
        raise AssertionError(f"{what}: {error!r}") from error
    return True


def check_laws(lm: LanguageModel) -> None:
    """Correct in float64, for in float32 gradients of random weights are rounded; exact in float32."""
    core = lm.model.core
    exact = laws.check(core)
    assert exact.exact, exact
    correct = laws.check(core.double())
    assert correct.ok, correct
