"""ListOps (Nangia and Bowman, 2018): `python recipes/listops.py [FOLDER]` writes the files for recipes/listops.yaml.

Written from the paper's description, since its files are no package's. An expression is an operator, two to five
arguments and a closing bracket; an argument is a digit or, one time in four, an expression, at most 20 within one
another; its value is a digit. Operators are the least (MIN), the greatest (MAX), the median, rounded down (MED), and
the sum modulo 10 (SM). Its tree is that of the paper: a list grows from the left, an item at a time.

    [MAX 2 9 [MIN 4 7 ] 0 ]  is  ((((([MAX 2) 9) ((([MIN 4) 7) ])) 0) ]), whose value is 9

No expression is written twice, in any of the files. As in the paper 90,000 are to train on and 10,000 for the test;
1,000 more choose the model.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from pathlib import Path

PARTS = {"train": 90_000, "valid": 1_000, "test": 10_000}
OPERATORS: dict[str, Callable[[list[int]], int]] = {
    "[MIN": min,
    "[MAX": max,
    "[MED": lambda values: (sorted(values)[(len(values) - 1) // 2] + sorted(values)[len(values) // 2]) // 2,
    "[SM": lambda values: sum(values) % 10,
}
NESTED, DEPTH, MOST = 0.25, 20, 5


def expression(draw: random.Random, depth: int = 1) -> tuple[str, int]:
    """An expression as a tree in brackets, whose inner labels are "_", and its value."""
    name = draw.choice([*OPERATORS])
    written = f"(_ {name})"
    values: list[int] = []
    for _ in range(draw.randint(2, MOST)):
        if depth < DEPTH and draw.random() < NESTED:
            argument, value = expression(draw, depth + 1)
        else:
            value = draw.randrange(10)
            argument = f"(_ {value})"
        written, values = f"(_ {written} {argument})", [*values, value]
    return f"(_ {written} (_ ]))", OPERATORS[name](values)


def trees(seed: int, count: int) -> list[str]:
    """So many different ones, the value as the label of the root."""
    draw = random.Random(seed)
    made: dict[str, int] = {}
    while len(made) < count:
        written, value = expression(draw)
        made[written] = value
    return [f"({value}{written[2:]}" for written, value in made.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description="writes the trees of ListOps")
    parser.add_argument("folder", nargs="?", type=Path, default=Path("."), help="where to write them")
    folder = parser.parse_args().folder
    rows = iter(trees(0, sum(PARTS.values())))
    for part, count in PARTS.items():
        (folder / f"{part}.txt").write_text("".join(f"{next(rows)}\n" for _ in range(count)))


if __name__ == "__main__":
    main()
