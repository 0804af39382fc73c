"""The requests that a translator answers, and its responses."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from elman import progress
from elman.data.synthetic import PREFIX, is_synthetic, parse
from elman.decoding.sample import Sampling
from elman.errors import FileError, InputError
from elman.options import a_text, whole
from elman.tasks.request import Rows, TextRequest, batch_size, data_option, opened, option, rows_of
from elman.tasks.task import InspectRequest
from elman.tasks.translate.data import FORMATS, Pair, PairReader, synthetic_pairs
from elman.tasks.translate.metrics import alignment_json, exposure, score
from elman.tasks.translate.model import EACH, Search, Translator
from elman.training.scores import Scores

CHANCE = "sampling, instead of a search"


def format_option() -> Any:
    return option(None, "the format of the files: text, tsv or jsonl", choices=FORMATS)


@dataclass(frozen=True)
class _Searching(TextRequest):
    format: str | None = format_option()
    batch_size: int = batch_size(EACH, "sentences")
    num_beams: int = option(1, "beams of the search", least=1, limit="beams")
    length_penalty: float = option(1.0, "compare translations by log P / length ** this")
    min_ratio: float = option(0.0, "symbols for each of the source, at least", least=0)
    max_ratio: float = option(3.0, "symbols for each of the source, at most, and 10 more", least=0, limit="ratio")
    coverage_penalty: float = option(0.0, "penalty for parts of the source without attention", least=0)

    @property
    def search(self) -> Search:
        return Search(self.num_beams, self.length_penalty, self.min_ratio, self.max_ratio, self.coverage_penalty)


@dataclass(frozen=True)
class Evaluate(_Searching):
    """How good translations are."""

    data: Rows = data_option(
        f"a file of sources and one of targets; or one of pairs (.tsv, .jsonl); or {PREFIX}reverse,T=20"
    )
    free_running: bool = option(False, "also measure the loss when the model reads its own symbols")


@dataclass(frozen=True)
class Predict(_Searching):
    """Translations; a row is a text."""

    data: Rows = data_option("files of one sentence a line, or -", rows=list[str])
    n_best: int = option(1, "translations of each sentence; of a search, at most num_beams", least=1, limit="beams")
    temperature: float | None = option(None, "sample symbols: below 1 sharper, above 1 flatter", least=0, group=CHANCE)
    top_k: int | None = option(None, "sample from so many of the most probable symbols", least=0, group=CHANCE)
    top_p: float | None = option(None, "sample from the most probable, of this total probability", group=CHANCE)
    repetition_penalty: float | None = option(
        None, "factor of log-probabilities of symbols already written", group=CHANCE
    )
    seed: int = option(0, "the seed of the first of n_best; each further one has the next", least=0, group=CHANCE)
    scores: bool = option(False, "also write log P and the score of the search")
    prefix: str = option("", "what every translation begins with")
    alignments: str | None = option(None, "a new file of JSON lines, the attention of the translations", local=True)

    @property
    def sampling(self) -> Sampling | None:
        """How to draw, if any setting of drawing is given."""
        names = ("temperature", "top_k", "top_p", "repetition_penalty")
        settings = {name: value for name in names if (value := getattr(self, name)) is not None}
        if settings and (self.num_beams > 1 or self.coverage_penalty):
            raise InputError(
                f"a beam search does not sample: omit {', '.join(settings)}, or num_beams and coverage_penalty"
            )
        return Sampling(**settings) if settings else None


@dataclass(frozen=True)
class Inspect(InspectRequest):
    format: str | None = format_option()


def _reader(predictor: Translator, request: _Searching | Inspect) -> PairReader:
    return replace(predictor.reader, format=request.format or "auto", errors=request.errors)


def pairs_of(predictor: Translator, request: Evaluate | Inspect) -> list[Pair]:
    """The pairs that a request names, or gives."""
    names = opened(request.data)
    if names is None:
        pairs = rows_of(request.data, "pairs, as the model's reader returns them")
        if wrong := next((pair for pair in pairs if not isinstance(pair, Pair)), None):
            raise InputError(
                f"data has {wrong!r}; it must be pairs, elman.tasks.translate.data.Pair, as the reader returns them"
            )
        return pairs
    if len(names) > 2:
        raise InputError(f"{len(names)} files were given; this takes a file of sources and one of targets")
    if is_synthetic(names[:1]):
        return synthetic_pairs(parse(names[0], "translate").part())
    return _reader(predictor, request)(names[:1], names[1:])


def evaluate(predictor: Translator, request: Evaluate) -> Scores:
    """Perplexity, BLEU and chrF; with --free_running the gap that the model's own past makes."""
    pairs = pairs_of(predictor, request)
    scores, _ = score(predictor, pairs, request.search, "bleu", request.batch_size)
    if not request.free_running:
        return scores
    rows: Any = exposure(predictor, pairs, request.batch_size)
    gap = sum(row["gap"] * row["sentences"] for row in rows) / sum(row["sentences"] for row in rows)
    return replace(scores, numbers={**scores.numbers, "gap": gap}, details={**scores.details, "free_running": rows})


def predict(predictor: Translator, request: Predict) -> Iterator[str]:
    """A line for each translation; with --n_best or --scores, tab-separated after the number of the sentence."""
    sampling = request.sampling
    whole("n_best", request.n_best, most=None if sampling else request.num_beams)
    names = opened(request.data)
    sources = (
        [a_text(f"row {i}", row) for i, row in enumerate(rows_of(request.data, "texts"))]
        if names is None
        else [pair.source for pair in _reader(predictor, request)(names, paired=False)]
    )
    if empty := [i for i, source in enumerate(sources, 1) if not source.strip()]:
        progress.say(f"{len(empty)} empty lines, the first is number {empty[0]}: their translations are empty too")
    more = request.search, request.batch_size, [request.prefix] * len(sources) if request.prefix else ()
    translations = (
        predictor.samples(sources, sampling, request.n_best, request.seed, *more)
        if sampling
        else predictor.translations(sources, *more)
    )
    if request.alignments:
        _write_alignments(predictor, Path(request.alignments), sources, [row[0].tokens for row in translations])
    for number, row in enumerate(translations, 1):
        for translation in row[: request.n_best]:
            cells = [translation.text]
            if request.scores:
                cells = [f"{translation.log_prob:.6f}", f"{translation.score:.6f}", *cells]
            yield "\t".join([str(number), *cells] if request.n_best > 1 or request.scores else cells) + "\n"


def _write_alignments(
    predictor: Translator, path: Path, sources: Sequence[str], tokens: Sequence[Sequence[int]]
) -> None:
    try:
        with path.open("x", encoding="utf-8") as file:
            for source, ids in zip(sources, tokens, strict=True):
                content = (
                    alignment_json(predictor, source, ids)
                    if source.strip()
                    else {"source": [], "target": [], "weights": []}
                )
                file.write(json.dumps(content, ensure_ascii=False) + "\n")
    except FileExistsError:
        raise InputError(f"{path} exists; it is not overwritten. Choose another --alignments.") from None
    except OSError as error:
        raise FileError(f"cannot write {path}: {error}") from error
