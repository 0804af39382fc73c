"""Language models: P(text) is the product of P(token | those before it), the first token given a boundary symbol."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from elman import artifact
from elman import state as states
from elman.compose import stack
from elman.data import Encoded, Vocabulary
from elman.data import vocabulary as vocabularies
from elman.data.cache import encode_string
from elman.data.progress import Waiting
from elman.data.vocabulary import BOUNDARY
from elman.data.windows import lane_batches
from elman.decoding.sample import Carried
from elman.embed import Embedding
from elman.errors import FileError, InputError, UnknownNameError
from elman.model import SequenceModel
from elman.readout import AdaptiveSoftmax, Softmax
from elman.state import State
from elman.tasks.generation import Generation
from elman.tasks.markov import Markov

KIND, VERSION = "elman-model", 1
LOGITS = 1 << 25  # numbers that reading a text computes at a time at most: 64 lines of 512 words would be gigabytes
DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.float32}  # of the parameters


@dataclass(frozen=True)
class ModelConfig:
    """What the network is.

    Args:
        cell: a cell (`elman laws` lists them), or markov for the order-m Markov model
        size: units in each layer
        layers: how many layers
        options: options of the cell, as {name: value}
        residual: add what a layer reads to what it puts out
        norm: layer, rms or null, before each layer
        dropout: between layers
        embedding_size: width of the embedding; 0 for as wide as the layers
        embedding_dropout: on the embedding
        readout_dropout: before the read-out
        tied: one matrix for embedding and read-out
        cutoffs: of an adaptive softmax, for large vocabularies; empty for a plain one
        order: symbols that the Markov model sees
        dtype: float32, float64, or bfloat16 for the activations
    """

    cell: str = "gru"
    size: int = 256
    layers: int = 2
    options: dict[str, Any] = field(default_factory=dict)
    residual: bool = False
    norm: str | None = None
    dropout: float = 0.0
    embedding_size: int = 0
    embedding_dropout: float = 0.0
    readout_dropout: float = 0.0
    tied: bool = False
    cutoffs: list[int] = field(default_factory=list)
    order: int = 5
    dtype: str = "float32"


def build(config: ModelConfig, vocabulary_size: int) -> nn.Module:
    """The model of a config, with fresh parameters."""
    if config.dtype not in DTYPES:
        raise UnknownNameError("dtype", config.dtype, DTYPES)
    if config.cell == "markov":
        return Markov(vocabulary_size, config.order)
    if config.embedding_size < 0:
        raise InputError(f"model.embedding_size is {config.embedding_size}; it must be at least 0")
    width = config.embedding_size or config.size
    core = stack(
        config.cell, width, config.size, layers=config.layers, residual=config.residual, norm=config.norm,
        dropout=config.dropout, **config.options,
    )  # fmt: skip
    activations = torch.bfloat16 if config.dtype == "bfloat16" else None
    embed = Embedding(vocabulary_size, width, dropout=config.embedding_dropout, dtype=activations)
    H, p = core.output_size, config.readout_dropout
    if config.cutoffs and config.tied:
        raise InputError(
            "model.tied and model.cutoffs exclude each other: an adaptive softmax has no (V, H) matrix to share"
        )
    if config.cutoffs:
        return SequenceModel(embed, core, AdaptiveSoftmax(H, vocabulary_size, config.cutoffs, dropout=p)).to(
            DTYPES[config.dtype]
        )
    readout = Softmax(H, vocabulary_size, dropout=p, weight=embed.weight if config.tied else None)
    return SequenceModel(embed, core, readout).to(DTYPES[config.dtype])


@dataclass(frozen=True)
class Score:
    """- log P(text) in nats, and what it is divided by."""

    nats: float
    tokens: int
    characters: int
    unknown: int

    @property
    def nats_per_token(self) -> float:
        return self.nats / max(1, self.tokens)

    @property
    def bits_per_token(self) -> float:
        return self.nats_per_token / math.log(2)

    @property
    def bits_per_character(self) -> float:
        return self.nats / max(1, self.characters) / math.log(2)

    @property
    def perplexity(self) -> float:
        return math.exp(min(self.nats_per_token, 700.0))  # exp(710) is no float

    def to_json(self) -> dict[str, float]:
        names = (
            "nats_per_token",
            "bits_per_token",
            "nats_per_character",
            "bits_per_character",
            "perplexity",
            "unknown_rate",
        )
        return {**asdict(self), **{name: getattr(self, name) for name in names}}

    @property
    def nats_per_character(self) -> float:
        return self.nats / max(1, self.characters)

    @property
    def unknown_rate(self) -> float:
        """The part of the tokens that the vocabulary lacks: a model does well on those for nothing."""
        return self.unknown / max(1, self.tokens)


class LanguageModel:
    """A model, its vocabulary, and what can be done with the two. Nothing here changes the weights.

    >>> from elman.data import VOCABULARIES
    >>> config = ModelConfig(cell="gru", size=8, layers=1)
    >>> lm = LanguageModel(build(config, 257), VOCABULARIES["byte"](), config)
    >>> score, state = lm.score("Once upon")
    >>> more, state = lm.score(" a time", state)
    >>> score.tokens + more.tokens
    16
    """

    def __init__(self, model: Any, vocabulary: Vocabulary, config: ModelConfig, unit: str = "text") -> None:
        self.model, self.vocabulary, self.config, self.unit = model, vocabulary, config, unit

    def init_state(self, seeds: Sequence[int] = (0,)) -> Carried:
        """The state before any text, one row per seed."""
        B = len(seeds)
        for seed in seeds:
            if not 0 <= seed < 2**63:
                raise InputError(f"the seed is {seed}; it must be a whole number of at least 0 and below 2**63")
        token = torch.full((B,), BOUNDARY)
        draws = torch.tensor([[seed, 0] for seed in seeds], dtype=torch.int64).reshape(B, 2)
        return Carried(self.model.init_state(B), token, torch.zeros(B, self.vocabulary.size, dtype=torch.bool), draws)

    @torch.inference_mode()
    def read(self, texts: Sequence[str], state: Carried) -> Carried:
        """The state after some more text in each row. The last symbol stays pending."""
        ids = [self.vocabulary.encode_known(text) for text in texts]
        core = self._core(state)
        T = max(map(len, ids), default=0)
        x = torch.zeros(len(ids), T + 1, dtype=torch.int64)
        x[:, 0] = state.token
        seen = state.seen.clone()
        for row, (line, symbols) in enumerate(zip(x, ids, strict=True)):
            line[1 : 1 + len(symbols)] = torch.from_numpy(symbols)
            seen[row, torch.from_numpy(symbols)] = True
        lengths = torch.tensor([len(symbols) for symbols in ids])
        steps = self._steps(len(ids), T)
        for start in range(0, T, steps):
            piece = x[:, start : min(start + steps, T)]
            _, core = self.model.scan(piece, core, lengths=(lengths - start).clamp(0, piece.shape[1]))
        return Carried(core, x[torch.arange(len(ids)), lengths], seen, state.draws)

    def _steps(self, rows: int, most: int) -> int:
        """How many steps of so many rows to predict at a time: a large vocabulary makes each of them a long one."""
        return max(1, min(most, LOGITS // (max(1, rows) * self.vocabulary.size)))

    def _core(self, state: Carried) -> State:
        """The state of the core as the next symbol finds it: behind a boundary, a new sequence begins."""
        return states.where(state.token == BOUNDARY, self.model.init_state(len(state.token)), state.core)

    @torch.inference_mode()
    def score(self, text: str, state: Carried | None = None) -> tuple[Score, Carried]:
        """- log P(text | what the state has read), each token once; and the state after it."""
        state = self.init_state() if state is None else state
        encoded = encode_string(text, self.vocabulary)
        x = torch.from_numpy(encoded.ids)[None].clone()
        x[:, 0] = state.token
        total = np.float64(0)
        core = self._core(state)
        steps = self._steps(1, 4096)
        for start in range(0, encoded.tokens, steps):
            stop = min(start + steps, encoded.tokens)
            predicted, core = self.model.scan(x[:, start:stop], core)
            total -= predicted.log_prob(x[:, start + 1 : stop + 1]).double().sum().item()
        seen = state.seen.clone()
        seen[0, x[0, 1:]] = True
        score = Score(float(total), encoded.tokens, len(text), encoded.unknown)
        return score, Carried(core, x[:, -1], seen, state.draws)

    @torch.inference_mode()
    def evaluate(self, encoded: Encoded, batch_size: int = 64, chunk: int = 512) -> Score:
        """- log P of a text, with the state carried through the whole of it; independent units side by side."""
        if encoded.tokens == 0:
            raise InputError("the text is empty; there is nothing to evaluate")
        if batch_size < 1 or chunk < 1:
            raise InputError(f"batch_size is {batch_size}, chunk is {chunk}; both must be positive")
        training = self.model.training
        self.model.eval()
        total, state = np.float64(0), None
        device = next(self.model.parameters(), torch.zeros(0)).device
        with Waiting("evaluating", encoded.tokens, "tokens") as waiting:
            for batch in lane_batches(encoded, batch_size, chunk, LOGITS // self.vocabulary.size):
                x, y, reset, lengths = (part.to(device) for part in batch)
                predicted, state = self.model.scan(x, state, lengths=lengths, reset=reset)
                valid = torch.arange(y.shape[1], device=device) < lengths[:, None]
                total -= predicted.log_prob(y).double()[valid].sum().item()
                waiting.add(int(lengths.sum()))
        self.model.train(training)
        return Score(float(total), encoded.tokens, encoded.characters, encoded.unknown)

    def start(
        self, prompt: str = "", *, state: Carried | None = None, seed: int | None = None, **settings: Any
    ) -> Generation:
        """Begin to generate after a prompt. `settings` are those of `Generation`; its `state` is the state after it.

        Without a seed, a state goes on with its own random numbers; without a state, the seed is 0.
        """
        return self.start_batch([prompt], state=state, seeds=None if seed is None else [seed], **settings)

    def start_batch(
        self,
        prompts: Sequence[str],
        *,
        state: Carried | None = None,
        seeds: Sequence[int] | None = None,
        **settings: Any,
    ) -> Generation:
        """Begin to generate after several prompts, each with its own seed: the texts are the same as alone."""
        if seeds is not None and len(seeds) != len(prompts):
            raise InputError(f"there are {len(seeds)} seeds for {len(prompts)} prompts; each needs its own")
        start = self._seeded(len(prompts), state, seeds)
        self.model.eval()
        return Generation(self.model, self.vocabulary, lambda: self.read(prompts, start), prompts, **settings)

    def _seeded(self, rows: int, state: Carried | None, seeds: Sequence[int] | None) -> Carried:
        if state is None:
            return self.init_state([0] * rows if seeds is None else seeds)
        if len(state.token) != rows:
            raise InputError(f"the state has {len(state.token)} rows; there are {rows} prompts")
        return state if seeds is None else state._replace(draws=self.init_state(seeds).draws)

    def generate(self, prompt: str = "", **settings: Any) -> str:
        """The text that goes on from the prompt. `settings` are those of `Generation`, and seed and state."""
        return "".join(self.generate_pieces(prompt, **settings))

    def generate_pieces(self, prompt: str = "", **settings: Any) -> Iterator[str]:
        """The same, piece by piece as it comes."""
        for pieces in self.start(prompt, **settings):
            yield pieces[0]

    def generate_batch(self, prompts: Sequence[str], seeds: Sequence[int], **settings: Any) -> list[str]:
        """The texts that go on from several prompts, each with its own seed."""
        texts = [""] * len(prompts)
        for pieces in self.start_batch(prompts, seeds=seeds, **settings):
            texts = [text + piece for text, piece in zip(texts, pieces, strict=True)]
        return texts

    def save(self, path: str | Path) -> None:
        """Write the model to a folder: weights in safetensors, config and vocabulary in JSON."""
        artifact.write(Path(path), self.fill)

    def fill(self, folder: Path) -> None:
        """The files of `save`, in a folder that is there."""
        artifact.write_tensors(folder / "model.safetensors", _tensors(self.model))
        content = {
            "task": "lm",
            "config": asdict(self.config),
            "vocabulary": self.vocabulary.to_json(),
            "unit": self.unit,
        }
        artifact.write_json(folder / "model.json", KIND, VERSION, content)

    @classmethod
    def load(cls, path: str | Path) -> LanguageModel:
        """Read what `save` wrote. It needs nothing else: not the training text, not the run."""
        folder = Path(path)
        content = artifact.read_json(folder / "model.json", KIND, VERSION)
        try:
            config = ModelConfig(**content["config"])
            vocabulary = vocabularies.from_json(content["vocabulary"])
            unit = content["unit"]
        except (KeyError, TypeError) as error:
            raise FileError(f"{folder / 'model.json'} is no model that this version knows: {error}") from error
        model = build(config, vocabulary.size)
        _restore(model, artifact.read_tensors(folder / "model.safetensors"), folder)
        return cls(model.eval(), vocabulary, config, unit)


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers, those that are shared once."""
    found: dict[int, str] = {}
    state = model.state_dict(keep_vars=True)
    for name, tensor in state.items():
        found.setdefault(id(tensor), name)
    return {name: state[name].cpu() for name in found.values()}


def _restore(model: nn.Module, stored: dict[str, Tensor], folder: Path) -> None:
    foreign = FileError(f"the weights in {folder} are not those of the model that model.json describes")
    if isinstance(model, Markov):
        if stored.keys() != model.names:
            raise foreign
        model.restore(stored)
        return
    wanted = _tensors(model)
    if stored.keys() != wanted.keys() or any(stored[name].shape != tensor.shape for name, tensor in wanted.items()):
        raise foreign
    model.load_state_dict(stored, strict=False)  # what is shared has one name only
