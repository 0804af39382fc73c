"""How well a translator does: perplexity, BLEU and chrF; what its own symbols as a past cost it; where it looks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from elman.errors import MissingExtraError
from elman.files.config import Json
from elman.tasks.translate import data as reading
from elman.tasks.translate.data import Pair
from elman.tasks.translate.model import EACH, Search, Translator
from elman.training.scores import Scores


def score(
    predictor: Translator, pairs: Sequence[Pair], search: Search, decides: str, batch_size: int = EACH
) -> tuple[Scores, list[str]]:
    """Perplexity per target symbol, and where it is not that which decides, BLEU and chrF of the translations made."""
    rows = reading.encode(pairs, predictor.symbols)
    nats, rates = torch.cat(predictor.nats(rows, batch_size)).double(), reading.unknown_rates(rows, predictor.symbols)
    numbers = {
        "perplexity": math.exp(min(float(nats.mean()), 700.0)), "tokens": len(nats), "sentences": len(pairs),
        "unknown_source": rates[0], "unknown_target": rates[1],
    }  # fmt: skip
    remark = reading.spelt_rates(*rates)  # a perplexity is low for nothing where much is unknown
    if decides == "perplexity":
        return Scores(numbers, "perplexity", remark=remark), []
    guess = [row[0].text for row in predictor.translations([pair.source for pair in pairs], search, batch_size)]
    numbers["exact"] = sum(a == pair.target for a, pair in zip(guess, pairs, strict=True)) / len(pairs)
    if decides == "exact":
        return Scores(numbers, "exact", larger_is_better=True, secondary=("perplexity",), remark=remark), guess
    details: dict[str, Json] = {}
    for name, metric in zip(("bleu", "chrf"), metrics(), strict=True):
        numbers[name] = metric.corpus_score(guess, [[pair.target or "" for pair in pairs]]).score
        details[f"{name}_signature"] = str(metric.get_signature())
    other = {"bleu": "chrf", "chrf": "bleu"}[decides]
    secondary = (other, "perplexity")
    return Scores(numbers, decides, larger_is_better=True, secondary=secondary, details=details, remark=remark), guess


def exposure(predictor: Translator, pairs: Sequence[Pair], batch_size: int = EACH) -> list[Json]:
    """By position t: the mean of log P(y[t] | the true symbols before), of log P(y[t] | the model's own), and their
    difference, the gap; over the pairs that have such a position."""
    rows = reading.encode(pairs, predictor.symbols)
    forced, own = (predictor.nats(rows, batch_size, own) for own in (False, True))
    buckets: list[Json] = []
    for t in range(max(map(len, forced))):
        a, b = (-sum(float(row[t]) for row in side if len(row) > t) for side in (forced, own))
        n = sum(len(row) > t for row in forced)
        buckets.append({"position": t, "sentences": n, "forced": a / n, "own": b / n, "gap": (a - b) / n})
    return buckets


def alignment_json(predictor: Translator, text: str, tokens: Sequence[int]) -> dict[str, Any]:
    """A translation's alignment with the symbols of both sides, the end of the target among them."""
    return predictor.aligned(text, tokens)._asdict()


def metrics() -> tuple[Any, Any]:
    """BLEU (13a, cased) and chrF2, as sacrebleu has them."""
    try:
        from sacrebleu.metrics import BLEU, CHRF
    except ImportError as error:
        raise MissingExtraError("sacrebleu", "translate") from error
    return BLEU(), CHRF()
