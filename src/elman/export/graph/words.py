"""What stands before the core of a tagger: the words of sentences with their case, features and characters.

Each is an input of the graph: x (B, T), case (B, T), features (B, T, F), characters (B, T, C) and sizes (B, T), how
many of those count. The characters of each word are a sequence of their own: a graph of B * T rows inside the other.
"""

from __future__ import annotations

from typing import cast

import numpy as np

from elman.export.graph.loops import Unroller
from elman.export.graph.record import Input
from elman.export.graph.recorder import Recorder, leaves_of
from elman.export.graph.sequences import Sequences
from elman.kernels.builder import Slot
from elman.nn.embed import Embedding
from elman.tasks.tag.word_features import Characters, SentenceEmbedding


def embedded(record: Recorder, embed: SentenceEmbedding) -> Slot:
    """All of them side by side."""
    parts = [record.lookup(embed.words.weight)]
    if embed.case is not None:
        parts.append(record.read_symbols("case", embed.case.weight))
    if len(embed.features):
        parts.append(_features(record, embed))
    if embed.characters is not None:
        parts.append(_characters(record, embed.characters))
    return record.concat(parts) if len(parts) > 1 else parts[0]


def _features(record: Recorder, embed: SentenceEmbedding) -> Slot:
    tables = [cast(Embedding, each).weight for each in embed.features]

    def make(g: Sequences, x: str) -> str:
        columns = [g.add("Gather", x, g.store.array(np.asarray(i)), axis=2) for i in range(len(tables))]
        rows = [g.add("Gather", g.array(t), column, axis=0) for t, column in zip(tables, columns, strict=True)]
        return g.add("Concat", *rows, axis=-1)

    inputs = [Input("features", (len(tables),), tuple(len(table) for table in tables))]
    return record.read(inputs, sum(table.shape[1] for table in tables), make)


def _characters(record: Recorder, characters: Characters) -> Slot:
    """[left at the last, right at the first], zeros where a word has none."""
    inner = Recorder(record.dtype, domain=record.domain)
    leaves = leaves_of(inner, characters.core)
    y = characters.core.describe_step(inner, inner.lookup(characters.embed.weight), leaves)
    [source], H = inner.sources, characters.size

    def make(g: Sequences, x: str, sizes: str) -> str:
        last = inner.now(y)
        unroller = Unroller(inner, [last])
        rows = g.add("Reshape", x, g.add("Concat", g.whole([-1]), g.add("Shape", x, start=2), axis=0))
        lengths = g.add("Reshape", sizes, g.whole([-1]))
        words = Sequences(g.store, rows, lengths)
        words.begin(inner.leaves.values())
        unroller.run(words, {source.value: cast(str, source.make(words, rows))})
        found = words.masked(unroller.names[last])
        zero = words.add("Mul", lengths, words.whole([0]))
        end = words.add("Max", words.add("Sub", lengths, words.whole([1])), words.whole([0]))
        left = words.at(words.cut(found, 0, H), end)
        right = words.at(words.cut(found, H, characters.output_size), zero)
        both = words.add("Concat", left, right, axis=1)
        g.nodes += words.nodes
        shape = g.add("Concat", g.add("Shape", sizes), g.whole([characters.output_size]), axis=0)
        return g.add("Reshape", both, shape)

    inputs = [Input("characters", (None,), len(characters.embed.weight)), Input("sizes", (), 2**31)]
    return record.read(inputs, characters.output_size, make)
