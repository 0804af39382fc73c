"""What is given to native code is checked before it is read."""

import pytest
import torch

import elman
from elman.compose.attention import Additive
from elman.kernels.native import attention


def test_a_node_of_the_graph_keeps_its_name():
    y, _ = elman.cell("s4d", 3, 3).scan(torch.randn(1, 4, 3, requires_grad=True))
    nodes, seen = [y.grad_fn], set()
    while nodes:
        node = nodes.pop()
        if node is not None and node not in seen:
            seen.add(node)
            assert isinstance(node.name(), str)
            nodes += [before for before, _ in node.next_functions]
    assert len(seen) > 2


def test_a_loop_with_attention_has_its_weights(monkeypatch):
    decoder = Additive(elman.cell("lstm", 3 + 5, 4), 5)
    bound = decoder.given(torch.randn(2, 7, 5))
    inputs = attention._inputs
    monkeypatch.setattr(
        attention, "_inputs", lambda kind, u, loop, memory: inputs(kind, u, loop._replace(w=None), memory)
    )
    with torch.no_grad(), pytest.raises(elman.ElmanError, match="one of them is None"):
        bound.scan(torch.randn(2, 6, 3))
