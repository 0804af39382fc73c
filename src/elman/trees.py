"""Recursions over trees, under their public name."""

from elman.tasks.tree import TREES, Climb, Forest, ShiftReduce, TreeCore, climbs, deepest, shape, steps, tree

__all__ = ["TREES", "Climb", "Forest", "ShiftReduce", "TreeCore", "climbs", "deepest", "shape", "steps", "tree"]
