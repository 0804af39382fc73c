"""What translates: a network, its symbols, and how it reads."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elman import state as states
from elman.cells import cell
from elman.compose.attention import Additive, Bound, Covered, Covering, Decoder, Fixed, Layers, Luong
from elman.core import Core
from elman.data.vocabulary import BOUNDARY, from_json
from elman.decoding.beam import beam
from elman.decoding.hypotheses import Hypothesis
from elman.decoding.sample import Sampling, sample
from elman.errors import InputError
from elman.files.artifact import Content
from elman.files.config import one_of
from elman.lengths import masked
from elman.model import SequenceModel
from elman.nn.embed import Embedding
from elman.nn.readout import Softmax
from elman.options import a_text, choice, number, several, whole
from elman.state import State
from elman.tables import cut, paragraph
from elman.tasks import network
from elman.tasks.network import NetworkConfig
from elman.tasks.predictor import Predictor
from elman.tasks.translate import data as reading
from elman.tasks.translate.data import PairReader, Pairs, Vocabularies, batch_of
from elman.tasks.translate.seq2seq import EncoderDecoder

EACH = 64  # sentences that are computed at a time
SHOWN = 40  # symbols of either side of an alignment in a notebook
ATTENTIONS = ("none", "additive", "dot", "general")
TIES = ("none", "target", "all")


@dataclass(frozen=True)
class TranslateModelConfig(NetworkConfig):
    """The network.

    Args:
        cell: the cell of encoder and decoder; `elman laws` lists them
        size: units in each layer, in the encoder of each direction
        layers: layers of the encoder
        decoder_layers: layers of the decoder; 0 for as many as the encoder has
        bidirectional: the encoder reads in both directions
        norm: the norm before each layer, layer or rms; null for none, in residual blocks for the cell's own
        dropout: the dropout between layers, or in residual blocks before each addition
        embedding_size: the width of the embeddings of both sides
        embedding_dropout: the dropout after the embeddings
        readout_dropout: the dropout before the read-out
        context: start (the encoder's last state starts the decoder) or every (it is also an input of every step)
        attention: none, additive (before the recurrence), dot or general (after it)
        attention_size: the width of the hidden layer of additive attention; 0 for that of the decoder
        feeding: with dot or general, feed the output of a step to the next one
        tied: none, target (one matrix for the target's embedding and the read-out) or all (for the source's too)
        smoothing: label smoothing in training, the share of a target that is spread over all symbols
    """

    decoder_layers: int = 0
    bidirectional: bool = True
    embedding_size: int = 256
    embedding_dropout: float = 0.2
    readout_dropout: float = 0.2
    context: str = one_of("start", ("start", "every"))
    attention: str = one_of("additive", ATTENTIONS)
    attention_size: int = 0
    feeding: bool = False
    tied: str = one_of("none", TIES)
    smoothing: float = 0.1


def build(config: TranslateModelConfig, symbols: Vocabularies) -> EncoderDecoder:
    """The model of a config, with fresh parameters."""
    choice("model.tied", config.tied, TIES)
    if config.tied == "all" and symbols.source is not symbols.target:
        raise InputError("model.tied is all, but each side has its own vocabulary: add --data.joint true")
    E, p = config.embedding_size, config.embedding_dropout
    source, target = (Embedding(side.size, E, dropout=p) for side in symbols)
    if config.tied == "all":
        source.weight = target.weight
    encoder = _layers(config, E, config.layers, bidirectional=config.bidirectional)
    # A decoder begins where the encoder's last state says.
    decoder = _decoder(replace(config, learn_initial_state=False), encoder.output_size)
    weight = None if config.tied == "none" else target.weight
    readout = Softmax(decoder.output_size, symbols.target.size, dropout=config.readout_dropout, weight=weight)
    return EncoderDecoder(source, encoder, target, decoder, readout, smoothing=config.smoothing)


def _layers(config: TranslateModelConfig, width: int, layers: int, *, bidirectional: bool = False) -> Core:
    return network.core(replace(config, layers=layers), width, bidirectional=bidirectional)


def _first(config: TranslateModelConfig, width: int) -> Core:
    """The layer whose recurrence depends on the attention: the bare cell, which has a native loop, or a block."""
    if network.block_of(config) == "plain" and not config.weight_dropout:
        return cell(config.cell, width, config.size, **config.options)
    return _layers(config, width, 1)


def _decoder(config: TranslateModelConfig, memory: int) -> Core | Decoder:
    """Where the recurrence depends on the attention, that is a matter of the first layer; the others are above it."""
    kind = choice("model.attention", config.attention, ATTENTIONS)
    context = choice("model.context", config.context, ("start", "every"))
    E, H = config.embedding_size, config.size
    layers = whole("model.decoder_layers", config.decoder_layers, least=0) or config.layers
    if config.feeding and kind in ("none", "additive"):
        raise InputError(f"model.feeding is for dot and general attention; model.attention is {kind}")
    if kind == "none":
        return _layers(config, E, layers) if context == "start" else Fixed(_layers(config, E + H, layers), H)
    if context == "every":
        raise InputError("model.context every is for models without attention, which has a context at every step")
    size = H if config.tied == "none" or layers > 1 else E
    if kind != "additive" and not config.feeding:
        return Luong(_layers(config, E, layers), memory, score=kind, size=H if config.tied == "none" else E)
    if kind == "additive":
        first: Decoder = Additive(
            _first(config, E + memory), memory, size=size,
            attention_size=whole("model.attention_size", config.attention_size, least=0) or H,
        )  # fmt: skip
    else:
        first = Luong(_first(config, E + size), memory, score=kind, feeding=True, size=size)
    return first if layers == 1 else Layers(first, _layers(config, H, layers - 1))


@dataclass(frozen=True)
class Search:
    """How translations are looked for.

    Args:
        num_beams: beams of the search; 1 always takes the most probable symbol
        length_penalty: compare translations by log P / length ** length_penalty
        min_ratio: a translation has at least so many times the symbols of its source
        max_ratio: and at most so many times, and 10 more
        coverage_penalty: this times the sum over the source of log min(1, how much it was looked at) is added to what
            translations are compared by; 0 for nothing
    """

    num_beams: int = 1
    length_penalty: float = 1.0
    min_ratio: float = 0.0
    max_ratio: float = 3.0
    coverage_penalty: float = 0.0

    def limits(self, sizes: Sequence[int]) -> tuple[list[int], list[int]]:
        """How many symbols translations of sources of so many symbols have at least, and at most."""
        low, high = number("min_ratio", self.min_ratio, 0), number("max_ratio", self.max_ratio, self.min_ratio)
        return [math.ceil(low * n) for n in sizes], [math.floor(high * n) + 10 for n in sizes]


class Translation(NamedTuple):
    """A translation of a source, its symbols, log P of it (with its end), and by what it was compared with others."""

    text: str
    tokens: list[int]
    log_prob: float
    score: float


class Alignment(NamedTuple):
    """Where a translation looks in its source: `weights` has a row for each symbol of the target, the end of which is
    one, and a column for each symbol of the source. A notebook shows it as shades."""

    source: list[str]
    target: list[str]
    weights: list[list[float]]

    def _repr_html_(self) -> str:
        header = "".join(f"<th>{cut(name, 30)}</th>" for name in ["", *self.source[:SHOWN]])
        rows = [
            f"<tr><th>{cut(name, 30)}</th>{''.join(map(_shade, weights[:SHOWN]))}</tr>"
            for name, weights in zip(self.target[:SHOWN], self.weights, strict=False)
        ]
        sizes = len(self.source), len(self.target)
        left = paragraph(f"the first {SHOWN} of {max(sizes)} symbols") if max(sizes) > SHOWN else ""
        return f"<div><table><tr>{header}</tr>{''.join(rows)}</table>{left}</div>"


def _shade(weight: float) -> str:
    """A cell as dark as its weight, on any background."""
    return f"<td title='{weight:.3f}' style='background: rgba(127, 127, 127, {weight:.2f})'>{weight:.2f}</td>"


class Translator(Predictor[EncoderDecoder]):
    """A network, its symbols, and how it reads.

    >>> given = [reading.Pair("a b", "b a", ""), reading.Pair("b a", "a b", "")]
    >>> symbols, config = reading.fit(given, "char", True, 1, 0), TranslateModelConfig(size=8, embedding_size=4)
    >>> len(Translator(build(config, symbols), config, PairReader(), symbols).translate(["a b", "b a"], num_beams=2))
    2
    """

    task = "translate"
    config: TranslateModelConfig
    reader: PairReader
    symbols: Vocabularies

    def __init__(
        self, model: EncoderDecoder, config: TranslateModelConfig, reader: PairReader, symbols: Vocabularies
    ) -> None:
        super().__init__(model, config=config, reader=reader, symbols=symbols)

    def translate(self, texts: Sequence[str], **search: Any) -> list[str]:
        """The best translation of each text; `search` as Search has it."""
        return [row[0].text for row in self.translations(texts, Search(**search))]

    def translations(
        self, texts: Sequence[str], search: Search, batch_size: int = EACH, prefixes: Sequence[str] = ()
    ) -> list[list[Translation]]:
        """The num_beams best translations of each text, the best first: the same alone and in any batch.

        Of an empty text the translation is empty. `prefixes`, if given, are what each translation begins with.
        """
        return self._in_batches(texts, partial(self._search, search=search), batch_size, prefixes)

    def samples(
        self,
        texts: Sequence[str],
        sampling: Sampling,
        count: int = 1,
        seed: int = 0,
        limits: Search | None = None,
        batch_size: int = EACH,
        prefixes: Sequence[str] = (),
    ) -> list[list[Translation]]:
        """`count` translations of each text by chance, number i with the seed `seed` + i.

        They are the same alone and in any batch; `limits` says how long they are.
        """
        seed = whole(
            "seed", seed, least=0, most=2**63 - whole("count", count)
        )  # the last of them fits into 64 bits too
        numbers = range(seed, seed + count)
        draw = partial(self._sample, sampling=sampling, seeds=numbers, limits=limits or Search())
        return self._in_batches(texts, draw, batch_size, prefixes)

    def _in_batches(
        self,
        texts: Sequence[str],
        find: Callable[..., list[list[Hypothesis]]],
        batch_size: int,
        prefixes: Sequence[str],
    ) -> list[list[Translation]]:
        """What `find` makes of each text, in batches of like lengths."""
        sources = [a_text(f"text {i}", each) for i, each in enumerate(several("texts", texts, "texts"))]
        prefixes = several("prefixes", prefixes, "prefixes, one for each text")
        rows = [self.symbols.source.encode(source) for source in sources]
        known = {
            text: self._prefix_symbols(text)
            for text in {a_text(f"prefix {i}", each) for i, each in enumerate(prefixes)}
        }
        begun = [known[text] for text in prefixes] or [[]] * len(rows)
        translations = [[Translation("", [], 0.0, 0.0)]] * len(rows)
        filled = [i for i, row in enumerate(rows) if len(row)]

        def run(chosen: list[int]) -> Iterator[list[Translation]]:
            batch = batch_of([(rows[i], rows[i][:0]) for i in chosen])
            assert isinstance(batch.x, Pairs)
            model, state = self.model.given(batch.x.source, batch.x.sizes)
            hypotheses = find(model, state, batch.x.sizes.tolist(), [begun[i] for i in chosen])
            return ([self._read(h) for h in row] for row in hypotheses)

        for i, row in zip(filled, self.batched(filled, run, batch_size, lambda i: len(rows[i])), strict=True):
            translations[i] = row
        return translations

    def _prefix_symbols(self, text: str) -> list[int]:
        """The symbols of a prefix, which must be ones that a translation can have."""
        symbols = self.symbols.target
        ids = symbols.encode(text)
        if symbols.unknown is not None and (ids == symbols.unknown).any():
            raise InputError(
                f"the prefix has {symbols.unknown_in(text)}, which no translation of this model can begin with"
            )
        numbers: list[int] = ids.tolist()
        return numbers

    def _search(
        self, model: SequenceModel, state: State, sizes: list[int], prefixes: list[list[int]], search: Search
    ) -> list[list[Hypothesis]]:
        penalty = number("coverage_penalty", search.coverage_penalty, 0)
        (least, most), bonus = search.limits(sizes), None
        if penalty:
            core = self._attending(model)
            model, state = (
                SequenceModel(model.embed, Covering(core.decoder, core.memory), model.readout),
                Covered(state, core.memory.values.new_zeros(core.memory.values.shape[:2])),
            )
            lengths = core.repeat(search.num_beams).memory.lengths
            bonus = partial(_coverage_scores, lengths=lengths, penalty=penalty)
        return beam(
            model, state, torch.full((len(sizes),), BOUNDARY), num_beams=search.num_beams,
            max_new_tokens=most, min_new_tokens=least, length_penalty=search.length_penalty,
            banned=self.banned_symbols, prefixes=prefixes, bonus=bonus,
        )  # fmt: skip

    def _sample(
        self, model: SequenceModel, state: State, sizes: list[int], prefixes: list[list[int]], sampling: Sampling,
        seeds: range, limits: Search,
    ) -> list[list[Hypothesis]]:  # fmt: skip
        N, settings = len(seeds), replace(sampling, banned=self.banned_symbols)
        drawn = torch.tensor([[seed, 0] for _ in sizes for seed in seeds])
        least, most = limits.limits([n for n in sizes for _ in seeds])
        results = sample(
            model.repeat(N), states.repeat(state, N), torch.full((len(drawn),), BOUNDARY),
            drawn, settings, max_new_tokens=most, min_new_tokens=least, prefixes=[p for p in prefixes for _ in seeds],
        )  # fmt: skip
        return [results[i : i + N] for i in range(0, len(results), N)]

    @property
    def banned_symbols(self) -> tuple[int, ...]:
        """What no translation has: the symbol for all that is unknown."""
        unknown = self.symbols.target.unknown
        return () if unknown is None else (unknown,)

    def _attending(self, model: SequenceModel) -> Bound:
        if not isinstance(model.core, Bound) or self.config.attention == "none":
            raise InputError("this model has no attention, so nothing says where it looks: train with model.attention")
        return model.core

    def align(self, text: str, **search: Any) -> Alignment:
        """The best translation of a text, and where it looks for each of its symbols; `search` as Search has it."""
        return self.aligned(text, self.translations([text], Search(**search))[0][0].tokens)

    def aligned(self, text: str, tokens: Sequence[int]) -> Alignment:
        """The alignment of a translation, by its tokens, with the symbols of both sides."""
        sides = zip(self.symbols, (self.symbols.source.encode(text), tokens), strict=True)
        source, target = ([side.decode([int(i)]) for i in ids] for side, ids in sides)
        return Alignment(source, [*target, "</s>"], self.alignment(text, tokens))

    @torch.inference_mode()
    def alignment(self, text: str, tokens: Sequence[int]) -> list[list[float]]:
        """Where it looks in a text for each symbol of a translation and for its end: weights of the text's symbols."""
        source = self.symbols.source.encode(text)
        batch = batch_of([(source, np.array(tokens, np.int64))])
        assert isinstance(batch.x, Pairs)
        model, state = self.model.given(batch.x.source, batch.x.sizes)
        weights = self._attending(model).alignments(model.embed(batch.x.target), state)
        rows: list[list[float]] = weights[0].tolist()
        return rows

    def _read(self, hypothesis: Hypothesis) -> Translation:
        tokens = hypothesis.tokens[:-1] if hypothesis.tokens[-1:] == [BOUNDARY] else hypothesis.tokens
        return Translation(self.symbols.target.decode(tokens), tokens, hypothesis.log_prob, hypothesis.score)

    def nats(self, rows: reading.Encoded, batch_size: int = EACH, own: bool = False) -> list[Tensor]:
        """- log P of each symbol of the targets, their ends included, given those before: (T[i],) for each pair.

        With `own`, given as many symbols that the model has drawn itself in their place.
        """

        def run(chosen: list[int]) -> Iterator[Tensor]:
            draws = torch.tensor([[0, i] for i in chosen])
            batch = batch_of([(rows.source[i], rows.target[i]) for i in chosen], draws, truth=0.0 if own else 1.0)
            assert isinstance(batch.x, Pairs) and isinstance(batch.y, Tensor)
            x = batch.x._replace(target=self.model.drawn_inputs(batch.x)) if own else batch.x
            predicted = self.model.forced(x, batch.lengths)
            terms = -masked(predicted.log_prob(batch.y), batch.lengths)
            return (row[:n] for row, n in zip(terms, batch.lengths.tolist(), strict=True))

        return self.batched(range(len(rows.source)), run, batch_size, lambda i: len(rows.target[i]))

    @classmethod
    def parts(cls, content: Content) -> tuple[TranslateModelConfig, PairReader, Vocabularies]:
        config, reader = TranslateModelConfig(**content["config"]), PairReader(**content["reader"])
        sides = [from_json(side) for side in content["symbols"]]
        return config, reader, Vocabularies(sides[0], sides[-1])

    @classmethod
    def network(cls, config: TranslateModelConfig, reader: PairReader, symbols: Vocabularies) -> EncoderDecoder:
        return build(config, symbols)

    def __repr__(self) -> str:
        c, ways = self.config, "bidirectional " if self.config.bidirectional else ""
        reads = f"{c.attention} attention" if c.attention != "none" else f"context at {c.context}"
        return f"Translator({c.layers} x {ways}{c.cell} {c.size}, {reads}, {self.parameter_count:,} parameters)"

    def about(self) -> list[list[str]]:
        sides = zip(("source", "target"), self.symbols, strict=True)
        return [[name, f"{side.size:,} symbols ({side.kind})"] for name, side in sides]


def _coverage_scores(state: State, lengths: Tensor, penalty: float) -> NDArray[np.float64]:
    """The coverage penalty of Wu et al. (2016), equation 14, for each row of a Covered."""
    assert isinstance(state, Covered)
    logs = state.coverage.double().clamp(1e-30, 1.0).log()
    scores: NDArray[np.float64] = (penalty * masked(logs, lengths).sum(1)).numpy()
    return scores
