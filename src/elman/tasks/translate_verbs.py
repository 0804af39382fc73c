"""What `elman evaluate` and `elman predict` ask of a translator, and what it answers."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from elman import progress
from elman.data.pairs import Pair, PairReader, made_up
from elman.data.parts import is_synthetic
from elman.data.synthetic import PREFIX, parse
from elman.decoding.sample import Sampling
from elman.errors import FileError, InputError
from elman.options import whole
from elman.tasks.translate_measures import aligned, exposure, judged
from elman.tasks.translator import EACH, Search, Translator
from elman.training.scores import Scores


def format_argument(parser: ArgumentParser) -> None:
    parser.add_argument("--format", help="of the files: text, tsv or jsonl")


def _arguments(parser: ArgumentParser, data: str) -> None:
    parser.add_argument("data", nargs="+", metavar="DATA", help=data)
    format_argument(parser)
    parser.add_argument("--errors", "--data.errors", default="strict", help="invalid UTF-8: strict or replace")
    parser.add_argument("--batch_size", type=int, default=EACH, help="sentences at a time; does not change the numbers")
    parser.add_argument("--num_beams", type=int, default=1, help="beginnings that the search keeps")
    parser.add_argument("--length_penalty", type=float, default=1.0, help="compare by log P / length ** this")
    parser.add_argument("--min_ratio", type=float, default=0.0, help="at least so many symbols for each of the source")
    parser.add_argument("--max_ratio", type=float, default=3.0, help="at most so many, and 10 more")
    parser.add_argument("--coverage_penalty", type=float, default=0.0, help="for parts of a source never looked at")


def _search(given: Namespace) -> Search:
    return Search(given.num_beams, given.length_penalty, given.min_ratio, given.max_ratio, given.coverage_penalty)


def _reader(face: Translator, given: Namespace) -> PairReader:
    return replace(face.reader, format=given.format or "auto", errors=given.errors)


def evaluate_arguments(parser: ArgumentParser) -> None:
    _arguments(parser, f"a file of sources and one of targets; or one of pairs (.tsv, .jsonl); or {PREFIX}reverse,T=20")
    parser.add_argument("--free_running", action="store_true", help="what the model's own symbols as a past cost")


def named_pairs(face: Translator, given: Namespace) -> list[Pair]:
    """The pairs that a command names."""
    if len(given.data) > 2:
        raise InputError(f"{len(given.data)} files were given; this takes a file of sources and one of targets")
    if is_synthetic(given.data[:1]):
        return made_up(parse(given.data[0], "translate").part())
    return _reader(face, given)(given.data[:1], given.data[1:])


def evaluate(face: Translator, given: Namespace) -> Scores:
    """Perplexity, BLEU and chrF; with --free_running the gap that the model's own past makes."""
    pairs = named_pairs(face, given)
    scores, _ = judged(face, pairs, _search(given), "bleu", given.batch_size)
    if not given.free_running:
        return scores
    found: Any = exposure(face, pairs, given.batch_size)
    gap = sum(row["gap"] * row["sentences"] for row in found) / sum(row["sentences"] for row in found)
    return replace(scores, numbers={**scores.numbers, "gap": gap}, details={**scores.details, "free_running": found})


def predict_arguments(parser: ArgumentParser) -> None:
    _arguments(parser, "files of one sentence a line, or -")
    parser.add_argument(
        "--n_best", type=int, default=1, help="translations of each sentence, of a search at most num_beams"
    )
    chance = parser.add_argument_group("by chance, in place of a search")
    chance.add_argument("--temperature", type=float, help="draw symbols: below 1 sharper, above 1 flatter")
    chance.add_argument("--top_k", type=int, help="draw from so many of the most probable symbols")
    chance.add_argument("--top_p", type=float, help="draw from the most probable symbols with this probability in all")
    chance.add_argument("--repetition_penalty", type=float, help="times the log-probability of symbols written before")
    chance.add_argument("--seed", type=int, default=0, help="of the first of the n_best; each has the next one")
    parser.add_argument("--scores", action="store_true", help="write log P and the score of the search too")
    parser.add_argument("--prefix", default="", help="what every translation begins with")
    parser.add_argument("--alignments", help="a new file for where the best translations look, JSON lines")


def predict(face: Translator, given: Namespace) -> Iterator[str]:
    """A line for each translation; with --n_best or --scores, tab-separated behind the number of the sentence."""
    sampling = _sampling(given)
    whole("n_best", given.n_best, most=None if sampling else given.num_beams)
    sources = [pair.source for pair in _reader(face, given)(given.data, paired=False)]
    if empty := [i for i, source in enumerate(sources, 1) if not source.strip()]:
        progress.say(f"{len(empty)} empty lines, the first is number {empty[0]}: their translations are empty too")
    prefixes = [given.prefix] * len(sources) if given.prefix else ()
    more = _search(given), given.batch_size, prefixes
    found = (
        face.samples(sources, sampling, given.n_best, given.seed, *more)
        if sampling
        else face.translations(sources, *more)
    )
    if given.alignments:
        _write_alignments(face, Path(given.alignments), sources, [row[0].tokens for row in found])
    for number_, row in enumerate(found, 1):
        for translation in row[: given.n_best]:
            cells = [translation.text]
            if given.scores:
                cells = [f"{translation.log_prob:.6f}", f"{translation.score:.6f}", *cells]
            yield "\t".join([str(number_), *cells] if given.n_best > 1 or given.scores else cells) + "\n"


def _sampling(given: Namespace) -> Sampling | None:
    """How to draw, if any setting of drawing is given."""
    names = ("temperature", "top_k", "top_p", "repetition_penalty")
    settings = {name: value for name in names if (value := getattr(given, name)) is not None}
    if settings and (given.num_beams > 1 or given.coverage_penalty):
        raise InputError(
            f"a beam search does not sample: leave {', '.join(settings)}, or num_beams and coverage_penalty"
        )
    return Sampling(**settings) if settings else None


def _write_alignments(face: Translator, path: Path, sources: Sequence[str], tokens: Sequence[Sequence[int]]) -> None:
    try:
        with path.open("x", encoding="utf-8") as file:
            for source, ids in zip(sources, tokens, strict=True):
                content = aligned(face, source, ids) if source.strip() else {"source": [], "target": [], "weights": []}
                file.write(json.dumps(content, ensure_ascii=False) + "\n")
    except FileExistsError:
        raise InputError(f"{path} exists; it is not overwritten. Choose another --alignments.") from None
    except OSError as error:
        raise FileError(f"cannot write {path}: {error}") from error
