"""Translation: from one sequence to another, of another length."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn

from elman import state as states
from elman.compose.attention import Bound
from elman.data import Batch, Batches, OrderedBatches, Position
from elman.data.batches import Bucketed
from elman.data.names import Names, file_list, names_of
from elman.data.splits import Split, SplitConfig, first_rows, read_parts, split_summary
from elman.data.synthetic import SyntheticBatches, SyntheticData, SyntheticRow, is_synthetic
from elman.data.text import ERRORS
from elman.data.vocabulary import VOCABULARIES
from elman.errors import InputError
from elman.files.config import one_of
from elman.lengths import masked
from elman.lens import Sample
from elman.options import choice, flag, number, positive, whole
from elman.state import State
from elman.tasks import network, plots
from elman.tasks.request import Request
from elman.tasks.task import Data, Evaluation, Inspection, Response, Task, TrainedSettings
from elman.tasks.translate import data as reading
from elman.tasks.translate import requests as translate_verbs
from elman.tasks.translate.data import FORMATS, Pair, PairReader, Pairs, Vocabularies, batch_of, synthetic_pairs
from elman.tasks.translate.metrics import alignment_json, metrics, score
from elman.tasks.translate.model import Search, TranslateModelConfig, Translator, build
from elman.tasks.translate.seq2seq import EncoderDecoder, smoothed_loss
from elman.training.loss import Loss
from elman.training.record import Preview

SCHEDULES = ("none", "linear", "exponential", "inverse_sigmoid")
EXAMPLES = 5  # pairs in a preview
DECIDES = ("perplexity", "exact", "bleu", "chrf")


@dataclass(frozen=True)
class TranslateDataConfig:
    """Sentence pairs.

    Args:
        source: files of one sentence a line; or, without target, of pairs (.tsv, .jsonl)
        target: files of their translations, line by line; empty if source has both
        valid_source: the same for validation; empty for a part of the pairs
        valid_target: the same for validation
        test_source: the same for the final test; empty for none, or a part of the pairs
        test_target: the same for the final test
        split: the fractions of the pairs for training, validation and test, split at random
        format: auto (by the names), text, tsv or jsonl
        errors: what to do with invalid UTF-8, strict (an error) or replace (U+FFFD)
        vocabulary: word, char, byte or bpe
        joint: use one vocabulary for both sides
        min_count: symbols that occur less often in the training pairs are unknown
        vocabulary_size: the number of symbols, of bpe
        max_length: the largest number of symbols on either side
        drop: leave out training pairs with an empty or longer side instead of raising an error
        batch_tokens: symbols in a step, counted on the longer side with padding, over all processes
    """

    source: Names = "train.source"
    target: Names = ""
    valid_source: Names = ""
    valid_target: Names = ""
    test_source: Names = ""
    test_target: Names = ""
    split: Split = (0.9, 0.1, 0.0)
    format: str = one_of("auto", FORMATS)
    errors: str = one_of("strict", ERRORS)
    vocabulary: str = one_of("word", VOCABULARIES)
    joint: bool = False
    min_count: int = 1
    vocabulary_size: int = 4096
    max_length: int = 200
    drop: bool = False
    batch_tokens: int = 1024


@dataclass(frozen=True)
class DecodingConfig(Search):
    """How translations are searched for in evaluations, while a model trains and in the final test.

    Args:
        num_beams: beams of the search; 1 always takes the most probable symbol
        length_penalty: compare translations by log P / length ** length_penalty
        min_ratio: a translation has at least so many times the symbols of its source
        max_ratio: and at most so many times, and 10 more
        coverage_penalty: the factor of the sum of log min(1, attention) over the source symbols; 0 for none
        decides: the score that selects the best model, perplexity (nothing is translated), exact (the share of
            translations that equal the target), bleu or chrf (these need the extra [translate])
    """

    decides: str = one_of("perplexity", DECIDES)


@dataclass(frozen=True)
class SamplingConfig:
    """Scheduled sampling: how often a training step reads the true previous symbol, after i batches.

    Args:
        schedule: the probability of the true symbol after i batches, none (always 1), linear (1 - i / batches),
            exponential (exp(-i / batches)) or inverse_sigmoid (k / (k + exp(i / k)), k = batches)
        batches: the number of batches in the formulas of schedule: the larger, the slower the fall
        least: the lower bound of that probability
    """

    schedule: str = one_of("none", SCHEDULES)
    batches: float = 1000.0
    least: float = 0.0

    def truth(self, i: int) -> float:
        """How often the true symbol is read after i batches.

        >>> SamplingConfig("linear", 100, 0.5).truth(20), SamplingConfig("linear", 100, 0.5).truth(80)
        (0.8, 0.5)
        """
        k = self.batches
        falls = {
            "none": lambda: 1.0,
            "linear": lambda: 1 - i / k,
            "exponential": lambda: math.exp(-i / k),
            "inverse_sigmoid": lambda: k / (k + math.exp(min(i / k, 700.0))),
        }
        return max(self.least, falls[self.schedule]())

    def check(self) -> None:
        """Raise an InputError that names the first setting that is out of its range."""
        choice("sampling.schedule", self.schedule, SCHEDULES)
        positive("sampling.batches", self.batches)
        number("sampling.least", self.least, 0, 1)


@dataclass(frozen=True)
class TranslateConfig(TrainedSettings[Translator]):
    """A run from sentence pairs to a translator.

    >>> TranslateConfig(model=TranslateModelConfig(attention="general")).data.vocabulary
    'word'

    Args:
        task: what is trained; translate maps one sequence to another
        data: the pairs
        model: the network
        sampling: scheduled sampling
        decoding: the search in evaluations
    """

    task: str = "translate"
    data: TranslateDataConfig = field(default_factory=TranslateDataConfig)
    model: TranslateModelConfig = field(default_factory=TranslateModelConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    decoding: DecodingConfig = field(default_factory=DecodingConfig)


class Part(NamedTuple):
    """Pairs to evaluate on, and how."""

    pairs: list[Pair]
    search: DecodingConfig


class PairData(Data):
    """Pairs, and how they become tensors; `synthetic` ones are made as they are needed."""

    unit = "tokens"

    def __init__(
        self, config: TranslateConfig, symbols: Vocabularies | None, train: list[Pair], valid: list[Pair],
        test: list[Pair], synthetic: SyntheticData | None = None,
    ) -> None:  # fmt: skip
        self.config, self.synthetic, data = config, synthetic, config.data
        parts = {"source": train, "valid_source": valid, "test_source": test}
        self.fingerprint = {f"data.{name}": reading.fingerprint(part) for name, part in parts.items()}
        self.fingerprint |= dict.fromkeys(("data.target", "data.valid_target", "data.test_target"), "")
        flags = flag("data.joint", data.joint), data.min_count, data.vocabulary_size
        self.symbols = symbols or reading.fit(train, data.vocabulary, *flags)
        if min(side.size for side in self.symbols) < 3:
            raise InputError("a side has one symbol only, or none; there is nothing to learn. Check data.vocabulary.")
        self.train, self.rows = reading.usable(train, self.symbols, data.max_length, flag("data.drop", data.drop))
        self.left_out = len(train) - len(self.train)
        self.valid, self.test = Part(valid, config.decoding), Part(test, config.decoding) if test else None

    def batches(self, rank: int, world: int) -> Batches:
        """What a row draws depends on the seed, and on the pass and the pair or on the number of a synthetic pair."""
        tokens, seed, truth = self.config.data.batch_tokens, self.config.seed, self.config.sampling.truth
        if self.synthetic:
            size = max(world, tokens // (self.synthetic.train.T + 1) // world * world)

            def made(rows: Sequence[SyntheticRow], number: int) -> Batch:
                encoded = reading.encode_now(synthetic_pairs(rows), self.symbols)
                drawn = torch.tensor([[seed, number * size + i] for i in range(rank, size, world)])
                return batch_of(list(zip(*encoded, strict=True)), drawn, truth(number))

            return SyntheticBatches(self.synthetic.train, size, seed, made, rank, world)
        pairs = list(zip(*self.rows, strict=True))
        order = Bucketed([max(len(a), len(b) + 1) for a, b in pairs], tokens, seed, rank, world)
        per_epoch = len(order.of_epoch(0))  # batches of a pass; those of others may be one more or less

        def read(rows: Sequence[int], at: Position) -> Batch:
            drawn = torch.tensor([[seed, at.epoch * len(pairs) + i] for i in rows])
            return batch_of([pairs[i] for i in rows], drawn, truth(at.epoch * per_epoch + at.window))

        return OrderedBatches(order, read)

    def summary(self) -> list[str]:
        numbers = [len(self.train), len(self.valid.pairs), len(self.test.pairs) if self.test else 0]
        left = f" ({self.left_out:,} were left out)" if self.left_out else ""
        sides = ", ".join(f"{side.size:,} symbols" for side in dict.fromkeys(self.symbols))
        lacking = reading.spelt_rates(*reading.unknown_rates(self.rows, self.symbols))
        return [
            f"data: {file_list(self.config.data.source)}: {split_summary('pairs', *numbers)}{left}",
            f"vocabulary: {self.symbols.source.kind}, {sides}{f'; {lacking}' if lacking else ''}",
        ]

    def first(self, part: Part, count: int) -> Part:
        """As many pairs as have so many words, one at least."""
        some = first_rows(part.pairs, lambda pair: len((pair.target or "").split()), count)
        return part if some is part.pairs else part._replace(pairs=some)


class TranslateTask(Task[TranslateConfig, PairData, Translator]):
    Config, Model = TranslateConfig, Translator
    title = "a model from one sequence to another"

    @property
    def requests(self) -> dict[str, tuple[type[Request], Response]]:
        inspect = self.inspector(_read)
        return {
            "predict": (translate_verbs.Predict, translate_verbs.predict),
            "evaluate": (translate_verbs.Evaluate, translate_verbs.evaluate),
            "inspect": (translate_verbs.Inspect, inspect),
        }

    def open(self, config: TranslateConfig, saved: Translator | None) -> PairData:
        data, decides = config.data, choice("decoding.decides", config.decoding.decides, DECIDES)
        for name in ("min_count", "batch_tokens", "vocabulary_size"):
            whole(f"data.{name}", getattr(data, name))
        config.sampling.check()
        if decides in ("bleu", "chrf"):
            metrics()
        if is_synthetic(data.source):
            synthetic = SyntheticData.open(data.source, data.valid_source, data.test_source, "translate")
            return PairData(config, None, *synthetic.parts(synthetic_pairs), synthetic)
        return PairData(config, saved.symbols if saved else None, *_read_parts(data))

    def build(self, config: TranslateConfig, data: PairData) -> Translator:
        reader, resolved = PairReader(config.data.format, config.data.errors), network.resolve_defaults(config.model)
        return Translator(build(resolved, data.symbols), resolved, reader, data.symbols)

    def loss(self, model: nn.Module, batch: Batch, state: State | None) -> Loss:
        """- sum of log P(target | source), smoothed; pairs are independent, so nothing is carried."""
        assert isinstance(model, EncoderDecoder) and isinstance(batch.x, Pairs) and isinstance(batch.y, Tensor)
        predicted = model.forced(batch.x, batch.lengths)
        terms = smoothed_loss(predicted, batch.y, model.smoothing)
        return masked(terms, batch.lengths).sum(), int(batch.lengths.sum()), None

    def evaluate(self, predictor: Translator, part: Part) -> Evaluation:
        scores, guess = score(predictor, part.pairs, part.search, part.search.decides)
        some = part.pairs[:EXAMPLES]
        guess = guess or [row[0].text for row in predictor.translations([pair.source for pair in some], part.search)]
        examples = list(zip(some, guess, strict=False))
        return Evaluation(scores, lambda run, step: _preview(predictor, examples))

    @torch.no_grad()
    def inspect_inputs(self, predictor: Translator, part: Part, rows: int, steps: int) -> Inspection:
        """The decoder with the longest targets, each given its source."""
        encoded = reading.encode_now(part.pairs, predictor.symbols)
        pairs = [(a, b) for a, b in zip(*encoded, strict=True) if len(a) and len(b) < steps]
        if not pairs:
            raise InputError(f"there is no pair with a target of fewer than {steps} symbols to inspect")
        batch = batch_of(sorted(pairs, key=lambda pair: -len(pair[1]))[:rows])
        assert isinstance(batch.x, Pairs)
        model, state = predictor.model.given(batch.x.source, batch.x.sizes)
        names = [predictor.symbols.target.texts(row) for row in batch.x.target.tolist()]
        bound = model.core if isinstance(model.core, Bound) else None
        panels: tuple[dict[str, object], ...] = ()
        if bound is not None and predictor.config.attention != "none":
            weights = bound.take([0]).alignments(model.embed(batch.x.target[:1]), states.take(state, [0]))
            panels = (_alignment(predictor, batch, weights[0]),)
        return Inspection(model, Sample(
            batch.x.target, batch.y, batch.lengths, names=names, panels=panels, core=bound, state=state,
        ))  # fmt: skip


def _read(predictor: Translator, request: translate_verbs.Inspect) -> Part:
    return Part(translate_verbs.pairs_of(predictor, request), DecodingConfig())


def _preview(predictor: Translator, examples: Sequence[tuple[Pair, str]]) -> Preview:
    """Some sources, their translations by people, and those by the model."""
    lines = [f"{pair.source}\n= {pair.target}\n> {guess}" for pair, guess in examples]
    picture = b""
    if examples and predictor.config.attention != "none":
        pair, guess = examples[0]
        attention = alignment_json(predictor, pair.source, predictor.symbols.target.encode(guess).tolist())
        picture = plots.alignment(attention["source"], attention["target"], attention["weights"])
    return Preview("\n\n".join(lines), picture)


def _alignment(predictor: Translator, batch: Batch, weights: Tensor) -> dict[str, object]:
    """Where the first row looks (T, S) when it writes each symbol, as a panel of the lens."""
    assert isinstance(batch.x, Pairs) and isinstance(batch.y, Tensor)
    source = [
        f"{i} {name.strip()}"
        for i, name in enumerate(predictor.symbols.source.texts(batch.x.source[0, : batch.x.sizes[0]].tolist()))
    ]
    places = weights[:, : len(source)].argmax(1).tolist()
    return {
        "title": "Alignment", "rows": source, "values": weights[:, : len(source)].T.tolist(),
        "path": [source[j] for j in places], "columns": predictor.symbols.target.texts(batch.y[0].tolist()),
        "about": "Of the first pair: a row for each symbol of the source, a column for each that is written, and how "
        "much the decoder looks there then; at the top, where it looks most.",
    }  # fmt: skip


def _read_parts(data: TranslateDataConfig) -> tuple[list[Pair], list[Pair], list[Pair]]:
    reader = PairReader(data.format, data.errors)
    names = {
        "train": (data.source, data.target),
        "valid": (data.valid_source, data.valid_target),
        "test": (data.test_source, data.test_target),
    }

    def read(part: Sequence[str]) -> list[Pair]:
        source, target = names[part[0]]
        return reader(names_of(source), names_of(target) if target else ())

    train, valid, test = (name if source else "" for name, (source, _) in names.items())
    return read_parts(SplitConfig(train, valid, test, data.split), read, lambda pair: 0, "pairs")
