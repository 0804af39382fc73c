"""Sequence to sequence: pairs of texts, encoder and decoder, the translator, its metrics, the task."""
