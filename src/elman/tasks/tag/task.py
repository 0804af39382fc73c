"""Sequence tagging: a tag for each word of a sentence."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from torch import nn

from elman.data import Batch, Batches, OrderedBatches, Shuffled
from elman.data.names import Names, file_list, refuse_alike
from elman.data.splits import SplitConfig, first_rows, read_parts, split_summary
from elman.data.synthetic import PREFIX, SyntheticBatches, SyntheticData, SyntheticRow, is_synthetic, parse
from elman.data.tables import is_frame
from elman.data.text import ERRORS
from elman.errors import InputError
from elman.files.config import Json, one_of
from elman.lens import Sample
from elman.model import SequenceModel
from elman.options import choice, whole
from elman.state import State
from elman.tasks import network, plots
from elman.tasks.plots import Results
from elman.tasks.request import Request, Rows, TextRequest, batch_size, data_option, opened, option, rows_of
from elman.tasks.tag import model as tagger
from elman.tasks.tag import schemes
from elman.tasks.tag.data import FORMATS, Column, Sentence, TagReader, fingerprint
from elman.tasks.tag.lexicon import Lexicon, batch_of
from elman.tasks.tag.model import EACH, Tagger, TagModelConfig, build
from elman.tasks.tag.word_features import SentenceEmbedding
from elman.tasks.task import Data, Evaluation, Inspection, InspectRequest, Response, Task, TrainedSettings
from elman.training.loss import Loss
from elman.training.scores import Scores

PROBABILITY = "TagProbability"  # in the last column of CoNLL-U, MISC


@dataclass(frozen=True)
class TagDataConfig(SplitConfig):
    """Tagged sentences.

    Args:
        train: files, one name or a list; or synthetic sentences, as synthetic:copy,T=1000
        format: auto (by the names, or by the content), columns, conllu or jsonl
        word: the column of words, by number from 0 or by name
        tag: the column of tags, by number (-1 is the last) or by name; of conllu, upos or deprel
        features: further columns that are read and embedded, as [1]
        errors: what to do with invalid UTF-8, strict (an error) or replace (U+FFFD)
        scheme: the scheme of the tags, auto (detected), iob1, iob2, iobes or none
        train_as: the scheme to train in, same (as the data) or iobes; scores are always in the scheme of the data
        min_count: words that occur less often in the training data are unknown
        lower: look words up in lower case; their case is a feature of its own
        batch_size: sentences in a step, over all processes
    """

    train: Names = "train.txt"
    format: str = one_of("auto", FORMATS)
    word: Column = 0
    tag: Column = -1
    features: list[Column] = field(default_factory=list)
    errors: str = one_of("strict", ERRORS)
    scheme: str = one_of("auto", ("auto", *schemes.SCHEMES))
    train_as: str = one_of("same", ("same", "iobes"))
    min_count: int = 1
    lower: bool = True
    batch_size: int = 32


@dataclass(frozen=True)
class TagConfig(TrainedSettings[Tagger]):
    """A run from tagged sentences to a tagger.

    >>> TagConfig(model=TagModelConfig(crf=False)).data.scheme
    'auto'

    Args:
        task: what is trained; tag predicts a tag for each word
        data: the sentences
        model: the network
        init_from: a run or a saved model whose weights, words and tags this run begins with; empty for none
    """

    task: str = "tag"
    data: TagDataConfig = field(default_factory=TagDataConfig)
    model: TagModelConfig = field(default_factory=TagModelConfig)
    init_from: str = ""


class TagData(Data):
    """Sentences, and how they become tensors; `synthetic` ones are made as they are needed."""

    unit = "words"

    def __init__(
        self, config: TagConfig, reader: TagReader, known: Lexicon | None, train: list[Sentence],
        valid: list[Sentence], test: list[Sentence], synthetic: SyntheticData | None = None,
    ) -> None:  # fmt: skip
        if config.model.crf and synthetic and synthetic.train.kind == "selective-copy":
            raise InputError(
                "a CRF needs a tag for every word, and only the answers of selective-copy have one: "
                "train with --model.crf false"
            )
        self.config, self.reader, self.synthetic = config, reader, synthetic
        self.train, self.valid, self.test = train, valid, test or None
        parts = {"train": train, "valid": valid, "test": test}
        self.fingerprint = {f"data.{name}": fingerprint(part) for name, part in parts.items()}
        # A tag may occur only in the sentences that the random split has set aside.
        aside = [*([] if config.data.valid else valid), *([] if config.data.test else test)]
        self.lexicon = known or _lexicon(config.data, train, aside)
        for part in (train, valid, test):
            check_types(self.lexicon, part)

    def batches(self, rank: int, world: int) -> Batches:
        size, seed = self.config.data.batch_size, self.config.seed
        if self.synthetic:
            return SyntheticBatches(
                self.synthetic.train, size, seed, lambda rows, number: self.batch(_sentences(rows)), rank, world
            )
        examples = [self.lexicon.example(sentence) for sentence in self.train]
        order = Shuffled(len(examples), size, seed, rank, world)
        return OrderedBatches(order, lambda rows, at: batch_of([examples[i] for i in rows]))

    def batch(self, sentences: Sequence[Sentence]) -> Batch:
        """Some sentences and their targets, padded."""
        return batch_of([self.lexicon.example(sentence) for sentence in sentences])

    def summary(self) -> list[str]:
        numbers = [len(part) for part in (self.train, self.valid, self.test or ())]
        lexicon = self.lexicon
        return [
            f"data: {file_list(self.config.data.train)}: {split_summary('sentences', *numbers)}",
            f"vocabulary: {len(lexicon.words.names):,} words, {len(lexicon.characters.names):,} characters, "
            f"{len(lexicon.tags):,} tags (scheme {lexicon.scheme}, trained as {lexicon.inner})",
        ]

    def first(self, part: list[Sentence], count: int) -> list[Sentence]:
        """As many sentences as have so many words, one at least."""
        return first_rows(part, lambda sentence: len(sentence.words), count)


def _sentences(made: Sequence[SyntheticRow]) -> list[Sentence]:
    rows = []
    for i, (words, tags) in enumerate(made):
        assert isinstance(words, list) and isinstance(tags, list)
        rows.append(Sentence(words, tags, (), words, f"row {i}", i))
    return rows


def _lexicon(config: TagDataConfig, train: Sequence[Sentence], aside: Sequence[Sentence]) -> Lexicon:
    choice("data.scheme", config.scheme, ("auto", *schemes.SCHEMES))
    choice("data.train_as", config.train_as, ("same", "iobes"))
    scheme = config.scheme if config.scheme != "auto" else schemes.find(sentence.tags for sentence in (*train, *aside))
    inner = "iobes" if config.train_as == "iobes" and scheme != "none" else scheme
    tags = {tag for s in (*train, *aside) for tag in schemes.convert(s.tags, scheme, inner) if tag}
    refuse_alike(sorted(tags), "tags")
    if len(tags) < 2:
        raise InputError(
            f"the training data have only one tag, {', '.join(tags) or '(none)'}, so there is nothing to learn. "
            "Check which column data.tag names."
        )
    return Lexicon.fit(train, sorted(tags), scheme, inner, config.min_count, config.lower)


def check_types(lexicon: Lexicon, sentences: Sequence[Sentence]) -> None:
    """Raise an InputError at a tag of a kind that training never saw.

    A mark that a known type never had (I-LST where there was only B-LST) is not an error: such words count as missed.
    """
    known = {_type(tag) for tag in lexicon.tags}
    for sentence in sentences:
        for tag in sentence.tags:
            if tag and _type(tag) not in known:
                raise InputError(
                    f"the sentence at {sentence.where} has the tag {tag!r}, which the model was not trained on; "
                    f"it knows {', '.join(lexicon.tags[:30])}"
                )


def _type(tag: str) -> str:
    return schemes.parts(tag)[1] or tag


class TagTask(Task[TagConfig, TagData, Tagger]):
    Config, Model = TagConfig, Tagger
    title = "a tagger of sequences"

    @property
    def requests(self) -> dict[str, tuple[type[Request], Response]]:
        inspect = self.inspector(lambda predictor, request: _read(predictor, request, True))
        return {"evaluate": (Evaluate, evaluate), "predict": (Predict, predict), "inspect": (Inspect, inspect)}

    def open(self, config: TagConfig, saved: Tagger | None) -> TagData:
        return self.open_in_memory(config, saved, {})

    def open_in_memory(self, config: TagConfig, saved: Tagger | None, parts: dict[str, Any]) -> TagData:
        data = config.data
        for name in ("min_count", "batch_size"):
            whole(f"data.{name}", getattr(data, name))
        known = saved.lexicon if saved else None
        if is_synthetic(data.train):
            synthetic = SyntheticData.open(data.train, data.valid, data.test, "tag")
            return TagData(config, TagReader(), known, *synthetic.parts(_sentences), synthetic)
        reader = TagReader(data.format, data.word, data.tag, tuple(data.features), data.errors)
        in_memory = {
            name: reader.frame(part) if is_frame(part) else tagger.tagged_sentences(part)
            for name, part in parts.items()
        }
        sentences = read_parts(data, reader, lambda row: row.number, "sentences", in_memory)
        return TagData(config, reader, known, *sentences)

    def build(self, config: TagConfig, data: TagData) -> Tagger:
        resolved = network.resolve_defaults(config.model)
        model = build(resolved, data.lexicon)
        if resolved.vectors:
            assert isinstance(model.embed, SentenceEmbedding)
            model.embed.words.begin_with(resolved.vectors, data.lexicon.words.names)
        return Tagger(model, resolved, data.reader, data.lexicon)

    def settings(self, predictor: Tagger) -> dict[str, Json]:
        model = {f"model.{name}": value for name, value in asdict(predictor.config).items()}
        lexicon, read = predictor.lexicon, predictor.reader
        reader = {"data.word": read.word, "data.tag": read.tag, "data.features": [*read.features]}
        written = {"data.scheme": lexicon.scheme, "data.lower": lexicon.lower}
        train_as = "same" if lexicon.inner == lexicon.scheme else lexicon.inner
        return {**model, **reader, **written, "data.train_as": train_as, "model.vectors": ""}

    def copy_weights(self, predictor: Tagger, source: Tagger) -> list[str]:
        words, tags = len(source.lexicon.words.names), len(source.lexicon.tags)
        return [*super().copy_weights(predictor, source), f"{words:,} words and {tags} tags"]

    def loss(self, model: nn.Module, batch: Batch, state: State | None) -> Loss:
        """- sum of log P(tags | sentence), over words; sentences are independent, so nothing is carried."""
        return tagger.loss(model, batch)

    def evaluate(self, predictor: Tagger, part: list[Sentence]) -> Evaluation:
        guess = predictor.tag_all(part)
        scores = predictor.scores(part, guess)
        results = Results(scores, *_confusion(part, guess))
        return Evaluation(scores, lambda run, step: plots.preview(run, step, results))

    def inspect_inputs(self, predictor: Tagger, part: list[Sentence], rows: int, steps: int) -> Inspection:
        """The longest sentences: they say most about time."""
        if not isinstance(predictor.model, SequenceModel):
            raise InputError("a tagger with model.feedback is two networks, and cannot be inspected yet")
        some = sorted((s for s in part if 0 < len(s.words) <= steps), key=lambda s: -len(s.words))[:rows]
        if not some:
            raise InputError(f"there is no sentence of 1 to {steps} words to inspect")
        check_types(predictor.lexicon, some)
        batch = batch_of([predictor.lexicon.example(sentence) for sentence in some])
        panels = tagger.panels(predictor, batch)
        names = [[f"{word} " for word in sentence.words] for sentence in some]
        sample = Sample(batch.x, batch.y, batch.lengths, names=names, panels=panels)
        return Inspection(predictor.model, sample)


def _confusion(sentences: Sequence[Sentence], guess: Sequence[Sequence[str]]) -> tuple[list[str], list[list[int]]]:
    """How often a word of each type was taken for which: the types, and a row for each true one."""
    pairs = Counter(
        (_type(a), _type(b))
        for s, tags in zip(sentences, guess, strict=True)
        for a, b in zip(s.tags, tags, strict=True)
        if a
    )
    names = sorted({name for pair in pairs for name in pair})
    return names, [[pairs[a, b] for b in names] for a in names]


# What it answers


def _format() -> Any:
    formats = "columns, conllu, jsonl or text (one sentence a line); by default detected"
    return option(None, f"the format of the files: {formats}", choices=FORMATS)


@dataclass(frozen=True)
class _Sentences(TextRequest):
    data: Rows = data_option(f"files, - or {PREFIX}KIND,T=100", rows=list[list[str]])
    format: str | None = _format()
    batch_size: int = batch_size(EACH, "sentences")
    num_beams: int = option(1, "beams of the decoding, of a tagger with model.feedback", least=1, limit="beams")


@dataclass(frozen=True)
class Evaluate(_Sentences):
    """How good a tagger is on tagged sentences."""

    strict: bool = option(False, "count only spans that are well-formed in the scheme")


@dataclass(frozen=True)
class Predict(_Sentences):
    """The tags of sentences; a row is the words of one."""

    probabilities: bool = option(False, "also print the probability of each tag")


@dataclass(frozen=True)
class Inspect(InspectRequest):
    format: str | None = _format()


def _read(predictor: Tagger, request: _Sentences | Inspect, tagged: bool) -> list[Sentence]:
    names = opened(request.data)
    if is_frame(request.data):
        return predictor.reader.frame(request.data, tagged=tagged)
    if names is None:
        return tagger.sentences_of(rows_of(request.data, "sentences, each a list of words"))
    if is_synthetic(names):
        return _sentences(parse(names[0], "tag").part())
    # A tagger that was trained on columns can also tag a plain text.
    own = "auto" if not tagged and predictor.reader.format == "columns" else predictor.reader.format
    reader = replace(predictor.reader, format=request.format or own, errors=request.errors)
    return reader(names, tagged=tagged, known={_type(tag) for tag in predictor.lexicon.tags})


def evaluate(predictor: Tagger, request: Evaluate) -> Scores:
    sentences = _read(predictor, request, True)
    if bare := next((one for one in sentences if len(one.tags or ()) != len(one.words)), None):
        raise InputError(f"{bare.where} has {len(bare.words)} words, but not a tag for each; an evaluation needs them")
    check_types(predictor.lexicon, sentences)
    return predictor.evaluate(sentences, request.batch_size, request.strict, request.num_beams)


def predict(predictor: Tagger, request: Predict) -> Iterator[str]:
    """The columns that came in and the tag, an empty line after each sentence; of JSON lines and of rows, JSON lines;
    of CoNLL-U what came in, with the tags in their column."""
    sentences, settings = _read(predictor, request, False), (request.batch_size, request.num_beams)
    tags = predictor.tag_all(sentences, *settings)
    chances: Sequence[Sequence[float]] = [()] * len(tags)
    if request.probabilities:
        chances = predictor.marginals(sentences, *settings)
    return _lines(sentences, tags, chances)


def _lines(
    sentences: Sequence[Sentence], tags: Sequence[Sequence[str]], chances: Sequence[Sequence[float]]
) -> Iterator[str]:
    for sentence, own, sure in zip(sentences, tags, chances, strict=True):
        if not sentence.lines:  # they were JSON
            content = {"tokens": [*sentence.words], "tags": [*own], **({"probabilities": [*sure]} if sure else {})}
            yield json.dumps(content, ensure_ascii=False) + "\n"
            continue
        if sentence.column is not None:
            yield from _conllu(sentence, own, sure)
            continue
        for i, line in enumerate(sentence.lines):
            between = "\t" if "\t" in line else " "
            yield between.join([line.rstrip(), own[i], *([f"{sure[i]:.6g}"] if sure else [])]) + "\n"
        yield "\n"


def _conllu(sentence: Sentence, tags: Sequence[str], chances: Sequence[float]) -> Iterator[str]:
    """The lines of a sentence as they were, each word with its tag in the column of tags and P of it in the last."""
    lines = list(sentence.lines)
    for i, place in enumerate(sentence.places):
        cells = lines[place].split("\t")
        cells[sentence.column or 0] = tags[i]
        if chances:
            kept = [part for part in cells[-1].split("|") if part != "_" and not part.startswith(f"{PROBABILITY}=")]
            cells[-1] = "|".join([*kept, f"{PROBABILITY}={chances[i]:.6g}"])
        lines[place] = "\t".join(cells)
    yield from (f"{line}\n" for line in lines)
    yield "\n"
