"""Searches: many runs of one config, with values from a space, of which the better ones go on for longer."""
