"""Matrix states as one node, LinearAttention, where ours are its equations to the letter.

    ours                                           update_rule
    S = S' + k v^T                                 linear
    S = diag(a) S' + k v^T                         gated
    S = S' + k (b (v - S'^T k))^T                  delta
    S = diag(a) S' + k (b (v - (a * k)^T S'))^T    gated_delta

The node reads log a, by head or by key, and a query and a key for each head. It knows neither lengths nor resets: past
the lengths nothing is forgotten and nothing is written here; where there are resets, a loop stands in its place, as it
does for a correction of any other kind.
"""

from __future__ import annotations

from dataclasses import dataclass

from elman.export.graph.sequences import Sequences

STANDARD, MICROSOFT = "", "com.microsoft"  # whose operation it is
SINCE = 27  # the version of ONNX's operations that has it


@dataclass
class LinearAttention:
    """The node; `shape` = (H, K, V) as `Builder.matrix` has it, of `groups` of heads that share a query and a key."""

    domain: str
    shape: tuple[int, int, int]
    groups: int
    gated: bool  # whether there is a
    delta: bool  # whether there is b
    leaf: str

    def __call__(self, g: Sequences, q: str, k: str, v: str, *gates: str) -> str:
        """Append the node, which reads sequences (B, T, heads side by side): the name of y. S is noted in the graph."""
        (H, K, V), [*rest] = self.shape, gates
        decay = g.masked(g.add("Log", rest.pop(0))) if self.gated else ""
        before = g.add("Reshape", g.before[self.leaf], g.whole([0, H, K, V]))
        inputs = [self._each_head(g, q), self._each_head(g, k), g.masked(v), before, decay, *map(g.masked, rest)]
        while not inputs[-1]:
            inputs.pop()
        g.store.domains.add(self.domain)
        rule = {(False, False): "linear", (True, False): "gated", (False, True): "delta", (True, True): "gated_delta"}
        y, after = g.add(
            "LinearAttention", *inputs, outputs=2, domain=self.domain, q_num_heads=H, kv_num_heads=H, scale=1.0,
            update_rule=rule[self.gated, self.delta],
        )  # fmt: skip
        g.after[self.leaf] = g.add("Reshape", after, g.whole([0, H * K * V]))
        return str(y)

    def _each_head(self, g: Sequences, x: str) -> str:
        """One for each head, where a group of them has one."""
        (H, K, _), G, x = self.shape, self.groups, g.masked(x)
        if G == H:
            return x
        spread = g.add("Expand", g.add("Reshape", x, g.whole([0, 0, G, 1, K])), g.whole([1, 1, 1, H // G, 1]))
        return str(g.add("Reshape", spread, g.whole([0, 0, H * K])))
