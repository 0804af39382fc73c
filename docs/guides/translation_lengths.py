"""The table and the figure of docs/guides/translation.md: how well runs translate short and long sentences.

python docs/guides/translation_lengths.py test.en test.de attention=runs/a "vector at the start"=runs/b ...

Every run translates all sources with a beam of 5; BLEU and chrF are sacrebleu's, cased, 13a. Each range of lengths
(words of the source) is scored as a corpus of its own.
"""

import argparse
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path

import elman
from elman.tasks.translate.data import Pair, PairReader
from elman.tasks.translate.metrics import metrics, score
from elman.tasks.translate.model import Search, Translator

EDGES = (8, 10, 12, 14, 17, 21)  # words at which a range begins; the first range begins at 1


def ranges(pairs: Sequence[Pair]) -> dict[str, list[int]]:
    """Which pairs lie in each range of source lengths; those without any are left out."""
    ends = [*(edge - 1 for edge in EDGES), None]
    names = [f"{first} to {last}" if last else f"{first} up" for first, last in zip((1, *EDGES), ends, strict=True)]
    found: dict[str, list[int]] = {name: [] for name in names}
    for i, pair in enumerate(pairs):
        found[names[bisect_right(EDGES, len(pair.source.split()))]].append(i)
    return {name: rows for name, rows in found.items() if rows}


def bleu(guess: Sequence[str], pairs: Sequence[Pair], rows: Sequence[int]) -> float:
    score: float = metrics()[0].corpus_score([guess[i] for i in rows], [[pairs[i].target or "" for i in rows]]).score
    return score


def row(name: str, run: str, pairs: Sequence[Pair], by_length: dict[str, list[int]]) -> list[float]:
    """Print the line of a run; its BLEU in each range."""
    translator = elman.load(run)
    if not isinstance(translator, Translator):
        raise SystemExit(f"{run} is not a translator")
    scores, guess = score(translator, pairs, Search(num_beams=5), "bleu")
    found = [bleu(guess, pairs, rows) for rows in by_length.values()]
    parameters = sum(p.numel() for p in translator.model.parameters()) / 1e6
    first = [f"{parameters:.1f} M", *(f"{scores.numbers[key]:.2f}" for key in ("perplexity", "chrf", "bleu"))]
    print(f"| {name} | {' | '.join([*first, *(f'{value:.1f}' for value in found)])} |", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", help="a file of sources")
    parser.add_argument("target", help="a file of their translations")
    parser.add_argument("runs", nargs="+", metavar="NAME=RUN")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "translation-lengths.svg")
    given = parser.parse_args()

    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "elman"  # the same bytes each time
    from matplotlib import pyplot as plt

    pairs = PairReader()([given.source], [given.target])
    by_length = ranges(pairs)
    counts = [f"{name} ({len(rows)})" for name, rows in by_length.items()]
    print(f"| run | parameters | perplexity | chrF | BLEU | {' | '.join(counts)} |\n{'|---' * (5 + len(counts))}|")
    figure, axes = plt.subplots(figsize=(6.4, 3.6))
    for name, _, run in (one.partition("=") for one in given.runs):
        axes.plot(list(by_length), row(name, run, pairs, by_length), "-o", markersize=4, label=name)
    axes.set(xlabel="words of the source", ylabel="BLEU", ylim=(0, None))
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(given.out, metadata={"Date": None})


if __name__ == "__main__":
    main()
