"""Tags that mark spans: how each scheme writes them, which tags may follow which, and which spans a sequence has.

    IOB1    I-X inside a span, B-X only at the beginning of one that touches another of its type
    IOB2    B-X at the beginning of every span, I-X inside
    IOBES   S-X for a span of one word, else B-X, I-X ..., E-X
    none    a tag is a label of its word, and spans are single words

Spans are read as the scorer of the CoNLL shared tasks does (conlleval), which makes the best of tags that no scheme
would write: a new type begins a new span, and so does I-X after O. Read strictly, only what is well-formed counts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from elman.errors import UnknownNameError

SCHEMES = ("iob1", "iob2", "iobes", "none")
OUTSIDE = "O"
_MARKED = re.compile(r"([BIES])-(.+)")
_STRICT = {"iob2": re.compile("BI*"), "iobes": re.compile("S|BI*E")}


class Span(NamedTuple):
    """The words [start, stop), and what they are."""

    start: int
    stop: int
    type: str


def parts(tag: str) -> tuple[str, str]:
    """The mark and the type of a tag.

    >>> parts("B-NP"), parts("O")
    (('B', 'NP'), ('O', ''))
    """
    match = _MARKED.fullmatch(tag)
    return (match[1], match[2]) if match else (OUTSIDE, "")


def find(sentences: Iterable[Sequence[str]]) -> str:
    """The scheme of some tagged sentences.

    >>> find([["B-NP", "I-NP", "O"]]), find([["O", "I-NP"]]), find([["S-NP", "O"]]), find([["DET", "NOUN"]])
    ('iob2', 'iob1', 'iobes', 'none')
    """
    marks, loose = Counter[str](), False
    for tags in sentences:
        before = (OUTSIDE, "")
        for tag in tags:
            now = parts(tag)
            if now[0] == OUTSIDE and tag != OUTSIDE:
                return "none"
            marks[now[0]] += 1
            loose = loose or (now[0] == "I" and (before[0] == OUTSIDE or before[1] != now[1]))
            before = now
    if not marks - Counter({OUTSIDE: marks[OUTSIDE]}):
        return "none"
    if marks["E"] or marks["S"]:
        return "iobes"
    return "iob1" if loose else "iob2"


def spans(tags: Sequence[str], scheme: str, strict: bool = False) -> list[Span]:
    """The spans of a sentence.

    >>> spans(["B-NP", "I-NP", "I-VP"], "iob2"), spans(["B-NP", "I-NP", "I-VP"], "iob2", strict=True)
    ([Span(start=0, stop=2, type='NP'), Span(start=2, stop=3, type='VP')], [Span(start=0, stop=2, type='NP')])
    """
    if scheme not in SCHEMES:
        raise UnknownNameError("scheme", scheme, SCHEMES)
    if scheme == "none":
        return [Span(i, i + 1, tag) for i, tag in enumerate(tags)]
    marked = [parts(tag) for tag in tags]
    starts = [i for i, (a, b) in enumerate(pairwise([(OUTSIDE, ""), *marked])) if _begins(a, b)]
    result = []
    for i in starts:
        stop = i + 1
        while stop < len(marked) and not _ends(marked[stop - 1], marked[stop]):
            stop += 1
        result.append(Span(i, stop, marked[i][1]))
    if strict and scheme in _STRICT:
        return [s for s in result if _STRICT[scheme].fullmatch("".join(mark for mark, _ in marked[s.start : s.stop]))]
    return result


def _begins(before: tuple[str, str], now: tuple[str, str]) -> bool:
    """conlleval's startOfChunk."""
    if now[0] == OUTSIDE:
        return False
    return now[0] in "BS" or before[0] in "ESO" or before[1] != now[1]


def _ends(before: tuple[str, str], now: tuple[str, str]) -> bool:
    """conlleval's endOfChunk, of a span that `before` is in."""
    return before[0] in "ES" or now[0] in "BSO" or before[1] != now[1]


def write(found: Iterable[Span], length: int, scheme: str) -> list[str]:
    """The tags of some spans, which do not overlap.

    >>> write([Span(0, 2, "NP"), Span(2, 3, "NP")], 4, "iobes")
    ['B-NP', 'E-NP', 'S-NP', 'O']
    >>> write([Span(0, 2, "NP"), Span(2, 3, "NP")], 4, "iob1")
    ['I-NP', 'I-NP', 'B-NP', 'O']
    """
    tags, before = [OUTSIDE] * length, Span(0, -1, "")
    for span in sorted(found):
        first = {"iob2": "B", "iobes": "B" if span.stop - span.start > 1 else "S"}.get(scheme, "I")
        if scheme == "iob1" and (before.stop, before.type) == (span.start, span.type):
            first = "B"
        tags[span.start : span.stop] = [f"I-{span.type}"] * (span.stop - span.start)
        if scheme == "iobes":
            tags[span.stop - 1] = f"E-{span.type}"
        tags[span.start] = f"{first}-{span.type}"
        before = span
    return tags


def convert(tags: Sequence[str], before: str, after: str) -> list[str]:
    """The same spans in another scheme."""
    return list(tags) if before == after else write(spans(tags, before), len(tags), after)


def may_follow(before: str, now: str, scheme: str) -> bool:
    """Whether a scheme writes `now` after `before`; the end of a sentence, before or after, is as O.

    >>> may_follow("O", "I-NP", "iob2"), may_follow("B-NP", "I-NP", "iob2"), may_follow("B-NP", "O", "iobes")
    (False, True, False)
    """
    (mark, kind), (next_mark, next_kind) = parts(before), parts(now)
    if scheme == "iob2":
        return next_mark != "I" or (mark in "BI" and kind == next_kind)
    if scheme == "iobes":
        return (next_mark in "IE" and kind == next_kind) if mark in "BI" else next_mark not in "IE"
    return True


class Count(NamedTuple):
    """Of one type: how many spans are right, how many were found, how many there are."""

    right: int
    found: int
    there: int

    @property
    def precision(self) -> float:
        return self.right / self.found if self.found else 0.0

    @property
    def recall(self) -> float:
        return self.right / self.there if self.there else 0.0

    @property
    def f1(self) -> float:
        return 2 * self.right / (self.found + self.there) if self.right else 0.0


def count(
    truth: Iterable[Sequence[str]], guess: Iterable[Sequence[str]], scheme: str, strict: bool = False
) -> dict[str, Count]:
    """The counts of each type, by name. A span is right if both its ends and its type are."""
    right, predicted, there = Counter[str](), Counter[str](), Counter[str]()
    for a, b in zip(truth, guess, strict=True):
        own, guessed = set(spans(a, scheme, strict)), set(spans(b, scheme, strict))
        there.update(span.type for span in own)
        predicted.update(span.type for span in guessed)
        right.update(span.type for span in own & guessed)
    return {name: Count(right[name], predicted[name], there[name]) for name in sorted({*predicted, *there})}


def total(counts: dict[str, Count]) -> Count:
    """All types together."""
    return Count(*(sum(part) for part in zip(*counts.values(), strict=True))) if counts else Count(0, 0, 0)
