"""Treebanks for the tests of trees."""

import numpy as np

WORDS = [("good", 4), ("fine", 3), ("poor", 1), ("bad", 0), ("it", 2), ("film", 2)]


def polarity(random, depth):
    """A phrase and its label: `not` turns good (4) and bad (0) round; other words are neutral (2)."""
    if depth == 0 or random.random() < 0.2:
        word, label = WORDS[int(random.integers(len(WORDS)))]
        return f"({label} {word})", label
    if random.random() < 0.3:
        inner, label = polarity(random, depth - 1)
        return f"({4 - label} (2 not) {inner})", 4 - label
    (a, left), (b, right) = polarity(random, depth - 1), polarity(random, depth - 1)
    label = min(4, max(0, left + right - 2))
    return f"({label} {a} {b})", label


def write(path, n, seed=0):
    random = np.random.default_rng(seed)
    path.write_text("".join(polarity(random, 3)[0] + "\n" for _ in range(n)))
    return str(path)
