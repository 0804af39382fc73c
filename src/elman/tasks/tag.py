"""Sequence tagging: a tag for each word of a sentence."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate
from pathlib import Path

from torch import nn

from elman.config import Json
from elman.data import Batch, Batches, Numbered, Position, Shuffled, schemes, synthetic
from elman.data.inputs import refuse_alike
from elman.data.lexicon import Lexicon, batch_of
from elman.data.parts import SplitConfig, is_synthetic, parts, shown, synthetic_parts, told
from elman.data.tagged import Column, Sentence, TagReader, fingerprint
from elman.errors import InputError
from elman.lens import Sample
from elman.model import SequenceModel
from elman.options import choice, whole
from elman.state import State
from elman.tasks import inspecting, network, pictures, tagger
from elman.tasks.inspecting import Looked
from elman.tasks.pictures import Found
from elman.tasks.settings import TrainedSettings
from elman.tasks.tagger import EACH, ModelConfig, Tagger, build
from elman.tasks.task import Data, Task, Verb
from elman.training.record import Preview
from elman.training.scores import Scores
from elman.training.unit import Loss
from elman.words import SentenceEmbedding

PROBABILITY = "TagProbability"  # in the last column of CoNLL-U, MISC


@dataclass(frozen=True)
class DataConfig(SplitConfig):
    """Tagged sentences.

    Args:
        train: files, one name or a list; or made-up sentences, as synthetic:copy,T=1000
        valid: the same for validation; empty for a part of train, by sentences
        test: the same for the final test; empty for a part of train
        split: the fractions of train, drawn by chance, that are trained on, validated on and tested on
        folds: cut the sentences into so many folds, by their number, and test on one; 0 for none
        fold: those whose number leaves this remainder
        format: auto (by the names, or by the content), columns, conllu or jsonl
        word: the column of words, by number from 0 or by name
        tag: the column of tags, by number (-1 is the last) or by name; of conllu, upos or deprel
        features: further columns that are read and embedded, as [1]
        errors: what to do with invalid UTF-8, strict (an error) or replace (U+FFFD)
        scheme: of the tags, auto (found from the data), iob1, iob2, iobes or none
        train_as: the scheme that the model writes, same (as the data) or iobes; it is scored in that of the data
        min_count: words that occur less often in the training data are unknown
        lower: look words up in lower case; how they were written is a feature of its own
        batch_size: sentences of a step, over all processes
    """

    train: list[str] | str = "train.txt"
    format: str = "auto"
    word: Column = 0
    tag: Column = -1
    features: list[Column] = field(default_factory=list)
    errors: str = "strict"
    scheme: str = "auto"
    train_as: str = "same"
    min_count: int = 1
    lower: bool = True
    batch_size: int = 32


@dataclass(frozen=True)
class RunConfig(TrainedSettings):
    """A run from tagged sentences to a tagger.

    >>> RunConfig(model=ModelConfig(crf=False)).data.scheme
    'auto'

    Args:
        task: what is trained; tag is a tag for each word
        data: the sentences
        model: the network
        init_from: a run or a saved model whose weights, words and tags this run begins with; empty for none
    """

    task: str = "tag"
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    out: str = "runs/tag"
    init_from: str = ""


class TagData(Data):
    """Sentences, and how they become tensors."""

    unit = "words"

    def __init__(
        self,
        config: RunConfig,
        reader: TagReader,
        known: Lexicon | None,
        train: list[Sentence],
        valid: list[Sentence],
        test: list[Sentence],
    ) -> None:
        self.config, self.reader = config, reader
        self.train, self.valid, self.test = train, valid, test or None
        found = {"train": train, "valid": valid, "test": test}
        self.fingerprint = {f"data.{name}": fingerprint(part) for name, part in found.items()}
        # A tag may occur only among the training sentences that chance has put aside.
        aside = [*([] if config.data.valid else valid), *([] if config.data.test else test)]
        self.lexicon = known or _lexicon(config.data, train, aside)
        for part in (train, valid, test):
            check_types(self.lexicon, part)

    def batches(self, rank: int, world: int) -> Batches:
        order = Shuffled(len(self.train), self.config.data.batch_size, self.config.seed, rank, world)
        return _Sentences(self.lexicon, self.train, order)

    def summary(self) -> list[str]:
        numbers = [len(part) for part in (self.train, self.valid, self.test or ())]
        lexicon = self.lexicon
        return [
            f"data: {shown(self.config.data.train)}: {told('sentences', *numbers)}",
            f"vocabulary: {len(lexicon.words.names):,} words, {len(lexicon.characters.names):,} characters, "
            f"{len(lexicon.tags):,} tags (scheme {lexicon.scheme}, trained as {lexicon.inner})",
        ]

    def first(self, part: list[Sentence], count: int) -> list[Sentence]:
        """As many sentences as have so many words, one at least."""
        ends = [*accumulate(len(sentence.words) for sentence in part)]
        return part if not part or count >= ends[-1] else part[: max(1, bisect_right(ends, count))]


class _Sentences:
    """Sentences in shuffled batches."""

    def __init__(self, lexicon: Lexicon, sentences: Sequence[Sentence], order: Shuffled) -> None:
        self.rows = [lexicon.example(sentence) for sentence in sentences]
        self.order, self.after = order, order.after

    def batch(self, at: Position) -> Batch:
        return batch_of([self.rows[i] for i in self.order.rows(at)])


class MadeUpData(TagData):
    """Sentences that are made up: there are as many as anyone wants."""

    def __init__(
        self,
        config: RunConfig,
        known: Lexicon | None,
        made: synthetic.Synthetic,
        valid: synthetic.Synthetic,
        test: synthetic.Synthetic | None,
    ) -> None:
        if config.model.crf and made.kind == "selective-copy":
            raise InputError(
                "a CRF needs a tag for every word, and only the answers of selective-copy have one: "
                "train with --model.crf false"
            )
        self.made = made
        # Every word and tag there is occurs in so many.
        some = _sentences(made.rows(0, 2**62 + 1, 64))
        found = [_sentences(part.part()) if part else [] for part in (valid, test)]
        super().__init__(config, TagReader(), known, some, *found)

    def batches(self, rank: int, world: int) -> Batches:
        size, seed = self.config.data.batch_size, self.config.seed
        if size % world:
            raise InputError(f"batch_size is {size}; {world} processes need a multiple of {world}")

        def make(number: int) -> Batch:
            sentences = _sentences(self.made.rows(seed, number, size))[rank::world]
            return batch_of([self.lexicon.example(sentence) for sentence in sentences])

        return Numbered(make)


def _sentences(made: Sequence[synthetic.Made]) -> list[Sentence]:
    rows = []
    for i, (words, tags) in enumerate(made):
        assert isinstance(words, list) and isinstance(tags, list)
        rows.append(Sentence(words, tags, (), words, f"row {i}", i))
    return rows


def _lexicon(config: DataConfig, train: Sequence[Sentence], aside: Sequence[Sentence]) -> Lexicon:
    choice("data.scheme", config.scheme, ("auto", *schemes.SCHEMES))
    choice("data.train_as", config.train_as, ("same", "iobes"))
    scheme = config.scheme if config.scheme != "auto" else schemes.find(sentence.tags for sentence in (*train, *aside))
    inner = "iobes" if config.train_as == "iobes" and scheme != "none" else scheme
    tags = {tag for s in (*train, *aside) for tag in schemes.convert(s.tags, scheme, inner) if tag}
    refuse_alike(sorted(tags), "tags")
    if len(tags) < 2:
        raise InputError(
            f"the training data have one tag only, {', '.join(tags) or '(none)'}; there is nothing to learn. "
            "Check which column data.tag names."
        )
    return Lexicon.fit(train, sorted(tags), scheme, inner, config.min_count, config.lower)


def check_types(lexicon: Lexicon, sentences: Sequence[Sentence]) -> None:
    """Raise an InputError at a tag of a kind that training never saw.

    A mark that a known type never had (I-LST where there was only B-LST) is no error: such words are counted as missed.
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


class TagTask(Task[RunConfig, TagData, Tagger]):
    Config = RunConfig
    title = "a tagger of sequences"

    @property
    def verbs(self) -> dict[str, Verb]:
        return {
            "evaluate": Verb(_evaluate_arguments, _evaluate),
            "predict": Verb(_predict_arguments, _predict),
            "inspect": inspecting.verb(self, lambda face, given: _read(face, given, True), _format_argument),
        }

    def open(self, config: RunConfig, saved: Tagger | None) -> TagData:
        data = config.data
        for name in ("min_count", "batch_size"):
            whole(f"data.{name}", getattr(data, name))
        known = saved.lexicon if saved else None
        if is_synthetic(data.train):
            return MadeUpData(config, known, *synthetic_parts(data, "tag"))
        reader = TagReader(data.format, data.word, data.tag, data.features, data.errors)
        return TagData(config, reader, known, *parts(data, reader, lambda sentence: sentence.number, "sentences"))

    def build(self, config: RunConfig, data: TagData) -> Tagger:
        settled = network.settled(config.model)
        model = build(settled, data.lexicon)
        if settled.vectors:
            assert isinstance(model.embed, SentenceEmbedding)
            model.embed.words.begin_with(settled.vectors, data.lexicon.words.names)
        return Tagger(model, settled, data.reader, data.lexicon)

    def settings(self, face: Tagger) -> dict[str, Json]:
        model = {f"model.{name}": value for name, value in asdict(face.config).items()}
        lexicon, reader = face.lexicon, {f"data.{n}": getattr(face.reader, n) for n in ("word", "tag", "features")}
        written = {"data.scheme": lexicon.scheme, "data.lower": lexicon.lower}
        train_as = "same" if lexicon.inner == lexicon.scheme else lexicon.inner
        return {**model, **reader, **written, "data.train_as": train_as, "model.vectors": ""}

    def take(self, face: Tagger, source: Tagger) -> list[str]:
        words, tags = len(source.lexicon.words.names), len(source.lexicon.tags)
        return [*super().take(face, source), f"{words:,} words and {tags} tags"]

    def load(self, folder: Path) -> Tagger:
        return Tagger.load(folder)

    def loss(self, model: nn.Module, batch: Batch, state: State | None) -> Loss:
        """- sum of log P(tags | sentence), over words; sentences are independent, so nothing is carried."""
        return tagger.loss(model, batch)

    def evaluate(self, face: Tagger, part: list[Sentence]) -> Scores:
        guess = face.tag_all(part)
        scores = face.scores(part, guess)
        face.found = Found(scores, *_confusion(part, guess))
        return scores

    def look(self, face: Tagger, part: list[Sentence], rows: int, steps: int) -> Looked:
        """The longest sentences: they say most about time."""
        if not isinstance(face.model, SequenceModel):
            raise InputError("a tagger with model.feedback is two networks, and cannot be looked into yet")
        some = sorted((s for s in part if 0 < len(s.words) <= steps), key=lambda s: -len(s.words))[:rows]
        if not some:
            raise InputError(f"there is no sentence of 1 to {steps} words to look at")
        check_types(face.lexicon, some)
        batch = batch_of([face.lexicon.example(sentence) for sentence in some])
        panels = tagger.panels(face.model, batch, face.lexicon)
        names = [[f"{word} " for word in sentence.words] for sentence in some]
        sample = Sample(batch.x, batch.y, batch.lengths, names=names, log_prob=tagger.log_prob_of, panels=panels)
        return Looked(face.model, sample)

    def summary(self, face: Tagger) -> str:
        return repr(face)

    def preview(self, face: Tagger, config: RunConfig, step: int) -> Preview:
        return Preview() if face.found is None else pictures.preview(Path(config.out), step, face.found)


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


# What verbs ask


def _data_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("data", nargs="+", metavar="DATA", help=f"files, - or {synthetic.PREFIX}KIND,T=100")
    _format_argument(parser)
    parser.add_argument("--errors", "--data.errors", default="strict", help="invalid UTF-8: strict or replace")
    parser.add_argument("--batch_size", type=int, default=EACH, help="sentences at a time; does not change the numbers")
    parser.add_argument("--num_beams", type=int, default=1, help="with model.feedback: beginnings that decoding keeps")


def _format_argument(parser: ArgumentParser) -> None:
    formats = "columns, conllu, jsonl or text (one sentence a line); found from the files unless you say"
    parser.add_argument("--format", help=f"of the files: {formats}")


def _read(face: Tagger, given: Namespace, tagged: bool) -> list[Sentence]:
    if is_synthetic(given.data):
        return _sentences(synthetic.parse(given.data[0], "tag").part())
    # What was trained on columns may be asked for the tags of a text.
    own = "auto" if not tagged and face.reader.format == "columns" else face.reader.format
    reader = replace(face.reader, format=given.format or own, errors=given.errors)
    return reader(given.data, tagged=tagged, known={_type(tag) for tag in face.lexicon.tags})


def _with_beams(face: Tagger, given: Namespace) -> Tagger:
    """The tagger with the beams of one request, and the same network: the face itself answers others too."""
    own = copy(face)
    own.num_beams = given.num_beams
    return own


def _evaluate_arguments(parser: ArgumentParser) -> None:
    _data_arguments(parser)
    parser.add_argument("--strict", action="store_true", help="count only spans that are well-formed in the scheme")


def _evaluate(face: Tagger, given: Namespace) -> Scores:
    sentences = _read(face, given, True)
    check_types(face.lexicon, sentences)
    return _with_beams(face, given).evaluate(sentences, given.batch_size, given.strict)


def _predict_arguments(parser: ArgumentParser) -> None:
    _data_arguments(parser)
    parser.add_argument("--probabilities", action="store_true", help="of each tag too, given the sentence")


def _predict(face: Tagger, given: Namespace) -> Iterator[str]:
    """The columns that came in and the tag, an empty line after each sentence; of JSON lines, JSON lines; of CoNLL-U
    what came in, with the tags in their column."""
    sentences, face = _read(face, given, False), _with_beams(face, given)
    tags = face.tag_all(sentences, given.batch_size)
    chances: Sequence[Sequence[float]] = [()] * len(tags)
    if given.probabilities:
        chances = face.marginals(sentences, given.batch_size)
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
