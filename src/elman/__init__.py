"""Recurrent sequence models whose state you own."""

__version__ = "0.1.0"
