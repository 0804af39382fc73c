"""Tagging: sentences and their schemes, word features, the tagger, the task."""
