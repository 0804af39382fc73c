"""Trees with labels: in brackets, (3 (2 It) (4 (2 's) (4 lovely))), or dependencies in CoNLL-U.

In brackets every node has a label, then a word or its children; trees may be one a line or over several. In CoNLL-U
every word is a node, its head its parent, and a column its label ("_" is none).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from elman.data import splits
from elman.data.text import lines_of, open_text, read_documents
from elman.errors import InputError
from elman.options import choice
from elman.tasks.tag.data import Column, Sentence, TagReader, is_conllu
from elman.tasks.tree.forest import Shape, shape

FORMATS = ("auto", "brackets", "conllu")
_TOKENS = re.compile(r"[()]|[^ \t\r\f\v()]+")  # other spaces, as U+00A0, may be in a word


class LabelledTree(NamedTuple):
    """Nodes with their parents, words and labels; "" where a node has none."""

    shape: Shape
    words: Sequence[str]
    labels: Sequence[str]
    where: str = ""
    number: int = 0

    @property
    def root(self) -> int:
        return int((self.shape.parents < 0).argmax())

    @property
    def height(self) -> int:
        return int(self.shape.heights.max())

    def _repr_html_(self) -> str:
        from elman.tasks.tree.plots import html

        return html(self)


@dataclass(frozen=True)
class TreeReader:
    """How trees are read, as the data section of a config says it (`TreeDataConfig`)."""

    format: str = "auto"
    tag: Column = "deprel"
    errors: str = "strict"

    def __call__(self, names: Sequence[str], *, labelled: bool = True) -> list[LabelledTree]:
        """The trees of some files; `labelled` says whether nodes in brackets must have labels."""
        choice("data.format", self.format, FORMATS)
        trees: list[LabelledTree] = []
        for name in names:
            format = self.format if self.format != "auto" else _guess(name, self.errors)
            if format == "conllu":
                sentences = TagReader("conllu", "form", self.tag, ("head",), self.errors)([name], tagged=labelled)
                trees.extend(_dependencies(sentence) for sentence in sentences)
            else:
                for file, text in read_documents([name], self.errors):
                    trees.extend(read_brackets(text, file, labelled))
        return [tree._replace(number=i) for i, tree in enumerate(trees)]


def _guess(name: str, errors: str) -> str:
    if Path(name.removesuffix(".gz")).suffix.lower() == ".conllu":
        return "conllu"
    head = next((piece for _, piece in open_text([name], errors).pieces()), "")  # a megabyte at most
    return "conllu" if is_conllu(lines_of(head)) else "brackets"


def fingerprint(trees: Iterable[LabelledTree]) -> str:
    """sha256 of parents, words and labels, in order."""
    return splits.fingerprint(
        json.dumps([tree.shape.parents.tolist(), [*tree.words], [*tree.labels]]).encode() for tree in trees
    )


def read_brackets(text: str, name: str = "the text", labelled: bool = True) -> list[LabelledTree]:
    """The trees of a text, nodes numbered in post-order.

    >>> read_brackets("(3 (2 It) (4 works))")[0].labels
    ['2', '4', '3']
    """
    trees: list[LabelledTree] = []
    tree = _Open(name, labelled)
    for line_number, line in enumerate(lines_of(text), 1):
        for token in _TOKENS.finditer(line):
            at = line_number, token.start() + 1
            if token[0] == "(":
                tree.begin(at)
            elif token[0] == ")":
                tree.end(at)
                if not tree.waiting:
                    trees.append(tree.finish())
                    tree = _Open(name, labelled)
            else:
                tree.atom(token[0], at)
    if tree.waiting:
        raise InputError(f"{tree.place(tree.waiting[-1].at)}: this bracket is never closed")
    return trees


class _Node(NamedTuple):
    at: tuple[int, int]  # line and column of its bracket
    atoms: list[str]  # its label and its word
    children: list[int]


class _Open:
    """A tree that is being read: nodes whose brackets are open, and those that are done."""

    def __init__(self, name: str, labelled: bool) -> None:
        self.name, self.labelled = name, labelled
        self.waiting: list[_Node] = []
        self.parents: list[int] = []
        self.words: list[str] = []
        self.labels: list[str] = []
        self.where = ""

    def place(self, at: tuple[int, int]) -> str:
        return f"line {at[0]}, column {at[1]} of {self.name}"

    def begin(self, at: tuple[int, int]) -> None:
        if self.waiting and len(self.waiting[-1].atoms) > 1:
            raise InputError(f"{self.place(at)}: a node has a word, {self.waiting[-1].atoms[1]!r}, and a child as well")
        if not self.waiting:
            self.where = f"line {at[0]} of {self.name}"
        self.waiting.append(_Node(at, [], []))

    def atom(self, text: str, at: tuple[int, int]) -> None:
        if not self.waiting:
            raise InputError(f"{self.place(at)}: {text!r} is outside all brackets")
        node = self.waiting[-1]
        if len(node.atoms) == 2 or node.children:
            raise InputError(
                f"{self.place(at)}: {text!r} is one word too many; a node is (label word) or (label (...) (...))"
            )
        node.atoms.append(text)

    def end(self, at: tuple[int, int]) -> None:
        if not self.waiting:
            raise InputError(f"{self.place(at)}: this bracket closes nothing")
        node = self.waiting.pop()
        label, word = self._label_and_word(node)
        for child in node.children:
            self.parents[child] = len(self.parents)
        if self.waiting:
            self.waiting[-1].children.append(len(self.parents))
        self.parents.append(-1)
        self.words.append(word)
        self.labels.append(label)

    def _label_and_word(self, node: _Node) -> tuple[str, str]:
        wanted = 1 if node.children else 2
        if len(node.atoms) == wanted:
            return node.atoms[0], "" if node.children else node.atoms[1]
        if not self.labelled and len(node.atoms) == wanted - 1:
            return "", "" if node.children else node.atoms[0]
        if not node.children and not node.atoms:
            raise InputError(f"{self.place(node.at)}: there is nothing between these brackets")
        raise InputError(
            f"{self.place(node.at)}: this node has no label; it must be (label word) or (label (...) (...))"
        )

    def finish(self) -> LabelledTree:
        reads = [bool(word) for word in self.words]
        return LabelledTree(shape(self.parents, reads), self.words, self.labels, self.where)


def _dependencies(sentence: Sentence) -> LabelledTree:
    """Words as nodes, in their own order."""
    n, parents = len(sentence.words), []
    for i, (word, head) in enumerate(zip(sentence.words, sentence.features[0], strict=True), 1):
        if not head.isdecimal() or int(head) > n:
            raise InputError(
                f"the sentence at {sentence.where}: word {i}, {word!r}, has the head {head!r}; it must be 0 for the "
                f"root, or the number of a word, 1 to {n}"
            )
        parents.append(int(head) - 1)
    roots = [i for i, parent in enumerate(parents, 1) if parent < 0]
    if len(roots) > 1:
        raise InputError(f"the sentence at {sentence.where} has the roots {roots}; a tree has one")
    if not roots:
        raise InputError(f"the sentence at {sentence.where} has no root: no word has the head 0, so heads form a cycle")
    try:
        made = shape(parents)
    except InputError as error:
        raise InputError(f"the sentence at {sentence.where} is not a tree, its heads form a cycle: {error}") from error
    labels = ["" if tag == "_" else tag for tag in sentence.tags] or [""] * n
    return LabelledTree(made, sentence.words, labels, sentence.where)
