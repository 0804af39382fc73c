"""Spans and their counts against seqeval, in its default mode (conlleval's) and in its strict one, and by hand."""

from itertools import pairwise

import numpy as np
import pytest
from seqeval import metrics
from seqeval.metrics.sequence_labeling import get_entities
from seqeval.scheme import IOB2, IOBES, Entities

from elman.tasks.tag import schemes
from elman.tasks.tag.schemes import Span, spans

MARKS = {"iob1": "BI", "iob2": "BI", "iobes": "BIES"}


def sentences(scheme, n, seed, valid=False):
    """Tags at random, most of them malformed; or spans at random, well written."""
    random = np.random.default_rng(seed)
    for _ in range(n):
        T = int(random.integers(1, 12))
        if valid:
            cuts = sorted({0, T, *random.integers(0, T, 4).tolist()})
            found = [Span(a, b, str(random.choice(["X", "Y"]))) for a, b in pairwise(cuts) if random.random() < 0.7]
            yield schemes.write(found, T, scheme)
        else:
            tags = ["O", *(f"{mark}-{kind}" for mark in MARKS[scheme] for kind in "XY")]
            yield [str(tag) for tag in random.choice(tags, T)]


@pytest.mark.parametrize("scheme", MARKS)
def test_spans_are_those_of_the_shared_task(scheme):
    for tags in sentences(scheme, 500, 0):
        wanted = [Span(start, stop + 1, kind) for kind, start, stop in get_entities(tags)]
        assert spans(tags, scheme) == wanted, tags


@pytest.mark.parametrize("scheme, theirs", [("iob2", IOB2), ("iobes", IOBES)])
def test_strict_spans_are_those_of_seqeval(scheme, theirs):
    for tags in sentences(scheme, 500, 1):
        wanted = [Span(e.start, e.end, e.tag) for e in Entities([tags], theirs).entities[0]]
        assert spans(tags, scheme, strict=True) == wanted, tags


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("scheme, theirs", [("iob2", IOB2), ("iobes", IOBES)])
def test_scores_are_those_of_seqeval(scheme, theirs, strict):
    truth = list(sentences(scheme, 60, 2, valid=True))
    random = np.random.default_rng(3)
    others = list(sentences(scheme, 60, 4))
    guess = [
        [b[i % len(b)] if random.random() < 0.3 else tag for i, tag in enumerate(a)]
        for a, b in zip(truth, others, strict=True)
    ]
    counts = schemes.count(truth, guess, scheme, strict)
    mode = {"mode": "strict", "scheme": theirs} if strict else {}
    report = metrics.classification_report(truth, guess, output_dict=True, zero_division=0, **mode)
    for name, found in (*counts.items(), ("micro avg", schemes.total(counts))):
        for key, value in (("precision", found.precision), ("recall", found.recall), ("f1-score", found.f1)):
            assert value == pytest.approx(report[name][key]), (name, key)
        assert found.there == report[name]["support"]


@pytest.mark.parametrize("scheme", MARKS)
def test_what_is_written_is_read_again(scheme):
    for tags in sentences(scheme, 300, 5, valid=True):
        for other in MARKS:
            there = schemes.convert(tags, scheme, other)
            assert schemes.convert(there, other, scheme) == tags
            assert spans(there, other) == spans(there, other, strict=True)
        if any(tag != "O" for tag in tags) and scheme != "iob1":
            pairs = zip(["O", *tags], [*tags, "O"], strict=True)
            assert all(schemes.may_follow(a, b, scheme) for a, b in pairs)


@pytest.mark.parametrize("scheme", ["iob2", "iobes"])
def test_what_may_follow_is_what_is_well_formed(scheme):
    """A sentence whose every step is allowed has only well-formed spans, and every word with a mark is in one."""
    seen = {True: 0, False: 0}
    for tags in sentences(scheme, 3000, 6):
        tags = tags[:4]
        legal = all(schemes.may_follow(a, b, scheme) for a, b in zip(["O", *tags], [*tags, "O"], strict=True))
        covered = sum(span.stop - span.start for span in spans(tags, scheme, strict=True))
        assert legal == (covered == sum(tag != "O" for tag in tags)), tags
        seen[legal] += 1
    assert min(seen.values()) > 30


def test_by_hand():
    assert spans(["I-X", "I-X", "B-X", "O", "I-Y"], "iob1") == [Span(0, 2, "X"), Span(2, 3, "X"), Span(4, 5, "Y")]
    assert spans(["DET", "NOUN"], "none") == [Span(0, 1, "DET"), Span(1, 2, "NOUN")]
    counts = schemes.count([["B-X", "I-X", "O"]], [["B-X", "O", "B-Y"]], "iob2")
    assert counts == {"X": (0, 1, 1), "Y": (0, 1, 0)} and schemes.total(counts).f1 == 0
    assert schemes.find([["O", "O"]]) == "none" and schemes.find([["I-X", "B-X"]]) == "iob1"


def test_a_change_of_type_begins_no_b_in_iob1():
    """B-X stands there only where a span touches another of its own type."""
    touching = [Span(0, 2, "X"), Span(2, 3, "Y"), Span(3, 4, "Y"), Span(5, 6, "Y")]
    tags = ["I-X", "I-X", "I-Y", "B-Y", "O", "I-Y"]
    assert schemes.write(touching, 6, "iob1") == tags and spans(tags, "iob1") == touching
    assert schemes.convert(["B-X", "I-X", "B-Y", "B-Y", "O", "B-Y"], "iob2", "iob1") == tags
    assert schemes.find([["B-X", "I-Y"]]) == "iob1" and schemes.find([["B-X", "I-X", "B-Y"]]) == "iob2"
